"""A sink takes the output of a tool in parts; what comes of it is what would have come of the whole text."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kit.store import unpacked
from strength import examples, thinned

from offload import ConfigError, Offloader, OffloadPolicy, Rule, StoreError, open_store
from offload.base.events import EventType
from offload.engine.results import OffloadOutcome
from offload.engine.sink import Sink
from offload.errors import StoreUnavailableError
from offload.records.codec import base
from offload.records.codec.spooled import SpooledContent
from offload.storage.store import OffloadStore, StoredObject, SupportsStreams
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

MIB = 1024 * 1024
LOG = "".join(f"{n:05} ERROR worker-{n % 7} could not reach 10.0.{n % 255}.1\n" for n in range(400))


# More than a sink holds in memory.
LINES = 145_000


def long_text(lines: int = LINES) -> str:
    """Return a text of 60 bytes a line that compresses to less than half."""
    rng = random.Random(1)  # noqa: S311 # reproducible
    return "".join(f"{n:07} é {rng.randbytes(24).hex()}\n" for n in range(lines))


@pytest.fixture(scope="module")
def long() -> str:
    return long_text()


def sunk(off: Offloader, text: str, part: int = 70_001, **names: Any) -> Sink:
    data = text.encode("utf-8", "surrogatepass")
    with off.open_sink(tool_name="Bash", tool_use_id="toolu_1", **names) as sink:
        for start in range(0, len(data), part):
            sink.write(data[start : start + part])
    return sink


def stored(folder: Path) -> dict[str, bytes]:
    """Return the records of a folder, its descriptor aside."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.parent != folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


class PlainStore:
    """The four verbs of another store alone: it takes no streams."""

    def __init__(self, inner: OffloadStore) -> None:
        self._inner = inner
        self.url, self.is_shared = inner.url, inner.is_shared
        self.has_atomic_create, self.durability = inner.has_atomic_create, inner.durability

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self._inner.put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self._inner.get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return self._inner.keys(prefix, after=after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)


# --- parts ----------------------------------------------------------------------------------------


def text_of(*chunks: str | bytes) -> str:
    """Return the text that a sink makes of chunks."""

    def take(content: str | SpooledContent) -> OffloadOutcome:
        assert isinstance(content, str)
        return OffloadOutcome(content)

    sink = Sink(take, len)
    for chunk in chunks:
        assert sink.write(chunk) == len(chunk)
    sink.close()
    return sink.placeholder


@examples(200)
@given(
    data=st.binary(max_size=60) | st.text(max_size=30).map(str.encode),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_any_bytes_in_any_parts_are_the_text_that_they_are_in_one(data: bytes, cuts: list[int]) -> None:
    borders = sorted([0, *cuts, len(data)])
    parts = [data[a:b] for a, b in itertools.pairwise(borders)]
    assert text_of(*parts) == data.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ((), ""),
        ((b"", "", b""), ""),
        ((b"\xc3", b"\xa9"), "é"),
        (("a", b"\xc3", "b", b"\xa9"), "a\udcc3b\udca9"),
        ((b"a\xf0\x9f",), "a\udcf0\udc9f"),
        (("\ud83d", "\ude00"), "\ud83d" + "\ude00"),
    ],
)
def test_texts_and_bytes_come_in_turn(chunks: tuple[str | bytes, ...], text: str) -> None:
    assert text_of(*chunks) == text


# --- short ----------------------------------------------------------------------------------------


def test_a_short_text_makes_the_placeholder_and_the_record_of_offload_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0)
    direct, parts = (Offloader(tmp_path / name, session="s") for name in ("direct", "parts"))
    text = direct.offload_text(LOG, tool_name="Bash", tool_use_id="toolu_1")
    sink = sunk(parts, LOG, 1000)
    assert sink.placeholder == text != LOG
    assert sink.info is not None
    assert sink.info.ref in text
    assert sink.error is None
    assert len(stored(tmp_path / "direct")) == 1
    assert stored(tmp_path / "parts") == stored(tmp_path / "direct")


def test_a_text_that_the_policy_keeps_is_its_own_placeholder_and_what_is_no_text_is_refused(
    tmp_path: Path,
) -> None:
    off: Any = Offloader(tmp_path)
    for names in ({"item_type": "letter"}, {"tool_name": 5}, {"tool_use_id": b"x"}):
        with pytest.raises(ConfigError):
            off.open_sink(**names)
    with off.open_sink() as sink:
        with pytest.raises(ConfigError, match="got int"):
            sink.write(5)
        sink.write("a few words")
    assert (sink.placeholder, sink.info, sink.error) == ("a few words", None, None)
    assert not stored(tmp_path)


# --- long -----------------------------------------------------------------------------------------


