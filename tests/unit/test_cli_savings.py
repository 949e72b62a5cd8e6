"""Input cost of recorded conversations, with and without offloading."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import recorded
from command import Run
from hypothesis import assume, given, strategies as st
from kit.conversation import from_model, from_user, tool_turn, tool_use
from strength import thinned

from offload import CacheModel, ConfigError, Offloader, OffloadPolicy, Rule
from offload.cli.reach import reach_of
from offload.engine.policy.models import names_of_models
from offload.gateway._incoming import APIS
from offload.gateway._threads import policy_for
from offload.integrations import _claude_results
from offload.messages import Usage
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for
from offload.replay import (
    Answer,
    Bill,
    Offloading,
    Prices,
    Recording,
    Replay,
    Request,
    Transcript,
    Untouched,
    _recording,
    load,
    measure,
    replay,
)
from offload.replay._needs import GREP_TOKENS, PAGE_TOKENS, Need

Messages = list[dict[str, Any]]

SHARED = Path(__file__).parents[2].parent / "shared"
FOLDER = Path(os.environ.get("OFFLOAD_TRANSCRIPTS", SHARED / "transcripts"))
MEASURE = Path(os.environ.get("OFFLOAD_MEASURE", SHARED / "measure"))
needs_measure = pytest.mark.skipif(
    not (MEASURE / "loop_cost.py").is_file() or not FOLDER.is_dir(),
    reason=f"no loop_cost.py in {MEASURE} or no transcripts in {FOLDER}",
)

CACHE = CacheModel(read=0.1, write=1.0, ttl=300)

ENDS = {"lookback": 20, "marks": None}


def text(tokens: int, letter: str = "x") -> str:
    """Return a text of so many tokens, without names."""
    return (f"{letter * 2} " * (tokens * 4))[: tokens * 18 // 5]


def talk(*contents: str) -> Messages:
    """Return texts of user and assistant in turn."""
    return [(from_model if n % 2 else from_user)(content) for n, content in enumerate(contents)]


def answers(*rows: tuple[float, int, int]) -> dict[int, Answer]:
    """Return recorded usage of the answers 1, 3, 5 …: time, tokens, tokens that the cache served."""
    return {2 * n + 1: Answer(time, Usage(tokens, read)) for n, (time, tokens, read) in enumerate(rows)}


def recording(messages: Messages, usage: Mapping[int, Answer] | None = None, system: str = "") -> Recording:
    return Recording(Transcript("t", "anthropic", system, messages, usage or {}), CACHE.ttl)


class Replacing:
    """Replaces rows in the request with a number; `texts` are those of each read-back, if they are known."""

    texts: tuple[str, ...] | None = None

    def __init__(self, by_request: dict[int, dict[int, str]], tools: float = 0) -> None:
        self.by_request, self.tools = by_request, tools
        self.number, self.needs = -1, list[Need]()

    def replaced(self, _request: Request) -> dict[int, str]:
        self.number += 1
        return self.by_request.get(self.number, {})

    def read(self, need: Need) -> tuple[str, ...] | None:
        self.needs.append(need)
        return self.texts


def cost(record: Recording, sender: Replacing | Untouched | None = None) -> Bill:
    return measure(record, sender or Untouched(), CACHE)


# Requests


@pytest.mark.parametrize(
    ("system", "totals"),
    [("", [1000, 1000 + 1000 * 0.1 + 300]), (text(500), [1500, 1500 + 1500 * 0.1 + 300])],
)
def test_the_prefix_of_the_last_request_is_read_and_the_rest_is_written(
    system: str, totals: list[float]
) -> None:
    bill = cost(recording(talk(text(1000), text(100), text(200), "done"), system=system))

    assert bill.totals == pytest.approx(totals)
    assert (bill.cost, bill.decided) == (bill.totals[-1], bill.totals[-1])


def test_a_conversation_without_a_request_costs_nothing() -> None:
    record = recording([from_user("hello")])

    assert (record.requests, cost(record).cost) == ([], 0)


def test_messages_of_the_assistant_in_a_row_answer_one_request() -> None:
    messages: Messages = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking"}]},
        {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "little"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "see a/b.py"}]},
    ]

    assert [(r.answer, r.rows, r.written) for r in recording(messages).requests] == [
        (1, 1, frozenset()),
        (4, 4, frozenset({"a/b.py"})),
    ]


@pytest.mark.parametrize(
    ("pause", "read", "is_cold", "is_missed"),
    [
        (300, 1000, False, False),
        (301, 1000, True, True),
        (9, 500, False, False),
        (9, 499, False, True),
    ],
)
def test_after_a_pause_or_with_less_than_half_read_the_whole_prompt_is_written(
    pause: float, read: int, *, is_cold: bool, is_missed: bool
) -> None:
    messages = talk(text(1000), text(100), text(200), "done")
    record = recording(messages, answers((1000.0, 1000, 0), (1000.0 + pause, 1300, read)))

    assert [(r.time, r.is_cold, r.is_missed) for r in record.requests] == [
        (1000.0, True, True),
        (1000.0 + pause, is_cold, is_missed),
    ]
    assert cost(record).totals[-1] == pytest.approx(1000 + (1300 if is_missed else 400))


def test_an_answer_without_usage_is_sent_at_the_time_of_the_last_one() -> None:
    messages = talk("a", "b", "c", "d", "e", "f")
    usage = {1: Answer(50.0, Usage(10, 0)), 5: Answer(500.0, Usage(10, 10))}

    alone, some = recording(messages).requests, recording(messages, usage).requests

    assert [(r.time, r.is_missed) for r in alone] == [(0.0, True), (0.0, False), (0.0, False)]
    assert [(r.time, r.is_cold) for r in some] == [(50.0, True), (50.0, False), (500.0, True)]


# Replaced texts


def test_text_behind_a_replaced_text_is_written_again() -> None:
    record = recording(talk(text(100), text(1000, "y"), text(200), text(50), "go", "done"))
    sender = Replacing({2: {1: text(10)}})

    bill = cost(record, sender)

    first, second = 100, 100 * 0.1 + 1200
    third = 100 * 0.1 + (10 + 200 + 50) + len("go") / 3.6
    assert bill.totals == pytest.approx([first, first + second, first + second + third])
    assert bill.rewritten == pytest.approx((10 + 200) * 0.9)
    assert (bill.replaced, bill.seen) == ({1}, {1})


def test_a_text_replaced_before_it_was_sent_or_on_a_miss_rewrites_nothing() -> None:
    unsent = cost(recording(talk(text(1000), "a", "go", "done")), Replacing({0: {0: text(10)}}))
    messages = talk(text(100), text(1000, "y"), text(200), "done")
    record = recording(messages, answers((0.0, 100, 0), (999.0, 1300, 0)))
    missed = cost(record, Replacing({1: {0: text(10)}}))

    assert unsent.totals[0] == pytest.approx(10)
    assert (unsent.rewritten, unsent.replaced, unsent.seen) == (0, {0}, set())
    assert missed.rewritten == 0
    assert missed.totals[-1] == pytest.approx(100 + 10 + 1000 + 200)


# Reading back

NAMES = "\n".join(f"row {n} in pkg/mod_{n}.py" for n in range(100))


def reads(replacement: str, *contents: str, listing: str = NAMES) -> tuple[Bill, Replacing]:
    """Return the bill of a listing that is replaced at once, and of what follows it."""
    sender = Replacing({0: {0: replacement}})
    return cost(recording(talk(listing, *contents)), sender), sender


def test_a_name_out_of_view_is_read_back_with_a_page_and_a_mentioned_one_with_a_search() -> None:
    unused, _ = reads(text(40), "look at it", "next", "done")
    bill, sender = reads(text(40), "look at pkg/mod_7.py", "next", "done")
    mention = "there is pkg/mod_7.py and more"
    searched, _ = reads(mention, "look at pkg/mod_7.py", "next", "done")

    assert (unused.reads, bill.reads, searched.reads) == (0, 1, 1)
    assert [(need.row, need.placeholder, need.tool) for need in sender.needs] == [
        (0, text(40), "context_read")
    ]
    assert bill.read_backs == pytest.approx(40 * 0.1 + PAGE_TOKENS * 1.1)
    assert searched.read_backs == pytest.approx(len(mention) / 3.6 * 0.1 + GREP_TOKENS * 1.1)


def test_each_request_also_one_that_reads_back_has_the_system_prompt_and_the_tools() -> None:
    each = cost(recording(talk("a", "b", "c", "d")), Replacing({}, tools=400))
    assert each.tools == pytest.approx(400 + 400 * 0.1)
    assert each.cost - each.decided == each.tools

    def bill_of(tools: float, system: str) -> Bill:
        sender = Replacing({0: {0: text(40)}}, tools)
        return cost(recording(talk(NAMES, "look at pkg/mod_7.py", "next", "done"), system=system), sender)

    alone, whole = bill_of(0, ""), bill_of(500, text(300))

    assert (alone.reads, whole.reads) == (1, 1)
    assert whole.read_backs - alone.read_backs == pytest.approx((500 + 300) * 0.1)


def test_a_page_is_read_once_and_a_search_once_for_each_name() -> None:
    after_page, _ = reads(text(40), "see pkg/mod_7.py", "and", "see pkg/mod_7.py and pkg/mod_8.py")
    mentions = "there are pkg/mod_7.py pkg/mod_8.py"
    after_search, _ = reads(mentions, "see pkg/mod_7.py", "and", "see pkg/mod_7.py and pkg/mod_8.py")
    again, _ = reads(mentions, "see pkg/mod_7.py", "and", "see pkg/mod_7.py")

    assert (after_page.reads, after_search.reads, again.reads) == (1, 2, 1)


def test_a_name_in_view_or_of_an_earlier_text_is_not_read_back() -> None:
    in_its_line, _ = reads("row 7 in pkg/mod_7.py", "look at pkg/mod_7.py")
    in_another, _ = reads(text(40), "a word", "use pkg/mod_7.py", "look at pkg/mod_7.py")
    record = recording(talk("see pkg/mod_7.py", "a word", NAMES, "look at pkg/mod_7.py"))
    hides_both = cost(record, Replacing({1: {0: "gone", 2: text(40)}}))

    # Nor is one of a short text.
    short, longer = (reads("gone", "look at pkg/mod_7.py", listing=NAMES[:n])[0] for n in (999, 1000))
    assert (in_its_line.reads, in_another.reads, hides_both.reads) == (0, 0, 0)
    assert (short.reads, longer.reads) == (0, 1)


# Quotes of edits

# Lines without names.
WORDS = ["".join(letters) for letters in product("abcdefghij", repeat=2)]
CODE = "\n".join(f"    {word} = compute(item, {word})" for word in WORDS)
OLD = "    ah = compute(item, ah)\n    ai = compute(item, ai)"
PATCH = """*** Begin Patch
*** Update File: a.py
@@ def f():
     ah = compute(item, ah)
