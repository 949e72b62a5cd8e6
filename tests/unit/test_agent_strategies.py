"""The strategies of the agent loop: by type and by rounds, with the user's confirmation, across a restart."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from compactions import heard
from kit.conversation import tool_turn

from offload import AgentConfig, ConfigError, ContextFullError, ContextManager, Offloader, OffloadPolicy
from offload.agent.compaction import CompactionStrategy, Proposal, RoundStrategy, TypeRule
from offload.agent.presets.context_fs import ContextFileSystem
from offload.errors import RefusedError
from offload.messages.context import EventType, ItemType
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

STRATEGIES = ("selective", "rounds")
YES, NO = True, False
# Results of the tests are too small for its rules: only the window makes them leave.
BY_SIZE = OffloadPolicy(cost_plan="none")
SUMMARY = "The user asked for reports, and got them."


def summarizer(messages: list[Any]) -> str:
    return f"<summary>{SUMMARY}</summary>"


def manager(store: Any = None, strategy: Any = "rounds", **options: Any) -> ContextManager:
    fields = {"policy": BY_SIZE} | options.pop("fields", {})
    off = Offloader(store or MemoryStore(), session="s", **options.pop("offloader", {}))
    return ContextManager(off, AgentConfig(window_tokens=4000, strategy=strategy, **fields), **options)


def a_round(n: int) -> list[Any]:
    """Return the messages of a round: a question, a call, its result, an answer."""
    return [
        {"role": "user", "content": f"question {n} " + "please " * 110},
        *tool_turn(f"t{n}", f"row {n}\n" * 100, "Bash", {"n": n}),
        {"role": "assistant", "content": f"answer {n} " + "word " * 50},
    ]


class Talk:
    """A conversation of `rounds` with a manager: what was added, the errors, the tokens of the requests."""

    def __init__(self, m: ContextManager, rounds: int = 20, first: int = 0) -> None:
        self.messages: list[Any] = []
        self.errors: list[Any] = []
        self.tokens: list[int] = []
        for n in range(first, first + rounds):
            question, call, result, answer = a_round(n)
            for added, replied in ((question, call), (result, answer)):
                m.add(added)
                request = m.before_model_call()
                self.errors += [*request.errors, *m.after_model_call(replied)]
                self.tokens.append(request.tokens)
                self.messages += [added, replied]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_conversation_continues_with_its_summary_below_the_trigger(tmp_path, strategy):
    first, second = (manager(tmp_path, strategy, summarizer=summarizer) for _ in "12")
    talk = Talk(first)
    second.resume()
    assert second.messages == first.messages
    assert second.compaction_count == first.compaction_count
    later = Talk(second, first=20, rounds=10)

    assert [*talk.errors, *later.errors] == []
    assert max(talk.tokens + later.tokens) < first.config.trigger_tokens
    assert second.compaction_count > first.compaction_count
    assert second.restore() == [*talk.messages, *later.messages]


@pytest.mark.parametrize("pair", [STRATEGIES, STRATEGIES[::-1]], ids=" then ".join)
def test_another_strategy_continues_a_conversation(tmp_path, pair):
    talk = Talk(manager(tmp_path, pair[0]), 12)
    second = manager(tmp_path, pair[1])
    second.resume()
    later = Talk(second, 12, first=12)

    assert later.errors == []
    assert max(later.tokens) < second.config.trigger_tokens
    assert second.restore() == [*talk.messages, *later.messages]


# --- the user's confirmation -------------------------------------------------------------------------


class User:
    """Answers each question with the next of `answers`, then with the last one."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Proposal] = []

    def __call__(self, proposal: Proposal) -> Any:
        self.asked.append(proposal)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def later(self, proposal: Proposal) -> Any:
        return self(proposal)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_user_is_asked_before_each_compaction_with_the_figures(strategy):
    user = User(YES)
    m = manager(strategy=strategy, confirm=user)
    talk = Talk(m)

    assert talk.errors == []
    assert max(talk.tokens) < m.config.trigger_tokens
    assert m.restore() == talk.messages
    assert len(user.asked) == m.compaction_count > 1
    assert all(3200 <= one.tokens < 4000 == one.max_tokens for one in user.asked)
    assert f"{user.asked[0].tokens} of 4000 tokens" in str(user.asked[0])


