"""Content made to hurt, and records that claim what none holds: bytes come back, memory is bounded."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import prepared
import pytest
import zstandard
from kit.store import record_files

from offload import CorruptError, Offloader, OffloadPolicy, Rule
from offload.records.codec import get_codec
from offload.records.index.derived import read_snapshot
from offload.records.record.header import draw_ref
from offload_backends.memory import MemoryStore

MIB = 1024**2
POLICY = OffloadPolicy(
    types={
        kind: Rule(min_chars=1, preview_chars=200) for kind in ("tool_result", "tool_call", "user_message")
    },
    min_saving=0,
)
PAD = "y" * 900
TEXTS = {
    "arrays 100,000 deep": "[" * 10**5 + "]" * 10**5,
    "objects 100,000 deep": '{"a":' * 10**5 + "1" + "}" * 10**5,
    "arrays that never end": "[" * 10**5,
    "an integer of 6,000 digits": '{"n": ' + "9" * 6000 + "}",
    "numbers beyond a float": f'{{"n": 1e400, "m": -1e400, "tiny": 1e-400, "x": "{PAD}"}}',
    "no numbers": f'[NaN, Infinity, -Infinity, "{PAD}"]',
    "keys that come twice": f'{{"a": 1, "a": 2, "x": "{PAD}"}}',
    "escapes of lone surrogates": '{"\\ud800": "' + "\\udfff" * 500 + '"}',
    "lone surrogates": "a\ud800b\udfff" * 400,
    "a pair in two halves": "\ud83d\ude00" * 400 + "\U0001f600" + PAD,
    "NULs": "\0" * 20_000 + PAD,
    "escape sequences": "\x1b[2J\x1b]52;c;aGk=\x07\x1b[8m\x9b31m" * 200,
    "line ends of all kinds": "a\r\n\rb\u2028c\x0b\x0c\x85\u2029" * 200,
    "text turned around": "\u202e\u2066\u200b\ufeff\U000e0041" * 600,
    "marks on one letter": "e" + "\u0301" * 5000,
    "a million blank lines": "\n" * 10**6,
    "5 MB on one line": "0123456789abcdef " * 300_000,
}
# What surrogates in a text become in stored bytes: the three bytes that each has in UTF-8.
AT_REST = {name: text.encode("utf-8", "surrogatepass") for name, text in TEXTS.items()}


def result(text: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text}]}]


def stored(root: Path, codec: str) -> bytes:
    """Return the content of the one record below `root`, read without the library."""
    [path] = record_files(root)
    data = path.read_bytes()
    if codec == "zstd":
        content: bytes = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        return content
    return data


# Content


@pytest.mark.parametrize("codec", ["zstd", "raw", "json"])
@pytest.mark.parametrize("name", TEXTS)
def test_content_of_any_kind_comes_back_as_it_was(tmp_path: Path, name: str, codec: str) -> None:
    messages = result(TEXTS[name])

    out = Offloader(tmp_path, session="s", policy=POLICY, codec=codec).offload(messages)

    assert out.errors == []
    assert len(out.records) == 1
    assert Offloader(tmp_path, session="s").restore(out.messages) == messages
    assert b"".join(Offloader(tmp_path, session="s").content(out.records[0].ref)) == AT_REST[name]
    if codec != "json":
        assert stored(tmp_path, codec) == AT_REST[name]


@pytest.mark.parametrize("name", TEXTS)
def test_every_tool_answers_about_content_of_any_kind(tmp_path: Path, name: str) -> None:
    off = Offloader(tmp_path, session="s", policy=POLICY)
    ref = off.offload(result(TEXTS[name])).records[0].ref
    asked: list[tuple[str, dict[str, Any]]] = [
        ("context_list", {}),
        ("context_read", {"id": ref}),
        ("context_read", {"id": ref, "start_line": 1, "end_line": 3}),
        *(("context_read", {"id": ref, "pointer": p}) for p in ("", "/a", "/0", "/0" * 999, "/a" * 10**5)),
        ("context_tail", {"id": ref, "lines": 10**6}),
        ("context_grep", {"id": ref, "pattern": "a", "context_lines": 20, "max_matches": 100}),
        ("context_grep", {"id": ref, "pattern": r"(?:\d|\D)$", "mode": "regex", "context_lines": 20}),
    ]
    for tool, arguments in asked:
        answer = off.tools.call(tool, arguments)
        assert answer.startswith("Error: ") or len(answer) > len(ref), tool
        assert len(answer) <= 8192, tool
        assert answer.encode(), "what no encoder takes reaches no request"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# Objects as arguments or results; those that JSON cannot hold, or would change, stay where they are.
OBJECTS: dict[str, tuple[Any, bool]] = {
    "100,000 deep": (nested(10**5), False),
    "300 deep": (nested(300), True),
    "an integer of 6,000 digits": (10**6000, False),
    "not a number": (float("nan"), False),
    "infinity": (float("inf"), False),
    "surrogates": ("\ud800" * 500, True),
    "bytes": (b"\xff" * 900, False),
    "a set": ({1, 2}, False),
    "keys that are numbers": ({1: PAD}, False),
    "2 ** 70": (2**70, True),
}


def anthropic(value: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "Write", "input": value}],
    }


def gemini(value: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"function_response": {"name": "Write", "response": value}}]}


@pytest.mark.parametrize("shape", [anthropic, gemini])
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_leaves_only_if_it_comes_back_as_it_was(
    tmp_path: Path, name: str, shape: Callable[[Any], dict[str, Any]]
) -> None:
    value, leaves = OBJECTS[name]
    message = shape({"value": value, "pad": PAD})

    out = Offloader(tmp_path, session="s", policy=POLICY).offload([message])

    assert out.errors == []
    assert (out.messages[0] is not message) is leaves
    if leaves:
        assert Offloader(tmp_path, session="s").restore(out.messages) == [message]


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_bytes_that_are_no_text_come_out_of_a_sink_as_they_went_in(tmp_path: Path, step: int) -> None:
    data = b"".join(bytes([n, 0xFF, 0xC3]) for n in range(256)) * 30
    data += "é\U0001f600".encode()[:-1] + b"\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80"
    off = Offloader(tmp_path, session="s", policy=POLICY)

    with off.open_sink(tool_name="Bash", tool_use_id="c") as sink:
        for start in range(0, len(data), step):
            sink.write(data[start : start + step])

    [message] = Offloader(tmp_path, session="s").restore(result(sink.placeholder))
    text: str = message["content"][0]["content"]
    assert text.encode("utf-8", "surrogateescape") == data
    assert stored(tmp_path, "zstd").decode("utf-8", "surrogatepass") == text


# Records that claim what they do not hold


class Forged:
    """A record of session `s`, made byte by byte as FORMAT.md says, with every checksum right."""

    def __init__(self, frames: list[bytes], plain: list[int], sha256: bytes = b"h" * 32) -> None:
        self.ref = draw_ref("s", "tool_result", "c", sha256)
        total = sum(plain)
        self.name = f"{self.ref}~tool_result~=42ash~{total}~9.zst"
        self.placeholder = f"[Offloaded: Bash result, 1 line, {total} characters, id {self.ref}]\nx"
        counts = {"bytes": total, "chars": total, "lines": 1, "tokens": 9, "sha256": sha256}
        self.head: dict[str, Any] = {"ref": self.ref, "session": "s", "item_type": "tool_result"}
        self.head |= {"tool_use_id": "c", "created_at": 0.0, "sha256": sha256}
        self.head |= {"placeholder": self.placeholder}
        self.tail: dict[str, Any] = {"ref": self.ref, "session": "s", "counts": counts}
        self.tail["chars"] = b"".join(min(n, 0xFFFFFF).to_bytes(3, "little") for n in plain)
        self.tail["newlines"] = bytes(3 * len(plain))
        self.frames, self.plain = frames, plain
        self.more = {"head": b"", "tail": b""}

    def data(self) -> bytes:
        head = with_field(msgspec.msgpack.encode(self.head), self.more["head"])
        head = struct.pack("<II", 0x184D2A50, len(head) + 4) + head + struct.pack("<I", zlib.crc32(head))
        before = head + b"".join(self.frames)
        tail = msgspec.msgpack.encode(self.tail | {"stored_crc32": zlib.crc32(before)})
        tail = with_field(tail, self.more["tail"])
        sizes = [(len(head), 0), *zip(map(len, self.frames), self.plain, strict=True), (len(tail) + 12, 0)]
        pairs = [min(n, 2**32 - 1) for pair in sizes for n in pair]
        rows = struct.pack(f"<{len(pairs)}I", *pairs)
        table = struct.pack("<II", 0x184D2A5E, len(rows) + 9) + rows
        table += struct.pack("<IBI", len(sizes), 0, 0x8F92EAB1)
        crc = struct.pack("<I", zlib.crc32(table, zlib.crc32(tail)))
        return before + struct.pack("<II", 0x184D2A51, len(tail) + 4) + tail + crc + table


def with_field(packed: bytes, field: bytes) -> bytes:
    """Return a small map of msgpack with one more field, whose name and value are msgpack too."""
    return bytes([packed[0] + 1]) + packed[1:] + field if field else packed


# Named "x", arrays in arrays.
DEEP_FIELD = b"\xa1x" + b"\x91" * 10**5 + b"\x01"


@cache
def frame(size: int) -> bytes:
    """Return a frame that holds `size` zeros."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(bytes(size))