-    ai = compute(item, ai)
+    ai = 0
*** Add File: b.py
+    ab = compute(item, ab)
*** End Patch"""


def edit(tool: str = "Edit", number: int = 0, **arguments: Any) -> dict[str, Any]:
    return from_model([tool_use(f"e{number}", tool, arguments)])


def edited(replacement: str, *answers: dict[str, Any], code: str = CODE, tools: float = 0) -> Bill:
    """Return the bill of a file that is replaced before it is sent, and of the answers that follow."""
    messages = [from_user(code), *(m for answer in answers for m in (answer, from_user("go on")))]
    return cost(recording(messages), Replacing({0: {0: replacement}}, tools))


@pytest.mark.parametrize(
    "answer",
    [
        edit(old_string=OLD, new_string="x"),
        edit(old_str=OLD),
        edit(oldString=OLD),
        edit("MultiEdit", edits=[{"old_string": OLD, "new_string": "x"}]),
        edit(edits=[{"oldText": OLD}]),
        edit(input={"edits": [{"old_text": OLD}]}),
        edit("apply_patch", input=PATCH),
        edit("apply_patch", type="update_file", diff=PATCH.partition("File: a.py\n")[2].partition("***")[0]),
        edit("shell", command=["apply_patch", PATCH]),
        edit("exec_command", cmd=f"cd src && apply_patch <<'END'\n{PATCH}\nEND"),
        {"type": "custom_tool_call", "name": "apply_patch", "call_id": "e", "input": PATCH},
    ],
    ids=lambda answer: str(answer.get("content", answer))[:90],
)
def test_an_edit_of_each_client_quotes_what_it_replaces(answer: dict[str, Any]) -> None:
    first = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": CODE}]}
    [request] = recording([first if "type" in answer else from_user(CODE), answer]).requests

    assert [quote.text for quote in request.quotes] == [OLD]


def test_an_edit_quotes_only_what_it_replaces_and_the_conversation_has() -> None:
    answer = edit(old_string="    never_there = 1\n" + OLD, new_string=OLD)
    added = edit("apply_patch", input=PATCH.replace("*** Update File: a.py", "*** Add File: a.py"))
    bracket = edit(old_string="}\n\n", new_string=OLD)
    written = edit("Write", content=OLD + PATCH)

    for message in (answer, bracket, written):
        assert recording([from_user(CODE + "}\n"), message]).requests[0].quotes == ()
    assert [q.text for q in recording([from_user(CODE), added]).requests[0].quotes] == [OLD]


def test_a_quote_out_of_view_costs_a_request_and_an_answer_of_twice_its_size_which_stays() -> None:
    long = "\n".join(CODE.splitlines()[10:60])
    answer = max(GREP_TOKENS, 2 * len(long) / 3.6)
    bill = edited(text(40), edit(old_string=long), from_model("done"), tools=500)
    short = edited(text(40), edit(old_string=OLD), from_model("done"))

    assert (bill.reads, bill.quotes, bill.quotes_gone) == (1, 1, 1)
    assert bill.read_backs == pytest.approx((500 + 40) * 0.1 + answer * 1.1)
    assert short.read_backs == pytest.approx(40 * 0.1 + GREP_TOKENS * 1.1)


def test_a_quote_in_view_or_that_was_read_back_costs_nothing() -> None:
    shown = edited(f"[cut]\n{OLD}\n[cut]", edit(old_string=OLD))
    elsewhere = edited(text(40), from_model("it has\n" + OLD), edit(old_string=OLD))
    messages = [from_user(CODE), edit(old_string=OLD), from_user("go on"), edit(number=1, old_string=OLD)]
    # The first edit, which has the lines too, is replaced as well.
    again = cost(recording(messages), Replacing({0: {0: text(40)}, 1: {1: "an edit"}}))

    assert [(b.reads, b.quotes, b.quotes_gone) for b in (shown, elsewhere, again)] == [
        (0, 1, 0),
        (0, 1, 0),
        (1, 2, 1),
    ]


def test_all_quotes_of_an_answer_cost_one_request_and_none_if_a_name_is_read_back_too() -> None:
    other = "    fa = compute(item, fa)"
    two = edited(text(40), edit(edits=[{"oldText": OLD}, {"oldText": other}]))
    name = edited(text(40), edit(old_string=OLD, note="as in pkg/mod_7.py"), code=f"{CODE}\npkg/mod_7.py")
    alone = edited(text(40), edit(note="as in pkg/mod_7.py"), code=f"{CODE}\npkg/mod_7.py")

    assert [(b.reads, b.quotes_gone) for b in (two, name, alone)] == [(1, 2), (1, 1), (1, 0)]
    assert two.read_backs == pytest.approx(40 * 0.1 + 2 * GREP_TOKENS * CACHE.write)


class Answering(Replacing):
    texts = ("a call", "\n".join(CODE.splitlines()[:80]))


def test_a_known_answer_is_written_once_then_cached_and_costs_its_placeholder_once_it_is_replaced() -> None:
    edits = [edit(number=n, old_string=f"{word} = compute(item, {word})") for n, word in enumerate(WORDS[:3])]
    record = recording(
        [from_user(CODE), *(m for each in edits for m in (each, from_user("go on"))), from_model("done")]
    )
    sender = Answering({0: {0: text(40)}, 2: {len(record.rows) + 1: text(20)}})

    bill = cost(record, sender)

    asked, answer = (len(each) / 3.6 for each in sender.texts)
    new = len("aa = compute(item, aa)go on") / 3.6  # an edit, and what follows
    expected = 40 + 40 * 0.1  # sent, and read back
    expected += 40 * 0.1 + asked + answer + new  # the quote is in the answer
    expected += (40 + asked) * 0.1 + 20 + 2 * new  # the answer was replaced, and the quote is gone
    expected += (40 + asked + 20 + 2 * new) * 0.1  # read back
    expected += (40 + asked + 20 + 2 * new) * 0.1 + asked + answer + new
    assert bill.cost == pytest.approx(expected)
    texts = 40 + (40 * 0.1 + new) + (40 * 0.1 + 2 * new) + ((40 + 2 * new) * 0.1 + new)
    assert bill.read_backs == pytest.approx(expected - texts)
    assert (bill.reads, bill.quotes, bill.quotes_gone) == (2, 3, 2)


# An offloader


def call(number: int) -> dict[str, Any]:
    function = {"name": "bash", "arguments": '{"command": "run", "timeout": 9}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def result(number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": content}


def session(*contents: str, last: str = "done") -> Messages:
    """Return a task, a call and its result for each text, and a last answer."""
    turns = [m for n, content in enumerate(contents) for m in (call(n), result(n, content))]
    return [from_user("find it"), *turns, from_model(last)]


LONG = "\n".join(f"row {n} in lib/part_{n}.py that nobody needs" for n in range(1000))
LATE = OffloadPolicy(types={"tool_result": Rule(min_tokens=3000, after_replies=1)}, history="editable")


def in_openai_responses(number: int, content: str) -> Messages:
    return [
        {"type": "function_call", "name": "bash", "call_id": f"c{number}", "arguments": '{"n": 1, "m": "2"}'},
        {"type": "function_call_output", "call_id": f"c{number}", "output": content},
    ]


def in_anthropic(number: int, content: str) -> Messages:
    use = {"type": "tool_use", "id": f"c{number}", "name": "bash", "input": {"n": 1, "m": "2"}}
    parts = [{"type": "text", "text": part} for part in content.partition("\n")]
    return [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "s"}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": parts}]},
    ]


@pytest.mark.parametrize("turn", [in_anthropic, in_openai_responses, lambda n, c: [call(n), result(n, c)]])
def test_the_offloader_is_billed_for_what_it_sends(turn: Any) -> None:
    first = {"role": "user", "content": [{"type": "input_text", "text": "go"}]}
    opening = first if turn is in_openai_responses else from_user("go")
    messages = [
        opening,
        *turn(0, LONG),
        *turn(1, "small"),
        *turn(2, LONG + "."),
        *turn(3, "small"),
        from_model("done"),
    ]
    record = recording(messages)
    off = Offloader("memory://", session="any", policy=LATE)
    expected, before = 0.0, list[str]()
    for request in record.requests:
        sent = off.offload(messages[: request.answer]).messages
        texts = [text for message in sent for text in _recording.texts_of(message)]
        same = next((i for i, (a, b) in enumerate(zip(texts, before, strict=False)) if a != b), len(before))
        read, written = (sum(map(len, part)) / 3.6 for part in (texts[:same], texts[same:]))
        expected, before = expected + read * 0.1 + written, texts

    found = measure(record, Offloading(record, LATE), CACHE)

    assert found.texts == pytest.approx(expected)
    assert (len(found.replaced), len(found.seen), found.reads) == (2, 2, 0)


def test_tools_are_billed_and_called_at_the_time_of_the_request() -> None:
    usage = {1: Answer(50.0, Usage(10, 0)), 3: Answer(70.0, Usage(10, 10))}
    record = recording(session(LONG, last="see lib/part_567.py"), usage)
    off, sender = Offloader("memory://"), Offloading(record, OffloadPolicy())
    texts = json.dumps(off.tools.definitions("anthropic"), ensure_ascii=False) + off.prompt()

    bill = measure(record, sender, CACHE)

    assert bill.reads == 1
    assert sum(sender.offloader.stats().reads.values()) == 1
    assert sender.tools == pytest.approx(len(texts) / 3.6)
    assert sender.offloader.last_request == 70.0


@pytest.mark.parametrize("turn", [in_anthropic, in_openai_responses, lambda n, c: [call(n), result(n, c)]])
def test_what_is_read_back_is_a_call_and_its_answer_in_the_messages_that_are_offloaded_next(
    turn: Any,
) -> None:
    first = {"role": "user", "content": [{"type": "input_text", "text": "go"}]}
    messages = [first if turn is in_openai_responses else from_user("go"), *turn(0, LONG), *turn(1, "small")]
    kind = adapter_for(messages[-1]).name
    hidden = [from_model("see lib/part_567.py"), *turn(2, "small")]
    edits = [edit(old_string="row 400 in lib/part_400.py that nobody needs"), *turn(3, "small")]
    record = Recording(Transcript("t", kind, None, [*messages, *hidden, *edits, from_model("done")]), None)
    sender = Offloading(record, OffloadPolicy(types={"tool_result": Rule(min_tokens=3000)}))

    bill = measure(record, sender, CACHE)

    sent = sender.finish().messages
    scans = [adapter_for(message).scan(message, "m", Calls()) for message in sent]
    read = [(at, made) for at, scan in enumerate(scans) for _, made in scan.calls if "context" in made.name]
    assert (bill.reads, bill.quotes_gone) == (2, 1)
    # Its edit names the file too.
    assert [made.name for _, made in read] == ["context_read"] * 3
    assert read[2][1].fields["start_line"] <= 401 <= read[2][1].fields["end_line"]
    assert all(adapter_for(sent[at + n]).name == kind for at, _ in read for n in (0, 1))
    answers = [scans[at + 1].items[0].text for at, _ in read]
    assert ["part_567.py" in answers[0], *("row 400" in each for each in answers[1:])] == [True] * 3
    assert sent[read[0][0] + 2] == hidden[0]


def test_an_answer_that_is_offloaded_again_costs_its_placeholder_from_then_on() -> None:
    rows = "\n".join(LONG.splitlines()[400:440])
    smalls = [m for n in range(2, 10) for m in in_anthropic(n, "small")]
    record = recording(
        [
            from_user("go"),
            *in_anthropic(0, LONG),
            *in_anthropic(1, "small"),
            edit(old_string=rows),
            *smalls,
            from_model("x"),
        ]
    )
    sender = Offloading(record, OffloadPolicy(history="editable", cost_plan="none"))

    bill = measure(record, sender, CACHE)

    *sent, _ = sender.finish().messages
    tokens = sum(len(text) for message in sent for text in _recording.texts_of(message)) / 3.6
    assert bill.quotes_gone == 1
    assert bill.sizes[-1] == pytest.approx(tokens)
    assert bill.sizes[-1] < bill.sizes[3]


def test_a_replay_has_both_bills_and_decisions_on_recorded_messages_though_reads_are_among_those_sent() -> (
    None
):
    hidden = "lib/part_567.py"
    messages = session(LONG, "small", last=f"see {hidden}")
    messages += messages[1:]

    found = replay(Transcript("t", "openai-chat", None, messages), cache=CACHE)

    plain = Offloader("memory://", session="any").offload(messages)
    assert found.bill.reads > 0
    assert [d.item[:4] for d in found.result.decisions] == [d.item[:4] for d in plain.decisions]
    assert found.result.tokens_before == plain.tokens_before
    assert found.requests == 5
    assert found.plain.cost == cost(recording(messages)).cost > found.bill.cost


# The same as the measure of the recordings


@pytest.fixture
def loop_cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(MEASURE))
    yield importlib.import_module("loop_cost")
    for name in ("loop_cost", "session_cost", "preview_recall"):
        sys.modules.pop(name, None)


class Shape:
    """A plain policy of the measure; it counts the requests that read back names and quotes."""

    def __init__(self, recorded: Any, policy: Any) -> None:
        self._recorded, self._policy, self._turn = recorded, policy, 0
        self.tools = policy.overhead
        self._kinds: dict[int, set[bool]] = {}

    def replaced(self, request: Request) -> dict[int, str]:
        sent = self._policy(self._recorded, request.answer, self._turn)
        self._turn += 1
        return dict(enumerate(sent))

    def read(self, need: Need) -> None:
        self._kinds.setdefault(self._turn, set()).add(need.is_quote)

    @property
    def shared(self) -> int:
        return sum(len(kinds) == 2 for kinds in self._kinds.values())


@needs_measure
def test_on_the_same_texts_the_cost_is_that_of_the_measure(
    loop_cost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan_at(message: Any, where: str, calls: Calls) -> Any:
        events = loop_cost.events({"format": "anthropic", "messages": [message]})
        texts = [SimpleNamespace(text=text) for *_, text in events]
        made = adapter_for(message).scan(message, where, calls).calls
        return SimpleNamespace(fixed=texts, documents=[], items=[], calls=made)

    monkeypatch.setattr(_recording, "scan_at", scan_at)
    compared = gone = 0
    for path in sorted(FOLDER.glob("trajectories/*/*.json")):
        doc = json.loads(path.read_text())
        if not doc.get("recorded_usage") or len(doc["messages"]) > 160:
            continue
        theirs = loop_cost.Recording(path.stem, doc, 300)
        [transcript] = load(path)
        ours = Recording(transcript, 300)
        for cut in ((), (5_000, lambda t: t[:1000], 1, 1_500)):
            way = loop_cost.Plain(*cut)
            expected = loop_cost.cost(theirs, way)
            sender = Shape(theirs, loop_cost.Plain(*cut))
            bill = measure(ours, sender, CacheModel())
            # The measure counts no tools in a request that reads back, and one for both kinds twice.
            tools = bill.reads * way.overhead * CacheModel().read
            assert bill.cost == pytest.approx(expected["cost"] + tools)
            assert (bill.quotes, bill.quotes_gone) == (expected["quoted"], expected["gone"])
            assert bill.reads + sender.shared == expected["reads"]
            assert len(bill.replaced) == expected["replaced"]
            gone += bill.quotes_gone
        compared += 1
    assert compared >= 8
    assert gone >= 8


@needs_measure
@pytest.mark.parametrize(
    "name", ["kimi-cli/516b7270", "spotter/sub-4d5611e5-a2898e3", "spotter/8463c716-a2ea--seg0"]
)
def test_a_recorded_session_costs_about_what_the_measure_says(loop_cost: Any, name: str) -> None:
    path = FOLDER / "trajectories" / f"{name}.json"
    recorded = loop_cost.Recording("s", json.loads(path.read_text()), 300)
    plain = loop_cost.cost(recorded, loop_cost.Plain())["cost"]
    expected = loop_cost.cost(recorded, loop_cost.Library("s"))

    found = replay(load(path)[0], cache=CacheModel(), prices=Prices(model="claude-opus-4-5"))

    # Texts differ: the measure counts the keys of all arguments, and no tools in requests that read back.
    assert found.bill.cost / found.plain.cost == pytest.approx(expected["cost"] / plain, abs=0.004)
    assert found.bill.quotes_gone == pytest.approx(expected["gone"], abs=1)


# Prices

OWN = """
[models.house-model]
input = 2.0
cache = {read = 0.5, write = 1.0, ttl = "10m"}
as_of = 2026-11-01
source = "https://example.org/prices"
"""


PRICED = [name for name in names_of_models() if Prices().named(name)]


@given(st.data())
def test_a_changed_name_never_has_the_card_of_the_name_it_was(data: st.DataObject) -> None:
    prices = Prices()
    name = data.draw(st.sampled_from(PRICED))
    at = data.draw(st.integers(0, len(name)))
    until = data.draw(st.integers(at, min(len(name), at + 2)))
    changed = name[:at] + data.draw(st.text("abz0159-./:@ \n", max_size=6)) + name[until:]
    dated = re.fullmatch(re.escape(name) + r"([-@]\d{8}|-\d{4}-\d\d-\d\d)", changed)

    assert changed == name or dated or prices.named(changed) != name


@given(
    st.sampled_from(PRICED),
    st.text("abcxyz019-_.", min_size=1, max_size=8),
    st.sampled_from("/.-:"),
)
def test_words_before_or_behind_a_name_that_are_no_providers_leave_it_without_a_card(
    name: str, word: str, mark: str
) -> None:
    assume(not re.fullmatch(r"\d{8}|\d{4}-\d\d-\d\d", word))

    assert Prices().named(f"{word}{mark}{name}") != name
    assert Prices().named(f"{name}{mark}{word}") != name


def test_a_card_has_dollars_for_a_million_tokens_and_the_names_of_all_are_in_the_error() -> None:
    name, card = Prices().of("claude-opus-4-5-20251101")
    assert (name, card.dollars(200_000), card.cache) == ("claude-opus-4-5", 1.0, CacheModel())
    with pytest.raises(ConfigError) as raised:
        Prices(model="none")
    assert ", ".join(PRICED) in str(raised.value)


def test_a_file_adds_cards_for_their_very_names_and_replaces_known_ones(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(OWN + OWN.replace("house-model", "gpt-5"))
    prices = Prices(tmp_path / "prices.toml")

    assert [prices.of(name)[1].input for name in ("house-model", "gpt-5", "gpt-4o")] == [2.0, 2.0, 2.5]
    assert prices.of("house-model")[1].cache == CacheModel(read=0.5, write=1.0, ttl=600)
    names = ("house-model", "house-model-20260101", "x/house-model")
    assert [prices.knows(name) for name in names] == [True, False, False]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("input = 2.0", 'input = "two"', "models.house-model.input"),
        ("input = 2.0", "input = -2.0", "models.house-model.input"),
        ("input = 2.0", "inputs = 2.0", "known fields: input, cache, as_of, source"),
        ("read = 0.5", "read = 5.0", "models.house-model.cache"),
        ("as_of = 2026-11-01", "", "models.house-model.as_of"),
        ("[models.house-model]", "[house-model]", "PriceFile.models"),
        ("cache = {", 'cache = "claude" #', "must be a model with a known price"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file_and_the_field(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(OWN.replace(old, new))

    with pytest.raises(ConfigError, match=re.escape(fault)) as raised:
        Prices(path)

    assert str(path) in str(raised.value)


# The command


def write(folder: Path, name: str, messages: Messages, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"messages": messages, **more}))
    return path


def usage_rows(*rows: tuple[int, int, int, int, int]) -> list[list[Any]]:
    """Return `recorded_usage`: answer, minute, tokens not cached, written, read."""
    return [[at, *tokens, 9, f"2026-11-01T10:{minute:02}:00Z"] for at, minute, *tokens in rows]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A conversation that saves, one that does not, and one with usage."""
    folder = tmp_path / "chats"
    write(folder, "large", session(LONG, *["small"] * 8), model="claude-opus-4-5")
    write(folder, "small", session("small"), model="claude-opus-4-5")
    rows = usage_rows((1, 0, 10, 990, 0), (3, 1, 0, 100, 900))
    write(folder, "recorded", session(LONG), model=["claude-opus-4-5"], recorded_usage=rows)
    return folder


