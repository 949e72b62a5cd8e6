"""The command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prepared
import pytest
from command import Run, is_one_line_from_us
from strength import thinned
from typer.main import get_command
from typer.testing import CliRunner

from offload import Offloader
from offload.__main__ import main
from offload.base.text import escape_controls
from offload.cli.app import COMMANDS, _app_of, app
from offload.replay.sample import conversation

ESCAPES = "\x1b]52;c;aGk=\x07\x1b[2J"
LONG = "".join(f"{n} {'needle' if n == 700 else 'hay'} [red]{ESCAPES}[/red]\n" for n in range(1000))


def chat(output: str) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": output},
        {"role": "assistant", "content": "done"},
    ]


@pytest.fixture
def offload(home: Path, run: Run) -> Run:
    home.mkdir()
    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one record of LONG in session `s`."""
    folder = tmp_path / "store"
    done = Offloader(str(folder), session="s").offload(chat(LONG))
    assert len(done.records) == 1
    return folder


def stored_refs(folder: Path, session: str) -> set[str]:
    return {p.name.partition("~")[0] for p in (folder / "r" / session).iterdir()}


# How it starts and fails


@pytest.mark.parametrize("package", thinned(["typer", "rich"], 2))
def test_a_missing_extra_is_named(package: str) -> None:
    program = (
        f"import sys; sys.modules['{package}'] = None; sys.argv[1:] = ['ls']\n"
        "from offload.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "the command line needs the extra `cli`: pip install 'offload[cli]'\n"


def test_an_extra_whose_parts_are_commands_brings_the_command_line() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    for extra in ("mcp", "web"):
        assert "offload[cli]" in project["optional-dependencies"][extra]


# What a terminal is shown


def test_every_control_character_is_escaped() -> None:
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for char in map(chr, range(sys.maxunicode + 1)):
        is_control = unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} and char not in "\n\t"
        if is_control or unicodedata.bidirectional(char) in turning:
            assert escape_controls(char) != char, hex(ord(char))


def test_plain_text_is_not_escaped() -> None:
    plain = "tab\t, line\n, é, 漢字, 🙂, [bold]"
    assert escape_controls(plain) == plain
    assert escape_controls("\x1b[2J\x7f") == "␛[2J␡"


def test_a_records_escapes_and_markup_are_shown_and_not_obeyed(offload: Run, store: Path) -> None:
    shown = offload("show", *stored_refs(store, "s"), "--store", store).stdout
    assert "\x1b" not in shown
    assert "0 hay [red]␛]52;c;aGk=␇␛[2J[/red]\n1 hay" in shown


@pytest.mark.parametrize("command", ["show REF", "show REF --tail 20", "grep PASSED", "search passed"])
def test_colors_of_a_record_are_left_out_unless_it_is_asked_for_as_it_is(
    offload: Run, tmp_path: Path, command: str
) -> None:
    off = Offloader(str(tmp_path), session="s")
    off.offload_text("".join(f"\x1b[32mPASSED\x1b[0m in \x1b[1m{n}s\x1b[0m\n" for n in range(2000)))
    [record] = off.records()
    words = command.replace("REF", record.ref).split()

    assert re.search(r"(?<![^\s:])PASSED in \d+s\n", offload(*words, "--store", tmp_path).stdout)
    assert "\\u001b[32mPASSED" in offload(*words, "--store", tmp_path, "--json").stdout


# Looking at a store


def test_ls_and_du_list_and_count_sessions_and_the_records_of_one(offload: Run, store: Path) -> None:
    [session] = json.loads(offload("ls", "--store", store, "--json").stdout)["sessions"]
    counted = json.loads(offload("du", "s", "--store", store, "--json").stdout)
    for found in (session, counted):
        assert (found["session"], found["records"], found["chars"]) == ("s", 1, len(LONG))
    [record] = json.loads(offload("ls", "--store", store, "--session", "s", "--json").stdout)["records"]
    assert {record["ref"]} == stored_refs(store, "s")
    assert (record["tool"], record["chars"]) == ("bash", len(LONG))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", record["stored_at"])
    table = offload("ls", "--store", store, "--session", "s").stdout
    assert record["ref"] in table
    assert f"{len(LONG):,}" in table


