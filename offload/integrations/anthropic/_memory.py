"""The memory tool's files on any store."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any

from anthropic.lib import tools as sdk
from anthropic.types.beta import BetaCacheControlEphemeralParam

from offload.base.text import decode_text, encode_text
from offload.base.threads.calls import in_thread
from offload.errors import ExistsError, OffloadError
from offload.integrations._objects import ObjectStore, StorageOptions
from offload.reading.tools.answers import error_for_model
from offload.records.session.names import check_name
from offload.storage.layout import FILE

CacheControl = BetaCacheControlEphemeralParam | None

_ROOT = "/memories"
_LEVELS = 2
_MAX_LINES = 999_999
# Enough to see why a text is not unique.
_MAX_NAMED_LINES = 50
_UNIT, _UNITS = 1024, "BKMG"


class OffloadMemory(sdk.BetaAbstractMemoryTool):
    """The files of the memory tool as objects of a store.

    It answers in the words of the SDK's `BetaLocalFilesystemMemoryTool`. Paths must be inside /memories. Of
    two concurrent edits, the later one wins. Errors are reported to the model.

    `session` is the owner of the memory, such as a user or a project; other sessions do not see it.
    `cache_control` is that of the SDK's memory tool; the other arguments and errors are those of
    `offload.Offloader`.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        session: str,
        storage_options: StorageOptions = None,
        cache_control: CacheControl = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = ObjectStore(store, FILE, check_name(session), storage_options)

    def execute(self, command: Any) -> sdk.BetaFunctionToolResultType:
        """Run a command of the model. Raises the SDK's `ToolError`, which its runner reports to the model."""
        try:
            return super().execute(command)
        except OffloadError as error:
            raise sdk.ToolError(f"The memory could not be used: {error_for_model(error)}") from error

    def view(self, command: Any) -> str:
        """Show a file with line numbers, or a folder up to two levels deep without hidden names."""
        path = _path(command.path)
        content = self._files.get(path)
        if content is None:
            return self._folder(path, command.path)
        lines = decode_text(content).split("\n")
        if len(lines) > _MAX_LINES and not command.view_range:
            raise sdk.ToolError(f"File {command.path} exceeds maximum line limit of {_MAX_LINES:,} lines.")
        shown: Sequence[int] = command.view_range or ()
        first, last = shown if len(shown) == len(("first", "last")) else (1, -1)
        lines = lines[max(first, 1) - 1 : None if last == -1 else last]
        return f"Here's the content of {command.path} with line numbers:\n{_numbered(lines, max(first, 1))}"

    def create(self, command: Any) -> str:
        """Write a new file."""
        path = _path(command.path)
        if self._is_folder(path):
            raise sdk.ToolError(f"File {command.path} already exists")
        self._check_parents(path)
        self._create(path, encode_text(command.file_text), f"File {command.path} already exists")
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: Any) -> str:
        """Replace the only occurrence of a text in a file."""
        path, old = _path(command.path), command.old_str
        text = self._text(path, command.path)
        lines = [*islice(_lines_with(old, text), _MAX_NAMED_LINES)]
        if not lines:
            raise sdk.ToolError(
                f"No replacement was performed, old_str `{old}` did not appear verbatim in {command.path}."
            )
        if len(lines) > 1:
            raise sdk.ToolError(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
                f"{', '.join(map(str, lines))}. Please ensure it is unique"
            )
        edited = text.replace(old, command.new_str, 1)
        self._files.put(path, encode_text(edited))
        first = max(0, lines[0] - 3)
        shown = edited.split("\n")[first : lines[0] + 2]
        return (
            "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
            f"{_numbered(shown, first + 1)}"
        )

    def insert(self, command: Any) -> str:
        """Insert lines into a file after a line number; 0 is the start."""
        path = _path(command.path)
        lines = self._text(path, command.path).split("\n")
        if not lines[-1]:
            lines.pop()
        if not 0 <= command.insert_line <= len(lines):
            raise sdk.ToolError(
                f"Invalid `insert_line` parameter: {command.insert_line}. "
                f"It should be within the range [0, {len(lines)}]."
            )
        lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
        edited = "\n".join(lines)
        self._files.put(path, encode_text(edited if edited.endswith("\n") else f"{edited}\n"))
        return f"The file {command.path} has been edited."

    def delete(self, command: Any) -> str:
        """Delete a file, or a folder with its files."""
        path = _path(command.path)
        if path == _ROOT:
            raise sdk.ToolError(f"Cannot delete the {_ROOT} directory itself")
        for name in self._all_of(path, command.path):
            self._files.delete(name)
        return f"Successfully deleted {command.path}"

    def rename(self, command: Any) -> str:
        """Move a file or a folder to a new path."""
        old, new = _path(command.old_path), _path(command.new_path)
        if old == _ROOT:
            raise sdk.ToolError(f"Cannot rename the {_ROOT} directory itself")
        if new.startswith(f"{old}/"):
            raise sdk.ToolError(f"Cannot rename {command.old_path} to {command.new_path}, which is inside it")
        exists = f"The destination {command.new_path} already exists"
        if self._is_folder(new) or self._files.get(new) is not None:
            raise sdk.ToolError(exists)
        names = self._all_of(old, command.old_path)
        self._check_parents(new)
        for name in names:
            target = new + name.removeprefix(old)
            self._create(target, encode_text(self._text(name, name)), exists)
            self._files.delete(name)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear_all_memory(self) -> str:
        """Delete every file."""
        for info in self._files.list(f"{_ROOT}/"):
            self._files.delete(info.key)
        return "All memory cleared"

    def _create(self, path: str, content: bytes, otherwise: str) -> None:
        try:
            self._files.put(path, content, overwrite=False)
        except ExistsError:
            raise sdk.ToolError(otherwise) from None

    def _check_parents(self, path: str) -> None:
        """Raise `ToolError` if a folder of `path` is a file: with both under one name, neither is found."""
        parent = posixpath.dirname(path)
        while parent.startswith(f"{_ROOT}/"):
            if self._files.get(parent) is not None:
                raise sdk.ToolError(f"The path {parent} is not a directory.")
            parent = posixpath.dirname(parent)

    def _is_folder(self, path: str) -> bool:
        return path == _ROOT or any(self._files.list(f"{path}/"))

    def _text(self, path: str, shown_path: str) -> str:
        """Return the text of a file. Raises `ToolError` with the path as the model wrote it."""
        content = self._files.get(path)
        if content is not None:
            return decode_text(content)
        if self._is_folder(path):
            raise sdk.ToolError(f"The path {shown_path} is not a file.")
        raise sdk.ToolError(f"The path {shown_path} does not exist. Please provide a valid path.")

    def _all_of(self, path: str, shown_path: str) -> list[str]:
        """Return the names of a file or of all files in a folder. Raises `ToolError` if neither exists."""
        listed = (info.key for info in self._files.list(path))
        names = sorted(name for name in listed if name == path or name.startswith(f"{path}/"))
        if not names:
            raise sdk.ToolError(f"The path {shown_path} does not exist")
        return names

    def _folder(self, path: str, shown_path: str) -> str:
        sizes: dict[str, int] = {}
        infos = sorted(self._files.list(f"{path}/"), key=lambda info: info.key)
        if not infos and path != _ROOT:
            raise sdk.ToolError(f"The path {shown_path} does not exist. Please provide a valid path.")
        for info in infos:
            parts = info.key.removeprefix(f"{path}/").split("/")
            for depth in range(1, min(len(parts), _LEVELS) + 1):
                if parts[depth - 1].startswith("."):
                    break
                name = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
                sizes[name] = sizes.get(name, 0) + info.size
        rows = [f"{_size(sum(info.size for info in infos))}\t{shown_path}"]
        rows += [f"{_size(size)}\t{shown_path}/{name}" for name, size in sizes.items()]
        head = f"Here're the files and directories up to {_LEVELS} levels deep in {shown_path}"
        return "\n".join([f"{head}, excluding hidden items:", *rows])