def report_of(run: Run, *arguments: object) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run("savings", *arguments, "--json").stdout)
    return report


def test_the_report_has_the_dollars_of_each_conversation_and_of_all(run: Run, chats: Path) -> None:
    report = report_of(run, chats)

    rows = {row["transcript"]: row for row in report["transcripts"]}
    for name, row in rows.items():
        [transcript] = load(chats / f"{name}.json")
        found = replay(transcript, cache=CacheModel())
        assert row["dollars_plain"] == pytest.approx(found.plain.cost * 5 / 10**6, abs=1e-6)
        assert row["dollars"] == pytest.approx(found.bill.cost * 5 / 10**6, abs=1e-6)
        assert row["cost"] == pytest.approx(found.bill.cost / found.plain.cost, abs=1e-4)
    saved = sum(row["dollars_plain"] - row["dollars"] for row in rows.values())
    assert report["total"]["dollars_saved"] == pytest.approx(saved, abs=1e-5)
    assert report["total"]["requests"] == 14
    assert list(report["prices"]) == ["claude-opus-4-5"]
    # 10 uncached, 1,090 written at 1.25, 900 read at 0.1.
    dollars = (10 + 1090 * 1.25 + 900 * 0.1) * 5 / 10**6
    assert rows["recorded"]["dollars_recorded"] == pytest.approx(dollars, abs=1e-6)
    assert rows["large"]["dollars_recorded"] is None


