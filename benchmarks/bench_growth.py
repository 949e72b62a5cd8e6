"""Growth of costs with the history, the record, the session, the writers; exponents and plots.

An exponent is the slope of the line through the points with both axes logarithmic: 0 is flat, 1 is
proportional. Plots go to `plots/` next to this file if matplotlib is installed (dependency group `bench`).
"""

from __future__ import annotations

import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _content import output
from _growth import Curve
from _measure import Figure, repeat, require, run, seconds

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule, Sweep
from offload.agent.compaction import RoundCompactor, RoundConfig
from offload.errors import NotFoundError
from offload.records.index.catalog import Catalog
from offload.records.index.entries import record_key
from offload.records.record import Header
from offload.records.record.header import Counts
from offload.storage.store import Durability, StoredObject

_LENGTHS = (250, 1000, 4000, 16_000, 40_000)
# From here on a turn is to cost the same: up to twice as much at 40 times the length.
_QUICK_LENGTHS, _FLAT_LENGTH, _FLAT_RATIO, _TURN_SECONDS = 3, 1000, 2, 0.0005
_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
_QUICK_SIZES, _PROPORTIONAL_SIZE = 5, 1_000_000
_SESSIONS = (10, 100, 1000, 10_000, 30_000, 100_000)
# From here on a session is kept in the cache and a snapshot; below, a page is a listing.
_QUICK_SESSIONS, _LARGE_SESSION = 5, 10_000
_WRITERS = (1, 2, 4, 8, 16)
_ITEMS, _QUICK_ITEMS, _QUICK_WRITERS = 80, 10, 3
_PART_CHARS, _PAGE_CHARS, _PAGE = 1_000_000, 8192, 50
_TURNS, _READS, _FIRST_PAGES = 60, 9, 3
_LONG_SECONDS = 0.5
_EARLY = OffloadPolicy(types={"tool_result": Rule(min_tokens=200, preview_chars=200)}, tools={})

Messages = list[dict[str, Any]]
Turn = Callable[[Messages], float]
# A process that stores items in the common session after a signal: folder, its number, items, here.
_WRITER = """
import sys
folder, number, items, here = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
sys.path.append(here)
from bench_growth import taking_all
from _content import output
off = taking_all(folder)
texts = [output(20_000, number * items + n) for n in range(items)]
off.offload_text(output(20_000, 10**6 + number), tool_use_id="first")
print("ready", flush=True)
sys.stdin.readline()
for n, text in enumerate(texts):
    assert off.offload_text(text, tool_use_id=f"{number}-{n}") != text
print("done", flush=True)
"""


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    yield from _turns(_LENGTHS[: _QUICK_LENGTHS if is_quick else None])
    with tempfile.TemporaryDirectory() as folder:
        for curve in _records(folder, _SIZES[: _QUICK_SIZES if is_quick else None]):
            yield from curve.figures()
    for curve in _catalogs(_SESSIONS[: _QUICK_SESSIONS if is_quick else None]):
        yield from curve.figures()
    if is_quick:
        yield from _writers(_WRITERS[:_QUICK_WRITERS], _QUICK_ITEMS).figures()
    else:
        yield from _writers(_WRITERS, _ITEMS).figures()


def taking_all(folder: str) -> Offloader:
    """Return an offloader that offloads every item."""
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=200)}, min_saving=0)
    return Offloader(folder, session="growth", policy=policy)


def _turns(lengths: tuple[int, ...]) -> Iterator[Figure]:
    """Measure a turn that brings one more call and its short result; one message in eight is replaced."""
    swept = {"sweep": Sweep(trigger_tokens=10**9)}
    loops: dict[str, Callable[[Messages], Turn]] = {
        "a turn": partial(_offloading, {}),
        "a turn far from the trigger of a sweep": partial(_offloading, swept),
        "a turn of an agent": _agent,
        "asking whether a compaction by rounds is due": _rounds,
    }
    for name, begin in loops.items():
        points = [(length, _turn_seconds(begin, length)) for length in lengths]
        yield from Curve(name, "messages in the history", points, 0, since=_FLAT_LENGTH).figures()
        longest, took = points[-1]
        ratio = took / dict(points)[_FLAT_LENGTH]
        yield Figure(f"{name}: at {longest:,} against {_FLAT_LENGTH:,} messages", ratio, at_most=_FLAT_RATIO)
        yield Figure(f"{name}: at {longest:,} messages", 1000 * took, "ms", at_most=1000 * _TURN_SECONDS)