def claiming(size: int) -> bytes:
    """Return a frame of 16 bytes and some that claims to hold `size` bytes."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b11100100]) + size.to_bytes(8, "little") + b"\x03\x00\x00" + bytes(4)


CHUNK = 256 * 1024


def bomb_of_one_frame() -> Forged:
    return Forged([frame(1024 * MIB)], [1024 * MIB])


def bomb_under_a_small_claim() -> Forged:
    return Forged([frame(1024 * MIB)], [CHUNK])


def frame_that_claims_64_gib() -> Forged:
    return Forged([claiming(64 * 1024 * MIB)], [CHUNK])


def table_that_claims_64_gib() -> Forged:
    """64 GiB in frames of the right size, of which there is one."""
    count = 64 * 1024 * MIB // CHUNK
    return Forged([claiming(CHUNK), *[b""] * (count - 1)], [CHUNK] * count)


def counts_that_claim_64_gib() -> Forged:
    forged = Forged([frame(CHUNK)], [CHUNK])
    forged.tail["counts"]["bytes"] = 64 * 1024 * MIB
    return forged


def chars_that_claim_16_million() -> Forged:
    forged = Forged([frame(CHUNK)], [CHUNK])
    forged.tail["chars"] = b"\xff\xff\xff"
    return forged


def tail_of_depth_100_000() -> Forged:
    forged = Forged([frame(CHUNK)], [CHUNK])
    forged.more["tail"] = DEEP_FIELD
    return forged


def head_of_depth_100_000() -> Forged:
    forged = Forged([frame(CHUNK)], [CHUNK])
    forged.more["head"] = DEEP_FIELD
    return forged


def sizes_below_zero() -> Forged:
    forged = Forged([frame(CHUNK)], [CHUNK])
    forged.tail["counts"] |= {"chars": -1, "lines": -(2**62), "tokens": -1}
    return forged


def frames_of_nothing(size: int = 20 * MIB) -> Forged:
    """A record of a table alone, all of whose frames hold nothing in no byte."""
    count = size // 14
    return Forged([b""] * count, [0] * count)


def empty_frames(size: int = 26 * MIB) -> Forged:
    count = size // (len(frame(0)) + 14)
    return Forged([frame(0)] * count, [0] * count, hashlib.sha256(b"").digest())


def frames_of_one_byte(size: int) -> Forged:
    count = size // (len(frame(1)) + 14)
    return Forged([frame(1)] * count, [1] * count)


FORGERIES = {
    make.__name__: make
    for make in (
        frames_of_nothing,
        empty_frames,
        bomb_of_one_frame,
        bomb_under_a_small_claim,
        frame_that_claims_64_gib,
        table_that_claims_64_gib,
        counts_that_claim_64_gib,
        chars_that_claim_16_million,
        tail_of_depth_100_000,
        head_of_depth_100_000,
        sizes_below_zero,
    )
}
# Argument 1 is the store, 2 a ref, 3 the placeholder. Reads the record in every way with 256 MiB to take;
# prints the kind of each error, "none" where there was none.
VICTIM = f"""
import json, re, resource, sys
from pathlib import Path
from offload import Offloader, OffloadError

