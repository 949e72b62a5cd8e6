"""Each function of a call raises in turn: the other items leave, nothing is lost, the next turn is whole."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Literal

import pytest
from kit.conversation import has_left
from raising import arguments_of, name_of, raising, watched
from strength import thinned

from offload import Offloader, OffloadError, OffloadPolicy, Rule
from offload.errors import StoreError
from offload.storage.store import OffloadStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=60)}, min_saving=0)
BAD, GOOD, OLD = (f"{word} line of a result\n" * 30 for word in ("poisoned", "sound", "ancient"))
Messages = list[dict[str, Any]]
PARTS = 3
EACH_PART = pytest.mark.parametrize("part", thinned(range(PARTS), PARTS))
# Functions that read a field of all items, or of a message before it is known what is in it.
SHARED = (
    "engine.items.Slot.",
    "engine.items.unweighed",
    "engine.reading._is_added",
    "engine.writer.ItemWriter.write.<locals>.<lambda>",
    "messages.access.get",
    "messages.adapter.Scan._call_of",
    "records.session.reader.SessionReader._opened_or_error",
)
# What every call passes before it does anything and after all is done: argument checks, locks, what reports
# failures, the objects that a call begins and ends with. A failure there is no item's.
EDGES = (
    "offloader.",
    "base.threads.",
    "base.events.",
    "records.observer.",
    "engine.failures.",
    "errors.",
    "engine.settings.options.",
    "engine.conversation.Conversation.",
    "engine.steps.run",
    "engine.turn.Turn.__",
    "engine.turn.Turn.part",
    "engine.restorer.restore",
    "engine.restorer._with_thinking",
    "engine.restorer._unresolved",
    "engine.restorer._Undoing.__init__",
    "engine.results.",
    "engine.sink.",
    "messages.base.Item.__post_init__",
    "records.record.titles.checked_agent",
    "records.codec.spooled.Spool.",
    "records.codec.spooled.ContentWriter.__init__",
    "records.codec.spooled.ContentWriter.close",
)


def call(*ids: str) -> Messages:
    calls = [{"type": "tool_use", "id": i, "name": "Bash", "input": {"command": f"run {i}"}} for i in ids]
    return [{"role": "assistant", "content": calls}]


def results(**texts: str) -> Messages:
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in texts.items()]
    return [{"role": "user", "content": blocks}]


FIRST = [*call("c_old"), *results(c_old=OLD)]
CONVERSATIONS = {
    "two messages": [
        *FIRST,
        *call("c_bad"),
        *results(c_bad=BAD),
        *call("c_good"),
        *results(c_good=GOOD),
    ],
    "one message": [*FIRST, *call("c_bad", "c_good"), *results(c_bad=BAD, c_good=GOOD)],
}


def shown(messages: Messages) -> dict[str, str]:
    """Return the text of each tool result by the id of its call."""
    blocks = [block for message in messages for block in message["content"]]
    return {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}


def opened(store: OffloadStore) -> Offloader:
    return Offloader(store, session="s", policy=POLICY)


def started() -> Offloader:
    """Return an offloader whose first turn is over."""
    off = opened(MemoryStore())
    off.offload(FIRST)
    return off


def is_of(mine: str, other: str) -> Callable[[str], bool]:
    return lambda arguments: mine in arguments and other not in arguments


def functions_of(
    run: Callable[[], object], when: Callable[[str], bool] | None = None, but: tuple[str, ...] = ()
) -> dict[str, CodeType]:
    """Return the functions of the library that run in a call; only those whose arguments `when` chooses."""
    found: dict[str, CodeType] = {}
    left_out = (*EDGES, *but)

    def see(frame: FrameType) -> None:
        name = name_of(frame.f_code)
        if name not in found and not name.startswith(left_out) and (not when or when(arguments_of(frame))):
            found[name] = frame.f_code

    with watched(see):
        run()
    return found


def check_each(functions: dict[str, CodeType], part: int, check: Callable[[str, CodeType], object]) -> None:
    """Check each third of the functions, from `part`."""
    wrong: dict[str, str] = {}
    for name, code in [*functions.items()][part::PARTS]:
        try:
            check(name, code)
        except Exception as error:  # noqa: BLE001 # all that are wrong are shown together
            wrong[name] = f"{type(error).__name__}: {error!s:.300}"
    assert wrong == {}


@EACH_PART
@pytest.mark.parametrize("shape", CONVERSATIONS)
def test_whatever_raises_for_one_item_costs_that_item_its_offload_alone(shape: str, part: int) -> None:
    messages = CONVERSATIONS[shape]
    is_bad = is_of("poisoned", "sound")
    whole = started().offload(messages).messages
    off = started()
    functions = functions_of(lambda: off.offload(messages), is_bad, but=SHARED)
    assert len(functions) > 60

    def check(name: str, code: CodeType) -> None:
        off = started()
        with raising(code, is_bad):
            out = off.offload(messages)
        texts = shown(out.messages)
        assert has_left(texts["c_old"])
        assert has_left(texts["c_good"])
        is_named = any("c_bad" in str(e) or "messages[3]" in str(e) for e in out.errors)
        assert is_named or out.messages == whole
        assert opened(off.store).restore(out.messages) == messages
        again = off.offload(messages)
        assert (again.messages, again.errors) == (whole, [])

    check_each(functions, part, check)


@EACH_PART
def test_whatever_raises_once_loses_nothing_and_brings_nothing_back(part: int) -> None:
    messages = CONVERSATIONS["two messages"]
    whole = started().offload(messages).messages
    off = started()
    functions = functions_of(lambda: off.offload(messages))
    assert len(functions) > 150

    def check(name: str, code: CodeType) -> None:
        off = started()
        with raising(code):
            out = off.offload(messages)
        assert has_left(shown(out.messages)["c_old"])
        assert out.errors or out.messages == whole
        assert opened(off.store).restore(out.messages) == messages
        again = off.offload(messages)
        # An item that left while its call could not be read has no tool name in its placeholder.
        assert all(map(has_left, shown(again.messages).values()))
        assert again.errors == []

    check_each(functions, part, check)


def written(off: Offloader, text: str) -> str:
    with off.open_sink(tool_name="Bash") as sink:
        sink.write(text)
    return sink.placeholder


def handed_in(off: Offloader, text: str) -> str:
    return off.offload_text(text, tool_name="Bash")


def answer_or_error(off: Offloader, hand_in: Callable[[Offloader, str], str]) -> str:
    try:
        return hand_in(off, BAD)
    except StoreError as error:
        return str(error)


@EACH_PART
@pytest.mark.parametrize("hand_in", [handed_in, written])
def test_whatever_raises_for_a_single_text_leaves_it_and_the_next_one_whole(
    hand_in: Callable[[Offloader, str], str], part: int
) -> None:
    placeholder = hand_in(opened(MemoryStore()), BAD)
    off = opened(MemoryStore())
    functions = functions_of(lambda: hand_in(off, BAD))
    assert len(functions) > 80

    def check(name: str, code: CodeType) -> None:
        off = opened(MemoryStore())
        with raising(code):
            answer = answer_or_error(off, hand_in)
        # A sink whose text is not whole says so.
        is_lost = hand_in is written and "is lost, nothing is stored" in answer
        assert is_lost or answer in (BAD, placeholder)
        assert hand_in(off, BAD) == placeholder

    check_each(functions, part, check)


@EACH_PART
@pytest.mark.parametrize("reaction", ["keep", "raise"])
@pytest.mark.parametrize("shape", CONVERSATIONS)
def test_whatever_raises_for_one_placeholder_leaves_that_one_in_place(
    shape: str, reaction: Literal["keep", "raise"], part: int
) -> None:
    messages = CONVERSATIONS[shape]
    written = started()
    sent = written.offload(messages).messages
    bad, good = shown(sent)["c_bad"], shown(sent)["c_good"]
    is_bad = is_of("poisoned", "sound")
    functions = functions_of(lambda: opened(written.store).restore(sent))
    functions_of_one = functions_of(lambda: opened(written.store).restore(sent), is_bad, but=SHARED)
    assert len(functions) > 60
    assert len(functions_of_one) > 10

    def check(name: str, code: CodeType) -> None:
        off = opened(written.store)
        with raising(code, is_bad if name in functions_of_one else None):
            back, missing = restored(off, sent, reaction)
        texts = shown(back)
        assert texts["c_bad"] in (BAD, bad)
        assert texts["c_good"] == GOOD or (name not in functions_of_one and texts["c_good"] == good)
        assert missing or back == messages
        assert off.restore(sent) == messages

    check_each(functions, part, check)


def restored(off: Offloader, sent: Messages, reaction: Literal["keep", "raise"]) -> tuple[Any, Any]:
    try:
        back = off.restore(sent, on_missing=reaction)
    except OffloadError as error:
        return error.messages, error.missing
    return back, back.missing
