"""deepagents: its files on any store. `offload.integrations.langchain.OffloadMiddleware` works there too.

"Backend" is the framework's word for a place for an agent's files.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from offload import errors
from offload.base.text import encode_text
from offload.integrations._objects import ObjectStore, StorageOptions, found
from offload.integrations.langchain import thread_id
from offload.reading.tools.answers import error_for_model
from offload.records.session.names import check_name, new_name
from offload.storage.layout import FILE
from offload.storage.registry import open_store
from offload.storage.store import StoredObject

with errors.needs_extra("deepagents"):
    from deepagents.backends import protocol, utils
    from deepagents.middleware.subagents import GENERAL_PURPOSE_SUBAGENT
    from langchain_core.runnables.config import var_child_runnable_config

# Files that a search keeps in memory at once.
_BATCH_FILES = 16

__all__ = ["OffloadBackend", "with_offloading"]


def with_offloading(offloading: Any, subagents: Sequence[Mapping[str, Any]] = ()) -> list[Mapping[str, Any]]:
    """Return specs of subagents that offload and read items as the main agent does, for `create_deep_agent`.

    deepagents passes no middleware on to subagents. The general-purpose subagent is added if it is missing.
    Compiled and remote subagents are unchanged, as are forks, which have the middleware of the main agent.

    Args:
        offloading: the `OffloadMiddleware` of the main agent.
        subagents: specs of further subagents.
    """
    is_general = GENERAL_PURPOSE_SUBAGENT["name"] in [spec.get("name") for spec in subagents]
    specs = [*subagents] if is_general else [GENERAL_PURPOSE_SUBAGENT, *subagents]
    return [_joined(spec, offloading) for spec in specs]


def _joined(spec: Mapping[str, Any], offloading: Any) -> Mapping[str, Any]:
    own = list(spec.get("middleware", ()))
    if "runnable" in spec or "graph_id" in spec or spec.get("mode") == "fork" or offloading in own:
        return spec
    return {**spec, "middleware": [*own, offloading]}


def _reporting(result: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except utils.InvalidGlobPatternError as error:
                return result(error=str(error))
            except errors.OffloadError as error:
                return result(error=f"Error: {error_for_model(error)}")

        return call

    return decorate


class OffloadBackend(protocol.BackendProtocol):
    """The files of a deep agent as objects of a store, with one session per thread.

    Any process that can reach the store finds a thread's files; threads never share a file. A file is read
    in full for any range. Of two concurrent edits, the later one wins. Errors are reported in the results.

    Arguments and errors are those of `offload.Offloader`. `session` is for files that all threads share, as
    memories are. Without it, calls in a run without a thread fail, and calls outside of runs use a new one.
    """

    def __init__(
        self, store: Any = None, *, session: str | None = None, storage_options: StorageOptions = None
    ) -> None:
        self._store = open_store(store, storage_options=storage_options)
        self._session = None if session is None else check_name(session)
        self._without_thread = new_name()

    @_reporting(protocol.LsResult)
    def ls(self, path: str) -> Any:
        """List a folder; folders in it end with a slash."""
        folder, entries = _inside(path), {}
        for info in self._files().list(folder):
            child, slash, _ = info.key.removeprefix(folder).partition("/")
            entries[child + slash] = _folder(folder + child + slash) if slash else _info(info)
        return protocol.LsResult(entries=[entries[child] for child in sorted(entries)])

    @_reporting(protocol.ReadResult)
    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Read `limit` lines of a text from line `offset`, counted from 0; read other content in full.

        A file is media by its extension, as everywhere in deepagents, or if its content is not a text.
        """
        data = self._data(file_path, is_media=_is_media(file_path))
        if data["encoding"] == "base64":
            return protocol.ReadResult(file_data=data)
        return utils.slice_read_response(data, offset, limit)

    @_reporting(protocol.WriteResult)
    def write(self, file_path: str, content: str) -> Any:
        """Write a file, overwriting an existing one."""
        self._put(file_path, encode_text(content))
        return protocol.WriteResult(path=file_path)

    @_reporting(protocol.EditResult)
    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:  # noqa: FBT002 # the framework's signature
        """Replace the only occurrence of a text in a file, or all of them with `replace_all`."""
        data = self._data(file_path)
        if data["encoding"] == "base64":
            return protocol.EditResult(error=f"Error: '{file_path}' is not a text")
        edited = utils.perform_string_replacement(data["content"], old_string, new_string, replace_all)
        if isinstance(edited, str):
            return protocol.EditResult(error=edited)
        text, occurrences = edited
        self._put(file_path, encode_text(text))
        return protocol.EditResult(path=file_path, occurrences=occurrences)

    @_reporting(protocol.DeleteResult)
    def delete(self, file_path: str) -> Any:
        """Delete a file, or a folder with its files."""
        infos = self._matching(None, file_path)
        if not infos:
            raise _not_found(file_path)
        for info in infos:
            self._files().delete(info.key)
        return protocol.DeleteResult(path=file_path)

    @_reporting(protocol.GlobResult)
    def glob(self, pattern: str, path: str | None = None) -> Any:
        """Find files below `path` by a glob of their paths, newest first."""
        matches = self._matching(pattern, path or "/")
        newest = sorted(matches, key=lambda info: (-info.modified, info.key))
        return protocol.GlobResult(matches=[_info(info) for info in newest])

    @_reporting(protocol.GrepResult)
    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> Any:
        """Find the lines with a text in the files below `path` whose paths match `glob`."""
        root = path or "/"
        matches: list[Any] = []
        names = [info.key for info in self._matching(glob, root)]
        for name, data in self._texts(sorted(names)):
            remaining = None if max_count is None else max_count - len(matches)
            result = utils.grep_matches_from_files({name: data}, pattern, root, max_count=remaining)
            matches += result.matches
            if result.truncated:
                return protocol.GrepResult(matches=matches, truncated=True)
        return protocol.GrepResult(matches=matches)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[Any]:
        """Write files of any content, and report each failure."""
        return [
            protocol.FileUploadResponse(path, _code(errors.result_or_error(self._put, path, content)))
            for path, content in files
        ]

    def download_files(self, paths: list[str]) -> list[Any]:
        """Read files of any content, and report each failure."""
        results = errors.result_or_error(lambda: self._files().get_many(paths))
        contents = [results] * len(paths) if isinstance(results, errors.OffloadError) else results
        return [
            protocol.FileDownloadResponse(
                path, content if isinstance(content, bytes) else None, _code(content)
            )
            for path, content in zip(paths, contents, strict=True)
        ]

    def _files(self) -> ObjectStore:
        session = self._session or thread_id()
        if session is None and var_child_runnable_config.get() is not None:
            raise errors.ConfigError(
                'this run has no thread for its files; set a thread_id, or OffloadBackend(session="...")'
            )
        return ObjectStore(self._store, FILE, session or self._without_thread)

    def _data(self, path: str, *, is_media: bool = False) -> Any:
        content = self._files().get(path)
        if content is None:
            raise _not_found(path)
        return _binary(content) if is_media else _file_data(content)

    def _put(self, path: str, content: bytes) -> None:
        self._files().put(path, content)

    def _matching(self, glob: str | None, root: str) -> list[StoredObject]:
        """Return the files in `root`, or `root` itself, whose path from there matches `glob`."""
        matches = utils.compile_grep_include_glob(glob) if glob else None
        paths = ((info, _relative(info.key, root)) for info in self._files().list())
        return [info for info, path in paths if path is not None and (matches is None or matches(path))]

    def _texts(self, names: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield the files of these names in batches, omitting files that were deleted meanwhile."""
        files = self._files()
        for start in range(0, len(names), _BATCH_FILES):
            batch = names[start : start + _BATCH_FILES]
            for name, content in zip(batch, map(found, files.get_many(batch)), strict=True):
                if content is not None:
                    yield name, _file_data(content)


def _inside(folder: str) -> str:
    return "/" + f"{folder.strip('/')}/".lstrip("/")


def _relative(name: str, root: str) -> str | None:
    """Return the path of a file relative to `root`, the last part of `root` itself, or None if outside."""
    if name == root.rstrip("/"):
        return name.rpartition("/")[2]
    inside = _inside(root)
    return name.removeprefix(inside) if name.startswith(inside) else None


def _file_data(content: bytes) -> Any:
    try:
        return protocol.FileData(content=content.decode("utf-8", "surrogatepass"), encoding="utf-8")
    except UnicodeDecodeError:
        return _binary(content)


def _binary(content: bytes) -> Any:
    return protocol.FileData(content=base64.b64encode(content).decode(), encoding="base64")


def _is_media(path: str) -> bool:
    """Return whether deepagents gives the model the file as an image, a document or other media."""
    kind = getattr(utils, "_get_backend_read_file_type", None)  # the one list of extensions
    return kind is not None and bool(kind(path) != "text")


def _info(info: StoredObject) -> Any:
    modified = datetime.fromtimestamp(info.modified, UTC).isoformat()
    return protocol.FileInfo(path=info.key, is_dir=False, size=info.size, modified_at=modified)


def _folder(path: str) -> Any:
    return protocol.FileInfo(path=path, is_dir=True, size=0, modified_at="")


def _code(result: bytes | errors.OffloadError | None) -> str | None:
    """Return the framework's code of an error, None for any other result."""
    if isinstance(result, errors.NotFoundError):
        return str(protocol.FILE_NOT_FOUND)
    if isinstance(result, errors.StorePermissionError):
        return str(protocol.PERMISSION_DENIED)
    return error_for_model(result) if isinstance(result, errors.OffloadError) else None


def _not_found(path: str) -> errors.NotFoundError:
    return errors.NotFoundError(f"File '{path}' not found")