def test_show_starts_at_the_offset_tail_ends_at_the_end_and_grep_finds_by_text_or_pattern(
    offload: Run, store: Path
) -> None:
    [ref] = stored_refs(store, "s")

    def shown(*arguments: object) -> str:
        return offload(*arguments, "--store", store).stdout

    part = shown("show", ref, "--offset", LONG.index("500 hay"), "--limit", 7)
    assert ("500 hay" in part, "501 hay" in part) == (True, False)
    end = shown("show", ref, "--tail", 2)
    assert ("999 hay" in end, "998 hay" in end, "997 hay" in end) == (True, True, False)
    assert "700 needle" in shown("grep", "needle")
    assert "700 needle" in shown("grep", r"^7\d0 n", "--regex")
    assert "700 needle" not in shown("grep", r"^7\d0 n")


def test_search_shows_the_best_passages_of_one_session_several_or_all(offload: Run, store: Path) -> None:
    for name in ("one", "two"):
        lines = "".join(f"{name} has line {n} of zebraStripe\n" for n in range(900))
        Offloader(str(store), session=name).offload_text(
            lines, tool_name="Bash", tool_use_id="t", title=ESCAPES
        )

    def sessions(*options: str) -> set[str]:
        found = json.loads(offload("search", "stripe", *options, "--store", store, "--json").stdout)
        assert set(found) == {"store", "passages", "records", "chars", "unsearched"}
        return {passage["session"] for passage in found["passages"]}

    assert sessions() == sessions("--session", "one", "--session", "two") == {"one", "two"}
    assert sessions("--session", "two") == {"two"}
    shown = offload("search", "two", "stripe", "--limit", "1", "--store", store)
    assert "two has line" in shown.stdout
    assert "\x1b]" not in shown.stdout
    assert "1 passage; searched" in shown.stderr
    nothing = offload("search", "absent", "--store", store)
    assert (nothing.returncode, nothing.stdout.strip()) == (0, "")
    assert "0 passages; searched" in nothing.stderr
    assert offload("search", "!", "--store", store).returncode == 2
    assert offload("search", "a", "--session", "nobody", "--store", store).returncode == 1


def test_evidence_marks_the_values_of_a_text_and_fails_if_one_is_found_nowhere(
    offload: Run, store: Path, tmp_path: Path
) -> None:
    off = Offloader(str(store), session="s", journal=True)
    off.offload([{"role": "user", "content": "the port is 8443"}])
    text = tmp_path / "answer.md"
    text.write_text(f"8443 {ESCAPES}\n4711\n")

    done = offload("evidence", text, "--store", store)
    assert done.returncode == 3
    assert done.stdout.startswith("8443 [message 0:1]")
    assert done.stdout.endswith("\n>>4711<< [not found]\n")
    assert "\x1b]" not in done.stdout
    assert "2 values: 1 in view, 1 not found; searched" in done.stderr
    assert "unknown: " not in done.stderr
    Offloader(str(tmp_path / "plain"), session="s").offload_text("8443\n" * 9000)
    plain = offload("evidence", text, "--store", tmp_path / "plain")
    assert plain.stdout.startswith("8443 [")
    assert "unknown: the session has no journal of what the model saw" in plain.stderr
    found = json.loads(offload("evidence", text, "--store", store, "--json").stdout)
    assert [(value["text"], value["state"]) for value in found["values"]] == [
        ("8443", "in_view"), ("4711", "not_found"),
    ]  # fmt: skip # one line each
    assert offload("evidence", tmp_path / "none", "--store", store).returncode == 2
    assert offload("evidence", text, "--session", "nobody", "--store", store).returncode == 1
    piped = prepared.offload("evidence", "-", "--store", store, "--at", "1", folder=tmp_path)
    assert (piped.returncode, piped.stdout) == (0, b"")


