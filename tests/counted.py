"""A store in memory that notes what it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from offload.store import StoredObject
from offload_backends.memory import MemoryStore


class CountedStore(MemoryStore):
    """Notes each request as its verb and key, and how many bytes each read returned."""

    def __init__(self, url: str = "memory://") -> None:
        super().__init__(url)
        self.requests: list[str] = []
        self.sizes: list[int] = []

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.requests.append(f"get {key}")
        data = super().get(key, start=start, end=end)
        self.sizes.append(len(data))
        return data

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        self.requests.append(f"keys {prefix}")
        return super().keys(prefix, after=after)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self.requests.append(f"put {key}")
        super().put(key, data, overwrite=overwrite)

    def count(self, verb: str) -> int:
        return sum(request.startswith(f"{verb} ") for request in self.requests)