def test_the_user_is_asked_once_if_one_request_takes_two_attempts():
    user = User(YES)
    nothing_goes = {name: TypeRule() for name in ItemType}
    m = manager(strategy="selective", confirm=user, summarizer=summarizer, fields={"rules": nothing_goes})
    started = heard(m.events, EventType.COMPACTION_STARTED)
    for n in range(80):
        m.add(a_round(n)[0])
        m.before_model_call()

    assert m.compaction_count > 0
    assert len(user.asked) < len(started)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drop_oldest_removes_as_little_as_possible_and_new_session_all_but_the_current_round(strategy):
    m = manager(strategy=strategy, confirm=User("drop_oldest"), summarizer=summarizer)
    talk = Talk(m)

    assert talk.errors == []
    assert max(talk.tokens) < m.config.trigger_tokens
    assert SUMMARY not in str(m.messages)
    assert min(talk.tokens[-20:]) > 1500
    assert m.restore() == talk.messages

    user = User(NO)
    m = manager(strategy=strategy, confirm=user, fields={"on_refusal": "new_session"})
    messages: list[Any] = []
    while not user.asked:
        messages += Talk(m, 1, first=len(messages) // 4).messages
    questions = [x for x in m.messages if str(x["content"]).startswith("question ")]
    assert len(questions) == 1
    assert m.restore() == messages


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_refusal_removes_nothing_and_is_an_error_of_that_call(strategy):
    user = User(NO)
    m = manager(strategy=strategy, confirm=user)
    failed = heard(m.events, EventType.COMPACTION_FAILED)
    talk = Talk(m, 9)

    assert m.compaction_count == 0
    assert [type(error) for error in talk.errors] == [RefusedError] * len(user.asked)
    assert [event.data["kind"] for event in failed] == ["refused"] * len(user.asked)
    assert len(m.messages) == len(talk.messages)


def test_after_a_refusal_the_user_is_asked_again_once_he_has_said_something():
    user = User("error", YES)
    m = manager(confirm=user)
    m.add(a_round(0)[0])
    n = 0
    while not user.asked:
        m.before_model_call()
        m.after_model_call(a_round(n)[1])
        m.add(a_round(n)[2])
        n += 1
    for more in range(30):
        m.before_model_call()
        m.after_model_call({"role": "assistant", "content": f"thinking {more} " + "word " * 50})

    assert len(user.asked) == 1
    m.add({"role": "user", "content": "go on"})
    m.before_model_call()
    assert len(user.asked) == 2
    assert m.compaction_count == 1


@pytest.mark.parametrize(
    ("strategy", "answer"),
    [("selective", "maybe"), ("rounds", None), ("rounds", RuntimeError("no terminal"))],
    ids=str,
)
def test_a_confirmation_that_fails_ends_no_turn_and_removes_nothing(strategy, answer):
    m = manager(strategy=strategy, confirm=User(answer))
    talk = Talk(m, 10)

    assert talk.errors
    named = r"^confirm (must return a bool|failed: RuntimeError: no terminal)"
    assert all(re.match(named, str(error)) for error in talk.errors)
    assert len(m.messages) == len(talk.messages)
    assert m.restore() == talk.messages


def test_an_async_confirmation_is_awaited():
    user = User(YES)

    async def main() -> ContextManager:
        m = manager(confirm=user.later)
        for n in range(30):
            for message in a_round(n)[::3]:
                m.add(message)
                await m.abefore_model_call()
        return m

    m = asyncio.run(main())
    assert len(user.asked) == m.compaction_count > 0


def test_require_confirmation_false_asks_nobody():
    user = User(NO)
    m = manager(confirm=user, fields={"require_confirmation": False})
    Talk(m, 10)

    assert m.compaction_count > 0
    assert user.asked == []


def test_a_strategy_of_the_callers_own_needs_the_confirmation_too():
    user = User("error")
    off = Offloader(MemoryStore(), session="s")
    own: CompactionStrategy = RoundStrategy(off)
    m = ContextManager(off, AgentConfig(window_tokens=4000, policy=BY_SIZE), strategy=own, confirm=user)
    Talk(m, 10)

    assert user.asked
    assert m.compaction_count == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_summarizer_that_is_down_lets_no_request_grow_above_the_window(strategy):
    def overloaded(messages: list[Any]) -> str:
        raise RuntimeError("overloaded")

    m = manager(strategy=strategy, summarizer=overloaded)
    talk = Talk(m, 15)

    assert m.compaction_count > 0
    assert max(talk.tokens) <= 4000
    assert {str(error) for error in talk.errors} == {"the summarizer failed: RuntimeError: overloaded"}
    assert m.restore() == talk.messages


def test_a_failing_store_ends_no_turn():
    m = manager(FaultyStore(MemoryStore(), is_lasting=True), confirm=User("new_session"))
    talk = Talk(m, 10)

    assert m.messages == talk.messages
    assert any(isinstance(error, ContextFullError) for error in talk.errors)


# --- settings that have no effect ------------------------------------------------------------------------


def test_settings_that_have_no_effect_are_refused():
    for fields in ({"on_refusal": "drop_oldest"}, {"require_confirmation": True}):
        with pytest.raises(ConfigError, match="need confirm="):
            manager(fields=fields)
    off = Offloader(MemoryStore(), session="s")
    with pytest.raises(ConfigError, match="apply without strategy= only"):
        ContextManager(off, AgentConfig(strategy="rounds"), strategy=RoundStrategy(off))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"offloader": "./context"}, "offloader must be an Offloader, got str"),
        (
            {"offloader": ContextFileSystem("./never", session="s")},
            "got ContextFileSystem; pass its offloader",
        ),
        ({"config": {"window_tokens": 4000}}, "config must be an AgentConfig, got dict"),
        ({"summarizer": "a summary"}, "summarizer must be a function, got 'a summary'"),
        ({"confirm": "yes"}, "confirm must be a function, got 'yes'"),
        ({"strategy": "rounds"}, "strategy must have a method compact, got str"),
    ],
    ids=str,
)
def test_an_argument_of_another_type_is_refused_at_once(arguments, named):
    arguments = {"offloader": Offloader(MemoryStore(), session="s")} | arguments

    with pytest.raises(ConfigError, match=f"{re.escape(named)}$"):
        ContextManager(**arguments)


