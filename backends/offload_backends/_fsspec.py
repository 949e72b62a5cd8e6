"""A store on any fsspec file system, for URL schemes without a backend.

It guarantees no more than fsspec: the file system decides whether a put is atomic and durable, and a
create that no server checks can race with another writer. Some file systems ignore `mode="create"` and
overwrite; so the first put probes this by creating a file twice, and stores the result in the descriptor
for later processes. A file system that inherits fsspec's own create needs no probe: that looks, then
writes. On such file systems every create is read back.

There are no streams: for no file system does fsspec guarantee that a file written piece by piece does not
overwrite another one or remain incomplete.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl

from offload import errors
from offload.base.threads.locks import NO_FORK
from offload.storage.layout import DESCRIPTOR, check_key
from offload.storage.store import Durability, StoredObject, check_range, without_secrets
from offload_backends._checks import is_key, may_hold
from offload_backends._descriptor import FORMAT, MAX_BYTES, Creates, Descriptor, decode
from offload_backends._shared import Shared, key_of

_log = logging.getLogger("offload")
_USER_NAME = re.compile(r"(?<=://)[^/\s:@]*(?=[^/\s]*@)")
_SECRET = re.compile(r"secret|sig|pass|token|credential|sas|account_key|connection_string", re.IGNORECASE)
_OF_ONE_MACHINE = {"file", "local", "memory"}
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Each file system has its own name for the time of the last write.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
# Not empty: s3fs creates an empty file by another call.
_PROBE = b"offload looks whether a create is refused where a file is\n"
_NOT_ATOMIC = (
    "%s: this file system cannot prevent a create from overwriting: of two concurrent writers of one key "
    "the last one wins, and the other keeps its item in the message"
)


class FsspecStore:
    """Objects as files of an fsspec file system.

    Args:
        url: any URL that fsspec opens, chained ones (`simplecache::ftp://host/folder`) included.
            The URL is the folder of the objects; the first put creates it.
        storage_options: arguments of the file system, as `fsspec.core.url_to_fs` takes them;
            fsspec's configuration files and `FSSPEC_…` variables apply too.

    Raises:
        UnknownSchemeError: fsspec knows no file system for the scheme.
    """

    # fsspec guarantees neither.
    has_atomic_create = False
    durability: Durability = "unknown"

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        self._full_url = url
        self.url = without_secrets(url)
        self._options = dict(storage_options or {})
        self._used: tuple[int, _Root] | None = None
        for link in self.url.split("::"):
            _check_scheme(link.split("://")[0].lower(), self.url)

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def identity(self) -> str:
        """Return the address, and a digest of user, query and options except those with a secret name."""
        query = parse_qsl(self._full_url.partition("#")[0].partition("?")[2])
        public = [(name, value) for name, value in query if not _SECRET.search(name)]
        who = repr((_USER_NAME.findall(self._full_url), public, _public_options(self._options)))
        return f"{self.url} {sha256(who.encode('utf-8', 'surrogatepass')).hexdigest()}"

    @property
    def is_shared(self) -> bool:
        """Whether the file system at the end of the chain is outside this machine."""
        return self.url.rsplit("::", 1)[-1].split("://")[0] not in _OF_ONE_MACHINE

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, as atomic and durable as the file system allows.

        If the file system cannot refuse a taken key, a created object is read back: the writer that finds
        other bytes gets an `ExistsError`. See also `OffloadStore.put`.
        """
        check_key(key)
        mode = "overwrite" if overwrite else "create"
        with self._mapped_errors(key, absent=errors.StoreMissingError):
            system, path = self._locate(key)
            is_certain = overwrite or self._root().refuses_taken()
            if not is_certain and _is_file(system, path):
                raise errors.ExistsError(f"{self.url}: {key!r} is taken")
            _write(system, path, data, mode)
            if not is_certain and bytes(system.cat_file(path)) != data:
                raise errors.ExistsError(f"{self.url}: {key!r} is taken: another writer stored it meanwhile")

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(start, end)
        with self._mapped_errors(key):
            system, path = self._locate(key)
            try:
                # By keyword: file systems differ in the order of these arguments. Some cannot read
                # an empty range, so one byte is read for it.
                stop = end if end is None else max(end, start + 1)
                data = bytes(system.cat_file(path, start=start, end=stop))
                return data if end is None else data[: max(0, end - start)]
            except _ABSENT:
                raise
            except Exception:
                # Some refuse a suffix, or a range that starts past the end.
                # A cached listing may not have the object.
                system.invalidate_cache()
                first, last, _ = slice(start, end).indices(system.info(path)["size"])
                if first >= last:
                    return b""
                if (first, last) == (start, end):
                    raise
                return bytes(system.cat_file(path, start=first, end=last))

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        folder = prefix.rpartition("/")[0]
        if folder == "" or is_key(folder):
            with self._mapped_errors(prefix):
                self._locate("")[0].invalidate_cache()
                yield from self._walk(folder, prefix, after)

    def folders(self, prefix: str = "") -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        if folder == "" or is_key(folder):
            with self._mapped_errors(prefix):
                self._locate("")[0].invalidate_cache()
                for key, _ in self._entries(folder):
                    if key.endswith("/") and next(self._walk(key[:-1], key, ""), None) is not None:
                        yield key.removeprefix(prefix)[:-1]

    def delete(self, key: str) -> None:
        check_key(key)
        with suppress(errors.NotFoundError), self._mapped_errors(key):
            system, path = self._locate(key)
            system.rm_file(path)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield the matching objects below `folder`, skipping folders that cannot match."""
        for key, entry in self._entries(folder):
            if key.endswith("/"):
                if may_hold(key, prefix, after):
                    yield from self._walk(key[:-1], prefix, after)
            elif key.startswith(prefix) and key > after and is_key(key):
                yield StoredObject(key, entry["size"], _modified(entry))

    def _entries(self, folder: str) -> list[tuple[str, Any]]:
        """Return the files of `folder` and, with a slash, the folders that may hold keys, in key order."""
        system, path = self._locate(folder)
        try:
            entries = system.ls(path, detail=True)
        except _ABSENT:
            return []
        base = f"{folder}/" if folder else ""
        # A listing of a file contains that file.
        inside = [e for e in entries if e["name"].strip("/") != path.strip("/")]
        found = sorted(((base + _name(e), e) for e in inside), key=itemgetter(0))
        return [(key, e) for key, e in found if not key.endswith("/") or is_key(key + "k")]

    def _locate(self, key: str) -> tuple[Any, str]:
        """Return the file system and the path of `key` in it; the empty key is the root."""
        root = self._root()
        return root.system, root.path_of(key) if key else root.path

    def _root(self) -> _Root:
        # A connection does not survive a fork.
        if self._used is None or self._used[0] != os.getpid():
            self._used = os.getpid(), self._open()
        return self._used[1]

    def _open(self) -> _Root:
        with NO_FORK:
            import fsspec  # noqa: PLC0415  # slow to import; only this store needs it

        def connect() -> _Root:
            system, path = fsspec.core.url_to_fs(self._full_url, **self._options)
            return _Root(system, path.rstrip("/"), self.url)

        return _ROOTS.get((self._full_url, key_of((self._options, fsspec.config.conf))), connect)

    @contextmanager
    def _mapped_errors(
        self, key: str, absent: type[errors.OffloadError] = errors.NotFoundError
    ) -> Iterator[None]:
        try:
            yield
        except errors.OffloadError:
            raise
        except Exception as error:
            mapped = self._mapped(error, key, absent)
            if self.url != self._full_url:
                # The text of the error may contain the secret in the URL.
                raise mapped from None
            raise mapped from error

    def _mapped(self, error: Exception, key: str, absent: type[errors.OffloadError]) -> errors.OffloadError:
        where, reason = f"{self.url}: {key!r}", str(error)
        if self.url != self._full_url:
            reason = "text hidden, it may contain the secret in the URL; use storage_options"
        if isinstance(error, ImportError):
            return errors.MissingExtraError(f"{self.url}: {reason}")
        if isinstance(error, FileExistsError):
            return errors.ExistsError(f"{where} is taken")
        if isinstance(error, _ABSENT):
            return absent(f"{where} is not there")
        if isinstance(error, PermissionError | NotImplementedError):
            return errors.StorePermissionError(f"{where}: the file system refused: {reason}")
        if isinstance(error, TimeoutError | ConnectionError):
            return errors.StoreUnavailableError(f"{where}: no answer, try later: {reason}")
        # Each file system has errors of its own, and their classes share no base.
        return errors.StoreError(f"{where}: {type(error).__name__}: {reason}")


class _Root:
    """The folder `path` of a store in an opened file system, and its probed features."""

    def __init__(self, system: Any, path: str, url: str) -> None:
        self.system = system
        self.path = path
        self._url = url
        self._lock = threading.Lock()
        self._creates: Creates | None = None

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def refuses_taken(self) -> bool:
        """Return whether a create-only write of an existing file fails; the first call finds out."""
        with self._lock:
            if self._creates is None:
                is_unsafe = _only_looks(self.system)
                self._creates = "ignored" if is_unsafe else self._described() or self._probed()
                if self._creates != "enforced":
                    _log.warning(_NOT_ATOMIC, self._url)
            return self._creates == "enforced"

    def _described(self) -> Creates | None:
        try:
            stored = self.system.cat_file(self.path_of(DESCRIPTOR), end=MAX_BYTES)
        except Exception:  # noqa: BLE001  # absent or unreadable: the file system is probed
            return None
        descriptor = decode(stored)
        return descriptor.creates if descriptor else None

    def _probed(self) -> Creates:
        # A name with a leading dot is not a key.
        path = self.path_of(f".probe-{secrets.token_hex(8)}")
        _write(self.system, path, _PROBE, "create")
        try:
            creates = _second_create(self.system, path)
        finally:
            with suppress(Exception):
                self.system.rm_file(path)
        # Without it the next process probes again.
        with suppress(Exception):
            _write(self.system, self.path_of(DESCRIPTOR), Descriptor(FORMAT, creates).encode(), "create")
        return creates


_ROOTS: Shared[_Root] = Shared()


def _only_looks(system: Any) -> bool:
    """Return whether creates are fsspec's own, which check for the file and then write it."""
    with NO_FORK:
        from fsspec import AbstractFileSystem  # noqa: PLC0415  # slow to import; only this store needs it

    return getattr(system.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file


def _second_create(system: Any, path: str) -> Creates:
    """Return the effect of a create-only write on an existing file."""
    try:
        _write(system, path, _PROBE, "create")
    except FileExistsError:
        return "enforced"
    except (TimeoutError, ConnectionError):
        raise
    except Exception:  # noqa: BLE001  # each file system has its own errors for an unsupported mode
        return "unsupported"
    return "ignored"


def _write(system: Any, path: str, data: bytes, mode: str) -> None:
    # A cached listing may be outdated.
    system.invalidate_cache()
    try:
        system.pipe_file(path, data, mode=mode)
    except FileNotFoundError:
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(path, data, mode=mode)


def _is_file(system: Any, path: str) -> bool:
    system.invalidate_cache()
    try:
        return bool(system.info(path)["type"] != "directory")
    except _ABSENT:
        return False


def _check_scheme(scheme: str, url: str) -> None:
    with NO_FORK:
        import fsspec  # noqa: PLC0415  # slow to import; only this store needs it

    # The protocols that fsspec can import, and the classes that the program registered.
    if scheme not in {*fsspec.available_protocols(), *fsspec.registry}:
        raise errors.UnknownSchemeError(
            f"{url}: no file system for {scheme!r}; fsspec.available_protocols() lists fsspec's own"
        )


def _public_options(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options that are plain values and have no secret name, sorted."""
    named = [(name, options[name]) for name in sorted(options) if not _SECRET.search(name)]
    values = [
        (name, _public_options(value) if isinstance(value, Mapping) else value) for name, value in named
    ]
    return [(name, value) for name, value in values if isinstance(value, str | int | float | list)]


def _name(entry: Mapping[str, Any]) -> str:
    name: str = entry["name"].rstrip("/").rpartition("/")[2]
    return name + "/" if entry["type"] == "directory" else name


def _modified(entry: Mapping[str, Any]) -> float:
    moment = next((entry[word] for word in _TIMES if entry.get(word)), 0.0)
    return moment.timestamp() if isinstance(moment, datetime) else float(moment)
