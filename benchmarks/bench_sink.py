"""A text of 1 GiB in through a sink and out again: speed against the irreducible work, and memory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import zstandard
from _content import output
from _measure import Figure, compare, peak_memory, require, run, size

from offload import Offloader

_SIZES = (100_000_000, 1024**3)
_PART_CHARS = 1_000_000
_FRAME_BYTES = 256 * 1024
_MEMORY_MIB = 64
_MIB = 1024**2
# Run in a process of its own, whose memory is measured: folder, what to do, size, folder of this file.
_PROGRAM = """
import sys
from offload import Offloader

folder, what, count, here = sys.argv[1:]
sys.path.append(here)
from bench_sink import pour

off = Offloader(folder, session="sink")
if what == "in":
    pour(off, int(count))
else:
    ref = next(info.ref for info in off.records() if info.tool_name == f"make-{count}")
    read = sum(map(len, off.content(ref)))
    assert read == int(count), read
"""


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as folder:
        for count in _SIZES[:1] if is_quick else _SIZES:
            yield _speed(Path(folder, f"speed-{count}"), count)
            yield from _memory(folder, count)


def parts(count: int) -> Iterator[str]:
    """Yield a text of `count` characters in parts; no two of them are the same."""
    for number, start in enumerate(range(0, count, _PART_CHARS)):
        yield output(min(_PART_CHARS, count - start), number)


def pour(off: Offloader, count: int, number: int = 0) -> None:
    """Put a text of `count` characters into a sink, in parts."""
    with off.open_sink(tool_name=f"make-{count}", tool_use_id=f"{count}-{number}") as sink:
        for part in parts(count):
            sink.write(part)
    require(sink.info is not None and sink.info.chars == count, "the sink stored another text")


def _speed(folder: Path, count: int) -> Figure:
    off = Offloader(folder / "ours", session="sink")
    (folder / "raw").mkdir(parents=True)
    paired = compare(partial(pour, off, count), partial(_raw, folder / "raw", count), 2, int)
    name = f"{size(count)} into a sink / SHA-256 + zstd + one durable write"
    return Figure(name, paired.ratio, detail=paired.cpu_detail)


def _raw(folder: Path, count: int, number: int) -> None:
    """Do what no sink can go without: hash, compress, write to a file, make it durable."""
    digest = hashlib.sha256()
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    with (folder / str(number)).open("wb") as file:
        for part in parts(count):
            data = part.encode()
            digest.update(data)
            for start in range(0, len(data), _FRAME_BYTES):
                file.write(compressor.compress(data[start : start + _FRAME_BYTES]))
        file.flush()
        os.fsync(file.fileno())


def _memory(folder: str, count: int) -> Iterator[Figure]:
    here = str(Path(__file__).resolve().parent)
    for what in ("in", "out as a stream"):
        large, base = (peak_memory(_PROGRAM, folder, what, str(n), here) for n in (count, 10_000))
        yield Figure(
            f"{size(count)} {what}: peak memory above that of a small record",
            (large - base) / _MIB,
            "MiB",
            at_most=_MEMORY_MIB,
            detail=f"{large // _MIB} to {base // _MIB} MiB",
        )


if __name__ == "__main__":
    run(__doc__, figures)