def _in_thread(command: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:

    async def run(self: AsyncOffloadMemory, *arguments: Any) -> Any:
        return await in_thread(command, self._memory, *arguments)

    return run


class AsyncOffloadMemory(sdk.BetaAsyncAbstractMemoryTool):
    """`OffloadMemory` for `AsyncAnthropic`, with the same arguments; it uses the store in a thread."""

    def __init__(
        self,
        store: Any = None,
        *,
        session: str,
        storage_options: StorageOptions = None,
        cache_control: CacheControl = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._memory = OffloadMemory(store, session=session, storage_options=storage_options)

    execute = _in_thread(OffloadMemory.execute)
    view = _in_thread(OffloadMemory.view)
    create = _in_thread(OffloadMemory.create)
    str_replace = _in_thread(OffloadMemory.str_replace)
    insert = _in_thread(OffloadMemory.insert)
    delete = _in_thread(OffloadMemory.delete)
    rename = _in_thread(OffloadMemory.rename)
    clear_all_memory = _in_thread(OffloadMemory.clear_all_memory)


def _path(path: str) -> str:
    """Return `path` in its shortest form. Raises `ToolError` for a path outside /memories."""
    if not path.startswith(_ROOT):
        raise sdk.ToolError(f"Path must start with {_ROOT}, got: {path:.200}")
    shortest = posixpath.normpath(path)
    if not f"{shortest}/".startswith(f"{_ROOT}/"):
        raise sdk.ToolError(f"Path {path:.200} would escape {_ROOT} directory")
    return shortest


def _lines_with(part: str, text: str) -> Iterator[int]:
    """Yield the number of the line in which each occurrence of `part` starts, overlapping ones too."""
    line, last = 1, 0
    position = text.find(part)
    while position >= 0:
        line += text.count("\n", last, position)
        last = position
        yield line
        position = text.find(part, position + 1)


def _size(size: int) -> str:
    """Return a number of bytes as the SDK's own memory shows it."""
    unit, amount = 0, float(size)
    while amount >= _UNIT and unit < len(_UNITS) - 1:
        unit, amount = unit + 1, amount / _UNIT
    return f"{amount:.0f}{_UNITS[unit]}" if amount.is_integer() else f"{amount:.1f}{_UNITS[unit]}"


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))
