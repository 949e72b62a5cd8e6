"""A store in the memory of this process, for tests and for sessions that end with it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from offload.errors import ConfigError, ExistsError, NotFoundError
from offload.storage.layout import check_key
from offload.storage.store import Durability, StoredObject, check_range
from offload_backends._checks import check_options

_SCHEME = "memory://"


class _Folder:
    """Files and folders by name; each change is one operation of a dict, which is atomic."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, float]] = {}
        self.folders: dict[str, _Folder] = {}

    def find(self, path: str) -> _Folder:
        """Return the folder at a path that ends with a slash; an empty one if there is none."""
        folder = self
        for name in path.split("/")[:-1]:
            folder = folder.folders.get(name, _NOWHERE)
        return folder

    def make(self, path: str) -> _Folder:
        """Return the folder at a path that ends with a slash; it is created."""
        folder = self
        for name in path.split("/")[:-1]:
            folder = folder.folders.get(name) or folder.folders.setdefault(name, _Folder())
        return folder

    def objects(self, path: str, start: str = "") -> Iterator[StoredObject]:
        """Yield what is below this folder, at `path`, by names in it that begin with `start`."""
        for name, (data, modified) in self.files.copy().items():
            if name.startswith(start):
                yield StoredObject(path + name, len(data), modified)
        for name, folder in self.folders.copy().items():
            if name.startswith(start):
                yield from folder.objects(f"{path}{name}/")


class _Memory(_Folder):
    """The folder with all objects of a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.name = secrets.token_hex(8)


_NOWHERE = _Folder()
_shared: dict[str, _Memory] = {}


class MemoryStore:
    """Objects in a dict of this process.

    Args:
        url: `memory://` for a private store; `memory://name` for the store of that name, shared in
            this process; `memory://name/path` for the part of it whose keys start with `path/`.
        storage_options: must be empty.

    Raises:
        ConfigError: the URL has a path but no name, or storage options are given.
    """

    is_shared = False
    has_atomic_create = True
    durability: Durability = "memory"

    def __init__(self, url: str = _SCHEME, *, storage_options: Mapping[str, Any] | None = None) -> None:
        check_options(storage_options, (), url)
        name, _, path = url.removeprefix(_SCHEME).partition("/")
        if path and not name:
            raise ConfigError(f"{url}: a path needs a named store; write memory://name/{path}")
        path = path.strip("/")
        # The address of a private store opens another, empty one.
        self.url = f"{_SCHEME}{name}/{path}".rstrip("/") if name else _SCHEME
        self._memory = _shared.setdefault(name, _Memory()) if name else _Memory()
        self._root = self._memory.make(f"{path}/") if path else self._memory

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    def identity(self) -> str:
        """Return the address, and the name of this memory in this process."""
        return f"{self.url} {self._memory.name}"

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        path, name = _split(check_key(key))
        files, entry = self._root.make(path).files, (bytes(data), time.time())
        if overwrite:
            files[name] = entry
        elif files.setdefault(name, entry) is not entry:
            raise ExistsError(f"{self.url}: key {key!r} is taken")

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        path, name = _split(check_key(key))
        check_range(start, end)
        entry = self._root.find(path).files.get(name)
        if entry is None:
            raise NotFoundError(f"{self.url}: no key {key!r}")
        return entry[0][start:end]

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        path, start = _split(prefix)
        objects = self._root.find(path).objects(path, start)
        yield from sorted((o for o in objects if o.key > after), key=lambda o: o.key)

    def folders(self, prefix: str = "") -> Iterator[str]:
        parts = (stored.key.removeprefix(prefix).partition("/") for stored in self.keys(prefix))
        yield from dict.fromkeys(name for name, slash, _ in parts if slash)

    def set_time(self, key: str, modified: float) -> None:
        path, name = _split(check_key(key))
        files = self._root.find(path).files
        if (found := files.get(name)) is not None:
            files[name] = (found[0], modified)

    def delete(self, key: str) -> None:
        path, name = _split(check_key(key))
        self._root.find(path).files.pop(name, None)


def _split(key: str) -> tuple[str, str]:
    """Return the path of the folder of a key, with its slash, and the name in it."""
    path, slash, name = key.rpartition("/")
    return path + slash, name
