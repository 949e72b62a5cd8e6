from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from typing import Any

import pytest

from offload.errors import ConfigError, NotFoundError, StorePermissionError, StoreUnavailableError
from offload.testing import FaultyBulkStore, FaultyStore
from offload.wrappers import CachingStore
from offload_backends._fsspec import FsspecStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore


@pytest.fixture
def medium():
    return MemoryStore()


@pytest.fixture
def inner(medium):
    """Counts the gets that reach the medium."""
    return FaultyBulkStore(medium, verb="get", nth=sys.maxsize)


@pytest.fixture(params=["memory", "folder"])
def cached(request, tmp_path):
    def wrap(inner, **options):
        folder = tmp_path / "cache" if request.param == "folder" else None
        return CachingStore(inner, folder=folder, **options)

    return wrap


def files(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_what_was_read_is_not_asked_for_again_and_ranges_are_cut_from_it(cached, inner, medium):
    medium.put("a", b"0123456789")
    store = cached(inner)

    assert [store.get("a"), store.get("a"), store.get("a")] == [b"0123456789"] * 3
    parts = [store.get("a", start=s, end=e) for s, e in [(2, 5), (-3, None), (4, None), (8, 99), (12, 20)]]
    assert parts == [b"234", b"789", b"456789", b"89", b""]
    assert inner.operations == 1


@pytest.mark.parametrize(
    ("part", "requests"),
    [((-11, None), 1), ((0, 11), 1), ((-10, None), 2), ((0, 10), 2), ((1, None), 2), ((0, 0), 2)],
)
def test_a_range_is_kept_only_if_it_is_shown_to_be_the_whole(cached, inner, medium, part, requests):
    medium.put("a", b"0123456789")
    store = cached(inner)
    store.get("a", start=part[0], end=part[1])

    assert store.get("a") == b"0123456789"
    assert inner.operations == requests


def test_an_empty_object_is_kept_and_an_absent_one_is_not(cached, inner, medium):
    medium.put("empty", b"")
    store = cached(inner)

    assert [store.get("empty"), store.get("empty")] == [b"", b""]
    for _ in range(2):
        with pytest.raises(NotFoundError):
            store.get("absent")
    assert inner.operations == 3
    medium.put("absent", b"there")
    assert store.get("absent") == b"there"


def changes():
    return {
        "overwrite": lambda store: store.put("a", b"new", overwrite=True),
        "delete": lambda store: (store.delete("a"), store.inner.put("a", b"new")),
        "delete many": lambda store: (store.delete_many(k for k in ["a"]), store.inner.put("a", b"new")),
        "create": lambda store: (store.inner.delete("a"), store.put("a", b"new")),
        "create many": lambda store: (store.inner.delete("a"), store.put_many([("a", b"new")])),
    }


@pytest.mark.parametrize("change", changes().values(), ids=changes())
def test_a_change_through_the_store_is_seen(cached, inner, medium, change):
    medium.put("a", b"old")
    store = cached(inner)
    store.get("a")

    change(store)

    assert store.get("a") == b"new"


def test_a_change_past_the_store_is_missed_while_the_object_is_kept(cached, inner, medium):
    medium.put("a", b"old")
    medium.put("b", b"old")
    store = cached(inner)
    list(store.get_many(["a", "b"]))

    medium.put("a", b"new", overwrite=True)
    medium.delete("b")

    assert list(store.get_many(["a", "b"])) == [b"old", b"old"]
    assert [found.key for found in store.keys()] == ["a"]


def test_a_change_whose_answer_was_lost_is_seen(cached):
    class ReadOnTheWay(MemoryStore):
        def put(self, key, data, *, overwrite=False):
            assert store.get(key) == b"old"
            super().put(key, data, overwrite=overwrite)

    inner = ReadOnTheWay()
    MemoryStore.put(inner, "a", b"old")
    store = cached(FaultyStore(inner, verb="put", moment="after"))

    with pytest.raises(StoreUnavailableError):
        store.put("a", b"new", overwrite=True)

    assert store.get("a") == b"new"


class Slow(MemoryStore):
    """Calls `meanwhile` once, after bytes were read and before they are returned."""

    def __init__(self):
        super().__init__()
        self.meanwhile = lambda: None

    def get(self, key, *, start=0, end=None):
        data = super().get(key, start=start, end=end)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return data


@pytest.mark.parametrize("change", ["put", "delete"])
@pytest.mark.parametrize("by", ["itself", "another"])
def test_what_was_fetched_before_a_change_is_not_kept_after_it(tmp_path, change, by):
    inner = Slow()
    inner.put("a", b"old")
    # In memory only the store itself knows of its changes, in a folder every store on it.
    folder = tmp_path / "cache" if by == "another" else None
    store = CachingStore(inner, folder=folder)
    changing = CachingStore(inner, folder=folder) if by == "another" else store
    inner.meanwhile = {
        "put": lambda: changing.put("a", b"new", overwrite=True),
        "delete": lambda: changing.delete("a"),
    }[change]

    assert store.get("a") == b"old"

    if change == "put":
        assert store.get("a") == b"new"
    else:
        with pytest.raises(NotFoundError):
            store.get("a")


def test_the_least_recently_used_makes_room(cached, inner, medium, tmp_path):
    store = cached(inner, max_bytes=4 * 10_300)
    for key in "abcdef":
        medium.put(key, key.encode() * 10_000)
    for key in "abc":
        store.get(key)
        time_passes(tmp_path)
    store.get("a")
    time_passes(tmp_path)
    for key in "de":
        store.get(key)
        time_passes(tmp_path)
    fetched = inner.operations

    store.get("a")
    assert inner.operations == fetched
    store.get("b")
    assert inner.operations == fetched + 1


def time_passes(tmp_path):
    """Make every file of the folder older: the clock of a file system is too coarse to order reads."""
    for path in files(tmp_path):
        info = path.stat()
        os.utime(path, (info.st_atime - 10, info.st_mtime - 10))


def test_an_object_that_would_drive_out_the_others_is_not_kept_and_no_cache_takes_none(cached, inner, medium):
    medium.put("a", bytes(1001))
    medium.put("b", bytes(1000))
    store = cached(inner, max_bytes=4000)

    for key in "aabb":
        store.get(key)

    assert inner.operations == 3
    with pytest.raises(ConfigError, match="folder must be a path, got int"):
        CachingStore(inner, folder=5)  # type: ignore[arg-type]
    for max_bytes in (0, -1, "64MB", True):
        with pytest.raises(ConfigError, match="max_bytes must be an integer of at least 1, got"):
            cached(inner, max_bytes=max_bytes)


def test_memory_is_bounded_also_by_objects_of_no_size(medium):
    store = CachingStore(medium, max_bytes=10_000)
    for n in range(1000):
        medium.put(f"n/{n}", b"")
        store.get(f"n/{n}")

    for n in range(1000):
        medium.put(f"n/{n}", b"changed", overwrite=True)

    assert 10 <= sum(store.get(f"n/{n}") == b"" for n in reversed(range(1000))) <= 100


def test_a_folder_never_holds_more_than_it_may(tmp_path, medium):
    store = CachingStore(medium, max_bytes=100_000, folder=tmp_path / "cache")
    sizes = []
    for n in range(100):
        medium.put(f"n/{n}", os.urandom(500 + 200 * n))
        store.get(f"n/{n}")
        sizes.append(sum(path.stat().st_size for path in files(tmp_path)))

    assert max(sizes) <= 100_000
    assert sizes[-1] >= 60_000


def test_many_are_answered_in_order_and_only_the_missing_fetched(cached, inner, medium):
    for key in "abc":
        medium.put(key, key.encode())
    store = cached(inner)
    store.get("b")

    results = list(store.get_many(["c", "b", "none", "a", "../", "c"]))

    assert [r if isinstance(r, bytes) else r.kind for r in results] == [
        *(b"c", b"b", "not_found", b"a", "invalid_key", b"c")
    ]
    assert inner.operations == 5
    assert list(store.get_many(["a", "b", "c"])) == [b"a", b"b", b"c"]
    assert inner.operations == 5


# In a folder


def test_a_folder_serves_a_later_store_and_is_made_again_if_it_was_removed(tmp_path, inner, medium):
    medium.put("a", b"kept")
    CachingStore(inner, folder=tmp_path / "cache").get("a")
    store = CachingStore(inner, folder=tmp_path / "cache")

    assert store.get("a") == b"kept"
    assert inner.operations == 1
    shutil.rmtree(tmp_path / "cache")
    assert [store.get("a"), store.get("a")] == [b"kept", b"kept"]
    assert inner.operations == 2


@pytest.mark.parametrize("urls", [["memory://"] * 2, ["memory://meet/1", "memory://meet/2"]])
def test_two_stores_do_not_meet_in_a_folder_whatever_their_urls(tmp_path, urls):
    stores = [CachingStore(MemoryStore(url), folder=tmp_path / "cache") for url in urls]
    for number, store in enumerate(stores):
        store.put("a", b"%d" % number)

    assert [store.get("a") for store in stores * 2] == [b"0", b"1"] * 2


@pytest.mark.parametrize("options", [{"host": "one"}, {"username": "alice"}, {"client": {"region": "x"}}])
def test_two_stores_of_one_url_and_other_options_are_told_apart(options):
    both: list[Any] = [{}, options]
    stores = [FsspecStore("github://owner:repo@/x", storage_options=given) for given in both]

    assert len({CachingStore(store).identity() for store in stores}) == 2


@pytest.mark.parametrize("secret", ["password", "token", "sas_token", "account_key", "connection_string"])
def test_a_secret_is_no_part_of_what_a_store_is_told_by(secret):
    url = "sftp://host/folder"
    known, changed = ({"username": "u", secret: text} for text in ("hunter2", "hunter3"))

    identities = {FsspecStore(url, storage_options=given).identity() for given in (known, changed)}

    assert len(identities) == 1
    assert FsspecStore("sftp://u:a@host/f").identity() == FsspecStore("sftp://u:b@host/f").identity()
    assert FsspecStore("sftp://u@host/f").identity() != FsspecStore("sftp://v@host/f").identity()


def test_a_damaged_file_is_never_served_and_never_an_error(tmp_path, inner, medium):
    medium.put("a", b"0123456789")
    store = CachingStore(inner, folder=tmp_path / "cache")
    store.get("a")
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    damages = [whole[:n] for n in range(len(whole))]
    damages += [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    damages += [whole + b"0", bytes(len(whole))]

    for count, damage in enumerate(damages, start=2):
        path.write_bytes(damage)
        assert store.get("a") == b"0123456789"
        assert inner.operations == count
        assert path.read_bytes() == whole


def test_a_read_leaves_no_file_but_the_entry_and_one_in_the_place_of_another_is_not_served(tmp_path, medium):
    medium.put("a", b"0123456789")
    medium.put("b", b"of b")
    store = CachingStore(medium, folder=tmp_path / "cache")

    store.get("a", start=1, end=2)
    with pytest.raises(NotFoundError):
        store.get("none")
    assert files(tmp_path) == []
    store.get("a")
    (path_of_a,) = files(tmp_path)
    store.get("b")
    (path_of_b,) = set(files(tmp_path)) - {path_of_a}

    shutil.copy(path_of_a, path_of_b)

    assert store.get("b") == b"of b"


def test_files_and_folders_are_the_users_alone(tmp_path, medium):
    medium.put("a", b"secret")
    before = os.umask(0)
    try:
        CachingStore(medium, folder=tmp_path / "cache").get("a")
    finally:
        os.umask(before)

    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*"))
    }
    assert modes == {0o700, 0o600}


@pytest.mark.parametrize(
    ("mode", "error", "said"),
    [
        *((mode, ConfigError, "others can write") for mode in (0o770, 0o707, 0o1777)),
        (None, StorePermissionError, "use a folder that can be created"),
    ],
)
def test_a_folder_that_others_can_write_to_or_that_cannot_be_made_is_refused(
    tmp_path, medium, mode, error, said
):
    medium.put("a", b"x")
    if mode is None:
        (tmp_path / "cache").write_bytes(b"a file")
    else:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(mode)

    with pytest.raises(error, match=said):
        CachingStore(medium, folder=tmp_path / "cache").get("a")


def test_a_folder_that_takes_no_file_costs_hits_and_no_read(tmp_path, inner, medium):
    medium.put("a", b"kept")
    (tmp_path / "cache").mkdir(0o700)
    for n in range(256):
        (tmp_path / "cache" / f"{n:02x}").write_bytes(b"in the way")
    store = CachingStore(inner, folder=tmp_path / "cache")

    assert [store.get("a"), store.get("a")] == [b"kept", b"kept"]
    assert inner.operations == 2


def test_what_cannot_be_dropped_is_told_before_anything_changes(tmp_path, medium):
    medium.put("a", b"old")
    store = CachingStore(medium, folder=tmp_path / "cache")
    store.get("a")
    (path,) = files(tmp_path)
    path.unlink()
    path.mkdir()  # The one thing that unlink refuses to root too.

    with pytest.raises(StorePermissionError, match="cache folder"):
        store.put("a", b"new", overwrite=True)

    assert medium.get("a") == b"old"


def test_files_of_fetches_that_died_are_collected_and_those_of_others_left(tmp_path, medium):
    medium.put("a", b"x")
    CachingStore(medium, folder=tmp_path / "cache").get("a")
    (path,) = files(tmp_path)
    dead, alive = path.with_name(f"{path.name}.dead"), path.with_name(f"{path.name}.alive")
    for pending, age in ((dead, 7200), (alive, 60)):
        pending.touch()
        os.utime(pending, (time.time() - age,) * 2)
    medium.put("b", b"x")

    CachingStore(medium, folder=tmp_path / "cache").get("b")

    assert not dead.exists()
    assert alive.exists()
    assert path.exists()


# Reads over and over; each version read must be at least the one that was published before the read.
READER = """
import sys
from pathlib import Path
from offload.wrappers import CachingStore
from offload_backends.local import LocalStore

root = Path(sys.argv[1])
store = CachingStore(LocalStore(str(root / "store")), folder=root / "cache", max_bytes=40_000)
reads = 0
print("ready", flush=True)
while True:
    published = int((root / "published").read_text())
    for key in ("a", "b", "c", "d"):
        data = store.get(key)
        assert len(set(data)) == 1 and len(data) == 9000, "a torn object"
        assert data[0] >= published, f"{key}: version {data[0]} after {published} was published"
        reads += 1
    if published == 100:
        break
print(reads)
"""


def test_processes_on_one_folder_never_read_what_another_has_replaced(tmp_path):
    inner = LocalStore(str(tmp_path / "store"), storage_options={"durability": "none"})
    store = CachingStore(inner, folder=tmp_path / "cache", max_bytes=40_000)
    publish(tmp_path, store, 0)
    command = [sys.executable, "-c", READER, str(tmp_path)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"

    for version in range(1, 101):
        publish(tmp_path, store, version)

    answers = [reader.communicate(timeout=60)[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    assert all(int(answer) >= 4 for answer in answers)


def publish(root, store, version):
    for key in ("a", "b", "c", "d"):
        store.put(key, bytes([version]) * 9000, overwrite=True)
    (root / "new").write_text(str(version))
    (root / "new").replace(root / "published")


def test_a_range_without_meaning_is_refused_kept_or_not(cached, medium):
    medium.put("a", b"x")
    store = cached(medium)
    for _ in range(2):
        with pytest.raises(ConfigError, match="range"):
            store.get("a", start=-1, end=2)
        store.get("a")


def test_a_stream_passes_by_the_cache_and_drops_what_was_kept_under_its_key(cached, inner, medium):
    medium.put("a", b"old")
    store = cached(inner)
    store.get("a")
    medium.delete("a")

    store.put_stream("a", [b"0123", b"456789"], 10)

    assert medium.get("a") == b"0123456789"
    assert [store.get("a"), store.get("a")] == [b"0123456789"] * 2
    assert inner.operations == 2
