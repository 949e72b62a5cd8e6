"""deepagents: its files, on any store. `offload.integrations.langchain.OffloadMiddleware` offloads there too.

    backend = CompositeBackend(
        default=StateBackend(), routes={"/large_tool_results/": OffloadBackend("s3://bucket/prefix")}
    )
    agent = create_deep_agent(model, tools, backend=backend)

"Backend" is the framework's word here: a place for an agent's files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from offload.errors import (
    ConfigError,
    MissingExtraError,
    NotFoundError,
    OffloadError,
    StorePermissionError,
)
from offload.integrations._objects import ObjectInfo, ObjectStore
from offload.integrations.langchain import thread_id
from offload.layout import FILE
from offload.registry import open_store
from offload.session import check_name, new_name

try:
    from deepagents.backends import protocol
    from deepagents.backends.utils import (
        InvalidGlobPatternError,
        compile_grep_include_glob,
        grep_matches_from_files,
        perform_string_replacement,
        slice_read_response,
    )
    from langchain_core.runnables.config import var_child_runnable_config
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[deepagents]'") from error

# Files that a search holds at once.
_BATCH_FILES = 16

__all__ = ["OffloadBackend"]


class OffloadBackend(protocol.BackendProtocol):
    """The files of a deep agent as objects of a store, each thread's in a session of its own.

    Two threads with one call id or one file name do not meet, and a thread finds its files again from any
    process or machine that reaches the store. A file is read whole, whatever range is asked for; of two
    edits at once the later one stays. What goes wrong is told in the result, as the framework has it.

    Args:
        store: a path, a URL or a store, as for `offload.Offloader`.
        session: whose files they are, for files that all threads share, such as memories; without one the
            files are those of the thread. In a run without a thread every call then tells what is missing;
            outside of runs the files are in a session with a name of its own.
        storage_options: as for `offload.Offloader`.

    Raises:
        ConfigError: an argument that cannot work. Nothing is read or written before the first call.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = open_store(store, storage_options=storage_options)
        self._session = None if session is None else check_name(session)
        self._without_thread = new_name()

    def ls(self, path: str) -> Any:
        """List a folder: its files, and its folders with a slash at the end."""
        folder = _inside(path)
        try:
            below = [found for found in self._files().list() if found.name.startswith(folder)]
        except OffloadError as error:
            return protocol.LsResult(error=_said(error))
        entries = {}
        for found in below:
            child, slash, _ = found.name.removeprefix(folder).partition("/")
            entries[child + slash] = _folder(folder + child + slash) if slash else _info(found)
        return protocol.LsResult(entries=[entries[child] for child in sorted(entries)])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Read `limit` lines of a text from line `offset`, counted from 0; of other content, all."""
        try:
            data = _file_data(self._files().get(file_path))
        except OffloadError as error:
            return protocol.ReadResult(error=_said(error, file_path))
        if data["encoding"] == "base64":
            return protocol.ReadResult(file_data=data)
        return slice_read_response(data, offset, limit)

    def write(self, file_path: str, content: str) -> Any:
        """Write a file, in the place of what it was."""
        try:
            self._files().put(file_path, _encoded(content))
        except OffloadError as error:
            return protocol.WriteResult(error=_said(error))
        return protocol.WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:  # noqa: FBT002 # the framework's signature
        """Replace a text in a file: the one place where it stands, or with `replace_all` all of them."""
        try:
            files = self._files()
            data = _file_data(files.get(file_path))
            if data["encoding"] == "base64":
                return protocol.EditResult(error=f"Error: '{file_path}' is no text")
            done = perform_string_replacement(data["content"], old_string, new_string, replace_all)
            if isinstance(done, str):
                return protocol.EditResult(error=done)
            files.put(file_path, _encoded(done[0]))
        except OffloadError as error:
            return protocol.EditResult(error=_said(error, file_path))
        return protocol.EditResult(path=file_path, occurrences=done[1])

    def delete(self, file_path: str) -> Any:
        """Delete a file, or a folder and all in it."""
        try:
            files = self._files()
            names = [found.name for found in files.list() if _is_in(found.name, file_path)]
            for name in names:
                files.delete(name)
        except OffloadError as error:
            return protocol.DeleteResult(error=_said(error))
        if not names:
            return protocol.DeleteResult(error=f"Error: File '{file_path}' not found")
        return protocol.DeleteResult(path=file_path)

    def glob(self, pattern: str, path: str | None = None) -> Any:
        """Find files by a pattern of their paths below `path`, the newest first."""
        try:
            found = self._matching(pattern, path or "/")
        except InvalidGlobPatternError as error:
            return protocol.GlobResult(error=str(error))
        except OffloadError as error:
            return protocol.GlobResult(error=_said(error))
        newest = sorted(found, key=lambda each: (-each.modified, each.name))
        return protocol.GlobResult(matches=[_info(each) for each in newest])

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> Any:
        """Find the lines that hold a text, in the files below `path` whose own paths match `glob`."""
        root = path or "/"
        matches: list[Any] = []
        try:
            names = [found.name for found in self._matching(glob, root)]
            for name, data in self._texts(sorted(names)):
                left = None if max_count is None else max_count - len(matches)
                found = grep_matches_from_files({name: data}, pattern, root, max_count=left)
                matches += found.matches
                if found.truncated:
                    return protocol.GrepResult(matches=matches, truncated=True)
        except InvalidGlobPatternError as error:
            return protocol.GrepResult(error=str(error))
        except OffloadError as error:
            return protocol.GrepResult(error=_said(error))
        return protocol.GrepResult(matches=matches)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[Any]:
        """Write files of any content; what failed is told for each."""
        return [protocol.FileUploadResponse(path, self._failure(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[Any]:
        """Read files of any content; what failed is told for each."""
        try:
            found = self._files().get_many(paths)
        except OffloadError as error:
            found = [error] * len(paths)
        return [
            protocol.FileDownloadResponse(path, error=_code(each))
            if isinstance(each, OffloadError)
            else protocol.FileDownloadResponse(path, each)
            for path, each in zip(paths, found, strict=True)
        ]

    def _files(self) -> ObjectStore:
        return ObjectStore(self._store, FILE, self._session or thread_id() or self._of_no_thread())

    def _of_no_thread(self) -> str:
        """Return the session of calls outside of runs. Raises `ConfigError` in a run: whose is not told."""
        if var_child_runnable_config.get() is not None:
            raise ConfigError(
                "files of a run are kept by its thread, and this one has none: give it "
                'a thread_id, or OffloadBackend a session="..."'
            )
        return self._without_thread

    def _failure(self, path: str, content: bytes) -> str | None:
        try:
            self._files().put(path, content)
        except OffloadError as error:
            return _code(error)
        return None

    def _matching(self, glob: str | None, root: str) -> list[ObjectInfo]:
        """Return the files in `root`, or `root` itself, whose path from there matches `glob`."""
        matches = compile_grep_include_glob(glob) if glob else None
        found = [each for each in self._files().list() if _is_in(each.name, root)]
        return [each for each in found if matches is None or matches(_below(each.name, root))]

    def _texts(self, names: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield the files of these names, a few held at a time; one that is gone by now is left out."""
        files = self._files()
        for start in range(0, len(names), _BATCH_FILES):
            batch = names[start : start + _BATCH_FILES]
            for name, content in zip(batch, files.get_many(batch), strict=True):
                if isinstance(content, bytes):
                    yield name, _file_data(content)
                elif not isinstance(content, NotFoundError):
                    raise content


