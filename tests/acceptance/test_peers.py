"""Requests of users of similar libraries; one group of tests for each.

| statement | test |
|---|---|
| 1. Two sessions, one call id, one bucket: each ref returns its own content | test_01 |
| 2. Kill -9 between temporary write and name, between store and replace: no dangling ref, no half | test_02 |
| 3. Every ref in a message resolves; tool and command line list every stored object | test_03 |
| 4. Store down, object too large: message unchanged, one event, no exception; configurable | test_04 |
| 5. Needle at 90 % of a 10 MB JSON line: grep shows it, read pages to it, memory is bounded | test_05 |
| 6. Patterns made to hang, 50,000 lines: they end, and the event loop goes on | test_06 |
| 7. Ten parallel results of 9,000 tokens, threshold 10,000: the budget of the turn acts | test_07 |
| 8. One transcript on two machines: the same bytes; what was sent stays a prefix | test_08 |
| 9. Resume on another machine from S3 alone: list, read, grep, and the original list | test_09 |
| 10. Collection beside live and resumed sessions: nothing cited goes, the quota is met | test_10 |
| 11. A secret that a rule cuts out is in no preview and no object | test_11 |
| 12. A ref of one session in another: the answer to a ref that never was | test_12 |
| 13. No placeholder is longer than what it replaces; one setting keeps readers of sources | test_13 |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import prepared
import pytest
from command import runner
from kit.conversation import last_results, one_turn
from kit.store import record_files, unpacked
from retained import DAY, HOUR, clocked

from offload import NotFoundError, Offloader, OffloadPolicy, Retention, Rule, StoreError
from offload.maintenance.retention import collect
from offload_backends._bucket import client as bucket_client

LOG = "".join(f"{n:05} ERROR worker-{n % 7} could not reach 10.0.{n % 255}.1\n" for n in range(400))
ALL = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=80)}, min_saving=0)
UNKNOWN = "abcdefghij"


def refs_in(messages: list[Any]) -> list[str]:
    """Return every id that a model is told to call with."""
    return [
        ref for text in last_results(messages) for ref in re.findall(r'context_read\(id="([a-z]+)"', text)
    ]


def run(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_01_one_call_id_in_two_sessions_of_a_bucket_gives_each_its_own(s3_bucket):
    texts = {"a": LOG, "b": LOG[::-1]}
    opened = {
        name: Offloader(s3_bucket.url, session=name, storage_options=s3_bucket.storage_options)
        for name in texts
    }
    sent = {name: off.offload(one_turn(texts[name])).messages for name, off in opened.items()}

    listed = s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name, Prefix="prefix/r/")["Contents"]
    stored = [unpacked(s3_bucket.read(item["Key"].removeprefix("prefix/"))).decode() for item in listed]
    assert sorted(stored) == sorted(texts.values())
    for name, off in opened.items():
        [ref] = refs_in(sent[name])
        assert b"".join(off.content(ref)).decode() == texts[name]
        assert off.restore(sent[name]) == one_turn(texts[name])


# Argument 1 is the store, 2 where to die, 3 the content.
DYING = """
import os, signal, sys

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before a named file gets its place":
    del os.O_TMPFILE
if sys.argv[2].startswith("before"):
    sys.addaudithook(lambda event, _: event == "os.link" and die())

from offload import Offloader
from offload_backends.local import LocalStore

class Dying(LocalStore):
    def put(self, *given, **more):
        super().put(*given, **more)
        die()

    def put_stream(self, *given, **more):
        super().put_stream(*given, **more)
        die()