def test_the_table_ends_with_what_is_assumed_and_what_is_saved(run: Run, chats: Path) -> None:
    report, shown = report_of(run, chats)["total"], run("savings", chats).stdout

    plain, saved = report["dollars_plain"], report["dollars_saved"]
    conclusion = shown.splitlines()[-1]
    assert conclusion.startswith(f"balanced saves ${saved:.3f} of ${plain:.3f} of input")
    assert "in 3 conversations" in conclusion
    assert "1 conversation would cost $0.00" in shown
    assert "1 because the retrieval tools" in shown
    assert "2 conversations recorded no usage" in shown
    assert "The recorded usage of 1 conversation costs $0.007 of input" in shown
    assert re.search(
        r"\d requests?, each predicted from the others: their counts differ in the median by ", shown
    )
    assert "\nPrices of claude-opus-4-5, as of 2026-11-10: --prices lists them.\n" in shown


def test_the_report_has_the_quotes_gone_and_the_extra_requests_beside_the_cost(
    run: Run, tmp_path: Path
) -> None:
    quote = edit(old_string="row 400 in lib/part_400.py that nobody needs", new_string="gone")
    shown = edit(number=1, old_string="it is a file", new_string="gone")
    messages = [
        *in_anthropic(0, LONG),
        *in_anthropic(1, "it is a file"),
        quote,
        from_user("go on"),
        shown,
        from_user("go"),
    ]
    path = write(tmp_path / "chats", "a", [from_user("go"), *messages, from_model("done")])

    total = report_of(run, path)["total"]
    head, row, *rest = run("savings", path).stdout.splitlines()

    assert (total["extra_requests"], total["quotes"], total["quotes_gone"]) == (1, 2, 1)
    assert (head.split()[-2:], row.split()[-2:]) == (["extra", "gone"], ["1", "1"])
    assert " ".join(rest).endswith(
        "tools and read-backs included: 1 extra request, 1 of 2 quotes in edits gone."
    )


