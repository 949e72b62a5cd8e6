"""A folder of `offload_tool_results` as a store: each file is a record, read from the file itself."""

from __future__ import annotations

import heapq
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from offload.agent.presets._files import mapped_errors, read_regular
from offload.agent.presets.tool_results import reference_to
from offload.base.text import decode_text, escape_surrogates
from offload.base.tokens import estimate_tokens
from offload.errors import StorePermissionError
from offload.records.codec import get_codec
from offload.records.codec.content import TextContent
from offload.records.index.entries import record_key
from offload.records.record import Header
from offload.records.record.header import draw_ref
from offload.storage import layout
from offload.storage.registry import folder_of
from offload.storage.store import OffloadStore, StoredObject, check_range, put_stream
from offload.storage.wrappers import WrapperStore

# The session whose records are the files.
SESSION = "tool-results"

_PREFIXES = tuple(
    f.prefix(layout.encode_part(SESSION))
    for f in (layout.RECORD, layout.SIDECAR, layout.PIN, layout.JOURNAL, layout.SNAPSHOT)
)
_NAME = re.compile(r"tool-result-.+\.md", re.DOTALL)
_CODEC = get_codec("raw")

_log = logging.getLogger("offload")


class _ResultFile(NamedTuple):
    """A tool result's file: its name, the size and time that identify this content, and its record."""

    name: str
    size: int
    modified_ns: int
    key: str
    sidecar: bytes

    def objects(self) -> Iterator[StoredObject]:
        modified = self.modified_ns / 1e9
        yield StoredObject(self.key, self.size, modified)
        yield StoredObject(layout.sidecar_key(self.key), len(self.sidecar), modified)


class ToolResultsStore(WrapperStore):
    """Files of tool results as records of the session `tool-results`, and what `inner` stores in the folder.

    They cannot be changed or deleted through the store, and have no checksum: a changed file is a new record.
    Each file is read once, again after a change.
    """

    def __init__(self, inner: OffloadStore) -> None:
        super().__init__(inner)
        self._folder = folder_of(inner) or Path()
        self._known: dict[str, _ResultFile] = {}

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self._check_free(key)
        self.inner.put(key, data, overwrite=overwrite)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        self._check_free(key)
        put_stream(self.inner, key, pieces, size)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_range(start, end)
        file = self._file_of(key)
        if file is None:
            return self.inner.get(key, start=start, end=end)
        data = self._read(file.name) if key == file.key else file.sidecar
        return data[start:end]

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        is_asked = any(own.startswith(prefix) or prefix.startswith(own) for own in _PREFIXES)
        files = [each for file in self._files() for each in file.objects()] if is_asked else []
        listed = [each for each in files if each.key.startswith(prefix) and each.key > after]
        merged = (self._inner_keys(prefix, after), sorted(listed, key=attrgetter("key")))
        return heapq.merge(*merged, key=attrgetter("key"))

    def delete(self, key: str) -> None:
        self._check_free(key)
        self.inner.delete(key)

    def path_of(self, key: str) -> str:
        file = self._file_of(key)
        return key if file is None else file.name

    def _check_free(self, key: str) -> None:
        if layout.check_key(key).startswith(_PREFIXES):
            raise StorePermissionError(
                f"{self._folder} has files of tool results, which can be read, copied and exported only: "
                "delete a file to remove it, or copy the session to a store"
            )

    def _inner_keys(self, prefix: str, after: str) -> Iterator[StoredObject]:
        try:
            yield from self.inner.keys(prefix, after=after)
        except StorePermissionError:
            # Others may write to the folder, which is harmless if only files of tool results are in it.
            if any((self._folder / family.prefix()).exists() for family in layout.FAMILIES):
                raise

    def _file_of(self, key: str) -> _ResultFile | None:
        if not key.startswith(_PREFIXES):
            return None
        return next((file for file in self._files() if key in (file.key, layout.sidecar_key(file.key))), None)

    def _files(self) -> Iterator[_ResultFile]:
        with suppress(FileNotFoundError), mapped_errors(self._folder), os.scandir(self._folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    try:
                        yield self._current(entry.name, entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue  # It was deleted meanwhile.
                    except PermissionError:
                        _log.warning("%s cannot be read and is not listed", self._folder / entry.name)

    def _current(self, name: str, info: os.stat_result) -> _ResultFile:
        known = self._known.get(name)
        if known is None or (known.size, known.modified_ns) != (info.st_size, info.st_mtime_ns):
            known = self._known[name] = _file(name, self._read(name), info)
        return known

    def _read(self, name: str) -> bytes:
        """Return the text of a file as content bytes; bytes that are not UTF-8 are replaced."""
        data = read_regular(self._folder / name)
        try:
            decode_text(data)
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace").encode()
        return data


def _file(name: str, data: bytes, info: os.stat_result) -> _ResultFile:
    text, shown = decode_text(data), escape_surrogates(name)
    content = TextContent.of(text, estimate_tokens(text))
    call, digest = shown.removeprefix("tool-result-").removesuffix(".md"), content.counts.sha256
    header = Header(
        ref=draw_ref(SESSION, "tool_result", call, digest),
        session=SESSION,
        item_type="tool_result",
        # The tool is unknown; listings show the name of the file in its place.
        tool_name=shown,
        tool_use_id=call,
        created_at=info.st_mtime,
        sha256=digest,
        placeholder=reference_to(shown),
    )
    sidecar = _CODEC.encode(header, content).sidecar or b""
    key = record_key(header, content.counts, _CODEC.suffix)
    return _ResultFile(name, info.st_size, info.st_mtime_ns, key, sidecar)
