"""S3 on a loopback server: requests and bytes per operation, and throughput with 64 requests in flight.

Requests are counted by the server. Throughput is compared with plain s3fs on the same stored bytes,
with as many connections, in the same run; the server and the client share the machine.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import s3fs
from _content import output
from _measure import Figure, Paired, compare, require, run, size
from _s3_server import S3Server

from offload import Offloader, OffloadPolicy, Rule
from offload.engine.preview import preview_of
from offload.reading.tables import schema_line

_BUCKET, _URL, _IN_FLIGHT = "bench", "s3://bench/ours", 64
_SMALL, _MIDDLE, _LARGE, _RECORD = 2_000, 100_000, 16_000_000, 100_000_000
_PAGE_BYTES, _MIB = 8192, 1024 * 1024
_BATCH, _QUICK_BATCH, _BATCH_CHARS, _PREVIEW_CHARS, _ROUNDS, _QUICK_ROUNDS = 256, 64, 20_000, 1000, 5, 2
_PAGE_OF_LIST = 1000
_THROUGHPUT_BUDGET = 0.87
# A server that is a region away.
_DELAY, _FAR_BUDGET = 0.02, 1.25
_THREADS, _TEXTS_PER_THREAD, _THREADS_BUDGET = 16, 4, 0.8
_SESSIONS, _QUICK_SESSIONS, _SESSIONS_BUDGET = 1000, 50, 1.6


@dataclass(frozen=True)
class Lab:
    """A bucket on a server, accessed by the library and by plain s3fs."""

    server: S3Server
    options: dict[str, Any]
    files: Any = field(repr=False)

    def offloader(self, session: str, preview_chars: int = 200) -> Offloader:
        """Return an offloader that offloads every item larger than its placeholder."""
        policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=preview_chars)})
        return Offloader(_URL, session=session, policy=policy, storage_options=self.options)

    def counted(self, function: Callable[[], object]) -> Counter[str]:
        """Return what `function` asks of the server."""
        self.server.take_counts()
        function()
        return self.server.take_counts()

    def stored(self, session: str) -> dict[str, bytes]:
        """Return key and bytes of every record of a session, read past the library."""
        paths = self.files.find(f"{_BUCKET}/ours/r/{session}")
        return dict(self.files.cat(paths)) if paths else {}


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    # Without it the client would look for credentials outside this machine.
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    with S3Server() as server:
        options = {"key": "key", "secret": "secret", "endpoint_url": server.url}
        lab = Lab(server, options, _plain_s3fs(options))
        lab.files.mkdir(_BUCKET)
        yield from _writes(lab)
        yield from _turns(lab)
        yield from _reads(lab)
        for records in (1000,) if is_quick else (1000, 3000):
            yield from _open(lab, records)
        rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
        yield _by_url(lab, _QUICK_SESSIONS if is_quick else _SESSIONS)
        items = _QUICK_BATCH if is_quick else _BATCH
        batches = [_batch(lab, number, items) for number in range(rounds + 1)]
        yield from _written(lab, batches)
        yield from _read(lab, batches)
        server.delay(_DELAY)
        yield from _far(lab, rounds)
        yield _threads(lab, rounds)
        yield from _written(lab, batches[: _QUICK_ROUNDS + 1], f", {_DELAY * 1000:g} ms away")


def _plain_s3fs(options: dict[str, Any]) -> Any:
    config = {
        "max_pool_connections": _IN_FLIGHT,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    return s3fs.S3FileSystem(
        **options, config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
    )


def _writes(lab: Lab) -> Iterator[Figure]:
    off = lab.offloader("writes")
    require(off.records() == [], "the session is not new")
    for chars, where in ((_MIDDLE, ", the first"), (_MIDDLE + 1, ""), (_LARGE, "")):
        counts = lab.counted(
            partial(off.offload_text, output(chars, chars), tool_name="Bash", tool_use_id="t")
        )
        yield from _only(f"offload of {size(chars)}{where}", counts, "PUT", 1)
        yield Figure("    of these with Expect: 100-continue", counts["expect"], "", at_most=0)
    messages = _messages(_IN_FLIGHT, _SMALL, start=10**6)
    counts = lab.counted(lambda: off.offload(messages))
    yield from _only(f"offload of {_IN_FLIGHT} items in one turn", counts, "PUT", _IN_FLIGHT)


def _turns(lab: Lab) -> Iterator[Figure]:
    off = lab.offloader("turns")
    messages = _messages(20, _SMALL)
    require(len(off.offload(messages).records) == len(messages), "an item was kept")
    yield _asked("a turn with nothing new", lab.counted(lambda: off.offload(messages)), "all", 0)
    question = [*messages, {"role": "user", "content": "And now?"}]
    yield _asked("a turn with a short new text", lab.counted(lambda: off.offload(question)), "all", 0)


def _reads(lab: Lab) -> Iterator[Figure]:
    writer = lab.offloader("reads")
    for chars in (_MIDDLE, _RECORD):
        writer.offload_text(output(chars, chars), tool_name="Bash", tool_use_id=str(chars))
    small, large = sorted(writer.records(), key=lambda info: info.chars)
    counts = lab.counted(lambda: writer.tools.read(small.ref))
    yield from _only(f"read of a record of {size(_MIDDLE)}, where it was written", counts, "GET", 1)
    far = lab.offloader("reads")
    counts = lab.counted(lambda: far.tools.read(small.ref))
    yield _asked("the same elsewhere, first read", counts, "GET", 1)
    yield _asked("    to find it", counts, "LIST", 1)
    calls: dict[str, Callable[[], str]] = {
        f"{size(_PAGE_BYTES)} of": lambda: far.tools.read(large.ref, offset=_RECORD // 2, limit=_PAGE_BYTES),
        "last 20 lines of": lambda: far.tools.tail(large.ref),
    }
    far.tools.read(large.ref, offset=0, limit=1)
    for name, call in calls.items():
        counts = lab.counted(call)
        yield _asked(f"{name} {size(_RECORD)}", counts, "GET", 2)
        yield Figure("    bytes moved", counts["bytes"], "B", at_most=_MIB)


def _open(lab: Lab, records: int) -> Iterator[Figure]:
    session = f"opened-{records}"
    lab.offloader(session).offload(_messages(records, _SMALL))
    off = lab.offloader(session)
    counts = lab.counted(lambda: require(len(off.records()) == records, "the listing is not whole"))
    yield from _only(f"open a session of {records:,} records", counts, "LIST", -(-records // _PAGE_OF_LIST))


def _by_url(lab: Lab, sessions: int) -> Figure:
    """Compare sessions that each open the store by its URL with sessions of one open store."""
    opened = lab.offloader("first")
    text = output(_SMALL, 1)

    def use(off: Offloader) -> None:
        require(off.offload_text(text, tool_name="Bash") != text, "a text was kept")

    both = compare(
        lambda n: use(lab.offloader(f"url-{n}")),
        lambda n: use(opened.with_options(session=f"store-{n}")),
        sessions,
        int,
    )
    return Figure(
        f"{sessions:,} sessions opened by URL / by an open store",
        sum(both.ours) / sum(both.raw),
        at_most=_SESSIONS_BUDGET,
        detail=both.detail,
    )


@dataclass(frozen=True)
class _Batch:
    """The work of one round: what is offloaded, and what offloading it once before left behind."""

    messages: list[dict[str, Any]]
    taken_out: list[dict[str, Any]]
    stored: dict[str, bytes]
    reader: Offloader


def _written(lab: Lab, batches: Sequence[_Batch], where: str = "") -> Iterator[Figure]:
    """Compare a turn of many items with plain s3fs, and one with previews with its two parts."""
    rounds = len(batches) - 1
    bare, shown, apart = (
        lab.offloader(f"{name}{where}", chars)
        for name, chars in (("bare", 0), ("shown", _PREVIEW_CHARS), ("apart", 0))
    )
    written = compare(
        lambda batch: bare.offload(batch.messages),
        lambda batch: _pipe(lab, batch.stored),
        rounds,
        batches.__getitem__,
    )
    detail = f"{_items(batches)}, stored {size(sum(map(len, batches[0].stored.values())))}"
    yield _speed(f"offload of a batch without previews{where} / s3fs pipe", written, detail)

    def in_parts(batch: _Batch) -> None:
        apart.offload(batch.messages)
        for message in batch.messages:
            text = message["content"][0]["content"]
            preview_of(text, _PREVIEW_CHARS)
            schema_line(text)

    previewed = compare(lambda batch: shown.offload(batch.messages), in_parts, rounds, batches.__getitem__)
    yield Figure(
        f"offload of a batch{where} / without previews + one preview each",
        previewed.ratio,
        at_most=1,
        detail=f"{previewed.cpu_detail}, {detail}",
    )


def _read(lab: Lab, batches: Sequence[_Batch]) -> Iterator[Figure]:
    read = compare(
        lambda batch: batch.reader.restore(batch.taken_out),
        lambda batch: _cat(lab, batch.stored),
        len(batches) - 1,
        batches.__getitem__,
    )
    yield _speed("restore of a batch / s3fs find and ranged cat_file", read, _items(batches))


def _items(batches: Sequence[_Batch]) -> str:
    return f"{len(batches[0].messages)} x {size(_BATCH_CHARS)}"


def _far(lab: Lab, rounds: int) -> Iterator[Figure]:
    """Compare single requests and a turn of many with plain s3fs where each request takes 20 ms longer."""
    writer, reader = lab.offloader("far"), lab.offloader("far")
    texts = [output(_MIDDLE, 10**8 + number) for number in range(rounds + 1)]
    for number, text in enumerate(texts):
        writer.offload_text(text, tool_name="Bash", tool_use_id=f"before-{number}")
    stored = list(lab.stored("far").items())
    refs = [info.ref for info in reader.records()]
    where = f", {_DELAY * 1000:g} ms away"
    one = compare(
        lambda n: writer.offload_text(texts[n], tool_name="Bash", tool_use_id=f"far-{n}"),
        lambda n: lab.files.pipe_file(_beside(stored[n][0]), stored[n][1]),
        rounds,
        int,
    )
    yield Figure(
        f"offload of {size(_MIDDLE)}{where} / s3fs pipe_file",
        one.ratio,
        at_most=_FAR_BUDGET,
        detail=one.detail,
    )
    read = compare(
        lambda n: reader.tools.read(refs[n]),
        lambda n: lab.files.cat_file(stored[n][0], start=0, end=_MIDDLE),
        rounds,
        int,
    )
    yield Figure(
        f"read of {size(_MIDDLE)}{where} / s3fs cat_file", read.ratio, at_most=_FAR_BUDGET, detail=read.detail
    )


def _threads(lab: Lab, rounds: int) -> Figure:
    """Compare threads that offload texts into one session with threads that put the same bytes by s3fs."""
    writer = lab.offloader("threads", 0)
    for number in range((rounds + 1) * _THREADS * _TEXTS_PER_THREAD):
        writer.offload_text(output(_BATCH_CHARS, 10**9 + number), tool_name="Bash", tool_use_id=f"b{number}")
    stored = list(lab.stored("threads").items())

    def offload(number: int) -> None:
        text = output(_BATCH_CHARS, 10**9 + number)
        require(
            writer.offload_text(text, tool_name="Bash", tool_use_id=f"t{number}") != text, "a text was kept"
        )

    def put(number: int) -> None:
        path, data = stored[number]
        lab.files.pipe_file(_beside(path), data)

    def side_by_side(call: Callable[[int], None], number: int) -> None:
        first = number * _THREADS * _TEXTS_PER_THREAD
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(call, range(first, first + _THREADS * _TEXTS_PER_THREAD)))

    both = compare(partial(side_by_side, offload), partial(side_by_side, put), rounds, int)
    return Figure(
        f"offload_text without previews by {_THREADS} threads, {_DELAY * 1000:g} ms away / s3fs: speed",
        1 / both.ratio,
        at_least=_THREADS_BUDGET,
        detail=both.cpu_detail,
    )


def _batch(lab: Lab, number: int, items: int) -> _Batch:
    session = f"batch-{number}"
    messages = _messages(items, _BATCH_CHARS, start=10**7 + number * items)
    result = lab.offloader(session, 0).offload(messages)
    reader = lab.offloader(session)
    # Connected before.
    require(len(reader.records()) == items == len(result.records), "not every item was stored")
    return _Batch(messages, result.messages, lab.stored(session), reader)


def _pipe(lab: Lab, stored: dict[str, bytes]) -> None:
    lab.files.pipe({_beside(path): data for path, data in stored.items()}, batch_size=_IN_FLIGHT)


def _beside(path: str) -> str:
    """Return a path outside the session, whose listing would have the object otherwise."""
    return path.replace("/ours/", "/plain/")


def _cat(lab: Lab, stored: dict[str, bytes]) -> None:
    paths = list(stored)
    lab.files.invalidate_cache()
    require(len(lab.files.find(paths[0].rpartition("/")[0])) == len(paths), "s3fs lists another number")
    # A start makes each read one request; without it s3fs asks for the size first.
    found = lab.files.cat_ranges(paths, 0, _BATCH_CHARS, batch_size=_IN_FLIGHT, on_error="raise")
    require(len(found) == len(paths), "s3fs read another number of objects")


def _speed(name: str, paired: Paired, detail: str) -> Figure:
    return Figure(
        f"{name}: speed",
        1 / paired.ratio,
        at_least=_THROUGHPUT_BUDGET,
        detail=f"{paired.cpu_detail}, {detail}",
    )


def _messages(length: int, chars: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"t{n}", "content": output(chars, n)}],
        }
        for n in range(start, start + length)
    ]


def _asked(name: str, counts: Counter[str], operation: str, at_most: int) -> Figure:
    what = "requests" if operation == "all" else operation
    return Figure(f"{name}: {what}", counts[operation], "", at_most=at_most)


def _only(name: str, counts: Counter[str], operation: str, expected: int) -> Iterator[Figure]:
    yield Figure(f"{name}: {operation}", counts[operation], "", at_most=expected, at_least=expected)
    yield Figure("    other requests", counts["all"] - counts[operation], "", at_most=0)


if __name__ == "__main__":
    run(__doc__, figures)