def test_without_a_file_the_sessions_of_the_coding_agents_here_are_replayed(
    run: Run, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    none = run("savings")
    assert (none.returncode, none.stdout) == (1, "")
    assert f"no recorded sessions in {tmp_path}/home/.claude/projects or" in none.stderr

    (tmp_path / "home/.claude").mkdir(parents=True)
    chats.rename(tmp_path / "home/.claude/projects")
    assert len(report_of(run)["transcripts"]) == 3


def test_the_prices_take_one_line_and_are_listed_on_demand(run: Run, tmp_path: Path) -> None:
    for model in ("claude-opus-4-5", "gpt-5.5", "deepseek-flash"):
        write(tmp_path / "chats", model, session("small"), model=model)

    calls: list[list[str]] = [[], ["--prices"], ["--prices", "--all"], ["--all", "--prices"]]
    short, listed, *orders = (run("savings", tmp_path / "chats", *more).stdout for more in calls)

    about = r"Prices of 3 models, as of 2026-[\d-]+; 2 prices for some requests only: --prices"
    assert re.search(about, " ".join(short.split()))
    assert "for prompts of up to 272,000 tokens; longer ones cost more" in " ".join(listed.split())
    assert "outside the peak hours of the provider" in " ".join(listed.split())
    assert "https://" not in short
    assert listed.count("https://") == listed.count(" for a million input tokens, ") == 3
    assert "Prices of claude-opus-4-5 on 2026-11-10: $5.00 for a million input tokens, $0.500 if" in listed
    assert all("for a million input tokens" in shown for shown in orders)


def test_the_table_lists_the_20_conversations_with_the_largest_effect(run: Run, tmp_path: Path) -> None:
    for number in range(22):
        write(tmp_path / "many", f"c{number}", session(LONG if number == 21 else "small"))

    short, whole = (run("savings", tmp_path / "many", *more).stdout for more in ([], ["--all"]))

    assert (short.count("\nc"), whole.count("\nc")) == (20, 22)
    assert "total of 22, 2 not listed (--all)" in short
    assert short.splitlines()[1].startswith("c21 ")


def test_a_model_and_a_price_file_are_applied_to_every_conversation(
    run: Run, chats: Path, tmp_path: Path
) -> None:
    (tmp_path / "prices.toml").write_text(OWN)

    report = report_of(run, chats, "--prices", tmp_path / "prices.toml", "--model", "house-model")

    assert list(report["prices"]) == ["house-model"]
    assert {row["prices"] for row in report["transcripts"]} == {"house-model"}
    assert report["transcripts"][0]["cache"] == {"read": 0.5, "write": 1.0, "ttl": 600} | ENDS
    [transcript] = load(chats / "large.json")
    plain = replay(transcript, cache=CacheModel(read=0.5, write=1.0, ttl=600)).plain
    assert report["transcripts"][0]["dollars_plain"] == pytest.approx(plain.cost * 2 / 10**6, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "gtp-5"], ("'gtp-5'", "gpt-5, ", "--prices FILE")),
        (["--for", "claude"], ("'claude'", "claude-agent-sdk", "mcp-proxy", "gateway")),
        (
            ["--for", "gateway", "--policy", "economy"],
            ("gateway has a policy of its own: leave out --policy",),
        ),
        (["--policy", "thrifty"], ("offload: ", "thrifty")),
        (["--policy", "none.toml"], ("offload: ", "none.toml")),
    ],
    ids=str,
)
def test_a_wrong_option_is_answered_with_what_there_is_and_code_2(
    run: Run, chats: Path, options: list[str], named: tuple[str, ...]
) -> None:
    done = run("savings", chats, *options)

    assert (done.returncode, done.stdout) == (2, "")
    assert all(word in done.stderr for word in named)
    assert "Value error" not in done.stderr


