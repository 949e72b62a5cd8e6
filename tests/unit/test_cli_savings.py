"""Simulated input cost of recorded conversations, with and without offloading."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offload import Offloader, OffloadPolicy, Rule
from offload.cli.simulation import PAGE_TOKENS, Prices, Simulation, simulate
from offload.cli.transcripts import Transcript
from offload.tokens import estimate_tokens

Messages = list[dict[str, Any]]

PRICES = Prices(cached=1, uncached=10)
LATE = OffloadPolicy(types={"tool_result": Rule(min_tokens=3000, after_turns=1)})


def call(number: int) -> dict[str, Any]:
    function = {"name": "bash", "arguments": '{"command": "run", "timeout": 9}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def long_text(middle: str = "", topic: str = "hay") -> str:
    lines = [f"row {n} of {topic} that nobody asks for" for n in range(1000)]
    return "\n".join([*lines[:500], middle, *lines[500:]])


def session(*texts: str, last: str = "done") -> Messages:
    """Return a task, a call and its result for each text, and a last answer."""
    turns = [m for n, text in enumerate(texts) for m in (call(n), result(n, text))]
    return [{"role": "user", "content": "find it"}, *turns, {"role": "assistant", "content": last}]


def run(messages: Messages, policy: OffloadPolicy | None = None, system: str | None = None) -> Simulation:
    transcript = Transcript("t", "openai-chat", system, messages)
    return simulate(transcript, policy or OffloadPolicy(), PRICES)


def texts_of(messages: Messages) -> list[str]:
    """Return the texts of OpenAI messages, read without the library."""
    found = []
    for message in messages:
        found += [message["content"]] if message["content"] is not None else []
        found += [c["function"]["arguments"] for c in message.get("tool_calls", [])]
    return found


def billed(requests: list[list[str]]) -> tuple[int, int]:
    """Return the tokens of requests that follow each other, cached and uncached."""
    cached = uncached = 0
    before: list[str] = []
    for texts in requests:
        same = 0
        while same < min(len(texts), len(before)) and texts[same] == before[same]:
            same += 1
        cached += sum(map(estimate_tokens, texts[:same]))
        uncached += sum(map(estimate_tokens, texts[same:]))
        before = texts
    return cached, uncached


# The bill


@pytest.mark.parametrize("policy", [OffloadPolicy(), LATE], ids=["at once", "seen once"])
def test_the_prefix_equal_to_the_previous_request_is_cached_and_the_rest_is_not(
    policy: OffloadPolicy,
) -> None:
    messages = session(long_text(), "small", long_text(topic="straw"), "small", "small")
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    off = Offloader("memory://", session="any", policy=policy)

    found = run(messages, policy)

    for bill, requests in (
        (found.plain, [texts_of(messages[:i]) for i in answers]),
        (found.bill, [texts_of(off.offload(messages[:i]).messages) for i in answers]),
    ):
        cached, uncached = billed(requests)
        assert (bill.cached, bill.tokens) == (cached, cached + uncached)
        assert bill.cost == cached * PRICES.cached + uncached * PRICES.uncached
    assert (found.requests, found.offloaded, found.read_backs) == (6, 2, 0)
    assert found.bill.cost < found.plain.cost


def test_without_offloading_both_bills_are_equal() -> None:
    found = run(session("small", "small", "small"))
    assert found.bill == found.plain
    assert found.plain.tokens > 0
    assert (found.offloaded, found.breaks) == (0, 0)


def test_the_system_prompt_is_paid_with_every_request() -> None:
    messages, prompt = session("small", "small"), "Be brief and cite your sources. " * 50
    bare, prompted = run(messages).bill, run(messages, system=prompt).bill
    tokens = estimate_tokens(prompt)
    assert prompted.tokens - bare.tokens == 3 * tokens
    assert prompted.cached - bare.cached == 2 * tokens


def test_parallel_results_before_the_one_that_left_stay_cached() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": f"c{n}", "content": text}
        for n, text in enumerate(["a word " * 500, long_text()])
    ]
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "bash", "input": {}} for n in range(2)]
    said = {"role": "assistant", "content": "I see"}
    asked = {"role": "user", "content": "go on"}
    messages: Messages = [
        {"role": "assistant", "content": calls},
        {"role": "user", "content": blocks},
        said,
        asked,
        said,
    ]
    found = run([asked, *messages], LATE)
    before = sum(map(estimate_tokens, ["go on", "{}", "{}", "a word " * 500]))
    assert found.breaks == 1
    assert found.bill.cached == estimate_tokens("go on") + before


def test_messages_of_the_assistant_in_a_row_answer_one_request() -> None:
    messages: Messages = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking"}]},
        {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "little"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]
    assert run(messages).requests == 2


def test_a_conversation_that_asked_for_nothing_costs_nothing() -> None:
    found = run([{"role": "user", "content": "hello"}])
    assert (found.requests, found.plain.cost, found.bill.cost) == (0, 0, 0)


# Breaks of cached text


def test_an_item_offloaded_before_it_was_sent_breaks_no_cache() -> None:
    assert run(session(long_text(), "small", "small")).breaks == 0


def test_a_break_pays_if_enough_requests_follow() -> None:
    calls = [call(n)["tool_calls"][0] for n in range(5)]
    beside = [result(n, "a word beside it " * 400) for n in range(1, 5)]
    messages: Messages = [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        result(0, long_text()),
        *beside,
    ]
    said: Messages = [{"role": "assistant", "content": "I see"}, {"role": "user", "content": "go on"}]
    few, many = (run([*messages, *said * turns, said[0]], LATE) for turns in (2, 30))
    assert (few.breaks, few.breaks_paid) == (1, 0)
    assert few.bill.cost > few.plain.cost
    assert (many.breaks, many.breaks_paid) == (1, 1)
    assert many.bill.cost < many.plain.cost


# Reading back


NAMES = "\n".join(f"row {n} in pkg/mod_{n}.py" for n in range(3000))


def names_shown() -> list[str]:
    """Return the names of NAMES that its placeholder shows."""
    [_, _, offloaded, _] = Offloader("memory://", session="any").offload(session(NAMES)).messages
    return re.findall(r"pkg/mod_\d+\.py", offloaded["content"])


def hidden_name() -> str:
    shown = set(names_shown())
    return next(name for n in range(1000, 2000) if (name := f"pkg/mod_{n}.py") not in shown)


def test_a_name_that_left_and_is_written_later_costs_one_more_request_with_a_page_for_an_answer() -> None:
    unused, used = (run(session(NAMES, last=last)) for last in ("done", f"see {hidden_name()}"))
    sent = Offloader("memory://", session="any").offload(session(NAMES)[:-1]).messages
    prompt = sum(map(estimate_tokens, texts_of(sent)))
    assert (unused.read_backs, used.read_backs) == (0, 1)
    assert used.bill.tokens - unused.bill.tokens == prompt + PAGE_TOKENS
    assert used.bill.cost - unused.bill.cost == prompt * PRICES.cached + PAGE_TOKENS * PRICES.uncached
    assert used.plain == unused.plain


def test_an_item_is_read_back_once() -> None:
    name = hidden_name()
    once = session(NAMES, last=f"see {name}")
    found = run(once)
    asked, said = {"role": "user", "content": "and now?"}, {"role": "assistant", "content": f"see {name}"}
    longer = run([*once, asked, said])
    sent = Offloader("memory://", session="any").offload([*once, asked]).messages
    prompt = sum(map(estimate_tokens, texts_of(sent)))
    assert longer.read_backs == 1
    assert longer.bill.tokens - found.bill.tokens == prompt + PAGE_TOKENS


def test_a_name_that_the_placeholder_shows_in_its_place_is_not_read_back() -> None:
    shown = names_shown()[0]
    assert run(session(NAMES, last=f"see {shown}")).read_backs == 0


def test_a_name_that_was_there_before_the_item_is_not_read_back() -> None:
    name = hidden_name()
    found = run(session(f"found {name}", NAMES, last=f"see {name}"))
    assert (found.offloaded, found.read_backs) == (1, 0)


def test_the_assistants_own_text_is_not_read_back() -> None:
    policy = OffloadPolicy(types={"tool_call": Rule(min_tokens=1000, after_turns=1)})
    name = hidden_name()
    messages = session("written", "small", last=f"see {name}")
    messages[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"path": "a", "text": NAMES})
    sent = Offloader("memory://", session="any", policy=policy).offload(messages).messages
    assert name not in str(sent[:-1])
    found = run(messages, policy)
    assert (found.offloaded, found.read_backs) == (1, 0)


# The command


def savings(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offload", "savings", *map(str, arguments)],
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A folder of two conversations, one large item in each."""
    folder = tmp_path / "chats"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(session(long_text(), "small")))
    (folder / "b.json").write_text(json.dumps(session(NAMES)))
    return folder


