"""Many processes on one session at the same time, and what the medium itself says of it afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import prepared
import pytest
import systems
from servers import Bucket, Server, new_bucket

from offload import NotFoundError, Offloader

# Offloads the items `name` 0, 1, … in batches, each batch a turn, and prints what stands in the messages.
WRITER = """
import json, sys
import systems
from offload import Offloader, OffloadPolicy, Rule
url, options, system, name, count = sys.argv[1:]
systems.use(system)
policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=40)}, min_saving=0)
off = Offloader(url, session="s", storage_options=json.loads(options), policy=policy)
messages = [
    {"role": "tool", "tool_call_id": f"{name}-{n}", "content": f"{name} {n}\\n" * 200}
    for n in range(int(count))
]
print("ready", flush=True)
sys.stdin.readline()
for end in range(10, len(messages) + 10, 10):
    out = off.offload(messages[:end])
    assert not out.errors, out.errors
print(json.dumps([message["content"] for message in out.messages]))
"""


def expected(names: str, count: int) -> set[str]:
    return {f"{name} {n}\n" * 200 for name in names for n in range(count)}


@contextmanager
def writers(
    url: str, options: dict[str, Any], names: str, count: int, system: str = "everything"
) -> Iterator[list[prepared.Started]]:
    """Start a process per name; all begin to write together."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(prepared.start(WRITER, url, json.dumps(options), system, name, count))
            for name in names
        ]
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.tell("\n")
        yield started


def placeholders(started: list[prepared.Started]) -> list[list[str]]:
    """Wait for the writers; return what each of them left in its messages."""
    answers = []
    for process in started:
        output, _ = process.communicate()
        assert process.returncode == 0
        answers.append(json.loads(output))
    return answers


def contents(off: Offloader, *, newest: int = 0) -> list[str]:
    """Return the text of every record, or of the newest ones, each read back as a tool reads it."""
    pages = (off.tools.read(record.ref) for record in off.records()[-newest:])
    texts = (page.split("\n", 1)[1].removesuffix("[end of item]") for page in pages)
    return [
        text.removesuffix("[Shown before in this session: the content never changes]\n") for text in texts
    ]


def files(root: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of the last write of every object that is there."""
    found = {}
    for path in root.rglob("*~*"):
        info = path.stat()
        found[path.name] = (info.st_ino, info.st_mtime_ns)
    return found


@pytest.mark.parametrize(
    ("names", "count", "system"),
    [
        ("abcd", 12, "everything"),
        ("ab", 12, "a refusing rename only"),
        *(pytest.param("abcdefgh", 250, system, marks=pytest.mark.slow) for system in systems.FORMS),
    ],
)
def test_every_item_of_every_process_is_there_and_readable(
    tmp_path: Path, names: str, count: int, system: str
) -> None:
    with writers(str(tmp_path), {}, names, count, system) as started:
        said = placeholders(started)

    off = Offloader(tmp_path, session="s")
    assert len(files(tmp_path)) == len(off.records()) == len(names) * count
    assert sorted(contents(off)) == sorted(text + "\n" for text in expected(names, count))
    for name, texts in zip(names, said, strict=True):
        messages = [
            {"role": "tool", "tool_call_id": f"{name}-{n}", "content": t} for n, t in enumerate(texts)
        ]
        restored = off.restore(messages)
        assert [message["content"] for message in restored] == [f"{name} {n}\n" * 200 for n in range(count)]


SYSTEMS = [
    pytest.param(name, marks=() if name == "everything" else pytest.mark.slow) for name in systems.FORMS
]


@pytest.mark.parametrize("system", SYSTEMS)
def test_writers_of_the_same_items_make_one_record_each_and_say_the_same(tmp_path: Path, system: str) -> None:
    with writers(str(tmp_path), {}, "aaaa", 60, system) as started:
        seen: dict[str, tuple[int, int]] = {}
        while any(process.poll() is None for process in started):
            now = files(tmp_path)
            assert {name: now[name] for name in seen} == seen
            seen = now
            if len(seen) == 60:
                break
        said = placeholders(started)

    assert said == said[:1] * 4
    assert not set(said[0]) & expected("a", 60)
    assert {name: files(tmp_path)[name] for name in seen} == seen
    assert len(files(tmp_path)) == 60


@pytest.mark.parametrize("system", SYSTEMS)
def test_readers_see_whole_records_only_while_others_write(
    tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems.use_for_a_test(system, monkeypatch)
    texts = {text + "\n" for text in expected("abc", 60)}
    reader = Offloader(tmp_path, session="s")
    sizes: set[int] = set()

    with writers(str(tmp_path), {}, "abc", 60, system) as started:
        while any(process.poll() is None for process in started) and len(sizes) < 40:
            read = contents(reader)
            assert set(read) <= texts
            assert len(read) >= max(sizes, default=0)
            sizes.add(len(read))
            assert reader.tools.grep("no such thing").startswith("[No matches in ")
        placeholders(started)

    assert set(contents(reader)) == texts


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.slow), "SeaweedFS"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    if request.param == "moto":
        return new_bucket(request.getfixturevalue("s3_endpoint"))
    server: Server = request.getfixturevalue("seaweedfs_server")
    return new_bucket(server.endpoint)


@pytest.mark.parametrize(("names", "count"), [("aab", 3), pytest.param("abcd", 50, marks=pytest.mark.slow)])
def test_processes_on_one_prefix_of_a_bucket_lose_nothing(bucket: Bucket, names: str, count: int) -> None:
    options = bucket.storage_options
    reader = Offloader(bucket.url, session="s", storage_options=options)
    texts = {text + "\n" for text in expected(names, count)}

    with writers(bucket.url, options, names, count) as started:
        while any(process.poll() is None for process in started):
            assert set(contents(reader, newest=4)) <= texts
        said = placeholders(started)

    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="prefix/r/s/")["Contents"]
    assert len(listed) == len(set(names)) * count
    assert {item["Key"] for item in listed} == {f"prefix/{record.key}" for record in reader.records()}
    assert set(contents(reader)) == texts
    assert len({tuple(answer) for answer in said}) == len(set(names))


def test_a_record_that_vanishes_under_its_readers_is_not_found_and_never_torn(tmp_path: Path) -> None:
    reader = Offloader(tmp_path, session="s")

    with writers(str(tmp_path), {}, "ab", 60) as started:
        while any(process.poll() is None for process in started):
            for record in reader.records():
                (tmp_path / record.key).unlink()
                with pytest.raises(NotFoundError, match=record.ref):
                    reader.tools.read(record.ref)
        placeholders(started)

    assert {record.ref for record in reader.records()} == {
        path.name.split("~")[0] for path in tmp_path.rglob("*~*")
    }