def test_a_long_text_in_any_parts_and_again_is_one_record_that_any_zstd_reader_gives_back(
    tmp_path: Path, long: str
) -> None:
    off, other = (Offloader(tmp_path, session="s") for _ in range(2))
    sink, *others = sunk(off, long), sunk(off, long, 5_000_000), sunk(other, long, 9_999)
    [(key, record)] = [item for item in stored(tmp_path).items() if item[0].startswith("r/")]
    assert unpacked(record) == long.encode()
    assert sink.info is not None
    assert (key, len(record)) == (sink.info.key, sink.info.stored_bytes)
    assert (sink.info.chars, sink.info.bytes, sink.info.lines) == (len(long), len(long.encode()), LINES)
    assert {one.placeholder for one in others} == {sink.placeholder}

    def message(text: str) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}
        return {"role": "user", "content": [result]}

    assert Offloader(tmp_path, session="s").restore([message(sink.placeholder)]) == [message(long)]


def test_a_long_text_is_shown_as_a_text_of_its_size_is(tmp_path: Path, long: str) -> None:
    policy = OffloadPolicy(tools={"Bash": Rule(preview_chars=3000)})
    shown = sunk(Offloader(tmp_path / "a", session="s", policy=policy), long).placeholder
    whole = Offloader(tmp_path / "b", session="s", policy=policy).offload_text(
        long, tool_name="Bash", tool_use_id="toolu_1"
    )
    assert shown == whole
    assert shown.startswith(f"[Offloaded: Bash result, {LINES} lines, {len(long)} characters, id ")


def test_a_long_text_goes_out_whatever_the_policy_says_and_is_counted_in_bounded_parts(
    tmp_path: Path, long: str
) -> None:
    counted = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text)

    policy = OffloadPolicy(exclude_tools=("Bash",), types={"tool_result": Rule(enabled=False)})
    sink = sunk(Offloader(tmp_path, policy=policy, token_counter=count), long)
    assert sink.info is not None
    assert len(sink.placeholder) < 5000
    assert sink.info.tokens == len(long)
    assert max(counted) <= 256 * 1024


def test_a_key_that_another_object_took_makes_the_ref_of_a_long_text_longer(
    tmp_path: Path, long: str
) -> None:
    first = sunk(Offloader(tmp_path / "first", session="s"), long)
    assert first.info is not None
    taken = tmp_path / "taken" / first.info.key
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"another's")
    off = Offloader(tmp_path / "taken", session="s")
    sink = sunk(off, long)
    assert sink.info is not None
    assert re.fullmatch(f"{first.info.ref}[a-z]", sink.info.ref)
    assert taken.read_bytes() == b"another's"
    assert b"".join(off.content(sink.info.ref)) == long.encode()


@pytest.mark.parametrize("codec", ["json", "raw"])
def test_a_long_text_goes_into_a_readable_record_too(tmp_path: Path, long: str, codec: str) -> None:
    off = Offloader(tmp_path, session="s", codec=codec)
    sink = sunk(off, long)
    assert sink.info is not None
    assert b"".join(Offloader(tmp_path, session="s").content(sink.info.ref)) == long.encode()


def test_a_store_without_streams_holds_the_same_record(
    tmp_path: Path, long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0)
    plain = PlainStore(open_store(tmp_path / "plain"))
    assert not isinstance(plain, SupportsStreams)
    text = long + long_text(205_000)
    one, other = sunk(Offloader(plain, session="s"), text), sunk(Offloader(tmp_path / "s", session="s"), text)
    assert one.placeholder == other.placeholder
    [record] = stored(tmp_path / "s").values()
    assert len(record) > 8 * MIB
    assert stored(tmp_path / "plain") == stored(tmp_path / "s")


# --- failure --------------------------------------------------------------------------------------


def fill_and_fail(sink: Sink, text: str) -> None:
    with sink:
        sink.write(text)
        raise KeyboardInterrupt


@pytest.mark.parametrize("size", ["short", "long"])
def test_leaving_the_block_by_an_exception_stores_nothing(tmp_path: Path, long: str, size: str) -> None:
    sink = Offloader(tmp_path).open_sink(tool_name="Bash")
    with pytest.raises(KeyboardInterrupt):
        fill_and_fail(sink, LOG if size == "short" else long)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="discarded"):
        _ = sink.placeholder
    with pytest.raises(ConfigError, match="closed"):
        sink.write("more")


def test_a_sink_that_is_open_has_no_placeholder_and_one_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    sink = Offloader(tmp_path).open_sink()
    for name in ("placeholder", "info", "error"):
        with pytest.raises(ConfigError, match=r"close\(\)"):
            getattr(sink, name)
    sink.write("text")
    sink.close()
    sink.close()
    with pytest.raises(ConfigError, match="closed"):
        sink.write("more")
    assert sink.placeholder == "text"


