"""Messages that are edited in place, and what a turn costs that brings nothing but one message more."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kit.conversation import answer_to
from kit.store import steps

from offload import Offloader, OffloadPolicy, OffloadResult, Rule, Sweep
from offload.engine.watching import LAST_WATCHED, OLDER_WATCHED
from offload.messages.formats import adapter_for

LOG = "".join(f"line {n} of a result that is long\n" for n in range(400))
OTHER = LOG.replace("line", "row")


def called(call: str = "c1", **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call, "name": "Bash", "input": arguments}
    return {"role": "assistant", "content": [block]}


def chat(length: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[n % 2], "content": f"message {n}"} for n in range(length)]


def content_of(message: Any) -> str:
    content = message.content if hasattr(message, "content") else message["content"]
    block = content[0]
    text = block.content if hasattr(block, "content") else block["content"]
    assert isinstance(text, str)
    return text


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class Block:
    content: str
    type: str = "tool_result"
    tool_use_id: str = "c1"


@dataclass
class Message:
    content: list[Any]
    role: str = "user"
    extra: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("content", "role")

    def __init__(self, content: list[Any]) -> None:
        self.role, self.content = "user", content


OBJECTS: dict[str, Any] = {
    "dict": lambda: answer_to(LOG),
    "dataclass": lambda: Message([Block(LOG)]),
    "namespace": lambda: SimpleNamespace(
        role="user", content=[SimpleNamespace(type="tool_result", tool_use_id="c1", content=LOG)]
    ),
    "slots": lambda: Slotted([Block(LOG)]),
    "block in a dict": lambda: {"role": "user", "content": [Block(LOG)]},
    "deep": lambda: {**answer_to(LOG), "metadata": nested(800)},
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_result_is_looked_at_again_and_offloaded_anew_only_if_it_was_edited_in_place(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = OBJECTS[kind]()
    messages = [called(), message]
    off = Offloader("memory://")
    first = off.offload(messages)
    assert content_of(first.messages[1]).startswith("[Offloaded:")

    with monkeypatch.context() as patched:
        patched.setattr(type(adapter_for(message)), "scan", None)
        assert off.offload(messages).messages[1] is first.messages[1]
    block = message["content"][0] if isinstance(message, dict) else message.content[0]
    if isinstance(block, dict):
        block["content"] = OTHER
    else:
        block.content = OTHER
    out = off.offload(messages)

    assert len(off.records()) == 2
    assert "row 0 of" in content_of(out.messages[1])
    assert content_of(off.restore(out.messages)[1]) == OTHER


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_an_old_message_that_is_edited_leaves_after_some_turns_or_at_once_if_forgotten(
    *, is_forgotten: bool
) -> None:
    messages: list[Any] = [called(), answer_to("small"), *chat(LAST_WATCHED + 3 * OLDER_WATCHED)]
    off = Offloader("memory://")
    before = off.offload(messages).tokens_before
    off.offload(messages)
    messages[1]["content"][0]["content"] = LOG
    assert off.recheck(messages[1] if is_forgotten else {"role": "user", "content": "new"}) is is_forgotten

    turns = 0
    while not content_of(off.offload(messages).messages[1]).startswith("[Offloaded:"):
        turns += 1
        assert turns <= (0 if is_forgotten else 4)

    assert off.offload(messages).tokens_before > before + 1000


def test_equal_messages_that_are_new_objects_are_the_ones_that_come_back() -> None:
    off = Offloader("memory://")
    first = off.offload([called(), answer_to(LOG), *chat(400)])
    again = [called(), answer_to(LOG), *chat(400)]

    out = off.offload(again)

    assert out.messages == first.messages
    assert all(a is b for a, b in zip(out.messages[2:], again[2:], strict=True))
    again[3]["content"] = "edited"
    assert off.offload(again).messages[3] == {"role": "assistant", "content": "edited"}


class Frame:
    """Compares like a data frame, and cannot be copied."""

    def __eq__(self, other: object) -> Any:
        return [True, False]

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot be copied")

    __hash__ = object.__hash__


def test_an_artifact_that_cannot_be_compared_or_copied_costs_nothing_its_offload() -> None:
    def message(artifact: Any) -> dict[str, Any]:
        return {"type": "tool", "tool_call_id": "c1", "content": LOG, "artifact": artifact}

    off = Offloader("memory://")
    for artifact in (Frame(), {"frame": Frame()}, [Frame()]):
        messages = [message(artifact)]
        for _ in range(2):
            out = off.offload(messages)
            assert out.errors == []
            assert out.messages[0]["content"].startswith("[Offloaded:")
            messages = [*messages, {"type": "human", "content": "go on"}]


def test_an_image_in_the_output_of_a_call_that_holds_its_result_leaves_its_arguments_alone() -> None:
    image = "data:image/png;base64," + "iVBORw0KGgo" * 3000
    call = {
        "type": "mcp_call",
        "id": "m1",
        "name": "shot",
        "arguments": '{"of": "the page"}',
        "output": [{"type": "input_image", "image_url": image}, {"type": "input_text", "text": "done"}],
    }
    policy = OffloadPolicy(tool_media=Rule(min_tokens=1), min_saving=0)
    off = Offloader("memory://", policy=policy)

    out = off.offload([call])

    assert out.messages[0]["arguments"] == '{"of": "the page"}'
    assert out.messages[0]["output"][0]["text"].startswith("[Offloaded: image")
    assert off.restore(out.messages) == [call]


# What a turn costs


def exchanges(length: int) -> list[dict[str, Any]]:
    """Return a conversation of which one message in eight is replaced."""
    messages = []
    for n in range(length // 2):
        text = LOG[:2000] + str(n) if n % 4 == 0 else f"short {n}"
        messages += [called(f"c{n}"), answer_to(text, f"c{n}")]
    return messages


EAGER = Rule(min_chars=1000, preview_chars=50)
POLICIES = {
    "plain": OffloadPolicy(types={"tool_result": EAGER}),
    "sweep": OffloadPolicy(types={"tool_result": EAGER}, sweep=Sweep(trigger_tokens=10**9), min_saving=0),
    "nothing to sweep": OffloadPolicy(types={"tool_result": EAGER}, sweep=Sweep(trigger_tokens=1)),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_turn_with_one_short_message_more_takes_as_many_steps_after_a_hundred_as_after_many(
    policy: str,
) -> None:
    took = []
    for length in (200, 800):
        off = Offloader("memory://", policy=POLICIES[policy])
        messages = exchanges(length)
        assert len(off.offload(messages).records) == length // 8
        messages = [*messages, {"role": "user", "content": "go on"}]
        off.offload(messages)
        took.append(steps(off.offload, [*messages, {"role": "user", "content": "and on"}]))

    assert took[1] <= took[0] * 1.2


def test_a_list_that_was_parsed_again_takes_as_many_steps_after_a_hundred_as_after_many() -> None:
    took = []
    for length in (200, 800):
        off = Offloader("memory://", policy=POLICIES["plain"])
        source = json.dumps(exchanges(length))
        off.offload(json.loads(source))
        took.append(steps(off.offload, json.loads(source)))

    assert took[1] <= took[0] * 1.2


def test_the_ceiling_of_turns_is_judged_in_steps_in_proportion_to_the_messages() -> None:
    policy = OffloadPolicy(max_view_tokens=10_000, min_saving=0)
    took = []
    for length in (100, 400):
        messages = [
            m for n in range(length // 2) for m in (called(f"c{n}"), answer_to(f"some {n} " * 30, f"c{n}"))
        ]
        took.append(steps(Offloader("memory://", policy=policy).offload, messages))

    assert took[1] <= took[0] * 5


def figures(out: OffloadResult) -> list[Any]:
    decided = [(d.action, d.ref, d.tokens_after) for d in out.decisions]
    return [out.tokens_before, out.tokens_after, out.chars_freed, decided]


def test_figures_stay_right_when_messages_are_taken_back_and_come_again() -> None:
    messages = exchanges(200)
    off = Offloader("memory://", policy=POLICIES["sweep"])
    whole = off.offload(messages)
    for length in (101, 50, 200, 0, 37):
        part = off.offload(messages[:length])
        fresh = Offloader("memory://", policy=POLICIES["sweep"], session=off.session).offload(
            messages[:length]
        )
        assert figures(part) == figures(fresh)
        assert part.messages == whole.messages[:length]
        assert [r.ref for r in part.records] == [d.ref for d in part.decisions if d.ref]


def test_figures_are_right_once_a_token_counter_works_again() -> None:
    failing = [LOG]

    def count(text: str) -> int:
        if text in failing:
            raise ValueError(text)
        return len(text)

    messages = [called(), answer_to(LOG), called("c2"), answer_to(OTHER, "c2")]
    off = Offloader("memory://", token_counter=count)
    assert off.offload(messages).errors
    failing.clear()
    fresh = Offloader("memory://", session=off.session, token_counter=count)
    assert figures(off.offload(messages)) == figures(fresh.offload(messages))


def test_decisions_that_were_given_out_do_not_change_in_later_turns() -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1000, after_replies=1)})
    messages = [called(), answer_to(LOG)]
    off = Offloader("memory://", policy=policy)
    first = off.offload(messages)

    second = off.offload([*messages, {"role": "assistant", "content": "I see."}])

    assert [d.action for d in first.decisions] == ["keep", "wait"]
    assert [d.action for d in second.decisions][:2] == ["keep", "offload"]


@pytest.mark.parametrize(("name", "is_error"), [("Bash", True), ("Small", False), ("Slow", False)])
def test_an_equal_result_that_was_kept_leaves_with_the_one_that_is_stored_as_in_a_new_process(
    name: str, is_error: bool
) -> None:
    tools = {"Small": Rule(min_chars=10**9), "Slow": Rule(min_chars=1, after_replies=9)}
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=80)}, tools=tools)
    first = [called(), answer_to(LOG)]
    first[0]["content"][0]["name"] = name
    first[1]["content"][0]["is_error"] = is_error
    off = Offloader("memory://", session="s", policy=policy)

    assert content_of(off.offload(first).messages[1]) == LOG
    messages = [*first, called(), answer_to(LOG)]
    out = off.offload(messages)

    assert len({content_of(out.messages[1]), content_of(out.messages[3]), LOG}) == 2
    assert out.cache is not None
    assert out.cache.tokens_freed == out.decisions[1].item.tokens - out.decisions[1].tokens_after
    assert out.messages == off.with_options().offload(messages).messages
    assert out.messages == off.offload(messages).messages
    assert off.offload(first).messages == out.messages[:2]


def test_the_texts_of_dropped_messages_are_not_held() -> None:
    off = Offloader("memory://", session="s", policy=OffloadPolicy(cost_plan="all"))
    tracemalloc.start()
    try:
        for n in range(100):
            off.offload([{"role": "user", "content": f"{n} " + "a text that is not kept " * 1200}])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
