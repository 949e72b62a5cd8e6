"""The comparison with other libraries: tasks of a candidate, and the reported results."""

import json
import os
from pathlib import Path

import prepared
import pytest

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


RUN = "import runpy, sys; sys.path.insert(0, '{}'); runpy.run_module('{}', run_name='__main__')"


@pytest.fixture
def ask(tmp_path):
    """Ask a candidate to do one task, in a process of its own as the benchmark does."""

    def ask(program, **task):
        tasks, answers = tmp_path / "tasks.json", tmp_path / "answers.json"
        task = {"store": str(tmp_path / "store"), "item": "a line of output\n" * 300, **task}
        tasks.write_text(json.dumps([task]), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(_BENCHMARKS)}
        done = prepared.run(RUN.format(_BENCHMARKS, f"peers.{program}"), tasks, answers, environ=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(answers.read_text("utf-8"))[0]

    return ask


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    from peers import _tables  # noqa: PLC0415 # the folder is on the path from here on

    return _tables


def test_what_overwrites_a_result_is_told_to_lose_it(ask):
    assert ask("by_hand", task="one_id") == {"agents": "both kept", "agent": "the first is lost"}


def test_what_keeps_both_results_of_one_id_is_told_to_keep_them(ask):
    assert ask("ours", task="one_id") == {"agents": "both kept", "agent": "both kept"}


def test_a_killed_write_is_told_to_leave_half_a_result(ask, tmp_path):
    block = tmp_path / "block"
    block.write_text("a line of output\n" * 200_000, encoding="utf-8")

    told = ask("by_hand", task="kill", block=str(block), kills=3)

    assert told["half"] >= 1
    assert sum(told[state] for state in ("half", "whole", "nothing")) == 3


def test_a_full_disk_is_told_with_what_is_left_of_the_text(ask, tmp_path):
    block = tmp_path / "block"
    block.write_text("".join(f"line {i * 7919 % 99991}\n" for i in range(20_000)), encoding="utf-8")
    task = {"task": "failing", "block": str(block), "is_local": True}

    assert ask("ours", **task) == {"state": "kept"}
    assert ask("by_hand", **task)["state"].startswith("raises OSError")


def test_what_a_candidate_does_not_have_is_not_offered(ask, tmp_path):
    block = tmp_path / "block"
    block.write_text("a line of output\n" * 1_000, encoding="utf-8")

    assert ask("by_hand", task="stream", block=str(block), blocks=1) == {"state": "not offered"}


def test_a_fact_is_found_only_in_the_answer_to_a_search(ask, tmp_path):
    text = "a line of output\n" * 500 + "the port of the proxy is fact_9041\n" + "another line\n" * 500
    asked = [[[text], [["fact_9041", "which port has the proxy", "fact_9041 nowhere", "unseen"]]]]
    (tmp_path / "asked").write_text(json.dumps(asked), encoding="utf-8")

    (found,) = ask("ours", task="searching", conversations=str(tmp_path / "asked"))["found"]

    assert [is_shown for is_shown, _ in found] == [True, True, False]


def test_a_cell_that_holds_a_bar_stays_one_cell(tables):
    lines = tables.markdown(["regex"], [["(a|a)*c"]]).splitlines()

    assert lines[2] == "| (a\\|a)*c |"


def test_a_candidate_that_failed_has_a_state_and_no_figure(tables):
    answers = {"session": [{"state": "fails: no module", "stored": 0}]}

    cell = tables.timed("session", "seconds")({}, answers)

    assert (cell.text, cell.value) == ("fails: no module", None)