def failing(tmp_path: Path) -> FaultyStore:
    return FaultyStore(open_store(tmp_path), verb="put", is_lasting=True)


@pytest.mark.parametrize("size", ["short", "long"])
def test_a_text_that_cannot_be_stored_is_kept_whole_or_cut_or_raises_as_was_asked_for(
    tmp_path: Path, long: str, size: str
) -> None:
    text = LOG if size == "short" else long
    kept, cut = (sunk(Offloader(failing(tmp_path), on_error=mode), text) for mode in ("keep", "truncate"))
    assert kept.placeholder == text
    assert cut.placeholder.startswith(text[:9])
    assert f"[Truncated: {len(text)} characters in all; the rest was not stored" in cut.placeholder
    for each in (kept, cut):
        assert each.info is None
        assert isinstance(each.error, StoreUnavailableError)

    sink = Offloader(failing(tmp_path), on_error="raise").open_sink(tool_name="Bash")
    sink.write(text)
    with pytest.raises(StoreError):
        sink.close()
    with pytest.raises(ConfigError, match="no placeholder"):
        _ = sink.placeholder


# Writes chunk after chunk to a disk that has room for 10 MiB, and for all again once that was full. Arguments
# are the store and `on_error`. Prints what each step raised, what `error` says, and how much is stored.
FULL_ONCE = """
import json, random, resource, sys
from offload import Offloader, OffloadError

off = Offloader(sys.argv[1], session="s", on_error=sys.argv[2])
sink = off.open_sink(tool_name="Bash", tool_use_id="t")
rng, said = random.Random(1), []

def tried(act):
    try:
        return act()
    except OffloadError as error:
        said.append([error.kind, str(error)])

full = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10 * 2**20, full[1]))
while not said:
    tried(lambda: sink.write(rng.randbytes(2**20).hex()))
resource.setrlimit(resource.RLIMIT_FSIZE, full)
tried(lambda: sink.write("more"))
for _ in range(2):
    tried(sink.close)
for name in ("placeholder", "info"):
    tried(lambda: getattr(sink, name))
print(json.dumps([said, str(sink.error), len(off.records())]))
"""


@pytest.mark.parametrize("on_error", thinned(["keep", "truncate", "raise"], 3))
def test_a_sink_whose_disk_was_full_once_stays_failed_and_stores_nothing(
    tmp_path: Path, on_error: str
) -> None:
    command = [sys.executable, "-c", FULL_ONCE, str(tmp_path), on_error]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said, error, records = json.loads(done.stdout)
    assert said == [[said[0][0], error]] * 6
    assert "a part of the sink's text is lost" in error
    assert "free space or set TMPDIR" in error
    assert records == 0


def test_whatever_ends_a_write_in_the_middle_fails_the_sink(tmp_path: Path, long: str) -> None:
    def count(text: str) -> int:
        if "0001000 é" in text:
            raise KeyboardInterrupt
        return len(text)

    sink = Offloader(tmp_path, token_counter=count).open_sink(tool_name="Bash")
    with pytest.raises(KeyboardInterrupt):
        sink.write(long)
    for act in (sink.close, lambda: sink.write("more"), lambda: sink.placeholder):
        with pytest.raises(StoreError, match="a part of the sink's text is lost"):
            act()
    assert not stored(tmp_path)


def test_a_counter_that_fails_in_a_sink_costs_the_count_and_nothing_else(tmp_path):
    def failing(text):
        if len(text) > 10_000:
            raise ValueError("too long")
        return len(text) // 4

    heard: list[Any] = []
    off = Offloader(tmp_path, session="s", token_counter=failing)
    off.events.subscribe(heard.append, EventType.OFFLOAD_FAILED)
    part = "a line of output, neither long nor short\n" * 20_000

    with off.open_sink(tool_name="Bash") as sink:
        for _ in range(12):
            sink.write(part)

    assert sink.info is not None
    assert b"".join(off.content(sink.info.ref)).decode() == part * 12
    assert heard


def test_a_record_that_is_stored_in_pieces_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text, puts = "".join(f"{n * n} of {n}\n" for n in range(2000)), []
    for large in (10**6, 1000):
        monkeypatch.setattr(base, "_LARGE_BYTES", large)
        store = FaultyStore(MemoryStore(), verb="put", nth=10**9)
        off = Offloader(store, session="s")
        assert off.offload_text(text, tool_name="Bash") != text
        assert [b"".join(off.content(record.ref)).decode() for record in off.records()] == [text]
        puts.append(store.operations)
    assert puts[0] == puts[1]
