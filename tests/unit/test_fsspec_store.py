"""The store on any fsspec file system, above all on one that takes no notice of `mode="create"`."""

from __future__ import annotations

import errno
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from offload.errors import ExistsError, StoreUnavailableError, UnknownSchemeError
from offload.storage.store import SupportsStreams
from offload.testing import StoreConformance
from offload_backends._fsspec import FsspecStore


class Toy(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """A file system whose scheme only this program knows; keeps the path of every write."""

    protocol = "toy"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    written: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = MemoryFileSystem._strip_protocol(path.removeprefix(f"{cls.protocol}://"))
        return stripped

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self.written.append(path.rpartition("/")[2])
        self._pipe(path, value, mode, **kwargs)

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:
        super().pipe_file(path, value, mode=mode, **kwargs)


class Careless(Toy):
    """Overwrites in every mode."""

    protocol = "careless"

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:  # noqa: ARG002  # that is the fault
        super()._pipe(path, value, "overwrite", **kwargs)


class Mumbling(Toy):
    """Refuses what is taken, with an error that could mean anything."""

    protocol = "mumbling"

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:
        try:
            super()._pipe(path, value, mode, **kwargs)
        except FileExistsError:
            raise OSError(errno.EINVAL, "Invalid argument") from None


class Keyless(Careless):
    """Takes no file of the store's own name."""

    protocol = "keyless"

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:
        if path.endswith("/offload.json"):
            raise PermissionError(path)
        super()._pipe(path, value, mode, **kwargs)


class Silent(Toy):
    """Answers the first write alone."""

    protocol = "silent"

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:
        if len(self.written) == 2:
            raise TimeoutError
        super()._pipe(path, value, mode, **kwargs)


class Meeting(Careless):
    """Keeps who probes until another one probes too, or does not for a while."""

    protocol = "meeting"
    probers: ClassVar[threading.Barrier]

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:
        if "/.probe-" in path:
            with suppress(threading.BrokenBarrierError):
                self.probers.wait(timeout=0.2)
        super()._pipe(path, value, mode, **kwargs)


class Crowded(Careless):
    """Stores an object once a second writer has looked for it and is about to store it too."""

    protocol = "crowded"
    writers: ClassVar[threading.Barrier]

    def _pipe(self, path: str, value: bytes, mode: str, **kwargs: Any) -> None:
        at_once = path.endswith("/k")
        if at_once:
            self.writers.wait(timeout=10)
        super()._pipe(path, value, mode, **kwargs)
        if at_once:
            self.writers.wait(timeout=10)


class Plain(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """Has no create of its own: fsspec's looks whether the file is there, and then writes it."""

    protocol = "plain"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    pipe_file = fsspec.AbstractFileSystem.pipe_file

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = MemoryFileSystem._strip_protocol(path.removeprefix("plain://"))
        return stripped


TOYS: list[Any] = [Toy, Careless, Mumbling, Keyless, Silent, Meeting, Crowded, Plain]


@pytest.fixture(autouse=True)
def _registered() -> None:
    Toy.written.clear()
    for toy in TOYS:
        fsspec.register_implementation(toy.protocol, toy, clobber=True)


def url_on(toy: Any) -> str:
    return f"{toy.protocol}://{uuid.uuid4()}/root"


def files_below(url: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(url)
    return {path.removeprefix(root + "/"): system.cat_file(path) for path in system.find(root)}


def probes() -> int:
    return sum(name.startswith(".probe-") for name in Toy.written)


@pytest.mark.parametrize(
    ("toy", "creates"),
    [(Toy, "enforced"), (Careless, "ignored"), (Mumbling, "unsupported"), (Keyless, None), (Plain, None)],
)
def test_a_create_is_refused_where_an_object_is_and_asked_once_if_that_can_be_written_down(
    toy: Any, creates: str | None
) -> None:
    url = url_on(toy)
    first = FsspecStore(url)
    for n in range(3):
        first.put(f"k{n}", b"first")

    for store in (FsspecStore(url), FsspecStore(url)):
        with pytest.raises(ExistsError):
            store.put("k1", b"second")

    files = files_below(url)
    written = files.pop("offload.json", None)
    assert files == {f"k{n}": b"first" for n in range(3)}
    assert (written and json.loads(written)["create"]) == creates
    assert creates is None or probes() == 2


def test_what_is_written_down_is_believed_and_what_cannot_be_understood_is_asked_again() -> None:
    def store_with(text: bytes) -> FsspecStore:
        url = url_on(Careless)
        system, root = fsspec.core.url_to_fs(url)
        system.pipe_file(f"{root}/offload.json", text)
        store = FsspecStore(url)
        store.put("k", b"first")
        return store

    store = store_with(b'{"format": 1, "create": "enforced"}')
    store.put("k", b"second")
    assert (probes(), store.get("k")) == (0, b"second")
    for text in (b"", b"{", b"[]", b'{"format": 99, "create": "enforced"}', b"x" * 10**6):
        store = store_with(text)
        with pytest.raises(ExistsError):
            store.put("k", b"second")


def test_threads_that_put_first_share_one_probe() -> None:
    Meeting.probers = threading.Barrier(2)
    store = FsspecStore(url_on(Meeting))
    start = threading.Barrier(8)

    def put(number: int) -> None:
        start.wait()
        store.put(f"k{number}", b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))

    assert probes() == 2
    assert [found.key for found in store.keys()] == sorted(f"k{n}" for n in range(8))


def test_of_two_writers_that_overwrite_each_other_only_the_one_whose_bytes_are_there_has_stored() -> None:
    Crowded.writers = threading.Barrier(2)
    url = url_on(Crowded)

    def put(data: bytes) -> bytes | None:
        try:
            FsspecStore(url).put("k", data)
        except ExistsError:
            return None
        return data

    with ThreadPoolExecutor(2) as pool:
        stored = [data for data in pool.map(put, [b"one", b"two"]) if data]

    assert stored == [files_below(url)["k"]]


@pytest.mark.parametrize(("toy", "warnings"), [(Toy, 0), (Careless, 1), (Mumbling, 1), (Plain, 1)])
def test_a_file_system_without_atomic_creates_is_warned_of_once(
    toy: Any, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = url_on(toy)
    for _ in range(2):
        store = FsspecStore(url)
        for n in range(3):
            with suppress(ExistsError):
                store.put(f"k{n}", b"x")

    assert [r.levelname for r in caplog.records] == ["WARNING"] * warnings
    assert all(url in r.getMessage() for r in caplog.records)


def test_an_unknown_scheme_is_refused_and_streams_are_not_claimed() -> None:
    with pytest.raises(UnknownSchemeError, match=r"no file system for .nowhere."):
        FsspecStore("nowhere://x")
    assert not isinstance(FsspecStore(url_on(Toy)), SupportsStreams)


def test_reading_listing_and_overwriting_ask_nothing() -> None:
    url = url_on(Careless)
    store = FsspecStore(url)

    store.put("k", b"x", overwrite=True)
    store.get("k")
    store.delete("k")
    list(store.keys())

    assert Toy.written == ["k"]


def test_a_question_that_is_not_answered_fails_the_put_and_is_asked_again() -> None:
    url = url_on(Silent)
    store = FsspecStore(url)

    with pytest.raises(StoreUnavailableError):
        store.put("k", b"x")
    assert files_below(url) == {}
    store.put("k", b"x")

    assert sorted(files_below(url)) == ["k", "offload.json"]


SUITE = StoreConformance()


@pytest.mark.parametrize(
    "test",
    [
        SUITE.test_it_is_a_store,
        SUITE.test_a_put_of_a_taken_key_is_refused_and_keeps_its_bytes,
        SUITE.test_the_same_bytes_again_are_refused_too,
        SUITE.test_an_empty_object_holds_its_key,
        SUITE.test_a_key_and_a_longer_one_are_two_objects,
        SUITE.test_a_deleted_key_is_gone_and_free,
        SUITE.test_keys_sort_by_code_point_of_the_whole_key,
        SUITE.test_a_listing_shows_every_change_that_came_before_it,
    ],
)
def test_a_store_on_a_careless_file_system_keeps_the_contract(test: Any) -> None:
    test(FsspecStore(url_on(Careless)))
