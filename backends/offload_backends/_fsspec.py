"""A store on any fsspec file system: what serves a URL that no backend claims.

It promises what fsspec promises, no more: whether a put is atomic and durable is up to the file
system, and a create-only put that no server checks has a moment between looking and writing. Some file
systems take no notice of `mode="create"` and overwrite; so the first put asks, by creating a file of its
own twice, and keeps the answer in the descriptor for the next process. Of one that inherits fsspec's own
create it is known: that looks, then writes. On such a file system every create is read back.

There are no streams: fsspec has no way to create a file piece by piece that every file system keeps from
overwriting one that is there, or from leaving half of it behind.
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
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from offload.errors import (
    ExistsError,
    MissingExtraError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
    UnknownSchemeError,
)
from offload.layout import DESCRIPTOR, check_key
from offload.store import Durability, StoredObject, check_range, without_secrets
from offload_backends import _descriptor
from offload_backends._checks import is_key, may_hold

_log = logging.getLogger("offload")
_USER_NAME = re.compile(r"(?<=://)[^/\s:@]*(?=[^/\s]*@)")
_SECRET = re.compile(r"secret|sig|pass|token|credential|sas|account_key|connection_string", re.IGNORECASE)
_OF_ONE_MACHINE = {"file", "local", "memory"}
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Each file system has its own word for the time of the last write.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
# Not empty: s3fs makes an empty file by another call.
_PROBE = b"offload looks whether a create is refused where a file is\n"
_NOT_ATOMIC = (
    "%s: this file system cannot keep a create from overwriting: of two writers of one key in the same "
    "moment the last one wins; each reads back what it stored, and an item whose bytes are not there stays"
)


class FsspecStore:
    """Objects as files of an fsspec file system.

    Args:
        url: any URL that fsspec opens, chained ones (`simplecache::ftp://host/folder`) included.
            The URL is the folder that holds the objects; the first put makes it.
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
        self._url = without_secrets(url)
        self._options = dict(storage_options or {})
        self._opened: dict[int, _Root] = {}
        for link in self._url.split("::"):
            _check_scheme(link.split("://")[0].lower(), self._url)

    def __repr__(self) -> str:
        return f"FsspecStore({self._url!r})"

    @property
    def url(self) -> str:
        """The address, without user, password, token or query."""
        return self._url

    def identity(self) -> str:
        """Return the address, and a digest of user, query and options but for what a name calls a secret."""
        query = parse_qsl(urlsplit(self._full_url).query)
        asked = [(name, value) for name, value in query if not _SECRET.search(name)]
        who = repr((_USER_NAME.findall(self._full_url), asked, _told(self._options)))
        return f"{self._url} {sha256(who.encode('utf-8', 'surrogatepass')).hexdigest()}"

    @property
    def is_shared(self) -> bool:
        """Whether the file system at the end of the chain lies outside this machine."""
        return self._url.rsplit("::", 1)[-1].split("://")[0] not in _OF_ONE_MACHINE

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, as whole and durable as the file system makes it.

        Where two writers of one key in the same moment would both be told that it is theirs, what was
        created is read back: who finds other bytes there gets an `ExistsError`. See `OffloadStore.put`
        for the rest.
        """
        check_key(key)
        mode = "overwrite" if overwrite else "create"
        with self._mapped_errors(key, absent=StoreMissingError):
            system, path = self._locate(key)
            is_certain = overwrite or self._root().refuses_taken()
            if not is_certain and _is_file(system, path):
                raise ExistsError(f"{self._url}: {key!r} is taken")
            _write(system, path, data, mode)
            if not is_certain and bytes(system.cat_file(path)) != data:
                raise ExistsError(f"{self._url}: {key!r} is taken: another writer stored it meanwhile")

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them; see `OffloadStore.get`."""
        check_key(key)
        check_range(start, end)
        with self._mapped_errors(key):
            system, path = self._locate(key)
            try:
                # By keyword: file systems differ in the order of these arguments. Not every one
                # can read nothing, so one byte is read for an empty range.
                stop = end if end is None else max(end, start + 1)
                data = bytes(system.cat_file(path, start=start, end=stop))
                return data if end is None else data[: max(0, end - start)]
            except _ABSENT:
                raise
            except Exception:
                # Some refuse a suffix, or a range that starts past the end.
                # A listing kept from before may not know the object.
                system.invalidate_cache()
                first, last, _ = slice(start, end).indices(system.info(path)["size"])
                if first >= last:
                    return b""
                if (first, last) == (start, end):
                    raise
                return bytes(system.cat_file(path, start=first, end=last))

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order, listing one folder at a time; see `OffloadStore.keys`."""
        folder = prefix.rpartition("/")[0]
        if folder == "" or is_key(folder):
            with self._mapped_errors(prefix):
                self._locate("")[0].invalidate_cache()
                yield from self._walk(folder, prefix, after)

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        check_key(key)
        with suppress(NotFoundError), self._mapped_errors(key):
            system, path = self._locate(key)
            system.rm_file(path)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield what matches below `folder`, listing no folder that cannot match."""
        system, path = self._locate(folder)
        try:
            entries = system.ls(path, detail=True)
        except _ABSENT:
            return
        base = f"{folder}/" if folder else ""
        # Listing a file lists that file.
        inside = [e for e in entries if e["name"].strip("/") != path.strip("/")]
        for key, entry in sorted(((base + _name(e), e) for e in inside), key=itemgetter(0)):
            if key.endswith("/"):
                if is_key(key + "k") and may_hold(key, prefix, after):
                    yield from self._walk(key[:-1], prefix, after)
            elif key.startswith(prefix) and key > after and is_key(key):
                yield StoredObject(key, entry["size"], _modified(entry))

    def _locate(self, key: str) -> tuple[Any, str]:
        """Return the file system and the path of `key` in it; the empty key is the root."""
        root = self._root()
        return root.system, root.path_of(key) if key else root.path

    def _root(self) -> _Root:
        # A connection does not survive a fork, so each process opens its own.
        opened = self._opened.get(os.getpid())
        if opened is None:
            import fsspec  # noqa: PLC0415  # slow to import; only this store needs it

            system, path = fsspec.core.url_to_fs(self._full_url, **self._options)
            # Threads that come at once get one, and with it one probe.
            opened = self._opened.setdefault(os.getpid(), _Root(system, path.rstrip("/"), self._url))
        return opened

    @contextmanager
    def _mapped_errors(self, key: str, absent: type[OffloadError] = NotFoundError) -> Iterator[None]:
        """Turn the file system's errors into ours; `absent` is what a missing file means."""
        try:
            yield
        except OffloadError:
            raise
        except Exception as error:
            ours = self._mapped(error, key, absent)
            if self._url != self._full_url:
                # The file system was given the secret in the URL, and what it says may show it.
                raise ours from None
            raise ours from error

    def _mapped(self, error: Exception, key: str, absent: type[OffloadError]) -> OffloadError:
        where, said = f"{self._url}: {key!r}", str(error)
        if self._url != self._full_url:
            said = "what it says is left out, it was given the secret in the URL; use storage_options"
        if isinstance(error, ImportError):
            return MissingExtraError(f"{self._url}: {said}")
        if isinstance(error, FileExistsError):
            return ExistsError(f"{where} is taken")
        if isinstance(error, _ABSENT):
            return absent(f"{where} is not there")
        if isinstance(error, PermissionError | NotImplementedError):
            return StorePermissionError(f"{where}: the file system refused: {said}")
        if isinstance(error, TimeoutError | ConnectionError):
            return StoreUnavailableError(f"{where}: no answer, try later: {said}")
        # Each file system has errors of its own, and their classes share no base.
        return StoreError(f"{where}: {type(error).__name__}: {said}")


