"""The state of the provider's cache: from the clock, the host and the reported usage."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prepared
import pytest
from kit.conversation import from_user, tool_result, tool_turn

from offload import (
    AgentConfig,
    CacheModel,
    ConfigError,
    ContextManager,
    Offloader,
    OffloadPolicy,
    OffloadResult,
    Rule,
)
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload_backends.memory import MemoryStore

Messages = list[dict[str, Any]]
LOG = "".join(f"line {n} of a log of a build\n" for n in range(400))
# Two replies later, so that it leaves messages that were sent before.
LATE = OffloadPolicy(types={"tool_result": Rule(min_tokens=1000, after_replies=2)}, tools={})
NOTHING = OffloadPolicy(types={"tool_result": Rule(enabled=False)}, tools={})


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: Any = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> Any:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


class Session:
    """A conversation that grows by a tool call each turn."""

    def __init__(self, policy: OffloadPolicy = NOTHING, **options: Any) -> None:
        self.clock = Clock()
        self.off = Offloader("memory://", session="s", policy=policy, **{"clock": self.clock} | options)
        self.messages: Messages = [{"role": "user", "content": "build it"}]

    def turn(self, seconds: float = 0, **options: Any) -> OffloadResult:
        """Send a request `seconds` after the last one."""
        if seconds:
            self.clock.now += seconds
        out = self.off.offload(self.messages, **options)
        number = len(self.messages)
        self.messages += tool_turn(f"t{number}", LOG)
        return out

    def cause(self, seconds: float = 0, **options: Any) -> str | None:
        """Return why the cache has to be written again, if it has."""
        cache = self.turn(seconds, **options).cache
        return None if cache is None else cache.cause


def reply(read: int, written: int = 5000, new: int = 10) -> dict[str, int]:
    return {"input_tokens": new, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}


# Pauses


@pytest.mark.parametrize(
    ("pauses", "causes"),
    [
        ((0, 299, 301, 300, 0), [None, None, "pause", None, None]),
        ((0, -(10**6), 10, 301), [None, None, None, "pause"]),
    ],
    ids=["on", "set back"],
)
def test_a_pause_longer_than_the_cache_keeps_a_prompt_makes_it_cold(
    pauses: tuple[float, ...], causes: list[str | None]
) -> None:
    session = Session()

    assert [session.cause(seconds) for seconds in pauses] == causes


@pytest.mark.parametrize(
    ("cache", "pause", "prices"),
    [
        ({"preset": "claude-opus-4-5", "ttl": "1h"}, 3601, (0.1, 2.0)),
        (CacheModel(read=0.5, write=3, ttl=10), 11, (0.5, 3)),
    ],
)
def test_a_report_says_what_is_written_again_and_its_price_by_the_policy(
    cache: Any, pause: float, prices: tuple[float, float]
) -> None:
    session = Session(OffloadPolicy(types={"tool_result": Rule(enabled=False)}, cache=cache))
    session.turn()
    sent = session.turn(1)

    report = session.turn(pause).cache

    assert report is not None
    assert report.tokens_rewritten == sent.tokens_after
    assert (report.tokens_freed, report.tokens_missed) == (0, 0)
    assert (report.read, report.write) == prices
    assert report.cost == pytest.approx(sent.tokens_after * (prices[1] - prices[0]))
    assert report.turns_to_pay() is None


@pytest.mark.parametrize("cache", [CacheModel(ttl=None), CacheModel(ttl="1h")], ids=str)
def test_a_first_request_and_a_cache_without_or_with_a_longer_lifetime_rewrite_nothing(
    cache: CacheModel,
) -> None:
    for options in ({}, {"cache": "warm"}, {"cache": "cold"}):
        assert Session().turn(10**6, **options).cache is None
    session = Session(OffloadPolicy(types={"tool_result": Rule(enabled=False)}, cache=cache))

    assert [session.cause(1000) for _ in range(3)] == [None, None, None]


def test_a_state_lasts_until_the_model_has_replied() -> None:
    session = Session()
    session.turn()
    session.clock.now += 1000
    first = session.off.offload(session.messages).cache
    session.clock.now += 5
    more = [*session.messages, {"role": "user", "content": "one more result"}]

    again = session.off.offload(more).cache

    assert first is not None
    assert again == first
    session.messages = [*more, {"role": "assistant", "content": "I see."}]
    assert session.cause(5) is None


def test_replacing_items_in_messages_that_were_sent_is_ours_and_free_in_a_cold_cache() -> None:
    warm, cold = Session(LATE), Session(LATE)
    for session in (warm, cold):
        session.turn()
        session.turn()
        session.turn()

    ours, pause = warm.turn().cache, cold.turn(1000).cache

    assert ours is not None
    assert pause is not None
    assert (ours.cause, pause.cause) == ("ours", "pause")
    assert ours.tokens_freed == pause.tokens_freed > 1000
    assert 0 < ours.tokens_rewritten <= pause.tokens_rewritten
    assert (ours.turns_to_pay() or 0) > 0
    assert pause.turns_to_pay() == 0


def test_a_host_that_passes_placeholders_on_gets_the_same_report() -> None:
    originals, placeholders = Session(LATE), Session(LATE)
    for seconds in (0, 10, 10, 10, 1000, 10, 10):
        one = originals.turn(seconds)
        other = placeholders.turn(seconds)
        placeholders.messages[: len(other.messages)] = other.messages

        assert other.messages == one.messages
        assert other.cache == one.cache
    assert one.cache is not None
    assert one.cache.cause == "ours"


def test_an_edit_of_the_host_is_not_ours() -> None:
    session = Session(LATE)
    for _ in range(5):
        session.turn()
    out = session.off.offload(session.messages)
    session.messages[0] = {"role": "user", "content": "build it all"}

    edited = session.off.offload(session.messages)

    assert edited.messages[1:] == out.messages[1:]
    assert edited.cache is None


# Clocks


def test_with_a_clock_that_is_constant_or_unused_nothing_differs_and_no_clock_changes_a_placeholder() -> None:
    outs = []
    for clock in (Clock(0.0), Clock(5e9), None):
        session = Session(LATE, **({} if clock is None else {"clock": clock}))
        outs.append(
            [(out.messages, out.cache, out.tokens_after) for out in (session.turn() for _ in range(5))]
        )

    assert outs[0] == outs[1] == outs[2]
    assert outs[0][-1][1] is not None
    cold = Session(LATE)
    messages = [cold.turn(1000).messages for _ in range(5)]
    assert messages == [sent for sent, *_ in outs[0]]
    assert "[Offloaded" in str(messages[-1])


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (RuntimeError("no time"), "clock: RuntimeError: no time"),
        (math.nan, "clock must return seconds, got nan"),
        (math.inf, "clock must return seconds, got inf"),
        (10**400, "clock:"),
        ("noon", "clock must return seconds, got 'noon'"),
        (None, "clock must return seconds, got None"),
        (True, "clock must return seconds, got True"),
    ],
)
def test_a_clock_that_fails_is_reported_and_the_cache_counts_as_warm(now: Any, problem: str) -> None:
    session = Session(LATE, on_error="raise")
    session.turn()
    session.turn()
    session.clock.now = now

    out = session.turn()

    assert problem in str(out.errors[0])
    assert len(out.errors) == 1
    assert out.cache is None
    assert session.off.last_request is None
    session.clock.now = 9e9
    assert session.turn().errors == []


def test_what_is_no_clock_no_time_and_no_state_is_refused() -> None:
    for clock in (None, 5, "time"):
        with pytest.raises(ConfigError, match="clock must be a function that returns seconds, got"):
            Offloader("memory://", clock=clock)  # type: ignore[arg-type] # what is refused
    off: Any = Offloader("memory://")
    for seconds in ("noon", math.nan, True):
        with pytest.raises(ConfigError, match="last_request must be seconds or None, got"):
            off.last_request = seconds
    for cache in ("hot", "", 3, True, ["cold"]):
        with pytest.raises(ConfigError, match="cache must be one of cold, warm, got"):
            off.offload([], cache=cache)


# The host


def test_the_host_overrides_the_clock_for_one_call() -> None:
    session = Session()
    session.turn()

    assert session.cause(1, cache="cold") == "host"
    assert session.cause(1000, cache="warm") is None
    assert session.cause(1) is None
    cache = asyncio.run(session.off.aoffload(session.messages, cache="cold")).cache
    assert cache is not None
    assert cache.cause == "host"


@pytest.mark.parametrize("preset", [ContextFileSystem, ContextRefs])
def test_presets_take_a_clock_and_the_host_s_word(tmp_path: Path, preset: Any) -> None:
    clock = Clock()
    layout = preset(tmp_path, "s", clock=clock)
    messages = [{"role": "user", "content": "go"}]
    layout.offload(messages)
    messages.append({"role": "assistant", "content": "done"})

    host = layout.offload(messages, cache="cold").cache
    clock.now += 1000
    pause = layout.offload([*messages, {"role": "assistant", "content": "well done"}]).cache

    assert (host.cause, pause.cause) == ("host", "pause")


# Misses


def missed(session: Session, usage: Any, **options: Any) -> int:
    """Report a reply, and return how many tokens its provider did not have."""
    found = session.off.report_usage(usage, **options)
    assert found is not None
    return found.missed


def test_a_reply_that_read_far_less_than_was_sent_before_is_a_miss() -> None:
    session = Session()
    session.turn()
    session.off.report_usage(reply(0))
    session.turn()

    assert missed(session, reply(5010)) == 0
    session.turn()
    assert missed(session, reply(0, 15_000)) == 10_020
    # A second reply before the next request counts too.
    assert missed(session, reply(15_000, 300)) == 0
    cache = session.turn().cache

    assert cache is not None
    assert (cache.cause, cache.tokens_missed, cache.tokens_rewritten) == ("miss", 10_020, 0)
    assert cache.cost == pytest.approx(10_020 * 1.15)
    session.off.report_usage(reply(15_300, 6000))
    assert session.turn().cache is None


@pytest.mark.parametrize(("seconds", "options"), [(1000, {}), (0, {"cache": "cold"})])
def test_what_was_expected_to_be_written_again_is_no_miss(seconds: float, options: dict[str, str]) -> None:
    session = Session()
    session.turn()
    session.off.report_usage(reply(0))
    session.turn(seconds, **options)

    assert missed(session, reply(0, 10_000)) == 0


def test_messages_that_the_host_changed_are_not_missed() -> None:
    session = Session()
    for read in (0, 5010, 9000):
        session.turn()
        session.off.report_usage(reply(read))
    session.messages[1:] = [{"role": "assistant", "content": "A summary."}]
    session.turn()
    assert session.off.report_usage(reply(0, 10_000)) == session.off.report_usage(reply(0, 10_000))
    session.turn()
    assert missed(session, reply(0, 12_000), is_changed=True) == 0
    session.turn()
    assert missed(session, reply(0, 14_000)) == 12_010
    cache = session.turn().cache
    assert cache is not None
    assert cache.tokens_missed == 12_010


def test_messages_that_the_host_edited_in_place_are_not_missed() -> None:
    session = Session()
    for read in (0, 5010, 9000):
        session.turn()
        session.off.report_usage(reply(read))
    session.messages[0]["content"] = "build all of it"
    session.turn()
    assert missed(session, reply(0, 14_000)) == 0


def test_placeholders_that_the_host_passes_on_are_in_the_cache() -> None:
    session = Session(OffloadPolicy(types={"tool_result": Rule(min_tokens=1000)}, tools={}))
    found = []
    for usage in (reply(0, 5000), reply(5010, 300), reply(5310, 300), reply(0, 6000)):
        out = session.turn()
        session.messages[: len(out.messages)] = out.messages
        found.append(missed(session, usage))

    assert "[Offloaded" in str(out.messages)
    assert found == [0, 0, 0, 5620]


@pytest.mark.parametrize(
    "usages",
    [
        [reply(0, 0, n) for n in (9000, 9100, 9200)],
        [{"prompt_tokens": n} for n in (9000, 9100, 9200)],
        [reply(0, 300, 1), reply(0, 400, 1), reply(0, 500, 1)],
    ],
    ids=["not cached", "not counted", "too short to cache"],
)
def test_without_a_cache_nothing_is_missed(usages: list[Any]) -> None:
    session = Session()
    for usage in usages:
        session.turn()
        assert missed(session, usage) == 0


SAID = {"id": "msg_1", "content": [{"type": "text", "text": "Built."}]}


@pytest.mark.parametrize("copied", [lambda usage: usage, copy.deepcopy], ids=["object", "copy"])
@pytest.mark.parametrize("shown", [reply(0), SAID | {"usage": reply(0)}], ids=["usage", "reply"])
def test_a_reply_that_is_reported_twice_counts_once(shown: Any, copied: Any) -> None:
    session = Session()
    session.turn()
    session.off.report_usage(shown)
    if "id" in shown or copied(shown) is shown:
        session.turn()

    assert missed(session, copied(shown)) == 0
    assert session.turn().cache is None


@pytest.mark.parametrize(
    "replies",
    [[reply(0)] * 2, [SAID | {"usage": reply(0)}, SAID | {"id": "msg_2", "usage": reply(0)}]],
    ids=["usages", "replies"],
)
def test_two_replies_with_equal_usage_are_two(replies: list[Any]) -> None:
    session = Session()
    session.turn()
    session.off.report_usage(copy.deepcopy(replies[0]))
    session.turn()

    assert missed(session, replies[1]) > 1024


def test_the_lifetime_that_the_provider_reports_replaces_that_of_the_policy() -> None:
    session = Session()
    session.turn()
    for_an_hour = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 5000}
    session.off.report_usage(reply(0) | {"cache_creation": for_an_hour})

    assert session.cause(3000) is None
    assert session.cause(4000) == "pause"


def test_a_cache_that_outlives_a_pause_is_not_cold_after_such_a_pause_again() -> None:
    session = Session()
    session.turn()
    session.off.report_usage(reply(0))

    assert session.cause(900) == "pause"
    session.off.report_usage(reply(5010, 300))
    assert session.cause(900) is None
    session.off.report_usage(reply(5310, 300))
    assert session.cause(901) == "pause"
    session.off.report_usage(reply(0, 6000))
    assert session.cause(901) == "pause"


# Other offloaders, other processes


def test_a_fork_and_other_options_know_the_last_request_and_another_session_does_not(tmp_path: Path) -> None:
    session = Session()
    session.turn()
    now = session.clock.now

    assert session.off.last_request == now
    assert session.off.fork("other").last_request == now
    assert session.off.with_options(policy=LATE).last_request == now
    assert session.off.with_options(session="new").last_request is None
    assert session.off.with_options(session="new").options.clock is session.clock
    loaded = Offloader.from_config(folder=tmp_path, store="memory://", clock=session.clock)
    loaded.offload([{"role": "user", "content": "go"}])
    assert loaded.last_request == now


@pytest.mark.parametrize(("told", "cause"), [(None, None), (1_000_000.0, "pause"), (1_000_900, None)])
def test_after_a_restart_the_host_may_set_the_time_of_the_last_request(
    told: float | None, cause: str | None
) -> None:
    before = Session()
    before.turn()
    before.turn()
    after = Session()
    after.messages = before.messages
    after.off.last_request = told

    out = after.turn(1000)

    assert (None if out.cache is None else out.cache.cause) == cause
    if out.cache is not None:
        # All but the last reply and its results.
        assert 0 < out.cache.tokens_rewritten < out.tokens_after


PROCESS = """
import sys
from offload import Offloader, OffloadPolicy, Rule
from offload import AgentConfig, ContextManager

