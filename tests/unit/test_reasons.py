"""Reasons of decisions, and their texts."""

from __future__ import annotations

import copy
import pickle
from string import Formatter

import pytest

from offload import Reason, ReasonKind

AFTER_TURN = "it is offloaded at the end of the model's turn, and the thinking after it is removed"
FIELDS = {*Reason.__struct_fields__, "replies"}


@pytest.mark.parametrize("kind", ReasonKind)
def test_every_text_is_made_of_fields_of_the_reason(kind: ReasonKind) -> None:
    used = {name for _, name, _, _ in Formatter().parse(kind.text) if name is not None}
    assert used <= FIELDS
    assert str(Reason(kind))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason(ReasonKind.PINNED), "pinned"),
        (Reason(ReasonKind.TOO_SMALL, 1499, 1500, "tokens"), "1499 tokens, fewer than 1500"),
        (Reason(ReasonKind.LARGE, 5000), "5000 tokens"),
        (Reason(ReasonKind.LATER, count=3), "offloaded after 3 more replies of the model"),
        (Reason(ReasonKind.LATER, count=1), "offloaded after the model's next reply"),
        (Reason(ReasonKind.NOT_STORED, name="no {braces}"), "not stored: no {braces}"),
        (
            Reason(ReasonKind.PAYS, 900, count=40, freed=480),
            "900 tokens; frees 480 tokens of each of 40 more requests expected",
        ),
        (
            Reason(ReasonKind.PAYS_COLD, 900, count=40, freed=480),
            "900 tokens; frees 480 tokens of each of 40 more requests expected, and the cache is cold",
        ),
        (
            Reason(ReasonKind.ABOVE_CEILING, 9000, 8000, is_after_turn=True),
            f"9000 tokens, above max_view_tokens (8000); {AFTER_TURN}",
        ),
        (
            Reason(ReasonKind.MODEL_ALLOWS, name="gemini-3", message=7),
            "gemini-3 allows it, although messages[7] has signed thinking",
        ),
        (Reason(ReasonKind.MODEL_UNNAMED), "messages[0] has signed thinking, and no model is named"),
    ],
    ids=str,
)
def test_a_reason_has_a_text_for_a_person(reason: Reason, text: str) -> None:
    assert str(reason) == text


def test_the_cause_leaves_out_the_size_of_the_item_before_it() -> None:
    assert Reason(ReasonKind.FILE_IN_USE, 8051).cause == "its file is being worked on"
    assert Reason(ReasonKind.LARGE, 8051).cause == "8051 tokens"


def test_a_reason_is_a_value_that_can_be_copied_and_counted() -> None:
    one, other = (Reason(ReasonKind.SWEPT, 9, 5) for _ in range(2))
    assert {one: 1}[other] == 1
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one  # noqa: S301 # its own bytes
    assert one.kind == "swept"
