"""Reasons of decisions: values for programs, and the one place of their texts."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import Self

import msgspec

# Before a text whose item is named by its size.
_SIZED = "{size} tokens; "
_SIGNED = "messages[{message}] has signed thinking"
_AFTER_TURN = "; it is offloaded at the end of the model's turn, and the thinking after it is removed"


@unique
class ReasonKind(StrEnum):
    """Kind of a reason; the values are stable codes for programs.

    Attributes:
        text: the text of such a reason; the fields of `Reason` are in braces, and `replies` is its `count`
            of them in words.
    """

    text: str

    def __new__(cls, code: str, text: str) -> Self:
        """Return the member with this code and text."""
        member = str.__new__(cls, code)
        member._value_, member.text = code, text
        return member

    # Kept at any size.
    PLACEHOLDER = "placeholder", "already a placeholder"
    READ_BY_CODE = "read_by_code", "read by code"
    PINNED = "pinned", "pinned"
    UNFINISHED = "unfinished", "not finished yet"
    RETRIEVAL = "retrieval", "answer of a retrieval tool"
    EXCLUDED = "excluded", "{name} matches exclude_tools"
    DISABLED = "disabled", "{name} is not offloaded by this policy"
    # By the rule.
    ABOVE_CEILING = "above_ceiling", "{size} tokens, above max_view_tokens ({limit})"
    STORED_BEFORE = "stored_before", "offloaded before"
    TOOL_ERROR = "tool_error", "an error, which the model should see"
    TOO_SMALL = "too_small", "{size} {name}, fewer than {limit}"
    LATER = "later", "offloaded after {replies}"
    RECENT = "recent", "one of the last {count} results of its tool"
    LARGE = "large", "{size} tokens"
    # Where nothing that was sent may change.
    MODEL_WROTE = "model_wrote", "what the model wrote is sent back unchanged"
    SENT = "sent", "it was sent, and the thinking after it is bound to it"
    SHOWN_FIRST = "shown_first", _SIZED + "the model should see it; it cannot be offloaded later"
    SHOWN_ELSEWHERE = "shown_elsewhere", "an equal item was sent in full"
    # By the expected cost.
    PAYS = "pays", _SIZED + "frees {freed} tokens of each of {count} more requests expected"
    PAYS_COLD = "pays_cold", f"{PAYS[1]}, and the cache is cold"
    NOT_YET = "not_yet", _SIZED + "offloading it is not expected to lower the cost yet"
    FILE_IN_USE = "file_in_use", _SIZED + "its file is being worked on"
    STILL_READ = "still_read", _SIZED + "the model reads more of the same item"
    # With other items.
    TURN_TOO_LARGE = (
        "turn_too_large",
        "the texts of this turn have {size} tokens in total, above max_view_tokens ({limit})",
    )
    SWEPT = "swept", "swept: the conversation has {size} tokens, more than {limit}"
    # By its text.
    LOOK_ALIKE = "look_alike", "looks like a placeholder but is not one"
    FOREIGN_NOTICE = "foreign_notice", "looks like a notice of this session but is not one"
    UNPROVEN = "unproven", "could not check whether it is a placeholder: {name}"
    # By the caller, or since it cannot be stored or replaced.
    VETOED = "vetoed", "kept by should_offload"
    LITTLE_SAVED = "little_saved", "a placeholder would save {size} tokens, under {limit}"
    NOT_REDACTED = "not_redacted", "it consists of several parts and would have to be redacted"
    FAILED = "failed", "not offloaded: {name}"
    NOT_STORED = "not_stored", "not stored: {name}"
    UNKNOWN = "unknown", "its facts are not known"
    CHANGED_BEFORE = "changed_before", "a message before it changed"
    # Of a conversation: whether messages that were sent may change.
    UNSIGNED = "unsigned", "no signed thinking is in the conversation"
    BY_POLICY = "by_policy", "the policy says so"
    UNBOUND = "unbound", "the policy says so, without thinking that is bound"
    SIGNED = "signed", _SIGNED
    MODEL_ALLOWS = "model_allows", f"{{name}} allows it, although {_SIGNED}"
    MODEL_UNKNOWN = "model_unknown", f"{_SIGNED}, and {{name}} is not known"
    MODEL_UNNAMED = "model_unnamed", f"{_SIGNED}, and no model is named"


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why an item is offloaded, waits or is kept, or a conversation may change; `str` is for a person.

    Only the fields that the text of its kind names are set.

    Attributes:
        kind: the kind.
        size: the size that decided: tokens of the item, or of all texts that count; in another unit if its
            `name` says so.
        limit: what that size was compared with.
        name: a unit, a tool, a type, a model, or the text of an error.
        count: replies to wait for, results to keep, or requests expected.
        freed: tokens that the placeholder frees in each of these requests.
        is_after_turn: whether the item is offloaded at the end of the model's turn.
        message: index of the message that decided.
    """

    kind: ReasonKind
    size: int = 0
    limit: int = 0
    name: str = ""
    count: int = 0
    freed: int = 0
    is_after_turn: bool = False
    message: int = 0

    def __str__(self) -> str:
        return self._filled(self.kind.text)

    @property
    def cause(self) -> str:
        """The text without the size of the item before it: the same for all items of a cause."""
        return self._filled(self.kind.text.removeprefix(_SIZED))

    def _filled(self, text: str) -> str:
        replies = "the model's next reply" if self.count == 1 else f"{self.count} more replies of the model"
        filled = text.format(replies=replies, **msgspec.structs.asdict(self))
        return f"{filled}{_AFTER_TURN}" if self.is_after_turn else filled