def _turn_seconds(begin: Callable[[Messages], Turn], length: int) -> float:
    turn = begin(_told(length))
    return median(turn(_exchange(length + number, is_large=False)) for number in range(_TURNS))


def _offloading(changes: dict[str, Any], messages: Messages) -> Turn:
    """Return a function that adds messages and returns the seconds that `offload` took."""
    off = Offloader("memory://", session="turns", policy=_EARLY.model_copy(update=changes))
    off.offload(messages)
    held = list(messages)

    def turn(new: Messages) -> float:
        held.extend(new)
        return seconds(off.offload, held)

    return turn


def _agent(messages: Messages) -> Turn:
    off = Offloader("memory://", session="turns", policy=_EARLY)
    context = ContextManager(off, AgentConfig(window_tokens=10**9))
    for message in messages:
        context.add(message)
    context.before_model_call()

    def steps(call: Any, result: Any) -> None:
        context.after_model_call(call)
        context.add(result)
        context.before_model_call()

    return lambda new: seconds(steps, *new)


def _rounds(messages: Messages) -> Turn:
    config = RoundConfig(max_context_tokens=10**9)
    compactor = RoundCompactor(Offloader("memory://"), lambda _: "", config)
    held = list(messages)
    compactor.should_compact(held)

    def turn(new: Messages) -> float:
        held.extend(new)
        return seconds(compactor.should_compact, held)

    return turn


