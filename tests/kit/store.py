"""Stores that count their requests or have a fault, and counts of the calls that a function makes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from offload.storage.store import OffloadStore, StoredObject
from offload.storage.wrappers import WrapperStore
from offload_backends.memory import MemoryStore

Act = Callable[[str, str], object]


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


class ActingStore(WrapperStore):
    """Notes the verb and the key of each operation, then calls `act` with them: what that raises fails it."""

    def __init__(self, inner: OffloadStore, act: Act | None = None) -> None:
        super().__init__(inner)
        self.act = act
        self.asked: list[tuple[str, str]] = []

    def _ask(self, verb: str, key: str) -> None:
        self.asked.append((verb, key))
        if self.act is not None:
            self.act(verb, key)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self._ask("put", key)
        super().put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._ask("get", key)
        return super().get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        self._ask("keys", prefix)
        return super().keys(prefix, after=after)

    def delete(self, key: str) -> None:
        self._ask("delete", key)
        super().delete(key)


def failing(error: Exception, *verbs: str, part: str = "") -> Act:
    """Return what fails the operations of some verbs on keys that contain `part`."""

    def act(verb: str, key: str) -> None:
        if verb in verbs and part in key:
            raise error

    return act


def waiting(event: threading.Event, *verbs: str) -> Act:
    """Return what holds the operations of some verbs until an event, for 20 seconds at most."""

    def act(verb: str, _key: str) -> None:
        if verb in verbs:
            event.wait(20)

    return act


class CutsSuffixes(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return super().get(key, start=max(start, -5), end=end)


class OverwritesAlways(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:  # noqa: ARG002  # that is the fault
        super().put(key, data, overwrite=True)


class ListsByPart(MemoryStore):
    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return iter(sorted(super().keys(prefix, after=after), key=lambda found: found.key.split("/")))


def record_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "r").rglob("[!.]*") if path.is_file())


def unpacked(record: bytes) -> bytes:
    """Return the content of a record, read as any zstd tool would."""
    with zstandard.ZstdDecompressor().stream_reader(record, read_across_frames=True) as reader:
        content: bytes = reader.read()
    return content


def everything_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def steps(function: Callable[..., Any], *args: Any) -> int:
    """Return how many calls, of Python and of C, a call makes."""
    made = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return made
