"""Tool results of Anthropic messages as files: one readable `.md` per result, named after its call."""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from offload.errors import MessageError
from offload.layout import encode_part
from offload.presets._files import local_path, mapped_errors, sync_folder
from offload.registry import open_store
from offload.store import OffloadStore

MIN_CHARS = 100

_ORDINARY_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class OffloadedToolResults:
    """Outcome of `offload_tool_results`.

    Attributes:
        messages: the new list; an unchanged message is the same object as before.
        offloaded_count: number of offloaded tool results.
        freed_chars: total characters of these results.
        files: absolute path of each result's file, in the order of the results.
    """

    messages: list[Any]
    offloaded_count: int
    freed_chars: int
    files: list[str]


def offload_tool_results(messages: Iterable[Any], output_dir: str | os.PathLike[str]) -> OffloadedToolResults:
    """Write each tool result of at least 100 characters to a file, and replace it by the file name.

    The file contains the text, or the compact JSON of a list of blocks. Characters are counted in UTF-16, as
    in JavaScript. The file is `tool-result-{tool_use_id}.md`; an id that is not a plain file name is encoded.
    Further results of one id get `-1`, `-2` and so on, as does a result whose file name exists with other
    content. The same messages and folder give the same files and messages again.

    Files are complete, durable and readable only by their owner. All messages are read before the first file
    is written. After a failure, the next call finds the files written so far. A killed process may add one
    file whose name starts with `unnamed-`.

    Args:
        messages: Anthropic messages as dicts, oldest first. They are not changed. Only blocks of type
            `tool_result` with a text or a list of blocks are offloaded.
        output_dir: a local folder, created with its parents by the first file. Only this user may have write
            access, and its file system must support hard links.

    Returns:
        The new messages, in which an offloaded result reads `[Content offloaded to: ./{file name}]`. A
        changed message is a deep copy.

    Raises:
        MessageError: a large result has no string `tool_use_id`, or its blocks are not valid JSON.
        StoreError: a file could not be written.
        ConfigError: `output_dir` is a URL or contains a NUL character.
    """
    messages = list(messages)
    large = [list(_large_results(message, f"messages[{n}]")) for n, message in enumerate(messages)]
    results = list(chain.from_iterable(large))
    folder = local_path(output_dir, "output_dir")
    names = _write(folder, results)
    unused = iter(names)
    references = [{result.block: next(unused) for result in of_message} for of_message in large]
    return OffloadedToolResults(
        messages=[_referring(m, to) if to else m for m, to in zip(messages, references, strict=True)],
        offloaded_count=len(results),
        freed_chars=sum(_length(result.text) for result in results),
        files=[str(folder / name) for name in names],
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """A tool result to offload, and the index of its block in its message."""

    block: int
    tool_use_id: str
    text: str


def _large_results(message: Any, where: str) -> Iterator[_Result]:
    content = message.get("content") if isinstance(message, dict) else None
    for i, block in enumerate(content if isinstance(content, list | tuple) else ()):
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            continue
        place = f"{where}.content[{i}]"
        text = _text_of(block.get("content"), place)
        if _length(text) < MIN_CHARS:
            continue
        call = block.get("tool_use_id")
        if not isinstance(call, str):
            raise MessageError(f'{place}: a tool_result needs a string "tool_use_id", got {call!r:.40}')
        if not _is_reference(text, call):
            yield _Result(i, call, text)


def _text_of(content: Any, where: str) -> str:
    """Return the file content for a tool result, empty if the result cannot be offloaded."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_fields_of)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"{where}.content: blocks must be valid JSON: {error}") from error
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):x}", text)


def _fields_of(block: Any) -> Any:
    """Return the fields of an SDK object."""
    if hasattr(block, "model_dump"):
        return block.model_dump(mode="json", exclude_unset=True, warnings=False)
    raise TypeError(f"got {type(block).__name__}")


def _length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _referring(message: Any, names: dict[int, str]) -> Any:
    """Return a deep copy of `message` whose blocks at the indices in `names` refer to these files."""
    copied = copy.deepcopy(message)
    copied["content"] = [
        {**block, "content": f"[Content offloaded to: ./{names[i]}]"} if i in names else block
        for i, block in enumerate(copied["content"])
    ]
    return copied


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


def _write(folder: Path, results: Iterable[_Result]) -> list[str]:
    """Write a file for each result; return the names, which all differ, once the files are durable."""
    names: dict[str, None] = {}
    numbered: dict[str, Iterator[str]] = {}
    store: OffloadStore | None = None
    for result in results:
        # Finding a backend is slower than finding that no result is large.
        store = store or open_store(folder)
        data = result.text.encode("utf-8", "surrogatepass")
        stem = _stem(result.tool_use_id)
        # The iterator is kept, so that names in use are not tried again for the next result.
        tries = numbered.setdefault(stem, _names(stem))
        names[next(n for n in tries if n not in names and _make(store, folder / n, data))] = None
    if names:
        with mapped_errors(folder):
            sync_folder(folder)
    return list(names)


def _make(store: OffloadStore, path: Path, data: bytes) -> bool:
    """Write `data` to `path` if nothing is there; return whether `path` contains `data`."""
    with mapped_errors(path):
        if not path.exists():
            _create(store, path, data)
        info = path.lstat()
        return stat.S_ISREG(info.st_mode) and info.st_size == len(data) and path.read_bytes() == data


def _create(store: OffloadStore, path: Path, data: bytes) -> None:
    """Write a file; its hard link gives it a name that no store key can have, and never overwrites."""
    key = f"unnamed-{secrets.token_hex(8)}"
    store.put(key, data)
    try:
        # Another writer may have been first, with the same or other content.
        with suppress(FileExistsError):
            path.hardlink_to(path.with_name(key))
    finally:
        store.delete(key)