def _told(length: int) -> Messages:
    exchanges = (_exchange(number, is_large=number % 4 == 0) for number in range(length // 2))
    return [message for exchange in exchanges for message in exchange]


def _exchange(number: int, *, is_large: bool) -> Messages:
    call = f"toolu_{number:06}"
    use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": f"make report-{number}"}}
    text = output(1500, number % 100) if is_large else f"report-{number} is made"
    result = {"type": "tool_result", "tool_use_id": call, "content": text}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def _records(folder: str, sizes: tuple[int, ...]) -> list[Curve]:
    """Measure a text in through a sink, then a page and its last lines."""
    written, pages, tails = [], [], []
    off = taking_all(folder)
    for chars in sizes:
        took: list[float] = []
        while len(took) < _READS and sum(took) < _LONG_SECONDS:
            took.append(seconds(_pour, off, chars, len(took)))
        ref = max(off.records(), key=lambda info: info.chars).ref
        far = taking_all(folder)
        far.records()
        page = partial(far.tools.read, ref, offset=chars // 2, limit=_PAGE_CHARS)
        pages.append((chars, repeat(page, _READS)))
        tails.append((chars, repeat(partial(far.tools.tail, ref), _READS)))
        written.append((chars, median(took)))
    of = "characters of the record"
    return [
        Curve("a record in through a sink", of, written, 1, since=_PROPORTIONAL_SIZE),
        Curve("a page of 8 KB from the middle", of, pages, 0, since=_PROPORTIONAL_SIZE),
        Curve("the last 20 lines", of, tails, 0, since=_PROPORTIONAL_SIZE),
    ]


def _pour(off: Offloader, chars: int, number: int) -> None:
    with off.open_sink(tool_use_id=f"{chars}-{number}") as sink:
        sink.write(f"{number}\n")
        part = output(min(chars, _PART_CHARS))
        for _ in range(max(1, chars // _PART_CHARS)):
            sink.write(part)
    require(sink.placeholder != "", "the text was not stored")


class _Synthetic:
    """A store that lists records that nobody wrote, and keeps what the catalog derives of them."""

    is_shared, has_atomic_create = False, True
    durability: Durability = "process"

    def __init__(self, count: int) -> None:
        self.url = f"file:///synthetic-{count}"
        drawn = random.Random(count)  # noqa: S311 # reproducible records
        self._objects = sorted(
            (StoredObject(_key(drawn), 0, float(n)) for n in range(count)), key=lambda o: o.key
        )
        self._kept: dict[str, bytes] = {}
        # A snapshot that looks old would not be read.
        self._made = time.time()

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        del overwrite
        self._kept[key] = data

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if key not in self._kept:
            raise NotFoundError(f"{self.url}: no key {key!r}")
        return self._kept[key][start:end]

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        kept = (StoredObject(key, len(data), self._made) for key, data in sorted(self._kept.items()))
        objects = self._objects if prefix.startswith("r/") else kept
        return (o for o in objects if o.key.startswith(prefix) and o.key > after)

    def delete(self, key: str) -> None:
        self._kept.pop(key, None)


def _key(drawn: random.Random) -> str:
    ref = "".join(drawn.choices(string.ascii_lowercase, k=10))
    tool = f"tool_{drawn.randrange(30)}"
    header = Header(
        ref=ref,
        session="large",
        item_type="tool_result",
        tool_name=tool,
        created_at=0.0,
        sha256=b"",
        placeholder="",
    )
    chars = drawn.randrange(8_000, 80_000)
    return record_key(
        header, Counts(bytes=chars, chars=chars, lines=1, tokens=chars // 4, sha256=b""), ".zst"
    )


def _catalogs(counts: tuple[int, ...]) -> list[Curve]:
    """Measure a whole listing, the first page of 50 in a new process, and the pages after it."""
    listed, first, later = [], [], []
    for count in counts:
        store = _Synthetic(count)
        listed.append((count, seconds(Catalog(store, "large").load)))
        first.append((count, repeat(partial(_first_page, store), _FIRST_PAGES)))
        catalog = Catalog(store, "large")
        require(catalog.page(limit=_PAGE).total == count, "the listing is not whole")
        later.append((count, repeat(partial(_page, catalog), _READS)))
    of = "records of the session"
    return [
        Curve("the first listing of a session", of, listed, 1, since=_LARGE_SESSION),
        Curve("the first page of 50 in a new process", of, first, 1, since=_LARGE_SESSION),
        Curve("a page of 50 records", of, later, 0, since=_LARGE_SESSION),
    ]


def _first_page(store: _Synthetic) -> None:
    _page(Catalog(store, "large"))


def _page(catalog: Catalog) -> None:
    catalog.page(limit=_PAGE)


def _writers(counts: tuple[int, ...], items: int) -> Curve:
    """Measure processes that write into one session at once: seconds per item of all of them together."""
    points = []
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            took = _write_at_once(folder, count, items)
            require(len(taking_all(folder).records()) == count * (items + 1), "an item was lost")
        points.append((count, took / (count * items)))
    return Curve("an item of 20 KB among writers", "writers at once", points, 0)


def _write_at_once(folder: str, count: int, items: int) -> float:
    here = str(Path(__file__).resolve().parent)
    command = [sys.executable, "-c", _WRITER, folder]
    arguments = [[str(number), str(items), here] for number in range(count)]
    writers = [
        subprocess.Popen([*command, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for each in arguments
    ]
    for writer in writers:
        _heard(writer, "ready")

    def write() -> None:
        for writer in writers:
            if writer.stdin is not None:
                writer.stdin.close()
        for writer in writers:
            _heard(writer, "done")

    took = seconds(write)
    for writer in writers:
        writer.wait()
    return took


def _heard(writer: subprocess.Popen[str], word: str) -> None:
    line = writer.stdout.readline() if writer.stdout is not None else ""
    require(line == f"{word}\n", "a writer ended before its time")


if __name__ == "__main__":
    run(__doc__, figures)
