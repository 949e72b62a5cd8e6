"""What integrations that make their own offloaders share, without a framework."""

from __future__ import annotations

import pytest
from binding import MISSING, REFUSAL, BoundError
from kit.conversation import from_model, from_user

from offload import Offloader
from offload.agent._refusals import repairs
from offload.errors import ConfigError
from offload.integrations._sessions import Sessions
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

FIELDS = ["write_file.content"]


def test_references_are_refused_where_nothing_resolves_them() -> None:
    with pytest.raises(ConfigError, match=r"does not resolve references.*off\.resolve"):
        Sessions("memory://", reference_fields=FIELDS)


def test_references_reach_the_offloaders_of_an_integration_that_resolves_them() -> None:
    sessions = Sessions("memory://", resolves=True, reference_fields=FIELDS)

    assert "write_file.content" in sessions.named("a conversation").prompt()


THINKING = {"type": "thinking", "thinking": "So.", "signature": "signature"}
MESSAGES = [from_user("go"), from_model([THINKING, {"type": "text", "text": "Gone."}]), from_user("on")]
REFUSED, LACKING = BoundError(REFUSAL.format(1, 0)), BoundError(MISSING.format(1))


def test_thinking_that_is_refused_is_left_out_and_returned_if_the_next_model_lacks_it() -> None:
    off = Offloader("memory://")
    off.offload(MESSAGES)

    assert not repairs(off, MESSAGES, ValueError("too many requests"))
    assert repairs(off, MESSAGES, REFUSED)
    bare = off.offload(MESSAGES).messages
    assert "signature" not in str(bare)
    assert not repairs(off, MESSAGES, REFUSED)
    assert repairs(off, bare, LACKING)
    assert off.offload(MESSAGES).messages == MESSAGES
    assert not repairs(off, MESSAGES, LACKING)


def test_a_store_that_fails_leaves_the_error_with_a_note() -> None:
    off = Offloader(FaultyStore(MemoryStore(), verb="put", is_lasting=True))
    off.offload(MESSAGES)
    error = BoundError(REFUSAL.format(1, 0))

    assert not repairs(off, MESSAGES, error)

    [note] = error.__notes__
    assert "could not store which thinking is sent" in note
    assert off.offload(MESSAGES).messages == MESSAGES
