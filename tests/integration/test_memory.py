"""What an offloader holds of messages that its host dropped."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

import pytest
from integration.test_freshness import KINDS, Chat, opened, source_of

import offload.engine.sources
from offload import OffloadPolicy

TOOLS = ("read_file", "str_replace", "search_code", "run_python")
LONG = "a line of the file\n" * 2000


def held(root: object) -> int:
    """Return how many values all containers hold that `root` leads to."""
    seen, left, count = {id(root)}, [root], 0
    while left:
        one = left.pop()
        count += len(one) if isinstance(one, dict | list | set | tuple) else 0
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                left.append(other)
    return count


@pytest.mark.parametrize(("kind", "window"), [*((kind, 11) for kind in KINDS), ("anthropic", 1)])
def test_a_host_that_keeps_a_window_of_messages_makes_nothing_grow(
    kind: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload.engine.sources, "MOST_ABSENT", 30)
    off, chat, counts = opened(policy=OffloadPolicy()), Chat(kind), []
    task = chat.messages[:]
    for turn in range(200):
        chat.call(TOOLS[turn % 4], f"result {turn}", path=f"src/{turn}.py", code=f"print({turn})")
        off.offload([*task, *chat.messages[1:][-window:]])
        if turn in (99, 149, 199):
            counts.append(held(off))

    assert max(counts) <= min(counts) * 1.02


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_passed_again_at_another_place_keeps_its_number(kind: str) -> None:
    off, chat = opened(), Chat(kind)
    chat.call("search_code", "first", query="x")
    chat.call("search_code", "second", query="x")
    chat.call("read_file", LONG, path="a.py")
    chat.messages.append(chat.said("assistant", "I see."))
    [record] = off.offload(chat.messages).records

    for first in (3, 5):
        off.offload(chat.messages[first:])
    chat.call("str_replace", "OK", path="a.py", old_str="x", new_str="y")
    off.offload(chat.messages[5:])

    assert "read at call 3; edited at call 4" in source_of(off, record.ref)


def test_of_a_record_older_than_the_calls_that_are_remembered_a_change_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload.engine.sources, "MOST_ABSENT", 5)
    off, chat = opened(), Chat("anthropic")
    chat.call("read_file", LONG, path="a.py")
    chat.messages.append(chat.said("assistant", "I see."))
    [record] = off.offload(chat.messages).records
    read = chat.messages[:]
    chat.call("str_replace", "OK", path="a.py", old_str="x", new_str="y")
    chat.messages.append(chat.said("assistant", "Done."))
    off.offload(chat.messages)
    for turn in range(20):
        chat.call("search_code", "none", query=f"word {turn}")
        off.offload([*read, *chat.messages[-2:]])

    assert source_of(off, record.ref) == "[read at call 1; whether it changed since is not known here]"
