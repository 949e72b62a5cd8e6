"""Tool results of Anthropic messages as files: one readable `.md` per result, named after its call."""

from __future__ import annotations

import copy
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from offload.agent.presets._files import local_path, mapped_errors, read_regular, sync_folder, write_new
from offload.agent.presets._javascript import length, stringify
from offload.base.system import is_own
from offload.errors import MessageError
from offload.storage.layout import encode_part

__all__ = [
    "ContentBlock",
    "OffloadedToolResults",
    "TextBlock",
    "ToolResultBlock",
    "ToolResultMessage",
    "ToolUseBlock",
    "offload_tool_results",
]

MIN_CHARS = 100

_ORDINARY_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")

M = TypeVar("M")


class TextBlock(TypedDict):
    """A text in a message."""

    type: Literal["text"]
    text: str


class ToolUseBlock(TypedDict):
    """A tool call in an assistant message."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(TypedDict):
    """A tool result in a user message."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[ContentBlock]
    is_error: NotRequired[bool]


ContentBlock = TextBlock | ToolUseBlock | ToolResultBlock


class ToolResultMessage(TypedDict):
    """A message in the structure of Anthropic's API."""

    role: Literal["user", "assistant"]
    content: list[ContentBlock]


@dataclass(frozen=True, slots=True)
class OffloadedToolResults(Generic[M]):
    """Outcome of `offload_tool_results`.

    Attributes:
        messages: the new list; an unchanged message is the same object as before.
        offloaded_count: number of offloaded tool results.
        freed_chars: total characters of these results.
        files: absolute path of each result's file, in the order of the results.
    """

    messages: list[M]
    offloaded_count: int
    freed_chars: int
    files: list[str]


def offload_tool_results(
    messages: Iterable[M], output_dir: str | os.PathLike[str]
) -> OffloadedToolResults[M]:
    """Write each tool result of at least 100 characters to a file, and replace it by the file name.

    The file contains the text, or the compact JSON of a list of blocks. Characters are counted in UTF-16, and
    numbers are written, as in JavaScript. The file is `tool-result-{tool_use_id}.md`; an id that is not a
    plain file name is encoded. Further results of one id get `-1`, `-2` and so on, as does a result whose
    file name exists with other content or belongs to another user. The same messages and folder give the same
    files and messages again.

    Files are complete, durable and readable only by their owner, and no link is followed. All messages are
    read before the first file is written. After a failure, the next call finds the files written so far. A
    killed process may add one file whose name starts with `unnamed-`.

    Args:
        messages: Anthropic messages as dicts, oldest first: `ToolResultMessage` or dicts of this structure.
            They are not changed. Only blocks of type `tool_result` with a text or a list of blocks are
            offloaded.
        output_dir: a local folder, created with its parents by the first file, for this user alone. An
            existing folder is taken as it is: who else may write to it can replace or delete the files. Its
            file system must support hard links.

    Returns:
        The new messages, in which an offloaded result reads `[Content offloaded to: ./{file name}]`. A
        changed message is a deep copy.

    Raises:
        MessageError: `messages` is not a list, a large result has no string `tool_use_id`, or its blocks are
            not valid JSON.
        StoreError: a file could not be written.
        ConfigError: `output_dir` is not a path, is a URL or contains a NUL character.
    """
    # A text or a single message is iterable too, and would count as messages without a large result.
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise MessageError(f"expected a list of messages, got {type(messages).__name__}")
    messages = list(messages)
    large = [list(_large_results(message, f"messages[{n}]")) for n, message in enumerate(messages)]
    results = list(chain.from_iterable(large))
    folder = local_path(output_dir, "output_dir")
    names = _write(folder, results) if results else []
    unused = iter(names)
    references = [{result.block: next(unused) for result in of_message} for of_message in large]
    return OffloadedToolResults(
        messages=[_referring(m, to) if to else m for m, to in zip(messages, references, strict=True)],
        offloaded_count=len(results),
        freed_chars=sum(length(result.text) for result in results),
        files=[str(folder / name) for name in names],
    )


