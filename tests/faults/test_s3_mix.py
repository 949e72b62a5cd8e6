"""Several writers on a line where a third of all requests fail: what is acknowledged is there, exactly.

Which request fails, and how, is drawn from the seed and the request alone, so that a seed repeats its
faults however the writers take turns.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from relay import Fault, Proxy, flip_at, flip_the_upload, lose_the_answer, reset_the_request, serving

from offload import CorruptError, Offloader, OffloadPolicy, Rule
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from servers import Bucket

WRITERS = 4
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=40)}, min_saving=0)


class BadLine(Proxy):
    """A proxy that draws a fault for 15 + 10 + 5 + 5 + 2 of a hundred requests."""

    def __init__(self, server: str, seed: int) -> None:
        super().__init__(server)
        self._seed = seed
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.happened: Counter[str] = Counter()

    def next_fault(self, path: str) -> Fault | None:
        with self._lock:
            self._tries[path] += 1
            draw = Random(f"{self._seed} {path} {self._tries[path]}")  # noqa: S311  # no secret
            name, fault = _drawn(draw)
            self.happened[name] += 1
        return fault


def _drawn(draw: Random) -> tuple[str, Fault | None]:
    weighted: list[tuple[int, str, Fault | None]] = [
        (15, "reset", reset_the_request),
        (10, "busy", (503, "SlowDown")),
        (5, "throttled", (429, "TooManyRequests")),
        (5, "lost answer", lose_the_answer),
        (1, "flip on the way in", flip_the_upload),
        (1, "flip on the way out", _flip_of_an_object(draw.random())),
        (63, "none", None),
    ]
    [(_, name, fault)] = draw.choices(weighted, [weight for weight, _, _ in weighted])
    return name, fault


def _flip_of_an_object(place: float) -> Callable[[Any], None]:
    """Flip a bit of a record; nothing but the line's own checksum protects a listing."""

    def flip(relay: Any) -> None:
        if "list-type" in relay.path:
            reset_the_request(relay)
        else:
            flip_at(place)(relay)

    return flip


@contextmanager
def bad_line(bucket: Bucket, seed: int) -> Iterator[tuple[BadLine, S3Store]]:
    line = BadLine(bucket.storage_options["endpoint_url"], seed)
    with serving(line):
        yield line, S3Store(bucket.url, storage_options={**bucket.storage_options, "endpoint_url": line.url})


def conversation(writer: int, count: int) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": f"{writer}-{n}", "content": f"writer {writer} item {n}\n" * 60}
        for n in range(count)
    ]


def write_and_read(store: S3Store, count: int, seed: int, writer: int) -> list[dict[str, Any]]:
    """Offload a growing conversation turn by turn, read each item back once; return the last messages."""
    off = Offloader(store, session="s", policy=POLICY)
    messages = conversation(writer, count)
    for end in range(5, count + 5, 5):
        out = off.offload(messages[:end])
        assert not out.errors, f"seed {seed}: {out.errors}"
    for record, message in zip(out.records, messages, strict=True):
        try:
            page = off.tools.read(record.ref)
        except CorruptError:
            continue  # A flipped bit; that the record itself is whole is asked past the line.
        assert message["content"] in page, f"seed {seed}: other bytes in {record.ref}"
    return out.messages


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 10), *(pytest.param(seed, 50, marks=pytest.mark.slow) for seed in (2, 3, 4))]
)
def test_no_acknowledged_item_is_lost_or_changed_on_a_bad_line(
    s3_bucket: Bucket, seed: int, count: int
) -> None:
    with bad_line(s3_bucket, seed) as (line, store), ThreadPoolExecutor(WRITERS) as pool:
        said = list(pool.map(partial(write_and_read, store, count, seed), range(WRITERS)))

    off = Offloader(s3_bucket.url, session="s", storage_options=s3_bucket.storage_options)
    for writer, messages in enumerate(said):
        original = conversation(writer, count)
        assert all(new != old for new, old in zip(messages, original, strict=True)), f"seed {seed}"
        assert off.restore(messages) == original, f"seed {seed}: an item was lost or changed"
    found = {b"".join(off.content(record.ref)).decode() for record in off.records()}
    written = {m["content"] for writer in range(WRITERS) for m in conversation(writer, count)}
    assert found == written, f"seed {seed}: the session holds other items than were written"
    assert line.happened["reset"] > WRITERS, f"seed {seed}: the line was not bad: {line.happened}"
