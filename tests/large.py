"""A store in memory that counts requests and has its own clock, and records by the thousand in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from offload.errors import ExistsError, NotFoundError
from offload.records.index.entries import record_key
from offload.records.record import Header, RecordInfo
from offload.records.record.header import Counts, draw_ref
from offload.storage.layout import check_key
from offload.storage.store import Durability, StoredObject


class Clock:
    """The time of the store and its users; replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class LargeStore:
    """The four verbs on a dict; each thousand keys of a listing takes `seconds_a_page` on the clock."""

    url = "large://"
    is_shared = True
    has_atomic_create = True
    durability: Durability = "power"

    def __init__(self, clock: Clock, seconds_a_page: float = 0.1) -> None:
        self.clock = clock
        self.seconds_a_page = seconds_a_page
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests: list[str] = []

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self.requests.append(f"PUT {key[:2]}")
        if not overwrite and key in self.objects:
            raise ExistsError(key)
        self.objects[check_key(key)] = data, self.clock.now

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.requests.append(f"GET {key[:2]}")
        if key not in self.objects:
            raise NotFoundError(key)
        return self.objects[key][0][start:end]

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        found = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        for start in range(0, max(1, len(found)), 1000):
            self.requests.append(f"LIST {prefix[:2]}")
            self.clock.now += self.seconds_a_page
            for key in found[start : start + 1000]:
                # A lazy listing may meet what was deleted meanwhile.
                if key in self.objects:
                    data, modified = self.objects[key]
                    yield StoredObject(key, len(data), modified)

    def delete(self, key: str) -> None:
        self.requests.append(f"DELETE {key[:2]}")
        self.objects.pop(key, None)

    def spent(self) -> list[str]:
        """Return the requests since the last call."""
        spent, self.requests = self.requests, []
        return spent


@cache
def key_of(number: int, session: str = "s", generation: int = 1) -> str:
    """Return the key of the record with this number: every third is a user's message, the others of Bash."""
    tool = "Bash" if number % 3 else None
    counts = Counts(bytes=number, chars=number, lines=1, tokens=number // 4, sha256=b"d" * 32)
    header = Header(
        ref=draw_ref(session, "tool_result", str(number), counts.sha256),
        session=session,
        item_type="user_message" if tool is None else "tool_result",
        tool_name=tool,
        created_at=0.0,
        sha256=counts.sha256,
        placeholder="p",
    )
    return record_key(header, counts, ".zst", generation)


def info_of(key: str, now: float, session: str = "s") -> RecordInfo:
    """Return the entry that a writer remembers of the record that it stored under `key`."""
    ref, item_type, tool, chars, tokens = key.rpartition("/")[2].removesuffix(".zst").split("~")
    return RecordInfo(
        ref=ref.partition(".")[0],
        session=session,
        item_type=item_type,
        tool_name="Bash" if tool else None,
        chars=int(chars),
        tokens=int(tokens),
        lines=1,
        bytes=int(chars),
        stored_bytes=4,
        created_at=now,
        key=key,
    )


def fill(store: LargeStore, count: int, session: str = "s", *, start: int = 0) -> list[str]:
    """Put `count` records into the store, one each second, past the count of requests; return their keys."""
    keys = [key_of(n, session) for n in range(start, start + count)]
    for key in keys:
        store.clock.now += 1
        store.objects[key] = b"data", store.clock.now
    return keys