@pytest.mark.parametrize("model", ["house-model", "gpt-5-pro"])
def test_a_model_of_unknown_price_never_has_the_price_of_another(
    run: Run, tmp_path: Path, model: str
) -> None:
    write(tmp_path / "chats", "a", session(LONG), model=model)

    refused = run("savings", tmp_path / "chats")

    assert f"the price of '{model}' is not known" in refused.stderr
    assert "$" not in refused.stdout
    assert "known price" not in run("savings", tmp_path / "chats", "--model", "gpt-5").stdout


def test_the_table_of_models_is_printed_with_what_is_unknown_left_empty_and_old_pages_are_named(
    run: Run,
) -> None:
    found = run("models", "anthropic/claude-opus-5.5", "house/kimi-k3", "--json")
    opus, kimi = json.loads(found.stdout)["models"]
    assert (opus["model"], opus["thinking"], opus["input"], opus["kept"]) == (
        "claude-opus-5-5",
        "binds",
        4,
        300,
    )
    assert (kimi["model"], kimi["thinking"], kimi["input"], kimi["kept"]) == (
        "kimi-k3",
        "required",
        None,
        None,
    )
    assert run("models").stdout.count("\n") > 150
    assert "nothing is known of a model 'house-model'" in run("models", "house-model").stderr
    old, none = run("models", "--older-than", "0"), run("models", "--older-than", "99999")
    assert (old.returncode, none.returncode, none.stdout) == (3, 0, "")
    assert "prices of claude-mythos-5, claude-mythos-5-1: https://" in old.stdout