def test_simulate_prints_the_bill_of_each_conversation_and_of_all_at_the_prices_it_names(chats: Path) -> None:
    report = json.loads(savings(chats, "--simulate", "--cached", 1, "--uncached", 10, "--json").stdout)
    expected = [run(json.loads(file.read_text())) for file in sorted(chats.iterdir())]
    assert report["prices"] == {"cached": 1, "uncached": 10}
    assert report["policy"] == "balanced"
    assert [t["tokens_sent"] for t in report["transcripts"]] == [s.bill.tokens for s in expected]
    plain, cost = sum(s.plain.cost for s in expected), sum(s.bill.cost for s in expected)
    assert report["total"]["cost"] == pytest.approx(cost / plain, abs=1e-4)
    assert report["total"]["requests"] == 5
    table = savings(chats, "--simulate").stdout
    assert "total of 2" in table
    assert "0.1 if the provider has it cached, else 1.25" in table


def test_the_policy_is_a_preset_or_a_file(chats: Path, tmp_path: Path) -> None:
    never = tmp_path / "never.toml"
    never.write_text("[types.tool_result]\nenabled = false\n")
    counts = [
        json.loads(savings(chats, "--json", *options).stdout)["total"]["offloaded"]
        for options in ([], ["--policy", "archive"], ["--policy", never], ["--policy", never, "--simulate"])
    ]
    assert counts == [2, 2, 0, 0]


def test_a_policy_that_is_not_there_is_one_line_and_code_2(chats: Path) -> None:
    for name in ("thrifty", chats / "none.toml"):
        done = savings(chats, "--policy", name)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("offload: ")
        assert done.stderr.count("\n") == 1


def test_simulate_refuses_a_store(chats: Path, tmp_path: Path) -> None:
    done = savings(chats, "--simulate", "--store", tmp_path / "kept")
    assert done.returncode == 2
    assert "--store" in done.stderr
    assert not (tmp_path / "kept").exists()