class _Root:
    """The folder of a store in an opened file system, and what was found out about it.

    Args:
        system: the file system.
        path: the folder, without a slash at its end.
        url: the store's, for a warning.
    """

    def __init__(self, system: Any, path: str, url: str) -> None:
        self.system = system
        self.path = path
        self._url = url
        self._lock = threading.Lock()
        self._creates: _descriptor.Creates | None = None

    def path_of(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.path}/{name}"

    def refuses_taken(self) -> bool:
        """Return whether a create-only write fails where a file is, found out by the first who asks."""
        with self._lock:
            if self._creates is None:
                self._creates = self._found_out()
                if self._creates != "enforced":
                    _log.warning(_NOT_ATOMIC, self._url)
            return self._creates == "enforced"

    def _found_out(self) -> _descriptor.Creates:
        return "ignored" if _only_looks(self.system) else self._described() or self._probed()

    def _described(self) -> _descriptor.Creates | None:
        try:
            return _descriptor.decode(
                self.system.cat_file(self.path_of(DESCRIPTOR), end=_descriptor.MAX_BYTES)
            )
        except Exception:  # noqa: BLE001  # absent or not to be read: the file system is asked itself
            return None

    def _probed(self) -> _descriptor.Creates:
        """Create a file twice, and write down what became of it."""
        # No key begins with a dot.
        path = self.path_of(f".probe-{secrets.token_hex(8)}")
        _write(self.system, path, _PROBE, "create")
        try:
            creates = _second_create(self.system, path)
        finally:
            with suppress(Exception):
                self.system.rm_file(path)
        # Without it the next process asks again.
        with suppress(Exception):
            _write(self.system, self.path_of(DESCRIPTOR), _descriptor.encode(creates), "create")
        return creates


