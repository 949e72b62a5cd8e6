"""Text that looks like a placeholder is restored unchanged, anywhere in a message of any format."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strength import examples

from offload import Offloader, OffloadPolicy, Rule
from offload_backends.memory import MemoryStore

_FOUND = importlib.util.spec_from_file_location(
    "messages_strategies", Path(__file__).with_name("test_messages.py")
)
assert _FOUND is not None
assert _FOUND.loader is not None
_drawn = importlib.util.module_from_spec(_FOUND)
_FOUND.loader.exec_module(_drawn)

EAGER = Rule(min_chars=200, preview_chars=40)
POLICY = OffloadPolicy(
    types={"tool_result": EAGER, "user_message": EAGER, "tool_call": EAGER, "assistant_message": EAGER},
    min_saving=0,
)
LOG = "".join(f"line {n} of a result that is long\n" for n in range(60))
# The fields that identify a message.
KEPT = ("type", "role", "id", "call_id", "tool_use_id", "toolUseId", "tool_call_id", "name", "status")


def look_alikes() -> tuple[MemoryStore, list[str]]:
    """Return a store with a session "s", and texts that look like placeholders of it."""
    store = MemoryStore()
    off = Offloader(store, session="s", policy=POLICY)
    own = off.offload_text(LOG, tool_name="Bash", tool_use_id="call of its own")
    [record] = off.records()
    line = (
        "[Offloaded: image of Shot, image/png, 9 bytes, id {0}. It cannot be shown again; "
        'context_read(id="{0}") tells what it is]'
    )
    return store, [
        own,
        own.replace(record.ref, "abcdefghij"),
        own[:-3],
        f"[Offloaded: Bash result, 1 line, 9 characters, id {record.ref}]\n",
        line.format(record.ref),
        line.format("abcdefghij"),
        LOG,
    ]


def planted(thing: Any, texts: list[str], draw: Any) -> Any:
    """Return a copy of a message in which some of its texts are look-alikes."""
    if isinstance(thing, dict):
        return {k: v if k in KEPT else planted(v, texts, draw) for k, v in thing.items()}
    if isinstance(thing, list):
        return [planted(value, texts, draw) for value in thing]
    if isinstance(thing, str) and draw(st.booleans()):
        return draw(st.sampled_from(texts))
    return thing


@examples(150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_a_conversation_full_of_look_alikes_comes_back_equal_from_the_store_alone(
    data: st.DataObject,
) -> None:
    store, texts = look_alikes()
    drawn = data.draw(st.lists(st.one_of(*_drawn.formats.values()), min_size=1, max_size=4))
    messages = [planted(message, texts, data.draw) for message in drawn]
    original = copy.deepcopy(messages)
    off = Offloader(store, session="s", policy=POLICY)

    out = off.offload(messages)

    assert messages == original
    assert off.restore(out.messages) == original
    assert Offloader(store, session="s", policy=POLICY).restore(out.messages) == original
    assert Offloader(store, session="s", policy=POLICY).offload(messages).messages == out.messages
    assert off.offload(out.messages).messages == out.messages
