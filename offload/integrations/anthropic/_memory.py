"""The memory tool's files on any store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from anthropic.lib import tools as sdk
from anthropic.types.beta import BetaCacheControlEphemeralParam

from offload.errors import ExistsError, OffloadError
from offload.integrations._objects import ObjectStore, StorageOptions
from offload.layout import FILE
from offload.record import decode_text, encode_text
from offload.session import check_name
from offload.threads import in_thread

CacheControl = BetaCacheControlEphemeralParam | None

_ROOT = "/memories"
_LEVELS = 2


class OffloadMemory(sdk.BetaAbstractMemoryTool):
    """The files of the memory tool as objects of a store.

    A path must start with /memories and must not contain the parts `..` or `.`. Of two concurrent edits, the
    later one wins. Errors are reported to the model.

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
            raise sdk.ToolError(f"The memory could not be used: {error}") from error

    def view(self, command: Any) -> str:
        """Show a file with line numbers, or a folder up to two levels deep."""
        path = _path(command.path)
        content = self._files.get(path)
        if content is None:
            return self._folder(path)
        lines = decode_text(content).split("\n")
        first, last = command.view_range or (1, -1)
        lines = lines[max(first, 1) - 1 : None if last == -1 else last]
        return f"Here's the content of {path} with line numbers:\n{_numbered(lines, max(first, 1))}"

    def create(self, command: Any) -> str:
        """Write a new file."""
        path = _path(command.path)
        if path == _ROOT or any(self._files.list(f"{path}/")):
            raise sdk.ToolError(f"{path} is a folder")
        self._create(path, encode_text(command.file_text), f"File {path} already exists")
        return f"File created successfully at: {path}"

    def str_replace(self, command: Any) -> str:
        """Replace the only occurrence of a text in a file."""
        path = _path(command.path)
        text = decode_text(self._existing(path))
        if not command.old_str or command.old_str not in text:
            raise sdk.ToolError(f"No replacement was performed: old_str is not in {path}")
        before, _, after = text.partition(command.old_str)
        if command.old_str in after:
            raise sdk.ToolError(f"No replacement was performed: old_str is in {path} more than once")
        edited = before + command.new_str + after
        self._files.put(path, encode_text(edited))
        line = before.count("\n")
        first = max(0, line - 2)
        lines = edited.split("\n")[first : line + 3]
        return f"The memory file has been edited. The lines around the change:\n{_numbered(lines, first + 1)}"

    def insert(self, command: Any) -> str:
        """Insert lines into a file after a line number; 0 is the start."""
        path = _path(command.path)
        lines = decode_text(self._existing(path)).splitlines(keepends=True)
        if not 0 <= command.insert_line <= len(lines):
            raise sdk.ToolError(f"insert_line must be 0 to {len(lines)} in {path}, got {command.insert_line}")
        before = "".join(lines[: command.insert_line])
        gap = "\n" if before and not before.endswith("\n") else ""
        text = command.insert_text.removesuffix("\n") + "\n"
        self._files.put(path, encode_text(before + gap + text + "".join(lines[command.insert_line :])))
        return f"The file {path} has been edited."

    def delete(self, command: Any) -> str:
        """Delete a file, or a folder with its files."""
        path = _path(command.path)
        if path == _ROOT:
            raise sdk.ToolError(f"{_ROOT} itself cannot be deleted")
        for name in self._all_of(path):
            self._files.delete(name)
        return f"Successfully deleted {path}"

    def rename(self, command: Any) -> str:
        """Move a file or a folder to a new path."""
        old, new = _path(command.old_path), _path(command.new_path)
        if old == _ROOT or new.startswith(f"{old}/"):
            raise sdk.ToolError(f"{old} cannot be renamed to {new}")
        names = self._all_of(old)
        if new == _ROOT or any(self._files.list(f"{new}/")):
            raise sdk.ToolError(f"The destination {new} already exists")
        for name in names:
            target = new + name.removeprefix(old)
            self._create(target, self._existing(name), f"The destination {target} already exists")
            self._files.delete(name)
        return f"Successfully renamed {old} to {new}"

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

    def _existing(self, path: str) -> bytes:
        content = self._files.get(path)
        if content is None:
            raise sdk.ToolError(f"The file {path} does not exist")
        return content

    def _all_of(self, path: str) -> list[str]:
        """Return the names of a file or of all files in a folder. Raises `ToolError` if neither exists."""
        listed = (info.key for info in self._files.list(path))
        names = sorted(name for name in listed if name == path or name.startswith(f"{path}/"))
        if not names:
            raise sdk.ToolError(f"The path {path} does not exist")
        return names

    def _folder(self, path: str) -> str:
        sizes: dict[str, int] = {}
        infos = sorted(self._files.list(f"{path}/"), key=lambda info: info.key)
        if not infos and path != _ROOT:
            raise sdk.ToolError(f"The path {path} does not exist. Please provide a valid path.")
        for info in infos:
            parts = info.key.removeprefix(f"{path}/").split("/")
            for depth in range(1, min(len(parts), _LEVELS) + 1):
                name = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
                sizes[name] = sizes.get(name, 0) + info.size
        rows = [f"{sum(info.size for info in infos)}\t{path}"]
        rows += [f"{size}\t{path}/{name}" for name, size in sizes.items()]
        return "\n".join([f"Here are the files and folders up to 2 levels deep in {path}, in bytes:", *rows])


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
    """Return `path` without redundant slashes. Raises `ToolError` for a path outside /memories."""
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or not parts or f"/{parts[0]}" != _ROOT or {".", ".."} & set(parts):
        raise sdk.ToolError(f"path must start with {_ROOT} and not contain '..' or '.', got {path!r:.200}")
    return "/" + "/".join(parts)


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))
