"""Titles: one line that says what a record is of; redacted, found by its words, kept by every copy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from command import runner
from kit.conversation import tool_turn
from kit.store import CountedStore
from large import Clock, LargeStore, fill, info_of

from offload import ConfigError, Offloader, OffloadPolicy, Rule, StoreUnavailableError
from offload.agent.compaction import RoundCompactor, RoundConfig
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.engine.placeholder.default import escape_placeholders
from offload.maintenance.transfer import copy_session, export_session, import_session
from offload.records.index import reindex
from offload.records.index.catalog import Catalog
from offload.records.record.titles import MAX_TITLE_CHARS, title_of
from offload.records.session.reader import SessionReader
from offload.records.session.titles import find_titles
from offload.storage.store import OneByOne
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(
    types={
        "tool_result": Rule(min_chars=200, preview_chars=0),
        "tool_call": Rule(min_chars=500, preview_chars=0),
    },
    tools={},
    exclude_tools=(),
    min_saving=0,
)
SECRET = "hunter2hunter2"  # noqa: S105 # of the tests
CODECS = pytest.mark.parametrize("codec", ["zstd", "json", "raw"])


def turn(number: int, fields: Any, text: str = "", tool: str = "Read") -> list[Any]:
    text = text or f"{number} some line of the result\n" * 20
    return tool_turn(f"c{number}", text, tool, fields)


def reads(*paths: str) -> list[Any]:
    return [message for n, path in enumerate(paths) for message in turn(n, {"file_path": path})]


def opened(store: Any, session: str = "s", **options: Any) -> Offloader:
    return Offloader(store, session=session, policy=POLICY, **options)


def titles_of(store: Any, session: str = "s") -> set[str | None]:
    """Return the titles in the headers, past all listings."""
    reader = SessionReader(opened(store).store, session)
    return {reader.open(info).header.title for info in reader.infos()}


def rows(answer: str) -> list[str]:
    """Return the titles that `context_list` shows."""
    return [row.partition(" tokens: ")[2] for row in answer.split("\n")[1:-1]]


def objects(store: MemoryStore) -> bytes:
    return b"".join(found.key.encode() + store.get(found.key) for found in store.keys())


# --- what a title is ------------------------------------------------------------------------------


@CODECS
def test_a_record_has_the_main_argument_of_its_call_as_title_also_in_another_process(codec: str) -> None:
    store = MemoryStore()
    out = opened(store, codec=codec).offload(reads("src/app.py", "src/db.py"))

    assert [info.title for info in out.records] == ["src/app.py", "src/db.py"]
    assert titles_of(store) == {"src/app.py", "src/db.py"}
    assert sorted(rows(opened(store).tools.list())) == ["src/app.py", "src/db.py"]
    assert "app.py" not in str(out.messages[1])
    assert not any("app" in found.key for found in store.keys())


def test_the_arguments_of_a_call_a_single_text_and_a_sink_have_titles_too() -> None:
    off = opened("memory://")
    off.offload(turn(0, {"file_path": "a.py", "content": "x" * 900}, "ok", tool="Write"))
    off.offload_text("{\n\n  first words\n" + "y\n" * 300, tool_name="Bash")
    off.offload_text("z\n" * 300, tool_name="Bash", title=" \nps aux\nmore")
    off.offload_text("q\n" * 300 + "q", title="")
    with off.open_sink(tool_name="Bash", title="make test") as sink:
        sink.write("log\n" * 300)

    assert {r.title for r in off.records()} == {"a.py", "first words", "ps aux", "make test", None}


def test_removed_messages_have_a_title() -> None:
    off = Offloader("memory://", session="s")
    talk = [
        {"role": role, "content": f"{n} words of a long talk " * 60}
        for n in range(20)
        for role in ("user", "assistant")
    ]
    RoundCompactor(off, None, RoundConfig(max_context_tokens=4_000, keep_recent_rounds=1)).compact(talk)

    [title] = rows(off.tools.list(tool="conversation"))
    assert re.fullmatch(r"\d+ messages of compaction 1: 0 words of a long talk .*…", title)


@pytest.mark.parametrize("is_same_process", [True, False])
def test_the_notice_of_a_compaction_names_the_stored_items_that_it_removed_with_their_titles(
    is_same_process: bool,
) -> None:
    off = opened("memory://", redact=lambda text: text.replace("secret", "[cut]"))
    out = off.offload([{"role": "user", "content": "Fix it."}, *reads("src/secret/app.py", "src/db.py")])
    roles = ("assistant", "user")
    later = [{"role": role, "content": f"{n} some talk " * 60} for n in range(9) for role in roles]
    compactor = RoundCompactor(
        off
        if is_same_process
        else Offloader(off.store, session=off.session, **(off.options.arguments() | {"events": None})),
        None,
        RoundConfig(max_context_tokens=4_000, keep_recent_rounds=1, require_confirmation=False),
    )
    sent = compactor.compact([*out.messages, *later]).new_messages

    [notice] = [m["content"] for m in sent if str(m["content"]).startswith("[Compacted 1:")]
    first, second = out.records
    assert f"Stored items (id, title):\n* {first.ref} src/[cut]/app.py\n* {second.ref} src/db.py\n" in notice
    assert "secret" not in str(sent)


@pytest.mark.parametrize("compress", [False, True])
def test_presets_keep_titles_in_their_records_and_out_of_their_lists(tmp_path: Path, compress: bool) -> None:
    refs = ContextRefs(tmp_path / "refs", "s", compress=compress)
    refs.tool_output("a line\n" * 2_000, tool_name="bash", title="make telling")
    tree = ContextFileSystem(tmp_path / "tree", "s", offload_token_threshold=10)
    messages = turn(0, {"file_path": "src/telling.py"}, "a line\n" * 2_000)
    tree.offload([*messages, {"role": "assistant", "content": "I see."}])

    assert rows(ContextRefs(tmp_path / "refs", "s").offloader.tools.list()) == ["make telling"]
    assert rows(ContextFileSystem(tmp_path / "tree", "s").offloader.tools.list()) == ["src/telling.py"]
    for name in ("refs/*/manifest.json", "tree/index.json", "tree/tool_result/**/*.json"):
        [file] = tmp_path.glob(name)
        assert "telling" not in file.read_text()


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("a/" * 100 + "end.py", "…" + ("a/" * 100 + "end.py")[-79:]),
        ("x\x1b[31mred\x07.py", "x␛[31mred␇.py"),
        ("a\u202egpj.py\u2066", "a\\u{202e}gpj.py\\u{2066}"),
        ("a\nb\rc\x85d\u2028e", "a"),
        ("\n \r\n real.py", "real.py"),
        ("a\ud800b", "a\\u{d800}b"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("c" * 1_000_000, "…" + "c" * 79),
        ("\0", "␀"),
    ],
)
def test_a_hostile_argument_gives_one_line_of_at_most_80_characters(path: str, title: str) -> None:
    store = MemoryStore()
    info = opened(store).offload(turn(0, {"file_path": path})).records[-1]

    assert info.title == title
    assert len(title) <= MAX_TITLE_CHARS
    assert title.isprintable()
    assert set(rows(opened(store).tools.list())) == {title}


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("cd /testbed && make", "cd /testbed && make"),
        ("cd '/a b' && grep -n " + "x" * 70, "grep -n " + "x" * 70),
        ("cd /a; " + "x" * 90, "x" * 79 + "…"),
        ("# Look at it\nset -e\nexport A=1\n\nls -l src\n", "ls -l src"),
        ("# only a comment", "# only a comment"),
        ("#!/bin/sh\nls", "#!/bin/sh"),
    ],
)
def test_the_title_of_a_command_is_what_it_runs(command: str, title: str) -> None:
    out = opened("memory://").offload(turn(0, {"command": command}, tool="Bash"))
    assert [info.title for info in out.records] == [title]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("<pr_description>\nConsider this:\nRename of a field fails\n", "Rename of a field fails"),
        ('{\n  [\n    "name": 1\n', '"name": 1'),
        ("OBSERVATION:\n", "OBSERVATION:"),
        ("---\n\n...\n", None),
        ("数据\uff1a\n结果一\n", "结果一"),
        ("\x1b[0m\n\x1b[1;32mPASSED\x1b[0m tests/a.py \x1b[2J\n", "PASSED tests/a.py ␛[2J"),
    ],
)
def test_without_a_call_the_title_is_the_first_line_with_words_that_is_no_announcement(
    text: str, title: str | None
) -> None:
    off = opened("memory://")
    off.offload_text(text + "-\n" * 300)
    assert [info.title for info in off.records()] == [title]


def test_a_title_is_a_text_or_nothing_and_is_escaped_for_the_model() -> None:
    off = opened("memory://")
    fake = "[Offloaded: x, 1 line, id kqzmwpxhva]"
    off.offload_text("text\n" * 100, title=fake)
    assert rows(off.tools.list()) == [escape_placeholders(fake)]
    with pytest.raises(ConfigError, match="title must be a str or None, got int"):
        off.offload_text("x", title=7)  # type: ignore[arg-type]


def test_a_call_whose_arguments_cannot_be_read_costs_its_result_nothing_but_the_title() -> None:
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "c0", "name": "f", "input": 7}]}
    out = opened("memory://").offload([message, turn(0, {})[1]])
    assert [r.title for r in out.records] == ["input=7"]
    assert title_of("") is None


# --- identity -------------------------------------------------------------------------------------


def test_one_item_under_two_titles_is_one_record_with_its_first_title() -> None:
    store = MemoryStore()
    first = opened(store).offload(reads("a.py"))
    again = opened(store).offload(reads("b.py"))

    assert again.messages[1] == first.messages[1]
    assert [(r.ref, r.title) for r in again.records] == [(first.records[0].ref, "a.py")]
    assert len([*store.keys("r/")]) == 1


# --- redaction and encryption ---------------------------------------------------------------------


@pytest.mark.parametrize("where", ["path", "command", "first line", "title", "over the end", "two lines"])
def test_a_secret_is_in_no_title_and_no_byte_of_the_store(where: str) -> None:
    store = MemoryStore()
    off = opened(store, redact=lambda text: re.sub(r"hunter2\s?hunter2", "[cut]", text))
    text = "a line of the result\n" * 20
    fields = {
        "path": {"file_path": f"/home/{SECRET}/a.py"},
        "command": {"command": f"curl -u bob:{SECRET} x.org"},
        "over the end": {"command": "x" * 74 + SECRET},
        "two lines": {"command": "echo hunter2\nhunter2"},
    }
    if where in fields:
        off.offload(turn(0, fields[where], text))
    else:
        title = SECRET if where == "title" else None
        off.offload_text(f"{SECRET} first\n{text}", title=title)
    [info] = off.records()

    assert info.title is not None
    assert "[cut" in info.title
    assert b"hunter2" not in objects(store)
    assert b"[cut" in objects(store)


def test_titles_are_encrypted_in_records_and_snapshots() -> None:
    medium = MemoryStore()
    store = EncryptingStore(medium, bytes(range(32)))
    opened(store).offload(reads("/srv/telling.py"))
    catalog = Catalog(store, "s")
    for number in range(5_200):
        key = f"r/s/{_ref(number)}~tool_result~~1~1.zst"
        medium.put(key, b"")
        catalog.add(msgspec.structs.replace(info_of(key, 0.0), title=f"/srv/telling{number}.py"))
    catalog.load()

    [snapshot] = [found.key for found in medium.keys("i/")]
    packed = zstandard.ZstdDecompressor().decompress(store.get(snapshot))
    assert packed.count(b"telling") == 5_200
    assert b"telling" not in objects(medium)


def _ref(number: int) -> str:
    letters = ""
    for _ in range(10):
        number, place = divmod(number, 26)
        letters += chr(ord("a") + place)
    return letters


# --- another machine, copies, older records -------------------------------------------------------


@CODECS
def test_copies_forks_archives_and_grants_keep_titles(codec: str, tmp_path: Path) -> None:
    store, target = MemoryStore(), MemoryStore()
    off = opened(store, codec=codec)
    [info] = off.offload(reads("src/app.py")).records
    off.fork("fork")
    copy_session(store, target, "s")
    copy_session(store, target, "s", name="renamed")
    export_session(store, "s", tmp_path / "s.tar")
    import_session(target, tmp_path / "s.tar", name="imported")
    off.share(info.ref, "receiver")
    reindex(store, "s")

    assert titles_of(store, "fork") == titles_of(store) == {"src/app.py"}
    assert {frozenset(titles_of(target, each)) for each in ("s", "renamed", "imported")} == {
        frozenset(["src/app.py"])
    }
    assert rows(opened(store, "receiver").tools.list(query="APP")) == ["src/app.py"]
    assert opened(store, "fork").verify() == opened(target).verify() == []


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line_shows_titles_with_escaped_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = runner(capsys, monkeypatch), str(tmp_path / "store")
    [info] = opened(store).offload(reads("src/\x1b[31mapp.py")).records

    assert "src/␛[31mapp.py" in run("ls", "--store", store, "--session", "s").stdout
    document = json.loads(run("show", info.ref, "--tail", 5, "--store", store, "--json").stdout)
    assert (
        document["title"]
        == json.loads(run("ls", "--store", store, "--session", "s", "--json").stdout)["records"][0]["title"]
    )


# --- the search -----------------------------------------------------------------------------------


def test_a_search_finds_all_words_in_any_order_and_case_newest_first() -> None:
    store = MemoryStore()
    opened(store).offload(reads("src/User_Form.py", "src/form.py", "docs/user.md", "src/Straße.py"))
    other = opened(store)

    assert rows(other.tools.list(query="form USER")) == ["src/User_Form.py"]
    assert set(rows(other.tools.list(query="SRC"))) == {"src/User_Form.py", "src/form.py", "src/Straße.py"}
    assert rows(other.tools.list(query="STRASSE")) == ["src/Straße.py"]
    assert rows(other.tools.list(query="form", tool="Bash")) == []
    assert len(rows(other.tools.list(query="  "))) == 4
    assert other.tools.call("context_list", {"query": "nowhere"}) == (
        "[0 titles with these words, searched 1-4 of 4 stored, newest first]\n[end of list]"
    )
    assert opened(MemoryStore()).tools.list(query="x").startswith("[0 titles with these words, searched 0-0")


def test_the_pages_of_a_search_have_every_match_once_and_fit() -> None:
    store = MemoryStore()
    paths = [f"src/{'deep/' * 20}file_{n}.py" for n in range(70)]
    opened(store).offload(reads(*paths, "other.md"))
    off = opened(store, max_answer_chars=2_000)
    found, cursor = list[str](), None
    for _ in range(70):
        answer = off.tools.list(query="file", cursor=cursor)
        assert len(answer) <= 2_000
        found += rows(answer)
        match = re.search(r'\[more: cursor="(\w+)"\]$', answer)
        if match is None:
            break
        cursor = match[1]
    assert len(found) == len(set(found)) == 70
    with pytest.raises(ConfigError, match="invalid cursor"):
        off.tools.list(query="file", cursor="abcdefghij")


class CountingStore(OneByOne, CountedStore):
    """Counts the requests; a bulk read is one."""

    def get_many(self, keys: Any) -> Any:
        self.requests.append(f"{len(list(keys))} gets")
        return [MemoryStore.get(self, key) for key in keys]

    def costs(self, call: Any) -> list[str]:
        """Return the requests of a call, without their keys."""
        self.requests.clear()
        call()
        return [request.partition(" r/")[0] for request in self.requests]


def test_titles_cost_no_request_on_offload_and_one_bulk_read_per_page_of_another_process() -> None:
    store = CountingStore()
    messages = reads(*(f"{n}.py" for n in range(60)))
    off = opened(store)
    assert store.costs(lambda: off.offload(messages)) == ["keys"] + ["put"] * 60
    assert store.costs(lambda: off.offload(messages)) == []
    assert store.costs(off.records) == store.costs(off.tools.list) == ["keys"]
    assert store.costs(lambda: off.tools.list(query="7")) == ["keys"]

    other = opened(store)
    assert store.costs(other.records) == ["keys"]
    assert store.costs(other.tools.list) == ["keys", "50 gets"]
    assert store.costs(other.tools.list) == ["keys"]
    assert store.costs(lambda: other.tools.list(query="py")) == ["keys", "10 gets"]
    assert store.costs(lambda: other.tools.list(query="py")) == ["keys"]
    assert {r.title for r in other.records()} == {f"{n}.py" for n in range(60)}


def test_a_list_of_a_store_that_cannot_be_read_says_so_and_a_search_fails() -> None:
    class Unread(CountingStore):
        def get_many(self, keys: Any) -> Any:
            return [StoreUnavailableError("no") for _ in keys]

    store = Unread()
    opened(store).offload(reads("a.py"))
    other = opened(store)
    assert other.tools.list().startswith("[1 stored, 1-1 shown, newest first; titles could not be read]\n")
    assert (
        other.tools.call("context_list", {"query": "a"})
        == "Error: the store did not respond. The same call may work later."
    )


def test_a_damaged_record_is_listed_without_a_title() -> None:
    store = MemoryStore()
    opened(store).offload(reads("a.py", "b.py"))
    store.put(next(store.keys("r/")).key, b"broken", overwrite=True)
    assert sorted(map(len, rows(opened(store).tools.list()))) == [0, 4]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("offload.records.index.catalog.time", clock)
    return clock


def titled(store: LargeStore, count: int) -> Catalog:
    """Return the catalog of a process that knows a title for every record."""
    catalog = Catalog(store, "s")
    for number, key in enumerate(fill(store, count)):
        info = info_of(key, store.clock.now)
        catalog.add(msgspec.structs.replace(info, title=f"file {number}"))
    return catalog


def test_a_search_reads_at_most_1000_headers_that_no_snapshot_has_and_then_gives_a_cursor(
    clock: Clock,
) -> None:
    store = LargeStore(clock)
    fill(store, 2_300)
    reader = SessionReader(store, "s")
    spans, cursor = [], None
    for _ in range(3):
        store.spent()
        found = find_titles(reader, ["x"], limit=50, after=cursor)
        spans.append((found.start, found.end, store.spent().count("GET r/")))
        cursor = found.last
    assert spans == [(0, 1_000, 1_000), (1_000, 2_000, 1_000), (2_000, 2_300, 300)]
    assert (cursor, found.total) == (None, 2_300)


def test_a_snapshot_has_the_titles_for_another_process_and_a_later_one_keeps_them(clock: Clock) -> None:
    store = LargeStore(clock)
    titled(store, 5_500).load()
    store.spent()
    found = find_titles(SessionReader(store, "s"), ["file", "17"], limit=500)

    assert {info.title for info in found.infos} == {f"file {n}" for n in range(5_500) if "17" in str(n)}
    assert found.last is None
    assert "GET r/" not in store.spent()

    clock.now += 3_600
    # This process knows no title.
    Catalog(store, "s").load()
    names = sorted(key for key in store.objects if key.startswith("i/"))
    assert len(names) == 2
    store.delete(names[0])
    assert len(find_titles(SessionReader(store, "s"), ["file"], limit=9_999).infos) == 5_500


def test_a_snapshot_with_hostile_titles_is_read_and_one_without_titles_is_ignored(clock: Clock) -> None:
    store = LargeStore(clock)
    titled(store, 5_500).load()
    [name] = [key for key in store.objects if key.startswith("i/")]
    body = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(store.objects[name][0]))
    for titles, expected in (
        ([], None),
        (["a\n\x1b" + "x" * 99] * 5_500, "a"),
        (["y" * 81], "y" * 79 + "…"),
    ):
        changed = {**body, "titles": titles} if titles else {k: body[k] for k in body if k != "titles"}
        packed = zstandard.ZstdCompressor(write_checksum=True).compress(msgspec.msgpack.encode(changed))
        store.objects[name] = packed, clock.now
        catalog = Catalog(store, "s")
        catalog.page(limit=1)
        oldest = catalog.recent()[0]
        assert oldest.title == expected