_, root, ref, placeholder = sys.argv
off = Offloader(root, session="s")
off.tools.call("context_grep", {{"pattern": "x", "mode": "regex"}})
held = int(re.search(r"VmSize:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (held + {256 * MIB},) * 2)
block = {{"type": "tool_result", "tool_use_id": "c", "content": placeholder}}
ways = {{
    "restore": lambda: off.restore([{{"role": "user", "content": [block]}}]),
    "stream": lambda: [None for _ in off.content(ref)],
    "read": lambda: off.tools.read(ref),
    "tail": lambda: off.tools.tail(ref),
    "grep": lambda: off.tools.grep("x", ref),
    "verify": lambda: [(_ for _ in ()).throw(damage.error) for damage in off.verify()],
}}
said = {{}}
for name, way in ways.items():
    try:
        way()
        said[name] = "none"
    except OffloadError as error:
        said[name] = error.kind
for name in ("read", "tail", "grep"):
    more = {{"pattern": "x"}} if name == "grep" else {{}}
    assert len(off.tools.call("context_" + name, {{"id": ref}} | more)) <= 8192
print(json.dumps(said))
"""


def met(root: Path, forged: Forged, data: bytes | None = None) -> dict[str, str]:
    """Put a forged record into a store; return what befell a process that read it."""
    folder = root / "r" / "s"
    folder.mkdir(parents=True, mode=0o700)
    (folder / forged.name).write_bytes(forged.data() if data is None else data)
    for path in (root, root / "r", folder):
        path.chmod(0o700)
    done = prepared.run(VICTIM, root, forged.ref, forged.placeholder)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, str] = json.loads(done.stdout)
    return said


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@needs_proc
def test_a_record_that_is_made_byte_by_byte_is_read(tmp_path: Path) -> None:
    forged = Forged([frame(CHUNK), frame(CHUNK)], [CHUNK] * 2, hashlib.sha256(bytes(2 * CHUNK)).digest())
    assert set(met(tmp_path, forged).values()) == {"none"}


@needs_proc
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n == "frames_of_nothing" else ()) for n in FORGERIES],
)
def test_a_record_that_claims_what_it_does_not_hold_is_corrupt_and_takes_no_memory(
    tmp_path: Path, name: str
) -> None:
    said = met(tmp_path, FORGERIES[name]())

    assert said["restore"] == said["stream"] == said["verify"] == "corrupt"
    assert set(said.values()) <= {"corrupt", "none"}


@pytest.mark.parametrize("make", [frames_of_nothing, empty_frames, frames_of_one_byte])
def test_a_record_of_many_small_frames_is_opened_in_four_times_its_size_of_memory(
    make: Callable[[int], Forged],
) -> None:
    data = make(4 * MIB).data()

    def fetch(*, start: int = 0, end: int | None = None) -> bytes:
        return data[start:end]

    tracemalloc.start()
    with suppress(CorruptError):
        assert get_codec("zstd").open(fetch).content.text(0, 1) == "\0"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB + 4 * len(data)


@needs_proc
@pytest.mark.parametrize(
    ("rows", "what"), [(2**32 - 1, "rows"), (2**22 + 10, "rows"), (2**31, "tail"), (2**32 - 1, "tail")]
)
def test_a_footer_that_claims_gigabytes_is_corrupt(tmp_path: Path, rows: int, what: str) -> None:
    forged = Forged([frame(CHUNK)], [CHUNK])
    data = bytearray(forged.data())
    place = -9 if what == "rows" else -17
    data[place : place + 4] = struct.pack("<I", rows)

    assert set(met(tmp_path, forged, bytes(data)).values()) == {"corrupt"}


@pytest.mark.parametrize("codec", ["json", "raw"])
def test_a_readable_record_of_any_depth_is_corrupt(tmp_path: Path, codec: str) -> None:
    out = Offloader(tmp_path, session="s", policy=POLICY, codec=codec).offload(result("x\n" * 900))
    [path] = (tmp_path / ("h" if codec == "raw" else "r")).rglob("*.json")

    # Some depth below the limit of the interpreter can just be read, and not be written.
    for depth in (100, *range(900, 1000), 10**5):
        path.write_text('{"header": ' + '{"a":' * depth + "1" + "}" * depth + ', "content": "x"}')
        off = Offloader(tmp_path, session="s")
        with pytest.raises(CorruptError):
            off.restore(out.messages)
        assert len(off.verify()) == 1
        assert off.tools.call("context_read", {"id": out.records[0].ref}).startswith("Error: ")


@pytest.mark.parametrize("depth", [100, 900, 2000, 16_000])
def test_a_grant_of_any_depth_is_corrupt(tmp_path: Path, depth: int) -> None:
    Offloader(tmp_path, session="a", policy=POLICY).offload(result("x\n" * 900))
    a = Offloader(tmp_path, session="a")
    ref = a.records()[0].ref
    a.share(ref, "b")
    [link] = tmp_path.rglob("*.link")
    link.write_text('{"x": ' + "[" * depth + "1" + "]" * depth + "}")

    assert Offloader(tmp_path, session="b").tools.call("context_read", {"id": ref}).startswith("Error: ")
    with pytest.raises(CorruptError):
        list(Offloader(tmp_path, session="b").content(ref))


@pytest.mark.parametrize("depth", [100, 900, 2000, 10**5])
def test_a_snapshot_of_any_depth_is_passed_over(depth: int) -> None:
    store, now = MemoryStore(), 1_000_000.0
    body = b"\x81\xa1x" + b"\x91" * depth + b"\x01"
    name = f"i/s/{now * 1000 - 10:.0f}~60000~abcdefghij"
    store.put(name, zstandard.ZstdCompressor(write_checksum=True).compress(body))

    assert read_snapshot(store, "s", now, {}) is None


LISTS: dict[str, Callable[[int], bytes]] = {
    "no names": lambda n: b"\xa0" * n,
    "numbers": lambda n: b"\x00" * n,
    "nothing": lambda _: b"",
}
# Argument 1 is a file that holds a snapshot. Prints how far reading it raised the peak of what Python took.
READER = """
import sys, tracemalloc
from pathlib import Path
from offload.records.index.derived import read_snapshot
from offload_backends.memory import MemoryStore

store, now = MemoryStore(), 1_000_000.0
store.put(f"i/s/{now * 1000 - 10:.0f}~60000~abcdefghij", Path(sys.argv[1]).read_bytes())
tracemalloc.start()
found = read_snapshot(store, "s", now, {})
print(tracemalloc.get_traced_memory()[1], found is not None)
"""


def read_apart(path: Path, body: bytes) -> tuple[int, bool]:
    """Read a snapshot in a process of its own; return the memory that this took, and whether it is used."""
    path.write_bytes(zstandard.ZstdCompressor(level=19, write_checksum=True).compress(body))
    done = prepared.run(READER, path)
    assert done.returncode == 0, done.stderr[-2000:]
    taken, is_used = done.stdout.split()
    return int(taken), is_used == "True"


def snapshot_of(names: bytes, sizes: bytes, times: bytes, *, count: int, is_twice: bool = False) -> bytes:
    """Return the msgpack of a snapshot whose lists claim to hold `count`."""
    fields = {b"names": names, b"sizes": sizes, b"times": times}
    lists = [bytes([0xA5]) + name + b"\xdd" + count.to_bytes(4) + data for name, data in fields.items()]
    again = [bytes([0xA5]) + name + b"\x90" for name in fields] if is_twice else []
    return bytes([0x81 + 3 + len(again)]) + b"\xa7version\x01" + b"".join([*lists, *again])


@pytest.mark.parametrize("is_twice", [True, False])
@pytest.mark.parametrize(
    ("kinds", "count", "sized"),
    [
        (("no names", "numbers", "numbers"), 20 * MIB, 20 * MIB),
        (("no names", "numbers", "numbers"), 60_000, 60_000),
        (("no names", "numbers", "numbers"), 2**32 - 1, 1000),
        (("nothing", "nothing", "nothing"), 2**32 - 1, 0),
    ],
)
def test_a_snapshot_takes_memory_for_what_it_holds_and_not_for_what_it_claims(
    tmp_path: Path, kinds: tuple[str, str, str], count: int, sized: int, is_twice: bool
) -> None:
    lists = [LISTS[kind](sized) for kind in kinds]
    path = tmp_path / "snapshot"
    taken, is_used = read_apart(path, snapshot_of(*lists, count=count, is_twice=is_twice))
    assert not is_used
    assert taken < MIB + 40 * path.stat().st_size


def test_a_snapshot_of_many_records_of_one_tool_is_used(tmp_path: Path) -> None:
    rng = random.Random(1)  # noqa: S311 # reproducible data
    refs = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=10)) for _ in range(8000)]
    names = [f"{ref}~tool_result~{'x' * 48}~9000~2500.zst" for ref in refs]
    body = {"version": 1, "names": names, "sizes": [700] * len(refs), "times": [9.5e5] * len(refs)}
    body["titles"] = [None] * len(refs)
    path = tmp_path / "snapshot"
    taken, is_used = read_apart(path, msgspec.msgpack.encode(body))
    assert is_used
    assert taken < MIB + 40 * path.stat().st_size


# Memory

# Arguments are the store, what the content is made of and its size in bytes. Offloads, restores, reads and
# searches; prints how far the peak of memory rose beyond that of a process that had done it with little.
HEAVY = r"""
import hashlib, re, sys
from pathlib import Path
from offload import Offloader

off = Offloader(sys.argv[1], session="s")
block = {"line": "0123456789abcdef ", "blank": "\n", "ansi": "\x1b[31mé\x1b[0m", "deep": "["}[sys.argv[2]]

def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def result(text, size):
    part = {"type": "tool_result", "tool_use_id": str(size), "content": text}
    return [{"role": "user", "content": [part]}]

def go(size):
    text = block * (size // len(block.encode()))
    digest = hashlib.sha256(text.encode()).digest()
    out = off.offload(result(text, size))
    [record] = out.records
    del text
    asked = {"read": {"offset": record.chars - 99}, "tail": {}, "grep": {"pattern": "needle"}}
    for tool, more in asked.items():
        answer = off.tools.call("context_" + tool, {"id": record.ref} | more)
        assert not answer.startswith("Error"), answer
    [message] = Offloader(sys.argv[1], session="s").restore(out.messages)
    assert hashlib.sha256(message["content"][0]["content"].encode()).digest() == digest

go(100_000)
before = peak()
go(int(sys.argv[3]))
print(peak() - before)
"""


@needs_proc
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("line", 10 * MIB),
        ("deep", 10**6),
        pytest.param("blank", 10**6, marks=pytest.mark.slow),
        pytest.param("ansi", 10 * MIB, marks=pytest.mark.slow),
        pytest.param("line", 100 * 10**6, marks=pytest.mark.slow),
        pytest.param("blank", 50 * MIB, marks=pytest.mark.slow),
        pytest.param("ansi", 50 * MIB, marks=pytest.mark.slow),
    ],
)
def test_content_of_any_size_takes_three_times_its_size_of_memory(
    tmp_path: Path, kind: str, size: int
) -> None:
    command = [sys.executable, "-c", HEAVY, str(tmp_path), kind, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.fullmatch(r"\d+\n", done.stdout)
    assert int(done.stdout) < 3 * size + 64 * MIB
