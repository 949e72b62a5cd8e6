"""Tool results of Anthropic messages as files: one readable `.md` per result, named after its call.

For an agent that reads files with a tool of its own: the message keeps the file's name and nothing else.
When to call is the caller's to decide. What left is not put back: `offload.Offloader` does that, for any
store.
"""

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
from itertools import count
from pathlib import Path
from typing import Any

from offload.errors import ConfigError, MessageError
from offload.keys import encode_part
from offload.locks import cached
from offload.presets._files import mapped_errors
from offload.registry import open_store
from offload.store import OffloadStore

MIN_CHARS = 100

_ORDINARY_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class OffloadedToolResults:
    """What `offload_tool_results` did.

    Attributes:
        messages: the new list; a message in which nothing left is the same object as before.
        offloaded_count: how many tool results left.
        freed_chars: how many characters they had together.
        files: the absolute path of each one's file, in the order of the results.
    """

    messages: list[Any]
    offloaded_count: int
    freed_chars: int
    files: list[str]


def offload_tool_results(messages: Iterable[Any], output_dir: str | os.PathLike[str]) -> OffloadedToolResults:
    """Write each tool result of at least 100 characters to a file, and leave the file's name in its place.

    A text is written as it is, a list of blocks as its JSON without spaces. Characters are those of
    that text, counted in UTF-16 as JavaScript counts them: an emoji is two. The file is
    `tool-result-{tool_use_id}.md`; an id that is no plain file name is encoded. Further results of one id
    get `-1`, `-2` and so on, and so does one whose name is taken by a file of other content, for no
    file is ever overwritten. The same messages and folder give the same files and messages again.

    Files are whole, durable and readable by their owner alone. Nothing is written before all messages
    are read; a failure leaves the files written so far, which the next call finds. A process that is
    killed may leave one more, whose name begins with `unnamed-`.

    Args:
        messages: Anthropic messages as dicts, oldest first; they are not changed. What is no block of
            type `tool_result` with a text or a list of blocks stays as it is.
        output_dir: a local folder, made with its parents by the first file. It must not be writable by
            others, and its file system must know hard links.

    Returns:
        The new messages, in which a result that left reads `[Content offloaded to: ./{file name}]`, and
        what left. A message that changed is a deep copy.

    Raises:
        MessageError: a result that should leave has no string `tool_use_id`, or blocks that are no JSON.
        StoreError: a file could not be written.
        ConfigError: `output_dir` is a URL or holds a NUL character.
    """
    messages = list(messages)
    large = [list(_large_results(message, f"messages[{n}]")) for n, message in enumerate(messages)]
    folder = _OutputFolder(output_dir)
    names = [{result.block: folder.add(result) for result in results} for results in large]
    folder.sync()
    return OffloadedToolResults(
        messages=[_referring(m, to) if to else m for m, to in zip(messages, names, strict=True)],
        offloaded_count=len(folder.files),
        freed_chars=sum(_length(result.text) for results in large for result in results),
        files=folder.files,
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """A tool result that leaves, and the index of its block in its message."""

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
    """Return what the file of a tool result would hold; nothing for a content that stays anyway."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_fields_of)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"{where}.content: expected blocks that JSON can hold: {error}") from error
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):x}", text)


def _fields_of(block: Any) -> Any:
    """Return the fields of an SDK's object."""
    if hasattr(block, "model_dump"):
        return block.model_dump(mode="json", exclude_unset=True, warnings=False)
    raise TypeError(f"a {type(block).__name__} is none")


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
    """Tell whether `text` is what this module leaves behind: with a long id it is long enough to leave."""
    stem = re.escape(_stem(tool_use_id))
    return re.fullmatch(rf"\[Content offloaded to: \./{stem}(-[0-9]+)?\.md\]", text) is not None


def _stem(tool_use_id: str) -> str:
    is_ordinary = _ORDINARY_ID.fullmatch(tool_use_id)
    return "tool-result-" + (tool_use_id if is_ordinary else encode_part(tool_use_id))


def _names(stem: str) -> Iterator[str]:
    yield f"{stem}.md"
    yield from (f"{stem}-{number}.md" for number in count(1))


class _OutputFolder:
    """The files of one call, which all have different names.

    A store's keys are lower-case and ids of calls are not: a file is written by the local store, and then
    given its own name by a hard link, which no file that is there can lose its name to.
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        if "://" in os.fspath(output_dir):
            raise ConfigError(f"{output_dir}: output_dir is a local folder; offload.Offloader takes a URL")
        # Not resolve(): the names of links are the caller's, and the local store reads the path so too.
        self._path = Path(os.path.abspath(os.path.expanduser(output_dir)))  # noqa: PTH100, PTH111
        self._names: dict[str, Iterator[str]] = {}
        self._taken: set[str] = set()
        self.files: list[str] = []

    def add(self, result: _Result) -> str:
        """Return the name of a file that holds the text of `result` and no other result of this call."""
        data = result.text.encode("utf-8", "surrogatepass")
        stem = _stem(result.tool_use_id)
        # Kept from one result to the next: what was not free for one is not tried again.
        names = self._names.setdefault(stem, _names(stem))
        name = next(n for n in names if n not in self._taken and self._make(self._path / n, data))
        self._taken.add(name)
        self.files.append(str(self._path / name))
        return name

    def sync(self) -> None:
        """Make the names of all files durable."""
        if not self.files:
            return
        with mapped_errors(self._path):
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @cached
    def _store(self) -> OffloadStore:
        # Finding a backend takes longer than finding that nothing is to be written.
        return open_store(self._path)

    def _make(self, path: Path, data: bytes) -> bool:
        """Make a file `path` that holds `data` unless something is there; tell whether it holds `data`."""
        with mapped_errors(path):
            if not path.exists():
                self._create(path, data)
            info = path.lstat()
            return stat.S_ISREG(info.st_mode) and info.st_size == len(data) and path.read_bytes() == data

    def _create(self, path: Path, data: bytes) -> None:
        key = f"unnamed-{secrets.token_hex(8)}"
        self._store.put(key, data)
        try:
            # Another writer may have been first, with the same content or with other.
            with suppress(FileExistsError):
                path.hardlink_to(self._path / key)
        finally:
            self._store.delete(key)