def test_what_was_written_to_a_cache_of_an_hour_has_its_price_and_lifetime(run: Run, tmp_path: Path) -> None:
    usage = {
        "input_tokens": 0,
        "cache_creation_input_tokens": 1000,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_1h_input_tokens": 1000},
    }
    rows = [
        {"type": "user", "uuid": "1", "message": from_user("go")},
        {
            "type": "assistant",
            "uuid": "2",
            "timestamp": "2026-11-01T10:00:00Z",
            "message": {**from_model("done"), "id": "m", "model": "claude-opus-4-5", "usage": usage},
        },
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))

    [row] = report_of(run, tmp_path)["transcripts"]

    assert row["cache"] == {"read": 0.1, "write": 2.0, "ttl": 3600} | ENDS
    assert row["dollars_recorded"] == pytest.approx(2000 * 5 / 10**6)


@pytest.mark.parametrize(
    ("bill", "reason"),
    [
        (Bill(texts=100), None),
        (Bill(texts=90, tools=11), "retrieval tools"),
        (Bill(texts=110, rewritten=30, read_backs=31), "read back"),
        (Bill(texts=110, rewritten=30, read_backs=29), "written again"),
    ],
)
def test_the_largest_cost_is_the_reason_why_a_conversation_would_cost_more(
    bill: Bill, reason: str | None
) -> None:
    name, card = Prices().of(None)
    transcript = Transcript("t", "anthropic", None, [])
    result = Offloader("memory://").offload([])
    found = Replay(transcript, 1, name, card, card.cache, Bill(texts=100), bill, result).dearer_because

    assert (found is None) if reason is None else (reason in str(found))


def test_the_policy_knows_the_cache_of_the_replay_unless_it_sets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[CacheModel] = []

    class Noting(Offloading):
        def __init__(self, recording: Recording, policy: OffloadPolicy, *more: Any) -> None:
            used.append(policy.cache)
            super().__init__(recording, policy, *more)

    monkeypatch.setattr("offload.replay._replay.Offloading", Noting)
    transcript = Transcript("t", "anthropic", None, talk("a", "b"), model="gpt-5.5")
    for policy in (OffloadPolicy(), OffloadPolicy(cache=CACHE)):
        replay(transcript, policy)

    assert used == [CacheModel.preset("gpt-5.5"), CACHE]


def test_the_policy_is_a_preset_or_a_file_and_a_store_gets_the_records(
    run: Run, chats: Path, tmp_path: Path
) -> None:
    never = tmp_path / "never.toml"
    never.write_text("[types.tool_result]\nenabled = false\n")

    counts = [
        report_of(run, chats, *options)["total"]["offloaded"]
        for options in ([], ["--policy", "archive"], ["--policy", never])
    ]
    run("savings", chats / "large.json", "--store", tmp_path / "kept")

    assert counts == [2, 2, 0]
    off = Offloader(tmp_path / "kept", session="large")
    [info] = off.records()
    assert b"".join(off.content(info.ref)) == LONG.encode()


