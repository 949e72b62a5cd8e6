"""What one item, hook or text does wrong is said of it alone, and costs no other item its offload."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kit.conversation import has_left, last_results, one_turn
from kit.store import ActingStore
from strength import examples

from offload import ConfigError, Offloader, OffloadPolicy, Rule
from offload.engine.placeholder import DefaultRenderer
from offload.engine.policy import Decision, ItemFacts, Reason, ReasonKind
from offload.engine.policy.groups import over_ceiling
from offload_backends.memory import MemoryStore

KEY = "AKIA" + "A1B2C3D4" * 2
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=60)}, min_saving=0)
SOUND = "a sound line of a result\n" * 40
MARKS = [
    "\n",
    " ",
    "\t",
    "|",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    "=",
    "-",
    "+",
    ":",
    '"',
    "'",
    "\\",
    "<",
    ">",
    "\0",
]
MARKS += [
    "\x1b",
    "\x85",
    "\u2028",
    "\ud800",
    "\udcff",
    "---",
    "| - |",
    "=== ",
    "a",
    "1",
    "é",
    "😀",
    "+---+",
    "\r\n",
]
Messages = list[dict[str, Any]]


runs = st.tuples(st.sampled_from(MARKS), st.integers(1, 90)).map(lambda run: run[0] * run[1])
odd_texts = (
    st.lists(runs, min_size=1, max_size=12).map("".join).map(lambda text: text + "x" * (200 - len(text)))
)


@examples(150)
@given(odd_texts)
def test_no_text_keeps_the_item_beside_it_in_its_message(text: str) -> None:
    off = Offloader(MemoryStore(), session="s", policy=POLICY)
    messages = one_turn(SOUND, text)

    out = off.offload(messages)

    assert has_left(last_results(out.messages)[0])
    is_said = any("(c1)" in str(error) for error in out.errors) or "would save" in off.explain()
    assert has_left(last_results(out.messages)[1]) or is_said
    assert off.restore(out.messages) == messages


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_a_look_alike_that_cannot_be_stored_brings_nothing_back(codec: str) -> None:
    off = Offloader(MemoryStore(), session="s", policy=POLICY, codec=codec)
    first = off.offload(one_turn(SOUND))
    broken = last_results(first.messages)[0] + "\ud800"
    later = [*first.messages, *one_turn(SOUND + "more\n", broken)]

    for _ in range(2):
        out = off.offload(later, pinned={"call_1"})

        assert out.messages[:2] == first.messages
        assert has_left(last_results(out.messages)[0])
        assert last_results(out.messages)[1] == broken


def test_an_error_names_its_item_and_quotes_nothing_that_the_hook_was_given() -> None:
    def redact(text: str) -> str:
        if KEY in text:
            raise ValueError(f"cannot redact {text}")
        return text

    off = Offloader(MemoryStore(), session="s", policy=POLICY, redact=redact)

    out = off.offload(one_turn(KEY + SOUND, SOUND))

    [error] = out.errors
    assert "messages[1]: tool_result of Bash (call_0): redact: ValueError" in str(error)
    assert KEY not in str(error) + off.explain()
    assert has_left(last_results(out.messages)[1])


def test_a_redact_with_a_short_secret_in_its_message_quotes_nothing() -> None:
    def redact(text: str) -> str:
        raise ValueError(f"found {text[:20]!r} in it")

    out = Offloader(MemoryStore(), policy=POLICY, redact=redact).offload(one_turn(KEY + SOUND))

    assert KEY not in str(out.errors)


class Renderer(DefaultRenderer):
    def __init__(self, before: Any) -> None:
        self._before = before

    def render(self, facts: Any) -> str:
        self._before()
        return super().render(facts)


@pytest.mark.parametrize("hook", ["should_offload", "redact", "token_counter", "clock", "placeholder"])
def test_code_of_the_caller_that_waits_for_another_call_goes_on(
    monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr("offload.engine.settings.hooks.HOOK_SECONDS", 0.1)
    monkeypatch.setattr("offload.base.threads.calls._CHECK_SECONDS", 0.05)
    refused: list[BaseException] = []

    def use() -> None:
        with pytest.raises(ConfigError, match="time limit") as raised:
            off.offload(one_turn(SOUND))
        refused.append(raised.value)

    def wait() -> bool:
        if not refused:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        return True

    hooks: dict[str, Any] = {
        "should_offload": lambda _: wait(),
        "redact": lambda text: wait() and text,
        "token_counter": lambda text: wait() and len(text) // 4,
        "clock": lambda: float(wait()),
        "placeholder": Renderer(wait),
    }
    off = Offloader(MemoryStore(), policy=POLICY, **{hook: hooks[hook]})

    assert has_left(last_results(off.offload(one_turn(SOUND)).messages)[0])
    assert refused


CEILING = OffloadPolicy(
    types={"tool_result": Rule(min_tokens=10_000)}, max_view_tokens=3_200, cost_plan="none"
)


@pytest.mark.parametrize("fault", ["veto", "store", "redact"])
def test_the_next_largest_leaves_if_the_largest_cannot(fault: str) -> None:
    large, middle, small = ("".join(f"{word} {n}\n" for n in range(count)) for word, count in SIZES)
    hit: list[str] = []

    def refuse_the_first(verb: str, key: str) -> None:
        if (verb, fault) == ("put", "store") and key.startswith("r/") and not hit:
            hit.append(key)
            raise RuntimeError("no room")

    def redact(text: str) -> str:
        if fault == "redact" and text == large:
            raise ValueError("no")
        return text

    off = Offloader(
        ActingStore(MemoryStore(), refuse_the_first),
        policy=CEILING,
        redact=redact,
        should_offload=lambda item: fault != "veto" or item.chars != len(large),
    )

    texts = last_results(off.offload(one_turn(large, middle, small)).messages)

    assert [has_left(text) for text in texts] == [False, True, False]


SIZES = (("large", 500), ("middle", 400), ("small", 60))


def test_an_item_that_saves_nothing_does_not_shield_smaller_ones() -> None:
    def decision(tokens: int, preview_chars: int) -> Decision:
        facts = ItemFacts(0, None, "tool_result", "Bash", None, 3 * tokens, None, tokens)
        return Decision(facts, "keep", Reason(ReasonKind.TOO_SMALL), preview_chars, None, tokens)

    chosen = over_ceiling([decision(900, 10_000), decision(800, 10), decision(700, 10)], 1_000)

    assert sorted(chosen) == [1, 2]