off = Offloader(Dying(sys.argv[1]), session="s")
print(off.offload_text(sys.argv[3], tool_name="Bash", tool_use_id="call_0"), flush=True)
"""


@pytest.mark.parametrize(
    ("moment", "survivors"),
    [
        ("before an unnamed file gets its place", 0),
        ("before a named file gets its place", 0),
        ("after the record is stored", 1),
    ],
)
def test_02_a_writer_that_is_killed_leaves_no_dangling_ref_and_no_half_object(tmp_path, moment, survivors):
    # Whether a system has files without a name is asked at import.
    start = run if "a named" in moment else prepared.run
    killed = start(DYING, tmp_path, moment, LOG)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == ""

    assert [unpacked(path.read_bytes()).decode() for path in record_files(tmp_path)] == [LOG] * survivors
    off = Offloader(tmp_path, session="s")
    assert len(off.records()) == survivors
    assert off.verify() == []
    out = off.offload(one_turn(LOG))
    assert out.errors == []
    assert len(record_files(tmp_path)) == 1
    assert Offloader(tmp_path, session="s").restore(out.messages) == one_turn(LOG)


def test_03_every_ref_resolves_and_every_object_is_listed(tmp_path, capsys, monkeypatch):
    off = Offloader(tmp_path, session="s", policy=ALL)
    texts = [f"result {n}\n" * 100 for n in range(120)]
    refs = refs_in(off.offload(one_turn(*texts)).messages)

    for ref, text in zip(refs, texts, strict=True):
        assert text in off.tools.call("context_read", {"id": ref})
    listed: list[str] = []
    cursor = None
    while cursor or not listed:
        page = off.tools.call("context_list", {"cursor": cursor} if cursor else {})
        listed += re.findall(r"^([a-z]{10})  ", page, re.MULTILINE)
        cursor = (re.search(r'cursor="(\w+)"', page) or [None, None])[1]
    done = runner(capsys, monkeypatch)("ls", "--store", tmp_path, "--session", "s", "--json")
    rows = json.loads(done.stdout)["records"]
    stored = sorted(path.name[:10] for path in record_files(tmp_path))
    assert stored == sorted(refs) == sorted(listed) == sorted(row["ref"] for row in rows)


@pytest.fixture(params=["no server", "too large"])
def refusing(request, tmp_path, monkeypatch):
    """Return a function that opens an offloader whose store is unreachable or full."""
    if request.param == "no server":
        monkeypatch.setattr(bucket_client, "UNREACHABLE_DEADLINE", 0.3)
        options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
        yield lambda **more: Offloader("s3://bucket", session="s", storage_options=options, **more)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        yield lambda **more: Offloader(tmp_path, session="s", **more)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert record_files(tmp_path) == []


def test_04_a_store_that_refuses_leaves_the_message_and_one_event_unless_told_otherwise(refusing, caplog):
    noise = "".join(hashlib.sha256(b"%d" % n).hexdigest() + "\n" for n in range(200))
    messages = one_turn(noise, noise[::-1])
    out = refusing().offload(messages)

    assert out.messages == messages
    assert out.records == []
    assert len(out.errors) == 1
    assert isinstance(out.errors[0], StoreError)
    assert len(caplog.records) == 1
    assert str(out.errors[0]) in caplog.text
    with pytest.raises(StoreError):
        refusing(on_error="raise").offload(messages)
    cut = refusing(on_error="truncate").offload(messages)
    assert all(
        "the rest was not stored and is lost.]" in text and len(text) < 3000
        for text in last_results(cut.messages)
    )


# Argument 1 is the store. Reads both records to the end by the calls that the answers name, after a search
# for the needle; prints how much the large one took of memory beyond the small one, and what was seen.
PAGER = r"""
import hashlib, json, re, sys
from pathlib import Path
from offload import Offloader

off = Offloader(sys.argv[1], session="s")

def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def look(ref):
    found = off.tools.call("context_grep", {"id": ref, "pattern": "the-needle"})
    digest, call = hashlib.sha256(), {"id": ref}
    while call is not None:
        page = off.tools.call("context_read", call)
        body = page.split("\n", 1)[1].rsplit("\n", 1)[0]
        digest.update(body.encode())
        more = re.search(r'more: context_read\(id="\w+", offset=(\d+)\)\]$', page)
        call = {"id": ref, "offset": int(more[1])} if more else None
    return found, digest.hexdigest()