@dataclass(frozen=True, slots=True)
class _LargeResult:
    """A tool result to offload, and the index of its block in its message."""

    block: int
    tool_use_id: str
    text: str


def _large_results(message: Any, where: str) -> Iterator[_LargeResult]:
    content = message.get("content") if isinstance(message, dict) else None
    for i, block in enumerate(content if isinstance(content, list | tuple) else ()):
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            continue
        place = f"{where}.content[{i}]"
        text = _text_of(block.get("content"), place)
        if length(text) < MIN_CHARS:
            continue
        call = block.get("tool_use_id")
        if not isinstance(call, str):
            raise MessageError(f'{place}: a tool_result needs a string "tool_use_id", got {call!r:.40}')
        if not _is_reference(text, call):
            yield _LargeResult(i, call, text)


def _text_of(content: Any, where: str) -> str:
    """Return the file content for a tool result, empty if the result cannot be offloaded."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    try:
        return stringify(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"{where}.content: blocks must be valid JSON: {error}") from error


def _referring(message: Any, names: dict[int, str]) -> Any:
    """Return a deep copy of `message` whose blocks at the indices in `names` refer to these files."""
    copied = copy.deepcopy(message)
    copied["content"] = [
        {**block, "content": reference_to(names[i])} if i in names else block
        for i, block in enumerate(copied["content"])
    ]
    return copied


def reference_to(name: str) -> str:
    """Return the text that replaces the result in the file `name`."""
    return f"[Content offloaded to: ./{name}]"


def _is_reference(text: str, tool_use_id: str) -> bool:
    """Return whether `text` is a placeholder of this module; one with a long id reaches the minimum size."""
    stem = re.escape(_stem(tool_use_id))
    return re.fullmatch(rf"\[Content offloaded to: \./{stem}(-[0-9]+)?\.md\]", text) is not None


def _stem(tool_use_id: str) -> str:
    is_ordinary = _ORDINARY_ID.fullmatch(tool_use_id)
    return "tool-result-" + (tool_use_id if is_ordinary else encode_part(tool_use_id))


def _names(stem: str) -> Iterator[str]:
    yield f"{stem}.md"
    yield from (f"{stem}-{number}.md" for number in count(1))


def _write(path: Path, results: Iterable[_LargeResult]) -> list[str]:
    """Write a file for each result; return the names, which all differ, once the files are durable."""
    names: dict[str, None] = {}
    numbered: dict[str, Iterator[str]] = {}
    with mapped_errors(path):
        _make_folder(path)
        for result in results:
            data = result.text.encode("utf-8", "surrogatepass")
            stem = _stem(result.tool_use_id)
            # The iterator is kept, so that names in use are not tried again for the next result.
            tries = numbered.setdefault(stem, _names(stem))
            names[next(n for n in tries if n not in names and _make(path / n, data))] = None
        sync_folder(path)
    return list(names)


def _make_folder(path: Path) -> None:
    if not path.parent.exists():
        _make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(0o700)
        sync_folder(path.parent)


def _make(path: Path, data: bytes) -> bool:
    """Write `data` to the file `path` if there is none; return whether it contains `data`."""
    found = _found(path, len(data))
    if found is None:
        _create(path, data)
        found = _found(path, len(data))
    return found == data


def _found(path: Path, size: int) -> bytes | None:
    """Return what this user's file contains, empty if it is another one, or None if there is none."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    is_candidate = stat.S_ISREG(info.st_mode) and is_own(info) and info.st_size == size
    return read_regular(path) if is_candidate else b""


def _create(path: Path, data: bytes) -> None:
    """Write a file under another name and link it to `path`, which never overwrites."""
    unnamed = path.with_name(f"unnamed-{secrets.token_hex(8)}")
    try:
        write_new(unnamed, data)
        # Another writer may have been first, with the same or other content.
        with suppress(FileExistsError):
            path.hardlink_to(unnamed)
    finally:
        unnamed.unlink(missing_ok=True)