def _only_looks(system: Any) -> bool:
    """Return whether a create is fsspec's own, which looks whether the file is there and then writes it."""
    from fsspec import AbstractFileSystem  # noqa: PLC0415  # slow to import; only this store needs it

    return getattr(system.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file


def _second_create(system: Any, path: str) -> _descriptor.Creates:
    """Return what a create-only write does where a file is."""
    try:
        _write(system, path, _PROBE, "create")
    except FileExistsError:
        return "enforced"
    except (TimeoutError, ConnectionError):
        raise
    except Exception:  # noqa: BLE001  # each file system has errors of its own; this one cannot be told from others
        return "unsupported"
    return "ignored"


def _write(system: Any, path: str, data: bytes, mode: str) -> None:
    """Write a file, first making its folder if there is none."""
    # A listing kept from before may still say that the path is free.
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
    import fsspec  # noqa: PLC0415  # slow to import; only this store needs it

    # The protocols that fsspec can import, and the classes that the program registered.
    known = sorted({*fsspec.available_protocols(), *fsspec.registry})
    if scheme not in known:
        raise UnknownSchemeError(f"{url}: no file system for {scheme!r}; fsspec has {', '.join(known)}")


def _told(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return those of `options` that are plain values and no secrets, in one order."""
    named = [(name, options[name]) for name in sorted(options) if not _SECRET.search(name)]
    told = [(name, _told(value) if isinstance(value, Mapping) else value) for name, value in named]
    return [(name, value) for name, value in told if isinstance(value, str | int | float | list)]


def _name(entry: Mapping[str, Any]) -> str:
    """Return the last part of an entry's path, with a slash if it is a folder."""
    name: str = entry["name"].rstrip("/").rpartition("/")[2]
    return name + "/" if entry["type"] == "directory" else name


def _modified(entry: Mapping[str, Any]) -> float:
    moment = next((entry[word] for word in _TIMES if entry.get(word)), 0.0)
    return moment.timestamp() if isinstance(moment, datetime) else float(moment)


if TYPE_CHECKING:
    from offload.store import OffloadStore, SupportsIdentity

    _conforms: type[OffloadStore] = FsspecStore
    _identified: type[SupportsIdentity] = FsspecStore