small, large = (info.ref for info in sorted(off.records(), key=lambda info: info.chars))
look(small)
before = peak()
found, digest = look(large)
grown = peak() - before
at = int(re.search(r"character (\d+):", found)[1])
there = off.tools.call("context_read", {"id": large, "offset": at, "limit": 15})
print(json.dumps({"grown": grown, "found": found, "there": there, "digest": digest}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_05_a_needle_in_a_line_of_10_mb_is_shown_and_paged_to_in_bounded_memory(tmp_path):
    rows = [{"id": n, "digest": hashlib.sha256(b"%d" % n).hexdigest()} for n in range(108_000)]
    rows[int(len(rows) * 0.9)]["digest"] = "the-needle-4711"
    large, small = json.dumps(rows), json.dumps(rows[:2000])
    assert len(large) > 10**7
    assert 0.89 < large.index("the-needle") / len(large) < 0.91
    off = Offloader(tmp_path, session="s")
    assert len(off.offload(one_turn(small, large)).records) == 2

    done = prepared.run(PAGER, tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "the-needle-4711" in seen["found"]
    assert len(seen["found"]) < 1000
    assert "\nthe-needle-4711\n" in seen["there"]
    assert seen["digest"] == hashlib.sha256(large.encode()).hexdigest()
    assert seen["grown"] < 24 * 1024**2


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", ["(a|a)*c", "(a+)+$"])
def test_06_a_pattern_made_to_hang_ends_and_the_event_loop_goes_on(tmp_path, pattern):
    off = Offloader(tmp_path, session="s")
    off.offload_text(("a" * 60 + "!\n") * 50_000)

    async def search() -> tuple[str, int]:
        ask = {"pattern": pattern, "mode": "regex"}
        task = asyncio.create_task(asyncio.to_thread(off.tools.call, "context_grep", ask))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return await task, turns

    answer, turns = asyncio.run(search())
    assert answer.startswith("[No matches in ")
    assert turns > 20


def test_07_ten_parallel_results_below_the_threshold_are_held_to_the_ceiling_of_the_turn(tmp_path):
    texts = [f"{n} " * 18_000 for n in range(10)]
    rules = {"tool_result": Rule(min_tokens=10_000)}

    def offload(root: Path, ceiling: int) -> Any:
        policy = OffloadPolicy(types=rules, max_view_tokens=ceiling)
        off = Offloader(root, session="s", policy=policy, token_counter=lambda text: len(text) // 4)
        out = off.offload(one_turn(*texts))
        assert off.restore(out.messages) == one_turn(*texts)
        return out

    assert offload(tmp_path / "without", 100_000).messages == one_turn(*texts)
    out = offload(tmp_path / "with", 30_000)
    stay = [text for text in last_results(out.messages) if text in texts]
    assert sum(len(text) // 4 for text in stay) == 27_000
    assert len(out.records) == len(record_files(tmp_path / "with")) == 7


# Argument 1 is the store. Reads a conversation of two messages a turn; prints what is sent after each turn.
TURNS = """
import json, sys
from offload import Offloader
messages = json.load(open(sys.argv[2]))
off = Offloader(sys.argv[1], session="s")
print(json.dumps([off.offload(messages[:end]).messages for end in range(2, len(messages) + 1, 2)]))
"""


def test_08_two_machines_send_the_same_bytes_and_what_was_sent_stays_a_prefix(tmp_path):
    texts = [
        "small",
        LOG,
        json.dumps([{"n": n, "name": f"row {n}"} for n in range(900)]),
        LOG[::-1],
        "é\n" * 9000,
    ]
    transcript = tmp_path / "transcript"
    transcript.write_text(json.dumps([message for text in texts for message in one_turn(text)]))

    sent: list[str] = []
    for machine, seed in (("one", "1"), ("two", "4711")):
        home = tmp_path / machine
        where = {"HOME": str(home), "PYTHONHASHSEED": seed}
        done = run(TURNS, home / "store", transcript, **where, TZ=f"UTC{len(sent) * 5}")
        assert done.returncode == 0, done.stderr
        sent.append(done.stdout)

    assert sent[0] == sent[1]
    turns = json.loads(sent[0])
    assert (
        sum(text.startswith("[Offloaded: ") for turn in turns[-1][1::2] for text in last_results([turn])) == 4
    )
    for earlier, later in pairwise(turns):
        assert json.dumps(later).startswith(json.dumps(earlier)[:-1] + ", ")


# Arguments are the URL and the storage options; the input is what machine A sent.
MACHINE_B = """
import json, sys
from offload import Offloader
sent = json.load(sys.stdin)
off = Offloader(sys.argv[1], session="s", storage_options=json.loads(sys.argv[2]))
ask = off.tools.call
ref = off.records()[0].ref
print(json.dumps({
    "list": ask("context_list"), "read": ask("context_read", {"id": ref, "start_line": 7, "end_line": 7}),
    "grep": ask("context_grep", {"pattern": "00399 ERROR"}), "restored": off.restore(sent),
}))
"""


def test_09_another_machine_resumes_from_the_bucket_alone(s3_bucket, tmp_path):
    messages = [*one_turn(LOG, "small"), *one_turn("row é \U0001f600\n" * 3000, LOG[::-1])]
    out = Offloader(s3_bucket.url, session="s", storage_options=s3_bucket.storage_options).offload(messages)
    assert len(out.records) == 3
    assert out.messages != messages

    command = [sys.executable, "-c", MACHINE_B, s3_bucket.url, json.dumps(s3_bucket.storage_options)]
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(
        command, input=json.dumps(out.messages), capture_output=True, text=True, check=True, env=environment
    )
    seen = json.loads(done.stdout)
    listed = re.findall(r"^([a-z]{10})  ", seen["list"], re.MULTILINE)
    assert sorted(listed) == sorted(record.ref for record in out.records)
    assert any(text.splitlines()[6] in seen["read"] for text in (LOG, LOG[::-1], "row é \U0001f600\n" * 9))
    assert "00399 ERROR worker-0 could not reach" in seen["grep"]
    assert seen["restored"] == messages


def test_10_a_collection_takes_nothing_that_is_cited_and_meets_the_quota():
    store = clocked()
    quota = Retention(store_records=12, grace=HOUR, live_for=DAY)
    said = {
        name: one_turn(*(f"{name} {n}\n" * 200 for n in range(6))) for name in ("resumed", "idle", "live")
    }

    def held() -> dict[str, int]:
        """Count the records whose bytes are there, past the library."""
        bodies = [key for key, data in store.snapshot().items() if re.fullmatch(r"r/.*\.zst", key) and data]
        return {name: sum(f"/{name}/" in key for key in bodies) for name in said}

    def offload(name: str) -> list[Any]:
        out = Offloader(store, session=name, policy=ALL).offload(said[name])
        assert len(out.records) == 6
        return out.messages

    sent = {}
    for name in said:
        sent[name] = offload(name)
        store.now += 2 * DAY
    store.now -= 2 * DAY - HOUR

    reader = Offloader(store, session="resumed", policy=ALL)
    assert reader.restore(sent["resumed"]) == said["resumed"]
    collect(store, quota)
    assert Offloader(store, session="resumed").records() == []
    store.now += HOUR - 1
    collect(store, quota)
    assert held() == dict.fromkeys(said, 6)

    assert offload("resumed") == sent["resumed"]
    for _ in range(3):
        collect(store, quota)
        store.now += HOUR
    for name in ("resumed", "live"):
        assert Offloader(store, session=name).restore(sent[name]) == said[name]
    assert held() == {"resumed": 6, "idle": 0, "live": 6}


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_11_a_secret_that_is_cut_out_is_in_no_preview_and_no_object(tmp_path, codec):
    secret = "sk-ant-api03-" + "c4n4ry" * 8
    chunk = 256 * 1024
    lines = f"line {secret}\n" + LOG
    # One secret begins in one frame of the record and ends in the next.
    long = lines + "x" * (chunk - len(lines) - 20) + secret + LOG + secret
    off = Offloader(tmp_path, session="s", codec=codec, redact=lambda text: text.replace(secret, "(a key)"))
    out = off.offload(one_turn(lines, long))
    with off.open_sink(tool_name="Bash") as sink:
        for start in range(0, len(long), 1000):
            sink.write(long[start : start + 1000])
    refs = [*refs_in(out.messages), sink.placeholder.partition('id="')[2][:10]]
    answers = [off.tools.call("context_read", {"id": ref}) for ref in refs]
    answers.append(off.tools.call("context_grep", {"pattern": "sk-ant", "max_matches": 100}))

    assert len(record_files(tmp_path)) >= 3
    assert all("(a key)" in text for text in (*last_results(out.messages), *answers[:3]))
    at_rest = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    contents = b"".join(b"".join(off.content(ref)) for ref in refs)
    if codec == "zstd":
        contents += b"".join(unpacked(path.read_bytes()) for path in record_files(tmp_path))
    said = repr((out, sink.placeholder, answers, off)).encode()
    assert all(b"c4n4ry" not in seen for seen in (at_rest, contents, said))
    assert contents.count(b"(a key)") >= 7


def test_12_a_ref_of_another_session_gets_the_answer_of_one_that_never_was(tmp_path):
    sent = Offloader(tmp_path, session="a").offload(one_turn(LOG)).messages
    [foreign] = refs_in(sent)
    b = Offloader(tmp_path, session="b")
    own = b.offload(one_turn("of b\n" * 4000)).messages

    def told(ref: str) -> list[str]:
        asked = [("context_read", {}), ("context_tail", {}), ("context_grep", {"pattern": "ERROR"})]
        return [b.tools.call(name, {"id": ref, **more}).replace(ref, "REF") for name, more in asked]

    assert told(foreign) == told(UNKNOWN)
    assert all(answer.startswith("Error: unknown id") for answer in told(foreign))
    assert "ERROR" not in b.tools.call("context_list") + b.tools.call("context_grep", {"pattern": "10.0.7.1"})
    with pytest.raises(NotFoundError):
        b.restore(sent)
    assert b.restore(own) == one_turn("of b\n" * 4000)


def test_13_no_placeholder_is_longer_than_what_it_replaces(tmp_path):
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
    texts = [LOG[:length] for length in range(1, 3000, 7)] + ["\n" * n for n in range(1, 900, 9)]
    off = Offloader(tmp_path, session="s", policy=policy)
    out = off.offload(one_turn(*texts))

    assert all(len(after) <= len(text) for after, text in zip(last_results(out.messages), texts, strict=True))
    assert out.tokens_after < out.tokens_before
    assert (
        len(out.records) == sum(after.startswith("[Offloaded") for after in last_results(out.messages)) > 100
    )


@pytest.mark.parametrize(
    ("tool", "leaves"), [("read_file", False), ("mcp__code__view", False), ("Bash", True)]
)
def test_13_one_setting_keeps_the_readers_of_sources(tmp_path, tool, leaves):
    policy = OffloadPolicy(exclude_tools=("read_file", "mcp__code__*"))
    messages = one_turn(LOG, tool=tool)
    # Also once the model has answered, when what a reader returned would go by default.
    messages += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "go on"}]
    out = Offloader(tmp_path, session="s", policy=policy).offload(messages)

    assert (out.messages != messages) is leaves
    assert len(record_files(tmp_path)) == leaves