def test_a_select_counts_the_lines_of_a_record_and_a_wrong_one_is_an_error(offload: Run, store: Path) -> None:
    [ref] = stored_refs(store, "s")
    sql = "select count(*) c from lines where text like '%needle%'"
    answer = json.loads(offload("query", sql, ref, "--store", store, "--json").stdout)
    assert (answer["columns"], answer["rows"], answer["total"]) == (["c"], [[1]], 1)
    done = offload("query", "select nope from lines", ref, "--store", store)
    assert (done.returncode, "unknown column nope; lines has n, text" in done.stderr) == (2, True)


def test_verify_names_the_damaged_record_and_fails(offload: Run, store: Path) -> None:
    whole = offload("verify", "--store", store)
    [path] = (store / "r" / "s").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    damaged = offload("verify", "--store", store, "--json")

    assert (whole.returncode, whole.stdout) == (
        0,
        f"all records are intact: 1 record in 1 session of {store}\n",
    )
    assert damaged.returncode == 3
    [row] = json.loads(damaged.stdout)["faults"]
    assert (row["session"], row["ref"], row["fault"]) == ("s", path.name.partition("~")[0], "corrupt")


# Savings


def test_savings_shows_offloadable_items_and_kept_ones_by_reason_and_stores_nothing(
    offload: Run, tmp_path: Path, home: Path
) -> None:
    said = {"role": "assistant", "content": "word " * 20_000}
    (tmp_path / "a.json").write_text(json.dumps(chat(LONG)))
    (tmp_path / "b.json").write_text(json.dumps([*chat(LONG), said]))
    report = json.loads(offload("savings", tmp_path, "--json").stdout)
    found = next(row for row in report["transcripts"] if row["transcript"] == "a")
    assert (found["format"], found["offloaded"]) == ("openai-chat", 1)
    assert 0 < found["tokens_after"] < found["tokens_before"] / 10
    assert found["saved"] == pytest.approx(1 - found["tokens_after"] / found["tokens_before"], abs=1e-4)
    [reason] = report["kept_large"]
    assert (reason["items"], "assistant_message" in reason["reason"]) == (1, True)
    assert report["total"]["offloaded"] == 2
    text = offload("savings", tmp_path, "--verbose").stdout
    assert "total of 2" in text
    assert reason["reason"] in text
    assert list(home.iterdir()) == []


# The demo and its conversation


@pytest.fixture(scope="module")
def sample() -> list[dict[str, Any]]:
    return conversation()


