from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.store import everything_below

from offload.errors import (
    ConfigError,
    ExistsError,
    NotFoundError,
    StoreError,
    StorePermissionError,
)
from offload_backends.local import LocalStore

IN_CHILD = "import sys; from offload_backends.local import LocalStore; store = LocalStore(sys.argv[1]); "


def child(code: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IN_CHILD + code, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def failing(call: Callable[..., Any], number: int, when: Callable[..., bool]) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise OSError(number, os.strerror(number))
        return call(*args, **kwargs)

    return fail


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# Address and options


def test_constructing_touches_nothing_and_the_first_put_makes_the_root(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    store = LocalStore(str(root))
    list(store.keys())
    store.delete("k")
    assert everything_below(tmp_path) == []

    store.put("k", b"x")

    assert everything_below(tmp_path) == ["a", "a/b", "a/b/k"]


@pytest.mark.parametrize("name", ["plain", "with space", "per%cent", "q?and#", "übung"])
def test_the_url_opens_the_same_folder_again(tmp_path: Path, name: str) -> None:
    first = LocalStore(str(tmp_path / name))
    first.put("k", b"x")

    assert LocalStore(first.url).get("k") == b"x"
    assert (tmp_path / name / "k").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        *(
            (url, {}, ".")
            for url in ("file://host/x", "file://relative", "file:///a?b", "file:///a#b", "a\0b")
        ),
        ("x", {"durable": "fsync"}, "durability"),
        ("x", {"durability": "max"}, "fsync"),
    ],
)
def test_what_names_no_local_folder_or_option_is_refused_with_the_known_ones(
    url: str, options: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        LocalStore(url, storage_options=options)


# Privacy


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_and_folders_are_private_whatever_the_umask(
    tmp_path: Path, umask: int, overwrite: bool
) -> None:
    before = os.umask(umask)
    try:
        LocalStore(str(tmp_path / "new" / "root")).put("a/b", b"x", overwrite=overwrite)
    finally:
        os.umask(before)

    modes = [mode(tmp_path / path) for path in ("new", "new/root", "new/root/a", "new/root/a/b")]
    assert modes == [0o700, 0o700, 0o700, 0o600]


VERBS: dict[str, Callable[[LocalStore], object]] = {
    "put": lambda store: store.put("new", b"x"),
    "overwrite": lambda store: store.put("old", b"x", overwrite=True),
    "put_stream": lambda store: store.put_stream("new", [b"x"], 1),
    "get": lambda store: store.get("old"),
    "keys": lambda store: list(store.keys()),
    "delete": lambda store: store.delete("old"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("owner", "open_mode"),
    [*(("another group", mode) for mode in (0o720, 0o702, 0o777)), ("us", 0o777), ("another", 0o700)],
)
def test_a_root_that_others_own_or_may_write_to_is_refused_before_it_is_read_or_written(
    tmp_path: Path, verb: str, owner: str, open_mode: int
) -> None:
    (tmp_path / "old").write_bytes(b"kept")
    if owner != "us":
        give_away(tmp_path, user=65534 if owner == "another" else -1)
    tmp_path.chmod(open_mode)
    said = "belongs to user 65534" if owner == "another" else f"chmod go-w {tmp_path}"

    with pytest.raises(StorePermissionError, match=said):
        VERBS[verb](LocalStore(str(tmp_path)))

    assert everything_below(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"kept"


@pytest.mark.parametrize("safe_mode", [0o700, 0o755, 0o1777, 0o1770, 0o775])
@pytest.mark.parametrize("verb", VERBS)
def test_a_root_whose_files_only_their_owner_and_own_group_may_change_is_used(
    tmp_path: Path, verb: str, safe_mode: int
) -> None:
    (tmp_path / "old").write_bytes(b"x")
    tmp_path.chmod(safe_mode)

    VERBS[verb](LocalStore(str(tmp_path)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_root_serves_every_user_who_may_write_there() -> None:
    # Not tmp_path, whose parents let no other user in.
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o1777)

        done = child("import os; os.setuid(65534); store.put('a/k', b'x')", root)

        assert done.stderr == ""
        assert (root / "a" / "k").stat().st_uid == 65534


def test_a_folder_that_another_user_planted_below_the_root_holds_no_objects(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "planted").write_bytes(b"x")
    tmp_path.chmod(0o1777)
    give_away(tmp_path / "r")
    store = LocalStore(str(tmp_path))

    assert list(store.keys()) == []
    store.delete("r/planted")
    with pytest.raises(NotFoundError):
        store.get("r/planted")
    with pytest.raises(StoreError, match="of another user"):
        store.put("r/new", b"x")

    assert everything_below(tmp_path) == ["r", "r/planted"]


def give_away(path: Path, user: int = 65534) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(path, user, 65534)


class Watched:
    """An entry of a folder; records every use except of its name."""

    looked_at: ClassVar[list[str]] = []

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name = entry.name
        self._entry = entry

    def __getattr__(self, attribute: str) -> object:
        self.looked_at.append(self.name)
        return getattr(self._entry, attribute)


@pytest.mark.parametrize(("prefix", "shown"), [("r/s/k7", 111), ("r/s/k77~", 1), ("r/s/none", 0)])
def test_a_listing_by_prefix_looks_at_no_other_file_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, shown: int
) -> None:
    folder = tmp_path / "r" / "s"
    folder.mkdir(parents=True)
    for number in range(1000):
        (folder / f"k{number}~").touch()
    scan, stat_of, stats = os.scandir, os.stat, list[object]()

    @contextmanager
    def watched_scan(handle: int) -> Iterator[Iterator[Watched]]:
        with scan(handle) as entries:
            yield map(Watched, entries)

    def counted_stat(path: Any, **options: Any) -> os.stat_result:
        stats.append(path)
        return stat_of(path, **options)

    Watched.looked_at.clear()
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", watched_scan)
        patched.setattr(os, "stat", counted_stat)
        found = [found.key for found in LocalStore(str(tmp_path)).keys(prefix)]

    assert len(found) == shown
    assert {f"r/s/{name}" for name in Watched.looked_at} == set(found)
    assert len(stats) == shown


def test_home_and_relative_paths_become_absolute_and_the_root_itself_may_be_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert LocalStore("~/x").url == LocalStore("x").url == (tmp_path / "x").as_uri()
    LocalStore(str(tmp_path / "link")).put("k", b"x")
    assert (tmp_path / "real" / "k").read_bytes() == b"x"


def test_foreign_files_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a/k", b"x")
    for name in (".hidden", ".tmp-0123", "README.TXT", "a b", "a/.tmp-1", "B/k", ".git/k"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    assert [found.key for found in store.keys()] == ["a/k"]


def test_a_listing_enters_no_folder_that_cannot_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    for key in ("a/k", "b/a/k", "b/c/k", "c/k"):
        store.put(key, b"x")
    opened = []
    real_open = os.open

    def watched(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(str(path))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", watched)

    assert [found.key for found in store.keys("b/", after="b/b")] == ["b/c/k"]
    assert opened == [str(tmp_path), "b", str(tmp_path), "b", "c"]


# Faults


@pytest.fixture(params=["unnamed file", "temporary file", "temporary file, no hard links"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take away what the file system offers, so that each way to create a file is used."""
    if request.param != "unnamed file":
        no_unnamed = failing(os.open, errno.EOPNOTSUPP, lambda path, *_, **__: path == ".")
        monkeypatch.setattr(os, "open", no_unnamed)
    if request.param.endswith("no hard links"):
        monkeypatch.setattr(os, "link", failing(os.link, errno.EPERM, lambda *_, **__: True))
    return str(request.param)


def put_stream(store: LocalStore, key: str, data: bytes) -> None:
    store.put_stream(key, [data[:3], b"", data[3:]], len(data))


on_every_road = pytest.mark.usefixtures("road")
by_either_verb = pytest.mark.parametrize("create", [LocalStore.put, put_stream])


@on_every_road
@by_either_verb
def test_every_road_creates_once_and_leaves_no_litter(
    tmp_path: Path, create: Callable[[LocalStore, str, bytes], None]
) -> None:
    store = LocalStore(str(tmp_path))
    create(store, "a/k", b"first" + bytes(100_000))
    with pytest.raises(ExistsError):
        create(store, "a/k", b"second")

    assert everything_below(tmp_path) == ["a", "a/k"]
    assert (tmp_path / "a/k").read_bytes() == b"first" + bytes(100_000)
    assert mode(tmp_path / "a/k") == 0o600


@on_every_road
@by_either_verb
@pytest.mark.parametrize("nth", [0, 1])
def test_a_failed_fsync_drops_the_file_and_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    create: Callable[[LocalStore, str, bytes], None],
) -> None:
    store = LocalStore(str(tmp_path))
    calls = iter(range(100))
    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EIO, lambda _: next(calls) == nth))

    with pytest.raises(StoreError):
        create(store, "k", b"x and y")

    assert everything_below(tmp_path) == []


MANY = [(f"a/{n:02}", b"%d" % n) for n in range(20)]


@pytest.mark.parametrize("is_there", [False, True])
def test_many_objects_of_one_folder_sync_it_for_the_first_and_once_for_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    store, synced = LocalStore(str(tmp_path)), []
    store.put("a/first", b"")
    store.put_many(MANY if is_there else [])
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))

    outcomes = [type(error) for error in store.put_many(MANY)]

    assert outcomes == [ExistsError if is_there else type(None)] * 20
    # The last sync is that of the folder, behind the bytes of every file.
    assert synced == [False, True, *[False] * 19, True]


@on_every_road
def test_of_many_objects_whose_folder_cannot_be_synced_the_new_ones_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a/05", b"old")
    folders = iter(range(100))

    def is_last(handle: int) -> bool:
        return stat.S_ISDIR(os.fstat(handle).st_mode) and next(folders) == 1

    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EIO, is_last))
    outcomes = store.put_many(MANY)

    assert [type(error) for error in outcomes] == [type(None)] + [StoreError] * 19
    assert everything_below(tmp_path) == ["a", "a/00", "a/05"]
    assert store.get("a/05") == b"old"
    monkeypatch.undo()
    assert [type(error) for error in store.put_many(MANY)].count(ExistsError) == 2


@on_every_road
@pytest.mark.parametrize("number", [None, errno.EOPNOTSUPP, errno.ENOENT, errno.EEXIST, errno.EPERM])
def test_a_stream_whose_pieces_raise_leaves_nothing_on_any_road_and_is_not_tried_again(
    tmp_path: Path, number: int | None
) -> None:
    raised = ValueError("by the caller") if number is None else OSError(number, "by the caller")
    first = KeyError("first")
    raised.__context__ = first
    begun = []

    class Pieces:
        def __iter__(self) -> Iterator[bytes]:
            begun.append(self)
            yield bytes(100_000)
            raise raised

    with pytest.raises(type(raised)) as caught:
        LocalStore(str(tmp_path)).put_stream("k", Pieces(), 200_000)

    assert caught.value is raised
    assert raised.__context__ is first
    assert len(begun) == 1
    assert everything_below(tmp_path) == []


@on_every_road
@pytest.mark.parametrize("size", [0, 9, 11])
def test_a_stream_of_another_size_leaves_nothing_on_any_road_and_one_of_a_taken_key_costs_no_piece(
    tmp_path: Path, size: int
) -> None:
    store = LocalStore(str(tmp_path))
    with pytest.raises(ConfigError, match=f"{size} bytes"):
        store.put_stream("k", [b"01234", b"56789"], size)
    assert everything_below(tmp_path) == []

    store.put("k", b"x")
    pieces = iter([b"0", b"1"])
    with pytest.raises(ExistsError):
        store.put_stream("k", pieces, 2)
    assert list(pieces) == [b"0", b"1"]


def test_a_stream_is_written_as_its_pieces_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    real_write = os.write

    def watched(handle: int, data: memoryview) -> int:
        # A short write each time.
        written.append(real_write(handle, data[:700]))
        return written[-1]

    def pieces() -> Iterator[bytes]:
        for n in range(20):
            assert sum(written) == n * 1000
            yield bytes([n]) * 1000

    monkeypatch.setattr(os, "write", watched)
    LocalStore(str(tmp_path)).put_stream("k", pieces(), 20_000)

    assert (tmp_path / "k").read_bytes() == b"".join(bytes([n]) * 1000 for n in range(20))


def test_a_failed_fsync_of_new_bytes_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))
    store.put("k", b"old")
    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EIO, lambda _: True))

    with pytest.raises(StoreError):
        store.put("k", b"new", overwrite=True)

    assert everything_below(tmp_path) == ["k"]
    assert (tmp_path / "k").read_bytes() == b"old"


def test_file_and_folder_are_synced_before_a_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real_fsync = os.fsync

    def watched(handle: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        real_fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    LocalStore(str(tmp_path)).put("k", b"x")
    assert synced == [False, True]

    synced.clear()
    LocalStore(str(tmp_path)).put_stream("s", [b"x", b"y"], 2)
    assert synced == [False, True]

    synced.clear()
    LocalStore(str(tmp_path / "new")).put("a/k", b"x")
    assert synced == [True, True, False, True]

    synced.clear()
    LocalStore(str(tmp_path), storage_options={"durability": "none"}).put("k2", b"x")
    assert synced == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_medium_leaves_nothing_and_says_so(tmp_path: Path, overwrite: bool) -> None:
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
        f"store.put('a/k', b'x' * 10_000, overwrite={overwrite})"
    )

    died = child(limited, tmp_path)

    assert "offload.errors.StoreError" in died.stderr
    assert "File too large" in died.stderr
    assert everything_below(tmp_path) == ["a"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_medium_that_refuses_is_a_permission_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = LocalStore(str(tmp_path))
    monkeypatch.setattr(os, "open", failing(os.open, number, lambda *_, **__: True))

    for verb in (lambda: store.put("k", b"x"), lambda: store.get("k"), lambda: list(store.keys())):
        with pytest.raises(StorePermissionError, match="writable"):
            verb()


def test_a_root_that_cannot_be_made_is_told_without_a_file_to_remove(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    for root in ("/proc/absent/store", str(tmp_path / "dangling")):
        with pytest.raises(StoreError, match="is missing and cannot be made") as caught:
            LocalStore(root).put("k", b"x")
        assert "remove" not in str(caught.value)