root, now, step = sys.argv[1], float(sys.argv[2]), sys.argv[3]
policy = OffloadPolicy(types={"tool_result": Rule(enabled=False)})
m = ContextManager(Offloader(root, session="s", policy=policy, clock=lambda: now), AgentConfig())
m.resume()
m.add({"role": "user", "content": f"question {step} " * 200})
cache = m.before_model_call().cache
m.after_model_call({"role": "assistant", "content": f"answer {step}"})
print(cache and cache.cause)
"""


def test_a_process_that_resumes_a_conversation_knows_how_long_the_pause_was(tmp_path: Path) -> None:
    times = (1_000_000, 1_000_200, 1_000_600)

    said = [prepared.run(PROCESS, tmp_path, now, step).stdout.strip() for step, now in enumerate(times)]

    assert said == ["None", "None", "pause"]


# The agent loop


@pytest.fixture
def manager() -> Callable[..., ContextManager]:
    def make(clock: Clock, window: int = 10**6, **options: Any) -> ContextManager:
        off = Offloader(MemoryStore(), session="s", clock=clock, **{"policy": NOTHING} | options)
        return ContextManager(off, AgentConfig(window_tokens=window))

    return make


def exchange(m: ContextManager, number: int, usage: Any = None) -> Any:
    m.add({"role": "user", "content": f"question {number}: {LOG[:3000]}"})
    request = m.before_model_call()
    assert m.after_model_call({"role": "assistant", "content": f"answer {number}"}, usage=usage) == []
    return request.cache


def test_the_agent_loop_reports_pauses_and_misses(manager: Callable[..., ContextManager]) -> None:
    clock = Clock()
    m = manager(clock)
    causes = []
    for number, (seconds, usage) in enumerate(
        [
            (0, reply(0)),
            (10, reply(5010)),
            (10, reply(0, 15_000)),
            (10, reply(15_000)),
            (1000, None),
            (1, None),
        ]
    ):
        clock.now += seconds
        cache = exchange(m, number, usage)
        causes.append(cache and cache.cause)

    assert causes == [None, None, None, "miss", "pause", None]


class Provider:
    """A cache that serves the common beginning of two requests, and none of request number `misses`."""

    def __init__(self, misses: int = -1) -> None:
        self.misses = misses
        self.before: Messages = []
        self.requests = 0

    def usage(self, messages: Messages) -> dict[str, int]:
        pairs = enumerate(zip(self.before, messages, strict=False))
        same = next((at for at, (one, other) in pairs if one != other), min(len(self.before), len(messages)))
        is_miss = self.requests == self.misses
        self.before, self.requests = list(messages), self.requests + 1
        read = 0 if is_miss else len(str(messages[:same])) // 4
        return reply(read, len(str(messages)) // 4 - read, 0)


@pytest.mark.parametrize("misses", [-1, 25])
def test_only_what_the_provider_missed_is_missed_whatever_we_rewrite(misses: int) -> None:
    provider, session = Provider(misses), Session(LATE)
    found = []
    for number in range(27):
        out = session.turn(1000 if number % 10 == 0 else 1)
        found += [number] if missed(session, provider.usage(out.messages)) else []

    assert "[Offloaded" in str(session.turn().messages)
    assert found == [number for number in [misses] if number > 0]


def test_a_request_that_was_made_smaller_is_no_miss(manager: Callable[..., ContextManager]) -> None:
    provider, m = Provider(), manager(Clock(), window=12_000)
    causes = set()
    m.add({"role": "user", "content": "build it"})
    for number in range(30):
        request = m.before_model_call()
        causes.add(request.cache and request.cache.cause)
        use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {}}
        usage = provider.usage(request.messages)
        m.after_model_call({"role": "assistant", "content": [use]}, usage=usage)
        m.add(from_user([tool_result(f"t{number}", LOG[:6000])]))

    assert m.compaction_count > 0
    assert causes == {None}


@pytest.mark.parametrize("usage", ["400", [400], True])
def test_the_agent_loop_refuses_a_usage_that_is_none_and_adds_nothing(
    manager: Callable[..., ContextManager], usage: Any
) -> None:
    m = manager(Clock())
    m.add({"role": "user", "content": "go"})
    m.before_model_call()
    with pytest.raises(ConfigError, match="usage must be a provider's reply"):
        m.after_model_call({"role": "assistant", "content": "yes"}, usage=usage)

    assert len(m.messages) == 1
