"""No file that is written for an encrypted store holds its clear text, not even a file without a name."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from offload import Offloader, OffloadPolicy, Rule
from offload.maintenance.transfer import copy_session
from offload.storage.store import OffloadStore
from offload.storage.wrappers import CachingStore, EncryptingStore
from offload_backends.local import LocalStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1024**2
KEY = b"k" * 32
MARK = b"the secret of line"
FRAME = b"\x28\xb5\x2f\xfd"


def chunks(mebibytes: int) -> Iterator[bytes]:
    rng = random.Random(1)  # noqa: S311  # reproducible
    for number in range(mebibytes):
        yield b"".join(
            b"%s %d: %s\n" % (MARK, number, rng.randbytes(500).hex().encode()) for _ in range(1018)
        )


def files_in(folder: Path) -> Iterator[bytes]:
    """Yield what each file in `folder` holds that has a name, or that this process has open without one."""
    opened = (each for each in Path("/proc/self/fd").iterdir() if is_below(each, folder))
    for file in [*(path for path in folder.rglob("*") if path.is_file()), *opened]:
        yield file.read_bytes()


def is_below(descriptor: Path, folder: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith(f"{folder}/")
    except FileNotFoundError:
        return False


def shows(data: bytes) -> bool:
    """Return whether the mark is in `data`, or in a frame of it."""
    frames = data.split(FRAME)[1:]
    return MARK in data or any(MARK in unpacked(FRAME + frame) for frame in frames)


def unpacked(frame: bytes) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(frame)
    except zstandard.ZstdError:
        return b""


class Watched(LocalStore):
    """A store in a folder, which looks at all files of the test before and after each request."""

    def __init__(self, url: str, watch: Callable[[], None]) -> None:
        super().__init__(url)
        self.watch = watch

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        super().put(key, data, overwrite=overwrite)
        self.watch()

    def put_stream(self, key: str, pieces: object, size: int) -> None:
        self.watch()
        super().put_stream(key, pieces, size)  # type: ignore[arg-type]
        self.watch()


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """Whether files showed clear text; every temporary file is below `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return set()


@pytest.fixture
def store(tmp_path: Path, seen: set[bool]) -> OffloadStore:
    def watch() -> None:
        seen.update(map(shows, files_in(tmp_path)))

    return EncryptingStore(Watched(str(tmp_path / "store"), watch), KEY)


def sink_40_mib(store: OffloadStore, folder: Path, seen: set[bool]) -> None:
    with Offloader(store, session="s").open_sink(tool_name="Bash") as sink:
        for number, chunk in enumerate(chunks(40)):
            sink.write(chunk)
            if number % 8 == 0:
                seen.update(map(shows, files_in(folder)))
        assert any(len(data) > 8 * MIB for data in files_in(folder)), "there was no temporary file"


def test_an_open_sink_of_40_mib_writes_no_clear_text(
    store: OffloadStore, tmp_path: Path, seen: set[bool]
) -> None:
    sink_40_mib(store, tmp_path, seen)

    assert seen == {False}
    [info] = Offloader(store, session="s").records()
    content = b"".join(Offloader(store, session="s").content(info.ref))
    assert content == b"".join(chunks(40))


def test_a_look_into_the_files_would_see_clear_text(
    store: OffloadStore, tmp_path: Path, seen: set[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where the extra `crypto` is not installed; the store has loaded its own part already.
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)

    sink_40_mib(store, tmp_path, seen)

    assert True in seen


def test_copies_hold_no_clear_text(store: EncryptingStore, tmp_path: Path, seen: set[bool]) -> None:
    cached = EncryptingStore(CachingStore(store.inner), KEY)
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
    off = Offloader(cached, session="s", policy=policy)
    text = b"".join(chunks(1)).decode()
    out = off.offload([{"role": "tool", "tool_call_id": "t", "content": text}])
    with off.open_sink(tool_name="Bash") as sink:
        for chunk in chunks(20):
            sink.write(chunk)
    copy_session(cached, cached, "s", name="t")
    assert Offloader(cached, session="t").restore(out.messages)[0]["content"] == text

    seen.update(map(shows, files_in(tmp_path)))
    assert seen == {False}
