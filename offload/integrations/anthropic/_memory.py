"""The memory tool's files, on any store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anthropic.lib.tools import (
    BetaAbstractMemoryTool,
    BetaAsyncAbstractMemoryTool,
    BetaFunctionToolResultType,
    ToolError,
)

from offload.errors import ExistsError, NotFoundError, OffloadError
from offload.integrations._objects import ObjectInfo, ObjectStore
from offload.layout import FILE
from offload.registry import open_store
from offload.session import check_name
from offload.threads import in_thread

_ROOT = "/memories"
_LEVELS = 2


class OffloadMemory(BetaAbstractMemoryTool):
    """The files of the memory tool as objects of a store.

    A path is data: it begins with /memories, and one with a part `..` or `.` is refused, as the model's
    guide to the tool has it. Of two edits at once the later one stays. What goes wrong is told to the model.

    Args:
        store: a path, a URL or a store, as for `offload.Offloader`.
        session: whose memory it is: a user's, a project's. Other sessions do not see it.
        storage_options: as for `offload.Offloader`.
        options: what else the SDK's memory tool takes.

    Raises:
        ConfigError: an argument that cannot work. Nothing is read or written before the first call.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        session: str,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        opened = open_store(store, storage_options=storage_options)
        self._files = ObjectStore(opened, FILE, check_name(session))

    def execute(self, command: Any) -> BetaFunctionToolResultType:
        """Run a command of the model. Raises the SDK's `ToolError`, which its runner tells the model."""
        try:
            return super().execute(command)
        except OffloadError as error:
            raise ToolError(f"The memory could not be used: {error}") from error

    def view(self, command: Any) -> str:
        """Show a file with its lines numbered, or a folder two levels deep."""
        path = _path(command.path)
        try:
            text = self._text(path)
        except NotFoundError:
            return self._folder(path)
        lines = text.split("\n")
        first, last = command.view_range or (1, -1)
        shown = lines[max(first, 1) - 1 : None if last == -1 else last]
        return f"Here's the content of {path} with line numbers:\n{_numbered(shown, max(first, 1))}"

    def create(self, command: Any) -> str:
        """Write a file that is not there yet."""
        path = _path(command.path)
        if path == _ROOT or any(self._below(path)):
            raise ToolError(f"{path} is a folder")
        try:
            self._files.create(path, _encoded(command.file_text))
        except ExistsError:
            raise ToolError(f"File {path} already exists") from None
        return f"File created successfully at: {path}"

    def str_replace(self, command: Any) -> str:
        """Replace the one place where a text stands in a file."""
        path = _path(command.path)
        text = self._existing(path)
        if not command.old_str or command.old_str not in text:
            raise ToolError(f"No replacement was performed: old_str does not stand in {path}")
        before, _, after = text.partition(command.old_str)
        if command.old_str in after:
            raise ToolError(f"No replacement was performed: old_str stands in {path} more than once")
        self._files.put(path, _encoded(before + command.new_str + after))
        line = before.count("\n")
        first = max(0, line - 2)
        lines = (before + command.new_str + after).split("\n")[first : line + 3]
        return f"The memory file has been edited. The place of the change:\n{_numbered(lines, first + 1)}"

    def insert(self, command: Any) -> str:
        """Insert lines into a file, after the line of that number; 0 is the beginning."""
        path = _path(command.path)
        lines = self._existing(path).splitlines(keepends=True)
        if not 0 <= command.insert_line <= len(lines):
            raise ToolError(f"insert_line is 0 to {len(lines)} in {path}, not {command.insert_line}")
        before = "".join(lines[: command.insert_line])
        gap = "\n" if before and not before.endswith("\n") else ""
        text = command.insert_text.removesuffix("\n") + "\n"
        self._files.put(path, _encoded(before + gap + text + "".join(lines[command.insert_line :])))
        return f"The file {path} has been edited."

    def delete(self, command: Any) -> str:
        """Delete a file, or a folder and all in it."""
        path = _path(command.path)
        if path == _ROOT:
            raise ToolError(f"{_ROOT} itself cannot be deleted")
        for name in self._all_of(path):
            self._files.delete(name)
        return f"Successfully deleted {path}"

    def rename(self, command: Any) -> str:
        """Give a file or a folder another path, at which there is nothing."""
        old, new = _path(command.old_path), _path(command.new_path)
        if old == _ROOT or new.startswith(f"{old}/"):
            raise ToolError(f"{old} cannot become {new}")
        names = self._all_of(old)
        if new == _ROOT or any(self._below(new)):
            raise ToolError(f"The destination {new} already exists")
        for name in names:
            self._move(name, new + name.removeprefix(old))
        return f"Successfully renamed {old} to {new}"

    def clear_all_memory(self) -> str:
        """Delete every file."""
        for found in self._below(_ROOT):
            self._files.delete(found.name)
        return "All memory cleared"

    def _move(self, old: str, new: str) -> None:
        try:
            self._files.create(new, self._files.get(old))
        except ExistsError:
            raise ToolError(f"The destination {new} already exists") from None
        self._files.delete(old)

    def _text(self, path: str) -> str:
        return self._files.get(path).decode("utf-8", "surrogatepass")

    def _existing(self, path: str) -> str:
        try:
            return self._text(path)
        except NotFoundError:
            raise ToolError(f"There is no file {path}") from None

    def _below(self, folder: str) -> Iterator[ObjectInfo]:
        return (found for found in self._files.list() if found.name.startswith(f"{folder}/"))

    def _all_of(self, path: str) -> list[str]:
        """Return the names of a file, or of all files in a folder. Raises `ToolError` if there is neither."""
        names = sorted(found.name for found in self._files.list() if _is_in(found.name, path))
        if not names:
            raise ToolError(f"The path {path} does not exist")
        return names

    def _folder(self, path: str) -> str:
        sizes: dict[str, int] = {}
        found = sorted(self._below(path))
        if not found and path != _ROOT:
            raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
        for each in found:
            parts = each.name.removeprefix(f"{path}/").split("/")
            for depth in range(1, min(len(parts), _LEVELS) + 1):
                name = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
                sizes[name] = sizes.get(name, 0) + each.size
        rows = [f"{sum(each.size for each in found)}\t{path}"]
        rows += [f"{size}\t{path}/{name}" for name, size in sizes.items()]
        return "\n".join([f"Here are the files and folders up to 2 levels deep in {path}, in bytes:", *rows])