def _inside(folder: str) -> str:
    """Return what the paths of all files in `folder` begin with."""
    return "/" + f"{folder.strip('/')}/".lstrip("/")


def _is_in(name: str, root: str) -> bool:
    return name == root.rstrip("/") or name.startswith(_inside(root))


def _below(name: str, root: str) -> str:
    """Return the path of a file from `root`; of `root` itself, its last part."""
    inside = _inside(root)
    return name.removeprefix(inside) if name.startswith(inside) else name.rpartition("/")[2]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _file_data(content: bytes) -> Any:
    try:
        return protocol.FileData(content=content.decode("utf-8", "surrogatepass"), encoding="utf-8")
    except UnicodeDecodeError:
        return protocol.FileData(content=base64.b64encode(content).decode(), encoding="base64")


def _info(found: ObjectInfo) -> Any:
    modified = datetime.fromtimestamp(found.modified, UTC).isoformat()
    return protocol.FileInfo(path=found.name, is_dir=False, size=found.size, modified_at=modified)


def _folder(path: str) -> Any:
    return protocol.FileInfo(path=path, is_dir=True, size=0, modified_at="")


def _code(error: OffloadError) -> str:
    if isinstance(error, NotFoundError):
        return str(protocol.FILE_NOT_FOUND)
    return str(protocol.PERMISSION_DENIED) if isinstance(error, StorePermissionError) else str(error)


def _said(error: OffloadError, path: str = "") -> str:
    return f"Error: File '{path}' not found" if isinstance(error, NotFoundError) else f"Error: {error}"
