"""A store in the memory of this process, for tests and for sessions that end with it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from offload.errors import ConfigError, ExistsError, NotFoundError
from offload.layout import check_key
from offload.store import Durability, StoredObject, check_range
from offload_backends._checks import check_options

_SCHEME = "memory://"


class _Objects(dict[str, tuple[bytes, float]]):
    """Key → content and time; each change is one operation of a dict, which is atomic."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)


_shared: dict[str, _Objects] = {}


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
        self._prefix = f"{path}/" if path else ""
        # The address of a private store opens another, empty one.
        self.url = f"{_SCHEME}{name}/{path}".rstrip("/") if name else _SCHEME
        self._objects = _shared.setdefault(name, _Objects()) if name else _Objects()

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    def identity(self) -> str:
        """Return the address, and the name of this memory in this process."""
        return f"{self.url} {self._objects.name}"

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        full_key = self._prefix + check_key(key)
        entry = (bytes(data), time.time())
        if overwrite:
            self._objects[full_key] = entry
        elif self._objects.setdefault(full_key, entry) is not entry:
            raise ExistsError(f"{self.url}: key {key!r} is taken")

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        full_key = self._prefix + check_key(key)
        check_range(start, end)
        entry = self._objects.get(full_key)
        if entry is None:
            raise NotFoundError(f"{self.url}: no key {key!r}")
        return entry[0][start:end]

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        objects = [
            StoredObject(full_key[len(self._prefix) :], len(data), modified)
            for full_key, (data, modified) in self._objects.copy().items()
            if full_key.startswith(self._prefix + prefix)
        ]
        yield from sorted((o for o in objects if o.key > after), key=lambda o: o.key)

    def folders(self, prefix: str = "") -> Iterator[str]:
        parts = (stored.key.removeprefix(prefix).partition("/") for stored in self.keys(prefix))
        yield from dict.fromkeys(name for name, slash, _ in parts if slash)

    def set_time(self, key: str, modified: float) -> None:
        full_key = self._prefix + check_key(key)
        if (found := self._objects.get(full_key)) is not None:
            self._objects[full_key] = (found[0], modified)

    def delete(self, key: str) -> None:
        full_key = self._prefix + check_key(key)
        self._objects.pop(full_key, None)
