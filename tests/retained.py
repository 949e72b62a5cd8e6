"""Shared by the tests of retention: a store with a manual clock, and items to store in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from offload import Offloader, OffloadPolicy, OffloadStore, Rule, StoredObject
from offload.engine.policy import Retention
from offload.storage.wrappers import WrapperStore
from offload_backends.memory import MemoryStore

HOUR, DAY = 3600, 86_400


class Paused(WrapperStore):
    """Calls a function before its operation `nth`, or after it."""

    def __init__(
        self, inner: OffloadStore, nth: int, act: Callable[[], object], *, is_after: bool = False
    ) -> None:
        super().__init__(inner)
        self.nth, self._act, self._is_after = nth, act, is_after

    @property
    def is_over(self) -> bool:
        return self.nth <= 0

    @contextmanager
    def _step(self) -> Iterator[None]:
        self.nth -= 1
        is_now = self.nth == 0
        if is_now and not self._is_after:
            self._act()
        yield
        if is_now and self._is_after:
            self._act()

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        with self._step():
            super().put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        with self._step():
            return super().get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        with self._step():
            return iter([*super().keys(prefix, after=after)])

    def delete(self, key: str) -> None:
        with self._step():
            super().delete(key)


class ClockedStore(WrapperStore):
    """A store in memory that stamps each object with `now`."""

    def __init__(self, inner: OffloadStore) -> None:
        super().__init__(inner)
        self.now = 1_000_000_000.0
        self.times: dict[str, float] = {}

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        super().put(key, data, overwrite=overwrite)
        self.times[key] = self.now

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        for found in super().keys(prefix, after=after):
            yield replace(found, modified=self.times.get(found.key, self.now))

    def snapshot(self) -> dict[str, bytes]:
        """Return every object, past the clock."""
        return {found.key: self.inner.get(found.key) for found in self.inner.keys()}


def clocked() -> ClockedStore:
    return ClockedStore(MemoryStore())


def opened(
    store: OffloadStore | str,
    session: str = "s",
    *,
    ttl: int | None = None,
    codec: str = "zstd",
    retention: Retention | None = None,
) -> Offloader:
    policy = OffloadPolicy(
        types={"tool_result": Rule(min_chars=1, preview_chars=20, ttl=ttl)},
        min_saving=0,
        retention=retention or Retention(),
    )
    return Offloader(store, session=session, policy=policy, codec=codec)


def text_of(name: object) -> str:
    """Return a text of a few thousand characters that no other name has."""
    return "".join(f"{name}: line {n}, needle {n * 7919 % 1009}\n" for n in range(120))


def message(name: object, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": str(name), "content": text}


def put(off: Offloader, name: object) -> str:
    """Offload the item of this name; return its placeholder."""
    placeholder = off.offload_text(text_of(name), tool_name="Bash", tool_use_id=str(name))
    assert placeholder != text_of(name)
    return placeholder


def got_back(store: OffloadStore | str, name: object, placeholder: str, session: str = "s") -> bool:
    """Restore a placeholder by a process that knows nothing else; raise what that raises."""
    [restored] = opened(store, session).restore([message(name, placeholder)])
    return bool(restored == message(name, text_of(name)))


def ref_of(placeholder: str) -> str:
    """Return the ref in a placeholder, read from its text."""
    ref: str = placeholder.partition('id="')[2].partition('"')[0]
    assert len(ref) == 10, placeholder
    return ref