def results_of(messages: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
    tools = {b["id"]: b["name"] for b in blocks if b["type"] == "tool_use"}
    return ((tools[b["tool_use_id"]], b) for b in blocks if b["type"] == "tool_result")


def test_the_sample_is_a_conversation_that_a_provider_would_take(sample: list[dict[str, Any]]) -> None:
    assert [m["role"] for m in sample] == ["user", "assistant"] * (len(sample) // 2)
    for asked, answered in zip(sample[1:-1:2], sample[2:-1:2], strict=True):
        called = [b["id"] for b in asked["content"] if b["type"] == "tool_use"]
        assert called == [b["tool_use_id"] for b in answered["content"]] != []


def test_the_samples_results_are_real(sample: list[dict[str, Any]]) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    found = dict(results_of(sample))
    assert found["Read"]["content"] == (library / "argparse.py").read_text(encoding="utf-8")
    size, name = found["list_files"]["content"].splitlines()[-1].split(maxsplit=1)
    assert (library / name).stat().st_size == int(size)
    assert json.loads(found["tokenize"]["content"])["argparse.py"][0][0] == "ENCODING"
    assert json.loads(found["index_symbols"]["content"])["message.py"]


def test_the_sample_has_large_results_a_small_one_and_an_error(sample: list[dict[str, Any]]) -> None:
    results = [block for _, block in results_of(sample)]
    one_line = max((b["content"] for b in results), key=len)
    assert len(one_line) > 1_000_000
    assert "\n" not in one_line
    assert [b["content"] for b in results if len(b["content"]) < 100] == [
        f"Python {sys.version.split()[0]}\n"
    ]
    [error] = [b["content"] for b in results if b.get("is_error")]
    assert "RecursionError" in error


def test_the_sample_is_reproducible_and_contains_nothing_of_its_user(
    sample: list[dict[str, Any]],
) -> None:
    assert conversation() == sample
    text = json.dumps(sample)
    places = {str(Path.home()), str(Path.cwd()), sysconfig.get_path("stdlib")} - {"/"}
    settings = {value for value in os.environ.values() if len(value) > 20}
    assert [private for private in places | settings if private in text] == []


def test_the_demo_stores_shows_and_restores_in_a_store_that_is_named_or_configured(
    offload: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo store"
    done = offload("demo", "--store", folder)
    assert done.returncode == 0, done.stderr
    refs = stored_refs(folder, "demo")
    # The source file stays, since the model may quote it.
    assert len(refs) == 4
    assert all(ref in done.stdout for ref in refs)
    assert "identical" in done.stdout
    assert "NOT" not in done.stdout
    assert str(folder) in done.stdout
    monkeypatch.setenv("OFFLOAD_STORE", str(folder))
    assert offload("demo").returncode == 0
    assert stored_refs(folder, "demo") == refs
    assert offload("ls", "--session", "demo").returncode == 0


def test_the_demo_says_so_and_fails_where_it_cannot_store(offload: Run, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = offload("demo", "--store", blocked)
    assert done.returncode == 1
    assert is_one_line_from_us(done.stderr)


# Settings, JSON, and a terminal


def test_the_store_and_session_of_the_settings_are_those_of_every_command(
    offload: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "mine.toml"
    file.write_text(f'store = "{store}"\nsession = "s"\n')
    monkeypatch.chdir(folder)
    [row] = json.loads(offload("--config", file, "ls", "--json").stdout)["sessions"]
    assert row["session"] == "s"
    monkeypatch.setenv("OFFLOAD_CONFIG", str(file))
    assert json.loads(offload("ls", "--json").stdout)["sessions"] == [row]
    shown = json.loads(offload("config", "show", "--json").stdout)["settings"]
    assert {"path": "session", "value": "s", "origin": str(file), "is_refused": False} in shown
    monkeypatch.setenv("OFFLOAD_SESSION", "another")
    assert offload("show", "last").returncode == 1


def test_refused_settings_of_the_working_folder_are_shown_and_have_no_effect(
    offload: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f'[tool.offload]\nstore = "{tmp_path / "theirs"}"\ncodec = "json"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLOAD_STORE", str(store))
    done = prepared.offload("config", "show", "--json", folder=tmp_path)
    shown = json.loads(done.stdout)["settings"]
    assert {"path": "store", "value": str(store), "origin": "environment", "is_refused": False} in shown
    assert {"path": "codec", "value": "json", "origin": str(file), "is_refused": False} in shown
    refused = {"path": "store", "value": str(tmp_path / "theirs"), "origin": str(file), "is_refused": True}
    assert refused in shown
    assert is_one_line_from_us(done.stderr.decode())
    assert f"{file} (refused)" in offload("config", "show").stdout
    assert json.loads(offload("ls", "--json").stdout)["sessions"]


def test_a_wrong_call_or_setting_is_code_2_and_named(
    offload: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offload("show", "--no-such-option").returncode == 2
    unknown = offload("ls", "--store", "nosuchscheme://x")
    (tmp_path / "offload.toml").write_text("stor = 1\n")
    monkeypatch.chdir(tmp_path)
    wrong = offload("ls")
    for done, named in ((unknown, "nosuchscheme"), (wrong, "offload.toml"), (wrong, "stor")):
        assert (done.returncode, named in done.stderr) == (2, True)
        assert is_one_line_from_us(done.stderr)


def test_help_of_each_command_shows_an_example_that_is_a_call_of_it() -> None:
    commands = COMMANDS.keys() - {"mcp-proxy", "config"}
    assert len(commands) > 20
    for command in commands:
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert f"Example: offload {command}" in shown
        assert "[[" not in shown


def test_n_is_the_number_of_rows_wherever_a_command_has_it() -> None:
    meant = {
        (name, option.name)
        for name in COMMANDS
        for option in get_command(_app_of(name)).params
        if "-n" in option.opts
    }
    assert meant == {("ls", "limit"), ("log", "limit"), ("search", "limit")}


def test_help_of_a_command_is_asked_for_in_two_ways_and_names_the_orders_of_ls() -> None:
    assert CliRunner().invoke(app, ["help", "help"]).output == CliRunner().invoke(app, ["help"]).output
    for words in ([], ["ls"], ["catalog", "export"]):
        asked, option = (CliRunner().invoke(app, call) for call in (["help", *words], [*words, "-h"]))
        assert (asked.exit_code, asked.output) == (0, option.output)
    assert "time, tokens, size, name;" in CliRunner().invoke(app, ["help", "ls"]).output


def test_a_mistyped_command_is_code_2_and_the_meant_one_is_named(offload: Run) -> None:
    for wrong, meant in {
        "verfy": "verify",
        "delete": "rm",
        "list": "ls",
        "sql": "query",
        "completion": "--install-completion",
    }.items():
        done = offload(wrong)
        assert done.returncode == 2
        assert f"Did you mean '{meant}'" in done.stderr


@pytest.mark.parametrize("command", thinned([["cat"], ["show", "--limit", "100000"]], 2))
def test_a_reader_that_stops_early_ends_the_command_in_silence(store: Path, command: list[str]) -> None:
    off = Offloader(str(store), session="s")
    off.offload_text(LONG * 30, tool_name="Bash")
    ref = off.records()[-1].ref
    words = [sys.executable, "-m", "offload", *command, ref, "--store", str(store)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
    assert (running.returncode, said) == (141, b"")


def test_a_terminal_gets_no_escape_of_the_content_and_a_pipe_gets_every_byte(
    store: Path, tmp_path: Path
) -> None:
    [ref] = stored_refs(store, "s")
    assert prepared.offload("cat", ref, "--store", store, folder=tmp_path).stdout == LONG.encode()
    code, seen = prepared.offload_in_a_terminal("cat", ref, "--store", store)
    assert code == 0
    assert "needle" in seen
    assert "\x1b" not in seen
    assert "␛]52" in seen


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is played by /dev/full")
@pytest.mark.parametrize("command", thinned(["cat", "ls"], 2))
def test_output_that_cannot_be_written_is_one_line_and_code_1(store: Path, command: str) -> None:
    refs = stored_refs(store, "s") if command == "cat" else ()
    program = [sys.executable, "-m", "offload", command, *refs, "--store", str(store)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (1, "offload: No space left on device\n")


def test_the_error_of_a_file_that_cannot_be_read_has_no_number(offload: Run, tmp_path: Path) -> None:
    done = offload("import", tmp_path, "--store", tmp_path / "store")
    assert (done.returncode, done.stderr) == (1, f"offload: {tmp_path}: Is a directory\n")


def test_characters_that_an_encoding_lacks_are_printed_as_escape_codes(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    program = [sys.executable, "-m", "offload", "show", *stored_refs(store, "s"), "--store", str(store)]
    done = subprocess.run(program, capture_output=True, encoding="latin-1", check=False)
    assert done.returncode == 0
    assert r"0 hay [red]\u241b]52" in done.stdout


def test_an_interrupt_is_code_130_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("offload.cli.app.run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_an_answer_is_as_large_as_the_settings_say(
    offload: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [ref] = stored_refs(store, "s")
    monkeypatch.setenv("OFFLOAD_MAX_ANSWER_CHARS", "2000")
    assert 1000 < len(offload("show", ref, "--store", store).stdout) <= 2001
    monkeypatch.setenv("OFFLOAD_MAX_ANSWER_CHARS", "1")
    assert offload("show", ref, "--store", store).returncode == 2


def test_the_page_on_the_command_line_names_each_command_in_a_table_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (`.+?`) \|", page.partition("## Commands")[2].partition("## Exit")[0], re.MULTILINE
    )
    named = {words.split()[0] for row in rows for words in re.findall(r"`([^`]+)`", row)}
    assert named == COMMANDS.keys() | {"views"}  # catalog views
