"""Packs: what searches keep for the next process, and when it is thrown away."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import zstandard
from forks import journaled, keys, run

from offload import Offloader, Retention
from offload.errors import StoreUnavailableError
from offload.maintenance.retention import collect, delete
from offload.storage.layout import PACK
from offload.storage.store import OffloadStore
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore


class Shared(MemoryStore):
    """A store on another machine, which notes the keys that are read; full, it takes no pack."""

    is_shared = True
    is_full = False

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.read.append(key)
        return super().get(key, start=start, end=end)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if self.is_full and PACK.match(key):
            raise StoreUnavailableError("full")
        super().put(key, data, overwrite=overwrite)


def opened(store: OffloadStore) -> Offloader:
    return Offloader(store, session="s")


def put(store: OffloadStore, *numbers: int) -> None:
    off = opened(store)
    for n in numbers:
        off.offload_text(f"zebra{n} is a word of this record\n" * 300, tool_name="Bash", tool_use_id=f"t{n}")


def found(store: OffloadStore, query: str) -> list[tuple[str, int, float]]:
    """Return what a new process finds."""
    return [(one.ref, one.start, one.score) for one in opened(store).search(query).passages]


def packs(store: OffloadStore) -> set[str]:
    return keys(store, "i/s/pack~")


def test_what_a_pack_shows_is_what_the_records_show() -> None:
    store, plain = Shared(), MemoryStore()
    for each in (store, plain):
        put(each, *range(6))
    expected = found(plain, "zebra3 word")

    assert [found(store, "zebra3 word") for _ in range(2)] == [expected, expected]
    assert (len(packs(store)), len(packs(plain))) == (1, 0)


def test_packs_of_several_writers_add_up_and_many_are_merged() -> None:
    store = Shared()
    for n in range(0, 40, 4):
        put(store, *range(n, n + 4))
        found(store, "absent")
    assert len(packs(store)) < 9

    store.read.clear()
    assert opened(store).search("absent").records == 40
    assert {*store.read} == packs(store)


def test_a_few_new_records_are_read_and_kept_with_later_ones() -> None:
    store = Shared()
    put(store, *range(5))
    found(store, "absent")
    off = opened(store)
    for n in range(5, 9):
        put(store, n)
        assert off.search(f"zebra{n}").passages[0].text.startswith(f"zebra{n} ")
    assert len(packs(store)) == 2


def broken(data: bytes) -> Iterator[bytes]:
    """Yield objects that a reader must not trust."""
    yield b""
    yield data[:-9]
    yield data[:40] + bytes([data[40] ^ 1]) + data[41:]
    body = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data))
    names = list(body["records"])
    for records in (
        dict.fromkeys(names, body["records"][names[0]]),  # Each has the content of another one.
        {name: record[: len(record) // 2] for name, record in body["records"].items()},
        dict.fromkeys(names, b""),
        {f"../{name}": b"x" for name in names},
        dict.fromkeys(names, 7),
    ):
        yield zstandard.compress(msgspec.msgpack.encode({"version": 1, "records": records}))
    yield zstandard.compress(msgspec.msgpack.encode({**body, "version": 2}))
    yield zstandard.compress(b"\xff" * 100)


def test_a_pack_in_doubt_is_read_as_if_it_were_not_there() -> None:
    store = Shared()
    put(store, *range(5))
    expected = found(store, "zebra3 word")
    [key] = packs(store)
    tried = [*broken(store.get(key))]
    assert len(tried) == 10
    for data in tried:
        for each in packs(store):
            store.delete(each)
        store.put(key, data)
        off = opened(store)
        result = off.search("zebra3 word")
        assert [(one.ref, one.start, one.score) for one in result.passages] == expected
        assert (result.records, dict(result.unsearched)) == (5, {})


def test_a_text_that_gc_deletes_is_in_no_pack() -> None:
    store = Shared()
    put(store, *range(5))
    found(store, "absent")
    gone = opened(store).records()[2]
    delete(store, "s", refs=[gone.ref])
    assert len(packs(store)) == 1
    collect(store, Retention(grace=0))

    assert packs(store) == set()
    assert opened(store).search("absent").records == 4
    [key] = packs(store)
    assert gone.ref.encode() not in zstandard.ZstdDecompressor().decompress(store.get(key))


def test_a_text_that_gc_deletes_while_its_pack_is_written_is_in_no_pack() -> None:
    class Slow(Shared):
        def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
            if PACK.match(key):
                delete(self, "s", refs=[opened(self).records()[2].ref])
                collect(self, Retention(grace=0))
            super().put(key, data, overwrite=overwrite)

    store = Slow()
    put(store, *range(5))

    assert opened(store).search("zebra3").passages
    assert packs(store) == set()


def test_a_pack_of_an_encrypted_store_is_encrypted() -> None:
    inner = Shared()
    store = EncryptingStore(inner, b"k" * 32)
    put(store, *range(5))
    expected = found(store, "zebra3 word")

    assert len(packs(inner)) == 1
    assert found(store, "zebra3 word") == expected
    assert inner.get(packs(inner).pop())[-56:][:4] == b"OFS1"


def test_a_search_does_not_need_its_pack_to_be_stored() -> None:
    store = Shared()
    store.is_full = True
    put(store, *range(5))

    assert len(opened(store).search("zebra3").passages) == 2
    assert packs(store) == set()


def test_a_fork_reads_each_record_of_its_parents_once_and_packs_none() -> None:
    store = Shared()
    run(journaled(store), 6)
    fork = Offloader(store, session="a").fork("b").fork("c")
    store.read.clear()

    assert fork.search("absent").records == 5
    assert sorted(key for key in store.read if key.startswith("r/a/")) == sorted(keys(store, "r/a/"))
    assert keys(store, "i/") == set()