class AsyncOffloadMemory(BetaAsyncAbstractMemoryTool):
    """`OffloadMemory` for `AsyncAnthropic`; the store is used in a thread. The arguments are the same."""

    def __init__(self, store: Any = None, *, session: str, **options: Any) -> None:
        super().__init__(cache_control=options.get("cache_control"))
        self._memory = OffloadMemory(store, session=session, **options)

    async def execute(self, command: Any) -> BetaFunctionToolResultType:
        """Run a command of the model. Raises the SDK's `ToolError`, which its runner tells the model."""
        return await in_thread(self._memory.execute, command)

    async def view(self, command: Any) -> BetaFunctionToolResultType:
        """Show a file with its lines numbered, or a folder two levels deep."""
        return await in_thread(self._memory.view, command)

    async def create(self, command: Any) -> BetaFunctionToolResultType:
        """Write a file that is not there yet."""
        return await in_thread(self._memory.create, command)

    async def str_replace(self, command: Any) -> BetaFunctionToolResultType:
        """Replace the one place where a text stands in a file."""
        return await in_thread(self._memory.str_replace, command)

    async def insert(self, command: Any) -> BetaFunctionToolResultType:
        """Insert lines into a file, after the line of that number; 0 is the beginning."""
        return await in_thread(self._memory.insert, command)

    async def delete(self, command: Any) -> BetaFunctionToolResultType:
        """Delete a file, or a folder and all in it."""
        return await in_thread(self._memory.delete, command)

    async def rename(self, command: Any) -> BetaFunctionToolResultType:
        """Give a file or a folder another path, at which there is nothing."""
        return await in_thread(self._memory.rename, command)

    async def clear_all_memory(self) -> BetaFunctionToolResultType:
        """Delete every file."""
        return await in_thread(self._memory.clear_all_memory)


def _path(path: str) -> str:
    """Return `path` without slashes that mean nothing. Raises `ToolError` for one outside /memories."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or not parts or f"/{parts[0]}" != _ROOT or {".", ".."} & set(parts):
        raise ToolError(f"A path begins with {_ROOT} and has no part '..' or '.', not {path!r:.200}")
    return "/" + "/".join(parts)


def _is_in(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}/")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))
