"""A record of 1 GiB goes in through a sink and comes out again in the memory that a small one takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GIB, MIB = 1024**3, 1024**2
ROOM = 64 * MIB
NEEDLE = "the-needle-4711"
# Argument 1 is the store, argument 2 what to do. Content is hexadecimal noise, which compresses to half, in
# lines of 1 KiB; the needle is in the last line. Printed are the peaks of memory after the same was done with
# a small record, and after it was done with the large one.
PROGRAM = f"""
import hashlib, random, re, sys
from pathlib import Path
from offload import Offloader

SMALL, LARGE = {64 * 1024}, {GIB}
chance = random.Random()
off = Offloader(sys.argv[1], session="s")

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def lines(count):
    return [chance.randbytes(512).hex() + "\\n" for _ in range(count)]

def blocks(size):
    chance.seed(1)
    block = lines(1024)
    for start in range(0, size, {MIB}):
        yield "".join(block)[:size].encode()
        # Each block is another one, at little cost.
        block = block[40:] + lines(40)
    yield b"{NEEDLE}\\n"

def write(size):
    with off.open_sink(tool_name="Bash", tool_use_id=str(size)) as sink:
        for block in blocks(size):
            sink.write(block)
    assert sink.info.bytes > size

def ref(size):
    return next(info.ref for info in off.records() if (info.chars > {MIB}) == (size > {MIB}))

def stream(size):
    digest, expected = hashlib.sha256(), hashlib.sha256()
    for chunk in off.content(ref(size)):
        digest.update(chunk)
    for block in blocks(size):
        expected.update(block)
    assert digest.digest() == expected.digest()

def pages(size):
    at, record = 0, ref(size)
    while at < size:
        assert len(off.tools.read(record, offset=at, limit=8000)) > 1000
        at += max(size // 50, 7000)

def grep(size):
    record, cursor, answer = ref(size), None, ""
    while "[1 match shown" not in answer:
        answer = off.tools.grep("{NEEDLE}", record, cursor=cursor)
        # One call searches 1 GiB or for 10 seconds, and the record is a little larger.
        cursor = (re.search('cursor="([^"]+)"', answer) or [None] * 2)[1]

def verify(size):
    # All is verified at once: what comes before is a stream.
    if size == SMALL:
        return stream(size)
    assert off.verify() == []

do = globals()[sys.argv[2]]
do(SMALL)
print(peak())
do(LARGE)
print(peak())
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc"),
]


def growth(store: Path, what: str) -> int:
    """Return by how many bytes the peak of a process grew when it did `what` with 1 GiB."""
    command = [sys.executable, "-c", PROGRAM, str(store), what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    small, large = map(int, done.stdout.split())
    return large - small


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store with a record of 1 GiB, and what memory that took."""
    store = tmp_path_factory.mktemp("store")
    return store, growth(store, "write")


def test_1_gib_goes_into_a_sink_in_64_mib(written: tuple[Path, int]) -> None:
    store, grown = written
    assert grown <= ROOM
    assert max(p.stat().st_size for p in store.rglob("*.zst")) > GIB // 3


@pytest.mark.parametrize("what", ["stream", "pages", "grep", "verify"])
def test_1_gib_comes_out_in_64_mib(written: tuple[Path, int], what: str) -> None:
    assert growth(written[0], what) <= ROOM