def test_a_model_that_cannot_be_called_is_refused():
    m = ContextManager(Offloader(MemoryStore()))

    with pytest.raises(ConfigError, match="ask must be a function, got None"):
        m.call(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ask must be a function, got 'model'"):
        asyncio.run(m.acall("model"))  # type: ignore[arg-type]


@pytest.mark.parametrize("confirm", [None, lambda _: YES])
def test_a_text_with_a_placeholder_of_another_session_is_restored(confirm: Any) -> None:
    [quoted] = Offloader(MemoryStore()).offload([{"role": "user", "content": "row\n" * 9000}]).messages
    m = manager(confirm=confirm)
    m.add(quoted)
    assert m.before_model_call().messages != [quoted]
    assert m.restore() == [quoted]


FIXED_WINDOW = 32_000
FIXED_TURNS = 30


def sent_with_fixed_part(
    folder: Path, share: float, strategy: str, summary: str, *, is_restarted: bool = False
) -> tuple[int, list[list[str]]]:
    """Return how often a summary was paid, and the errors of each turn.

    The system prompt has a share of the window, in tokens by a counter of characters.
    """
    asked: list[Any] = []

    def summarize(messages: list[Any]) -> str:
        asked.append(messages)
        return summary

    def manager_of() -> ContextManager:
        off = Offloader(str(folder), session="s", token_counter=lambda text: len(text) // 4)
        config = AgentConfig.model_validate({"window_tokens": FIXED_WINDOW, "strategy": strategy})
        return ContextManager(off, config, summarizer=summarize)

    m, errors = manager_of(), []
    system = "You check. " * int(FIXED_WINDOW * share * 4 / 11)
    for turn in range(FIXED_TURNS):
        if is_restarted and turn:
            m = manager_of()
            m.resume()
        m.add({"role": "user", "content": f"Step {turn}: please check file number {turn}."})
        errors.append([str(error) for error in m.before_model_call(system_prompt=system).errors])
        answer = f"Answer {turn}: " + "words that fill. " * 100
        errors[-1] += map(str, m.after_model_call({"role": "assistant", "content": answer}))
    return len(asked), errors


@pytest.mark.parametrize("strategy", ["selective", "rounds"])
@pytest.mark.parametrize("share", [0.5, 0.83, 0.99, 1.2])
@pytest.mark.parametrize("summary", ["<summary>All files were fine.</summary>", ""])
def test_a_summary_is_paid_again_only_once_enough_is_new_whatever_the_system_prompt_fills(
    tmp_path: Path, share: float, strategy: str, summary: str
) -> None:
    paid, errors = sent_with_fixed_part(tmp_path, share, strategy, summary)

    assert paid <= FIXED_TURNS * 450 / (FIXED_WINDOW / 16) + 1
    if share == 0.83 and summary:
        (told,) = [text for turn in errors for text in turn]
        assert re.search(r"frees too little.*system prompt and tools 26\d{3} tokens", told)
    if share > 1:
        assert not paid
        assert all("system prompt and tools 38" in turn[0] for turn in errors)


@pytest.mark.parametrize("strategy", ["selective", "rounds"])
@pytest.mark.parametrize("summary", ["<summary>All files were fine.</summary>", ""])
def test_a_new_process_tries_a_compaction_that_freed_too_little_no_sooner(
    tmp_path: Path, strategy: str, summary: str
) -> None:
    live = sent_with_fixed_part(tmp_path / "live", 0.83, strategy, summary)
    other = sent_with_fixed_part(tmp_path / "other", 0.83, strategy, summary, is_restarted=True)

    assert other[0] == live[0]
    assert [len(turn) for turn in other[1]] == [len(turn) for turn in live[1]]


def test_a_compaction_that_frees_too_little_raises_nothing(tmp_path: Path) -> None:
    off = Offloader(str(tmp_path), session="s", on_error="raise")
    m = ContextManager(off, AgentConfig(window_tokens=2000))
    m.add({"role": "user", "content": "hello"})

    request = m.before_model_call(system_prompt="You check the files. " * 340)

    assert [type(error) for error in request.errors] == [ContextFullError]


@pytest.mark.parametrize(("share", "most"), [(0.83, 4), (1.2, 0)])
@pytest.mark.parametrize("strategy", ["selective", "rounds"])
def test_new_results_stay_in_view_where_the_system_prompt_fills_the_window(
    tmp_path: Path, strategy: str, share: float, most: int
) -> None:
    off = Offloader(str(tmp_path), session="s", token_counter=lambda text: len(text) // 4)
    fields = {"window_tokens": FIXED_WINDOW, "strategy": strategy, "policy": BY_SIZE}
    m = ContextManager(off, AgentConfig.model_validate(fields))
    system, hidden = "You check. " * int(FIXED_WINDOW * share * 4 / 11), 0
    for turn in range(12):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "run", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": f"{turn} " + "a line. " * 200}
        m.add({"role": "user", "content": f"Step {turn}"})
        m.after_model_call({"role": "assistant", "content": [call]})
        m.add({"role": "user", "content": [result]})
        hidden += m.before_model_call(system_prompt=system).messages[-1]["content"] != [result]

    assert hidden <= most


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_a_new_process_tells_why_compactions_wait_only_if_no_request_did(
    tmp_path: Path, *, is_sent_before: bool
) -> None:
    def manager() -> ContextManager:
        off = Offloader(str(tmp_path), session="s", token_counter=lambda text: len(text) // 4)
        return ContextManager(off, AgentConfig(window_tokens=FIXED_WINDOW))

    m, system = manager(), "You check. " * int(FIXED_WINDOW * 0.79 * 4 / 11)
    m.add({"role": "user", "content": "Check."})
    assert not m.before_model_call(system_prompt=system).errors
    m.after_model_call({"role": "assistant", "content": "words that fill. " * 300})
    if is_sent_before:
        m.add({"role": "user", "content": "Go on."})
        assert m.before_model_call(system_prompt=system).errors
    other = manager()
    other.resume()
    other.add({"role": "user", "content": "Go on."})

    assert bool(other.before_model_call(system_prompt=system).errors) is not is_sent_before


def test_answered_results_leave_at_the_trigger_while_a_compaction_that_freed_too_little_waits() -> None:
    m = manager(strategy="selective")
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "read", "input": {"n": n}} for n in range(6)]
    # The first is too large to be kept; with the others a request is just below the trigger, 3,200 tokens.
    rows = [900, *[84] * 5]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": f"{call['id']} row of a file\n" * n}
        for call, n in zip(calls, rows, strict=True)
    ]
    m.add({"role": "user", "content": "Compare the files."})
    m.after_model_call({"role": "assistant", "content": calls})
    m.add({"role": "user", "content": results})
    tokens = []
    for n in range(5):
        request = m.before_model_call()
        assert request.errors == []
        tokens.append(request.tokens)
        m.after_model_call({"role": "assistant", "content": f"answer {n} " + "word " * 50})
        m.add({"role": "user", "content": "Go on."})

    assert tokens[1] > 3000
    assert max(tokens) < 3200
