"""The local store on systems that offer less than this one; `systems.FORMS` lists them."""

from __future__ import annotations

import errno
import itertools
import ntpath
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest
import systems
from kit.store import everything_below

from offload.errors import (
    ConfigError,
    ExistsError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.storage import layout
from offload_backends import local
from offload_backends.local import LocalStore, _folders, _system

BY_PATH = [name for name, system in systems.FORMS.items() if not system.has_folder_handles]
NOTHING = replace(systems.BY_PATH, has_hard_links=False, rename=os.rename)


@pytest.fixture(params=systems.FORMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    systems.use_for_a_test(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(params=BY_PATH)
def by_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    systems.use_for_a_test(request.param, monkeypatch)
    return str(request.param)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a file open, as a program does that reads it."""
    with path.open("rb"):
        yield


# What every system promises


def test_a_put_leaves_the_object_and_nothing_else(tmp_path: Path, system: str) -> None:
    store = LocalStore(str(tmp_path / "new" / "root"))
    store.put("a/k", b"first")
    store.put_stream("a/s", [b"one", b"two"], 6)
    store.put("a/o", b"old", overwrite=True)
    store.put("a/o", b"new", overwrite=True)
    with pytest.raises(ExistsError):
        store.put("a/k", b"second")

    assert everything_below(tmp_path / "new/root") == ["a", "a/k", "a/o", "a/s"]
    contents = [(tmp_path / "new/root/a" / name).read_bytes() for name in "kos"]
    assert contents == [b"first", b"new", b"onetwo"], system


@pytest.mark.usefixtures("system")
def test_no_link_is_followed_on_any_system(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    os.mkfifo(root / "pipe")
    store = LocalStore(str(root))

    for key in ("folder/secret", "file", "pipe"):
        with pytest.raises(NotFoundError):
            store.get(key)
        store.delete(key)
        with pytest.raises(StoreError):
            store.put(key, b"x")
    for key, overwrite in (("folder/new", False), ("folder/new", True), ("folder/secret", True)):
        with pytest.raises(StoreError):
            store.put(key, b"x", overwrite=overwrite)

    assert list(store.keys()) == []
    assert everything_below(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    store.put("file", b"new", overwrite=True)
    assert (outside / "secret").read_bytes() == b"secret"
    assert not (root / "file").is_symlink()
    assert store.get("file") == b"new"


@pytest.mark.usefixtures("system")
def test_what_is_in_the_way_of_a_key_is_told_on_any_system(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a/k", b"x")

    for key, overwrite in itertools.product(("a", "a/k/deeper"), (False, True)):
        with pytest.raises(StoreError, match="in its place"):
            store.put(key, b"y", overwrite=overwrite)
    no_folder = LocalStore(str(tmp_path / "a/k"))
    for verb in (lambda: no_folder.get("k"), lambda: no_folder.put("k", b"x"), lambda: [*no_folder.keys()]):
        with pytest.raises(StoreMissingError, match="not a folder"):
            verb()

    assert everything_below(tmp_path) == ["a", "a/k"]


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_sync_of_the_bytes_leaves_nothing_on_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    store = LocalStore(str(tmp_path))
    store.put("before", b"kept")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError):
        store.put("k", b"x", overwrite=overwrite)

    assert everything_below(tmp_path) == ["before"]


@pytest.mark.usefixtures("system")
def test_no_handle_stays_open_on_any_system(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    before = os.listdir("/proc/self/fd")  # noqa: PTH208  # counted, not used
    store.put("a/b/c", b"x")
    store.put("a/b/c", b"y", overwrite=True)
    for key in ("a/b", "a/b/c/d"):
        with pytest.raises(StoreError):
            store.put(key, b"x")
        with pytest.raises(NotFoundError):
            store.get(key)
    assert store.get("a/b/c") == b"y"
    next(store.keys())
    with pytest.raises(ConfigError):
        store.put_stream("a/b/s", [b"x"], 2)
    tmp_path.chmod(0o777)
    with suppress(StorePermissionError):
        store.get("a/b/c")

    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208  # counted, not used


def test_power_is_promised_only_where_folders_are_synced_and_modes_count_where_files_have_owners(
    tmp_path: Path, system: str
) -> None:
    promised = {
        options: LocalStore(str(tmp_path), storage_options={"durability": options}).durability
        for options in ("fsync", "none")
    }

    assert promised == {"fsync": "process" if system in BY_PATH else "power", "none": "process"}
    tmp_path.chmod(0o777)
    if system in BY_PATH:
        LocalStore(str(tmp_path)).put("k", b"x")
        assert everything_below(tmp_path) == ["k"]


@pytest.mark.parametrize(
    ("tag", "is_link"),
    [(0xA0000003, True), (0xA000000C, True), (0x9000001A, False), (0x80000013, False), (0, False)],
    ids=["junction", "symbolic link", "file in a cloud", "deduplicated file", "file"],
)
def test_a_reparse_point_that_names_another_place_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: int, is_link: bool
) -> None:
    class Info(SimpleNamespace):
        st_mode = stat.S_IFDIR | 0o700
        st_reparse_tag = tag

    monkeypatch.setattr(_system, "SYSTEM", systems.BY_PATH)
    store = LocalStore(str(tmp_path))
    store.put("folder/k", b"x")
    monkeypatch.setattr(_folders.PathFolder, "stat", lambda *_: Info())

    if is_link:
        with pytest.raises(StoreError, match="Not a directory"):
            store.put("folder/new", b"x")
    else:
        store.put("folder/new", b"x")


# The way to a name


def test_a_medium_that_offers_no_way_to_a_free_name_stores_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_system, "SYSTEM", NOTHING)
    store = LocalStore(str(tmp_path))
    store.put("kept", b"old", overwrite=True)

    with pytest.raises(StoreError, match="another medium"):
        store.put("k", b"x")
    with pytest.raises(ExistsError):
        store.put("kept", b"new")

    assert everything_below(tmp_path) == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"


@pytest.mark.parametrize("offered", [NOTHING, systems.RENAME_ONLY])
def test_the_trial_of_a_rename_is_made_once_and_touches_temporary_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: _system.System
) -> None:
    renamed = []

    def watched(old: Path, new: Path) -> None:
        renamed.append((old.name[:5], new.name[:5]))
        offered.rename(old, new)

    monkeypatch.setattr(_system, "SYSTEM", replace(offered, rename=watched))
    for number in range(3):
        try:
            LocalStore(str(tmp_path)).put(f"key-{number}", b"x")
        except StoreError:
            assert offered is NOTHING

    trial, *rest = renamed
    assert trial == (".tmp-", ".tmp-")
    assert rest == ([] if offered is NOTHING else [(".tmp-", f"key-{n}"[:5]) for n in range(3)])


KILLED = """
import dataclasses, os, signal, sys
sys.path.append(sys.argv[2])
import systems
from offload_backends.local import _system
from offload_backends.local import LocalStore

def die(old, new):
    if sys.argv[3] == "after":
        systems.RENAME_ONLY.rename(old, new)
    os.kill(os.getpid(), signal.SIGKILL)

_system.SYSTEM = dataclasses.replace(systems.RENAME_ONLY, rename=die)
LocalStore(sys.argv[1]).put("k", b"x")
"""


def test_a_trial_that_is_killed_leaves_temporary_files_only(tmp_path: Path) -> None:
    tests = str(Path(systems.__file__).parent)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), tests, "before"], check=False)

    assert done.returncode == -signal.SIGKILL
    assert list(LocalStore(str(tmp_path)).keys()) == []
    left = everything_below(tmp_path)
    assert len(left) == 3
    assert all(name.startswith(".tmp-") for name in left)


def test_a_medium_without_hard_links_uses_the_rename_of_the_c_library_if_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("not needed")

    without = replace(systems.NO_LINKS, exclusive_renames=(("no_such_call", 1),))
    store = LocalStore(str(tmp_path))
    for key, system in (
        ("k", replace(systems.NO_LINKS, rename=fail)),
        ("l", replace(without, rename=systems.refusing_rename)),
    ):
        monkeypatch.setattr(_system, "SYSTEM", system)
        store.put(key, b"x")
        with pytest.raises(ExistsError):
            store.put(key, b"y")
        assert (tmp_path / key).read_bytes() == b"x"

    assert everything_below(tmp_path) == ["k", "l"]


# Syncing where fsync does not reach the disk


def test_the_full_sync_of_a_system_replaces_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    synced = []

    def watched(handle: int, command: int) -> int:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), command))
        return 0

    monkeypatch.setattr(_system, "SYSTEM", replace(systems.NAMED, full_sync=51))
    monkeypatch.setattr(fcntl, "fcntl", watched)
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("fsync is not enough"))
    LocalStore(str(tmp_path)).put("k", b"x")

    assert synced == [(False, 51), (True, 51)]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY, errno.EIO])
def test_a_medium_without_a_full_sync_gets_fsync_and_one_that_fails_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fcntl = pytest.importorskip("fcntl")
    synced = []

    def refuse(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_system, "SYSTEM", replace(systems.NAMED, full_sync=51))
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    if number == errno.EIO:
        with pytest.raises(StoreError):
            LocalStore(str(tmp_path)).put("k", b"x")
        assert (synced, everything_below(tmp_path)) == ([], [])
        return
    LocalStore(str(tmp_path)).put("k", b"x")

    assert synced == [False, True]


# Files that another program has open


CHANGES: dict[str, Callable[[LocalStore], object]] = {
    "delete": lambda store: store.delete("k"),
    "replace": lambda store: store.put("k", b"new", overwrite=True),
}


@pytest.mark.usefixtures("by_path")
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_stays_open_is_kept_and_the_error_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr("offload.base.system._HELD_SECONDS", 0.02)
    store = LocalStore(str(tmp_path))
    store.put("k", b"old")

    with reading(tmp_path / "k"), pytest.raises(StoreUnavailableError, match="close the program"):
        CHANGES[change](store)

    assert everything_below(tmp_path) == ["k"]
    assert store.get("k") == b"old"


@pytest.mark.usefixtures("by_path")
@pytest.mark.parametrize(("change", "left"), [("delete", []), ("replace", ["k"])])
def test_a_file_that_is_open_for_a_moment_is_waited_for(tmp_path: Path, change: str, left: list[str]) -> None:
    store = LocalStore(str(tmp_path))
    store.put("k", b"old")
    file = (tmp_path / "k").open("rb")
    closing = threading.Timer(0.05, file.close)
    closing.start()

    CHANGES[change](store)
    closing.join()

    assert everything_below(tmp_path) == left


@pytest.mark.usefixtures("by_path")
def test_an_open_file_that_the_system_refuses_without_a_number_of_windows_is_a_permission_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    store.put("k", b"x")
    calls = []

    def refuse(path: Path, *_: int) -> int:
        calls.append(path)
        error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        # What os.open leaves on Windows.
        error.winerror = None  # type: ignore[attr-defined]  # on Windows it is there
        raise error

    monkeypatch.setattr("offload.base.system._HELD_SECONDS", 0.02)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(StorePermissionError):
            store.get("k")

    assert len(calls) > 2


@pytest.mark.usefixtures("by_path")
def test_a_refusal_that_is_no_sharing_violation_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(*arguments: object) -> None:
        calls.append(arguments)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    store = LocalStore(str(tmp_path))
    store.put("k", b"x")
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        with pytest.raises(StorePermissionError, match="writable"):
            store.delete("k")

    assert len(calls) == 1


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (32, StoreUnavailableError, "close the program"),
        (33, StoreUnavailableError, "close the program"),
        (123, StoreError, "path Windows accepts"),
        (206, StoreError, "shorter path"),
        (3, StoreError, "drive that exists"),
        (5, StorePermissionError, "no other program"),
        (None, StorePermissionError, "writable"),
    ],
)
def test_errors_of_windows_say_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, kind: type[StoreError], advice: str
) -> None:
    def fail(*_: object) -> None:
        error = OSError(errno.EACCES, "by Windows")
        error.winerror = number  # type: ignore[attr-defined]  # on Windows it is there
        raise error

    monkeypatch.setattr(local, "open_folder", fail)
    with pytest.raises(StoreError, match=f"by Windows.*{advice}") as caught:
        list(LocalStore(str(tmp_path)).keys())

    assert type(caught.value) is kind


# Paths of Windows


@pytest.mark.parametrize(
    ("path", "extended"),
    [
        ("C:\\data\\context", "\\\\?\\C:\\data\\context"),
        ("C:\\", "\\\\?\\C:\\"),
        ("\\\\server\\share\\context", "\\\\?\\UNC\\server\\share\\context"),
        ("\\\\?\\C:\\data", "\\\\?\\C:\\data"),
    ],
)
def test_a_path_of_windows_gets_the_form_without_limits(
    monkeypatch: pytest.MonkeyPatch, path: str, extended: str
) -> None:
    assert _folders.extended_path(path) == path
    monkeypatch.setattr(os.path, "splitdrive", ntpath.splitdrive)

    assert _folders.extended_path(path) == extended


# As `as_uri` returns them on Windows, and as people write them.
@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("C:\\data\\context", "file:///C:/data/context"),
        ("C:\\with space\\100% #1", "file:///C:/with%20space/100%25%20%231"),
        ("\\\\server\\share\\a b", "file://server/share/a%20b"),
        ("D:\\", "file:///D:/"),
        ("C:\\data", "file:///C:\\data"),
        ("C:\\data", "file://localhost/C:/data"),
    ],
)
def test_the_url_of_a_path_of_windows_leads_back_to_it_where_paths_have_drives(
    monkeypatch: pytest.MonkeyPatch, path: str, url: str
) -> None:
    assert path.startswith("\\\\") or local._path_in(url).startswith(f"/{path[:2]}")
    monkeypatch.setattr(os.path, "splitdrive", ntpath.splitdrive)

    assert PureWindowsPath(local._path_in(url)) == PureWindowsPath(path)


def test_a_host_where_paths_have_none_and_the_form_without_limits_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="file:///absolute/path"):
        LocalStore("file://server/share/context")
    monkeypatch.setattr(os.path, "splitdrive", ntpath.splitdrive)
    with pytest.raises(ConfigError, match="without"):
        LocalStore("\\\\?\\C:\\data")


def test_a_path_that_is_too_long_is_an_error_with_advice(tmp_path: Path, system: str) -> None:
    store = LocalStore(str(tmp_path / "/".join(["a" * 200] * 30)))

    for verb in (lambda: store.put("k", b"x"), lambda: list(store.keys())):
        with pytest.raises(StoreError, match="shorter path"):
            verb()
    assert system


PARTS: dict[str, str | None] = {
    "session": "s",
    "receiver": "s",
    "tool": "t",
    "space": "s",
    "name": "n",
    "suffix": ".zst",
}
PARTS |= {"ref": "abcde", "generation": "2", "item_type": "u", "chars": "1", "tokens": "1", "ttl": "1"}
PARTS |= {"created": None}


def test_no_key_of_the_library_can_be_the_short_name_of_another_file() -> None:
    """Windows gives `progra~1.zst` to a file of a long name: up to 8 characters, and 3 after a dot."""
    shortest = [
        layout.RECORD.key(**{**PARTS, "generation": None, "ttl": None}),
        layout.LINK.key(**{**PARTS, "generation": None, "ttl": None}),
        layout.PIN.key(session="s", ref="abcde"),
        layout.GRANT.key(session="s", ref="abcde", receiver="s"),
        layout.LAST_READ.key(session="s", ref="abcde"),
        layout.JOURNAL.key(session="s", number="000000001", kind="begun", bytes="1", letters="a" * 10),
        layout.SNAPSHOT.key(session="s", began="1", took="1", letters="a" * 10),
    ]

    for key in shortest:
        stem = layout.name_of(key).partition(".")[0]
        assert "~" in stem
        assert len(stem) > 8, key
    assert "~" not in layout.encode_part("a~b")
