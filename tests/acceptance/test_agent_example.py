"""The example agent: it runs without a key, goes on where it was, and asks a real API where a key is set."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import prepared
import pytest
from provider import Api, said, serving

from offload import ContextManager, Offloader

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "agent.py"
PROGRAM = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def run(store: Path, *arguments: str) -> str:
    keys = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
    environ = {name: value for name, value in os.environ.items() if name not in keys}
    given = (EXAMPLE, "--store", store, "--session", "demo", *arguments)
    done = prepared.run(PROGRAM, *given, environ=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "one.py").write_text("x = 1\n" * 4000 + "class Needle: ...\n")
    return tmp_path / "code"


def test_a_scripted_model_finds_what_was_left_out_of_its_view(folder, tmp_path):
    said_there = run(tmp_path / "store", "--fake", "--folder", str(folder))

    assert "one.py:4001: class Needle: ..." in said_there.partition("Here they are")[2]
    assert said_there.count("> ") == 4
    [record] = Offloader(tmp_path / "store", session="demo").records()
    assert record.tool_name == "print_files"
    assert record.chars > 60_000


def test_run_again_it_goes_on_with_the_conversation(folder, tmp_path):
    run(tmp_path / "store", "--fake", "--folder", str(folder))

    assert "> 9 messages" in run(tmp_path / "store", "--fake", "--folder", str(folder))


def test_calls_that_a_killed_process_left_are_answered_first(folder, tmp_path):
    killed = ContextManager(Offloader(tmp_path / "store", session="demo"))
    killed.add({"role": "user", "content": "Which files are there?"})
    killed.before_model_call()
    call = {"type": "tool_use", "id": "toolu_1", "name": "list_files", "input": {}}
    killed.after_model_call({"role": "assistant", "content": [call]})
    run(tmp_path / "store", "--fake", "--folder", str(folder))

    again = ContextManager(Offloader(tmp_path / "store", session="demo"))
    again.resume()
    [_, _, answered, question, *_] = again.messages
    assert "one.py" in answered["content"][0]["content"]
    assert question["content"] == "Which classes are there?"


def test_with_a_key_it_asks_the_api_and_answers_its_calls(folder, tmp_path, monkeypatch, capsys):
    # In this process, because the client of the API takes seconds to load.
    arguments = ["--store", str(tmp_path / "store"), "--session", "demo", "--folder", str(folder)]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    call = {"type": "tool_use", "id": "toolu_1", "name": "list_files", "input": {}}
    api = Api((200, said("anthropic") | {"content": [call]}), (200, said("anthropic", "One file.")))
    with serving(api) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        runpy.run_path(str(EXAMPLE), run_name="__main__")

    [_, (path, body)] = api.requests
    assert path == "/v1/messages"
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert "one.py" in body["messages"][2]["content"][0]["content"]
    assert "One file." in capsys.readouterr().out
    assert "context_read" in str(body["system"]) + str(body["tools"])


def test_it_reads_in_one_sitting():
    assert len(EXAMPLE.read_text().splitlines()) <= 150