def test_a_malformed_message_is_left_out_and_other_files_are_skipped_and_both_are_named(
    run: Run, tmp_path: Path
) -> None:
    rows = [
        {"type": "user", "uuid": "1", "message": from_user("go")},
        {"type": "user", "uuid": "2", "isSidechain": True, "message": {"role": "user", "content": [7]}},
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    other = tmp_path / "other.json"
    other.write_text("{}")

    done, alone = run("savings", tmp_path), run("savings", other)

    assert f"left out 1 malformed message of {tmp_path}/s.jsonl: line 2.content[0]" in done.stderr
    assert "total of 1" in done.stdout
    [left_out] = json.loads(run("savings", tmp_path, "--json").stdout)["left_out"]
    assert (left_out["file"], left_out["messages"]) == (f"{tmp_path}/s.jsonl", 1)
    for each, code in ((done, 0), (alone, 1)):
        assert (each.returncode, f"skipped {other}: not a transcript" in each.stderr) == (code, True)


def test_that_nothing_is_saved_or_there_is_no_conversation_is_said(run: Run, tmp_path: Path) -> None:
    done = run("savings", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no transcript found" in done.stderr

    path = write(tmp_path / "chats", "a", session("small"), model="claude-opus-4-5")
    assert re.search(r"balanced costs \$0\.\d+ more than \$0\.\d+ of input", run("savings", path).stdout)


# What each way can reach


def used(tool: str, content: Any, number: int, **more: Any) -> Messages:
    """Return a call of a tool, and its result, in the form of a Claude Code session."""
    return tool_turn(f"u{number}", content, tool, {"n": number}, **more)


def with_results(*results: tuple[str, Messages | str]) -> Messages:
    turns = [m for n, (tool, content) in enumerate(results) for m in used(tool, content, n)]
    return [from_user("find it"), *turns, *used("Bash", "small", 99), from_model("done")]


EVERY_TOOL = with_results(
    ("Bash", LONG + "1"),
    ("Read", LONG + "2"),
    ("mcp__db__query", [{"type": "text", "text": LONG + "3"}]),
    ("mcp__offload__context_read", LONG + "4"),
    ("WebFetch", LONG + "5"),
    ("Agent", LONG + "6"),
    ("Write", LONG + "7"),
)


def replaced_by(run: Run, way: str, path: Path) -> dict[str, int]:
    replaced: dict[str, int] = report_of(run, path, "--for", way)["large"]["replaced"]
    return replaced


@pytest.mark.parametrize(
    ("way", "replaced"),
    [
        ("claude-agent-sdk", {"Bash", "mcp__db__query", "WebFetch", "Agent"}),
        ("mcp-proxy", {"mcp__db__query"}),
    ],
)
def test_a_hook_or_a_proxy_replaces_results_of_its_tools_only_and_no_failed_call(
    run: Run, tmp_path: Path, way: str, replaced: set[str]
) -> None:
    path = write(tmp_path / "chats", "a", EVERY_TOOL)
    failed = [from_user("go"), *used("mcp__db__query", LONG * 9, 0, is_error=True), from_model("done")]

    assert replaced_by(run, way, path) == dict.fromkeys(replaced, 1)
    large = report_of(run, write(tmp_path / "chats", "b", failed), "--for", way)["large"]
    assert large == {"replaced": {}, "kept": {"mcp__db__query": 1}}


def test_the_ways_are_those_of_the_hook_and_of_the_gateway_which_replaces_of_every_tool_what_was_seen(
    run: Run, tmp_path: Path
) -> None:
    *all_used, end = [from_user(LONG), *EVERY_TOOL[1:]]
    later = [m for n in range(200, 220) for m in used("Bash", "small", n)]
    path = write(tmp_path / "chats", "a", [*all_used, *later, end])
    unseen = write(tmp_path / "chats", "b", EVERY_TOOL[:3])

    theirs = policy_for(OffloadPolicy(), APIS[0])
    assert {*reach_of("claude-agent-sdk").policy.tools} == {*_claude_results._ROWS} - {_claude_results.READER}
    assert reach_of("gateway").policy.model_copy(update={"cache": theirs.cache}) == theirs
    tools = ("Agent", "Bash", "Read", "WebFetch", "Write", "mcp__db__query", "mcp__offload__context_read")
    assert replaced_by(run, "gateway", path) == dict.fromkeys(tools, 1)
    assert replaced_by(run, "gateway", unseen) == {}
    assert replaced_by(run, "claude-agent-sdk", unseen) == {"Bash": 1}


def test_a_hook_replaces_a_result_before_it_is_sent_a_gateway_after_and_a_proxy_none(
    run: Run, tmp_path: Path
) -> None:
    path = write(tmp_path / "chats", "a", with_results(("Bash", LONG)))

    hook, gateway = (
        report_of(run, path, "--for", way)["total"]["dollars"] for way in ("claude-agent-sdk", "gateway")
    )
    shown = run("savings", path, "--for", "mcp-proxy").stdout

    assert hook < gateway
    assert "No conversation has a large result of an MCP tool" in shown
    assert "No conversation has" not in run("savings", path, "--for", "claude-agent-sdk").stdout


def test_the_output_says_what_a_way_covers_and_what_it_keeps(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "chats", "a", EVERY_TOOL)

    shown = " ".join(run("savings", path, "--for", "claude-agent-sdk").stdout.split())

    assert "claude-agent-sdk saves $" in shown
    assert "claude-agent-sdk covers results of 1,500 tokens or more of Bash, web tools, subagents" in shown
    assert "Not covered: file reads, failed calls" in shown
    assert (
        "replaces 4 (Agent 1, Bash 1, WebFetch 1, mcp__db__query 1), and keeps 3 (Read 1, Write 1," in shown
    )


@recorded.needed
@pytest.mark.parametrize("way", thinned(["claude-agent-sdk", "mcp-proxy", "gateway"], 3))
def test_recorded_sessions_lose_nothing_by_a_way_but_its_tools(run: Run, way: str) -> None:
    report = report_of(run, *recorded.one_of_each_source(recorded.FILES), "--for", way)

    dearer = {row["transcript"]: row["cost_without_tools"] for row in report["transcripts"]}
    assert {name: cost for name, cost in dearer.items() if cost > 1.03} == {}
    assert report["total"]["cost_without_tools"] <= 1
