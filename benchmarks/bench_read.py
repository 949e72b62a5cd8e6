"""Reading back: a needle, pages, grep against `zstd -dc FILE | grep -F`, memory."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import _raw
from _content import json_line, output
from _measure import Figure, compare, peak_memory, repeat, require, run, size

from offload import Offloader, OffloadPolicy, Rule

_NEEDLE = "the-needle-4711"
_JSON_CHARS, _NEEDLE_CHARS, _NEEDLE_MS = 10_000_000, 500, 50
_LARGE, _HUGE, _BLOCK_CHARS = 100_000_000, 1024**3, 20_000_000
_PAGE_CHARS, _PAGES = 8192, 60
_MEMORY_MIB = 64
_MIB = 1024**2
# Run in a process of its own, whose memory is measured: folder, tool, pattern.
_READER = """
import sys
from offload import Offloader

folder, tool, pattern = sys.argv[1:]
off = Offloader(folder, session="reads")
ref = next(info.ref for info in off.records() if info.tool_name == tool)
if pattern:
    answer = off.tools.grep(pattern, ref)
    assert pattern in answer, answer
else:
    assert "[end of item]" in off.tools.tail(ref)
"""


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as folder:
        policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1)})
        off = Offloader(folder, session="reads", policy=policy)
        yield from _needle(off)
        chars = [_LARGE] if is_quick else [_LARGE, _HUGE]
        for count in chars:
            yield from _record(off, Path(folder), count)


def _needle(off: Offloader) -> Iterator[Figure]:
    ref, _ = _store(off, "query", json_line(_JSON_CHARS, _NEEDLE))
    answer = off.tools.grep(_NEEDLE, ref)
    require(_NEEDLE in answer, "the needle was not found")
    name = f"needle at 90 % of a JSON line of {size(_JSON_CHARS)}"
    yield Figure(f"{name}: shown", len(answer), "chars", at_most=_NEEDLE_CHARS)
    took = repeat(lambda: off.tools.grep(_NEEDLE, ref), 10)
    yield Figure(f"{name}: found in", took * 1000, "ms", at_most=_NEEDLE_MS)


def _record(off: Offloader, folder: Path, chars: int) -> Iterator[Figure]:
    """Yield the figures of one large record with a needle in its last line."""
    ref, stored = _pour(off, f"make-{chars}", chars)
    path = next(folder.rglob(f"{ref}~*"))
    yield _pages(off, ref, path, chars)
    grep = partial(_grep, off, ref)
    for pattern, mode in ((_NEEDLE, "literal"), ("the-needle-[0-9]+", "regex")):
        yield _speed(partial(grep, pattern, mode), path, f"{mode} grep of {size(chars)}", stored)
    small, _ = _store(off, "small", output(_PAGE_CHARS * 4) + _NEEDLE)
    require(small != ref, "the small record is the large one")
    for what, pattern in (("grep", _NEEDLE), ("last 20 lines", "")):
        large, base = (peak_memory(_READER, str(folder), t, pattern) for t in (f"make-{chars}", "small"))
        yield Figure(
            f"{what} of {size(chars)}: peak memory above that of a small record",
            (large - base) / _MIB,
            "MiB",
            at_most=_MEMORY_MIB,
            detail=f"{large // _MIB} to {base // _MIB} MiB",
        )


def _pages(off: Offloader, ref: str, path: Path, chars: int) -> Figure:
    chance = random.Random(1)  # noqa: S311 # offsets to read at
    paired = compare(
        lambda at: off.tools.read(ref, offset=at, limit=_PAGE_CHARS),
        lambda at: _raw.read_frame(path, at),
        _PAGES,
        lambda _: chance.randrange(chars - 2 * _PAGE_CHARS),
    )
    return Figure(
        f"page of {size(_PAGE_CHARS)} of {size(chars)} / one frame read by its seek table",
        paired.ratio,
        detail=paired.detail,
    )


def _speed(grep: partial[None], path: Path, name: str, stored: int) -> Figure:
    """Compare speeds: the pipeline runs on two cores if available, a library call on one."""
    zstd, program = shutil.which("zstd"), shutil.which("grep")
    if zstd is None or program is None:
        took = repeat(grep, 3)
        return Figure(name, took, "s", detail="no zstd or grep on this machine to compare with")

    def pipeline(_: int) -> None:
        with subprocess.Popen([zstd, "-dc", path], stdout=subprocess.PIPE) as unpacked:
            found = subprocess.run(
                [program, "-cF", _NEEDLE], stdin=unpacked.stdout, check=True, capture_output=True
            )
        require(found.stdout == b"1\n", "grep found another number of lines")

    paired = compare(lambda _: grep(), pipeline, 3, int)
    return Figure(
        f"{name}: speed / zstd -dc | grep -F",
        1 / paired.ratio,
        at_least=1.0,
        detail=f"{paired.detail}, stored {stored / _MIB:.0f} MiB",
    )


def _grep(off: Offloader, ref: str, pattern: str, mode: str) -> None:
    arguments = {"id": ref, "pattern": pattern, "mode": mode}
    answer = off.tools.call("context_grep", arguments)
    require(_NEEDLE in answer, answer)


def _pour(off: Offloader, tool: str, chars: int) -> tuple[str, int]:
    """Store a long result of `tool` as `_store` does; a block of it comes again far beyond a frame."""
    block = output(_BLOCK_CHARS, chars)
    with off.open_sink(tool_name=tool, tool_use_id=tool) as sink:
        for left in range(chars - len(_NEEDLE) - 2, 0, -_BLOCK_CHARS):
            sink.write(block[:left])
        sink.write(f"\n{_NEEDLE}\n")
    return _stored(off, tool, sink.placeholder)


def _store(off: Offloader, tool: str, text: str) -> tuple[str, int]:
    """Store a result of `tool`; return its ref and its stored size in bytes."""
    return _stored(off, tool, off.offload_text(text, tool_name=tool, tool_use_id=tool))


def _stored(off: Offloader, tool: str, placeholder: str) -> tuple[str, int]:
    info = next(info for info in off.records() if info.tool_name == tool)
    require(info.ref in placeholder, "the placeholder names another record")
    return info.ref, info.stored_bytes


if __name__ == "__main__":
    run(__doc__, figures)
