"""Signed thinking: the provider's answer to a change before it, and the changes in a conversation.

A provider may bind a signed block to all that was sent before it, and each block to the one before that. Then
all of them behind a change are left out for good: putting one back would break those that came since.
https://platform.claude.com/docs/en/build-with-claude/preserved-thinking

Another one may refuse tool calls without the thinking that they were made with. Messages may change before
that, and it is never removed. Of a model that nobody knows both may be true: what was sent is kept. If that
cannot be, its thinking is kept too, and removed once the provider has refused it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from offload.base.patterns import lazy_pattern
from offload.engine.parts import MessageState
from offload.engine.policy.models import Answer, HistoryRule, known_model
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.results import HistoryMode
from offload.engine.watching import Look, WatchedMessages, is_same, look
from offload.errors import OffloadError
from offload.messages.access import edits
from offload.messages.thinking import content_digest, signed_thinking


class Binding(NamedTuple):
    """The rules for messages that were sent, once signed thinking is behind them.

    Attributes:
        answer: the provider's to a change of one; None if nobody knows it.
        keeps_sent: whether they are kept as they were sent, where that can be.
    """

    answer: Answer | None
    keeps_sent: bool

    @property
    def removes(self) -> bool:
        """Whether the thinking behind a change is removed."""
        return self.answer == "binds"

    @property
    def is_required(self) -> bool:
        """Whether thinking is never left out."""
        return self.answer == "required"


def binding_of(history: HistoryRule, model: str | None) -> Binding:
    """Return the rules by those of a policy and by the name of the model."""
    if history == "editable":
        return Binding("free", keeps_sent=False)
    known = known_model(model)
    answer = None if known is None else known.thinking
    if history == "append_only":
        return Binding(answer or "binds", keeps_sent=True)
    return Binding(answer, keeps_sent=answer in ("binds", None))


def mode_of(
    rule: HistoryRule, binding: Binding, model: str | None, thinking_at: Sequence[int]
) -> HistoryMode:
    """Return whether messages that were sent may change, and why.

    Args:
        rule: that of the policy.
        binding: the rules for the conversation.
        model: the name of the model; None if it is not known.
        thinking_at: indices of the messages with signed thinking.
    """
    if rule == "rewrite":
        return HistoryMode("editable", Reason(ReasonKind.UNBOUND))
    if rule != "auto":
        return HistoryMode(rule, Reason(ReasonKind.BY_POLICY))
    if not thinking_at:
        return HistoryMode()
    signed = Reason(ReasonKind.SIGNED, message=thinking_at[0], name=model or "")
    if not binding.keeps_sent:
        return HistoryMode("editable", replace(signed, kind=ReasonKind.MODEL_ALLOWS))
    if binding.answer is not None:
        return HistoryMode("append_only", signed)
    kind = ReasonKind.MODEL_UNKNOWN if model else ReasonKind.MODEL_UNNAMED
    return HistoryMode("append_only", replace(signed, kind=kind))


# The provider's refusal, recognised by its text: the message of the error, alone or with other text of a
# proxy or an SDK around it.
# A client may have joined two blocks; then their signature is that of none.
_BOUND = lazy_pattern(
    r"bound to a different conversation|Invalid \W?signature\W? in \W?(?:redacted_)?thinking\W? block"
)
# The path is before the sentence; a path after it is of the message that changed.
_PATH = lazy_pattern(r"\bmessages\.(\d+)\b")
_NEAR = 300
_MISSING = lazy_pattern(
    r"(?i)(?:reasoning_content|thinking\b\W?)[^\n]{0,60}?(?:is missing in assistant|must be passed back)|"
    r"expected \W?thinking\W? or \W?redacted_thinking\W?, but found|must start with a thinking block"
)


class ThinkingRefusal(NamedTuple):
    """A refusal of thinking that is bound to other messages, or of a tool call without its thinking.

    Attributes:
        kind: which of them; thinking whose signature is not valid is refused as bound.
        first: index of the first message whose thinking was refused, in the provider's own list of messages;
            None if the text does not say it.
    """

    kind: Literal["bound", "missing"]
    first: int | None = None


def refusal_in(text: str) -> ThinkingRefusal | None:
    """Return what a provider's error says about thinking; None for any other error."""
    if bound := _BOUND.search(text):
        paths = _PATH.findall(text, max(0, bound.start() - _NEAR), bound.start())
        return ThinkingRefusal("bound", int(paths[-1]) if paths else None)
    return ThinkingRefusal("missing") if _MISSING.search(text) else None


class BoundThinking:
    """The signed thinking of a log, and the changes of messages before it.

    Args:
        states: the parts of the messages; the log extends and cuts this list, and `messages`.
        messages: the messages, as the caller passed and received them.

    Attributes:
        at: indices of the messages with signed thinking.
        keys_checked: how many blocks of thinking were removed when all messages were last compared with them.
    """

    def __init__(self, states: list[MessageState], messages: WatchedMessages) -> None:
        self._states = states
        self._messages = messages
        self.at: list[int] = []
        self.keys_checked = 0
        # How many messages the turn kept; the others, and their parts.
        self._kept = 0
        self._dropped: list[MessageState] = []
        self._looks: Sequence[Look] = ()
        # How the journal of another process keeps a message, if that process sent these.
        self._as_kept: Callable[[Any], Any] = _as_is

    def resume(self, sent: Sequence[Any], as_kept: Callable[[Any], Any]) -> None:
        """Note the messages of the last request of another process, before this one has any.

        `as_kept` returns a message as they are: redacted, if the session redacts.
        """
        self._as_kept, self._kept = as_kept, 0
        self._dropped = [
            MessageState([], 0, (), {}, "", thinking=signed_thinking(message)) for message in sent
        ]
        self._looks = [Look(message, message, message, message) for message in sent]

    def drop(self, kept: int) -> None:
        """Note that a turn replaces all messages but the first `kept`."""
        if not self._states:
            return
        self._as_kept = _as_is
        self._kept, self._dropped = kept, self._states[kept:]
        self._looks = self._messages.dropped

    def add(self, state: MessageState) -> None:
        """Note a message, before its log has it."""
        if state.thinking:
            self.at.append(len(self._states))

    def truncate(self, length: int) -> None:
        """Forget all messages but the first `length`."""
        del self.at[bisect_left(self.at, length) :]

    def sent_from(self, index: int) -> list[int]:
        """Return the indices of the messages from `index` on whose signed thinking is sent."""
        later = self.at[bisect_left(self.at, index) :]
        return [at for at in later if self._states[at].left_out is None]

    def edited_before(self, originals_of: Callable[[Sequence[Any]], Sequence[Any]]) -> int | None:
        """Return the first message that the caller changed before thinking that was sent with another one.

        None if there is no such thinking: it came after the change, only marks of the cache moved, or the
        caller passes the originals of placeholders, which `originals_of` returns, in place of these.
        """
        if self._as_kept is not _as_is:
            self._keep_known()
        kept, states, dropped = self._kept, self._states, self._dropped
        if not dropped or not self.at or self.at[-1] < kept:
            return None
        known = {one.key for state in dropped for one in state.thinking}
        bound = [
            at
            for at in self.at[bisect_left(self.at, kept) :]
            if not known.isdisjoint(one.key for one in states[at].thinking) or self._answers_dropped(at)
        ]
        if not bound:
            return None
        places = range(kept, min(len(states), kept + len(dropped)))
        first = min(self._edited(places, originals_of), default=None)
        return first if first is not None and bound[-1] >= first else None

    def _keep_known(self) -> None:
        """Keep the first messages of the other process that are sent as they were."""
        known = next(edits(self._looks, self._messages.looks(self._kept), self._is_known), len(self._looks))
        self._kept += known
        del self._dropped[:known]
        self._looks = self._looks[known:]

    def _answers_dropped(self, index: int) -> bool:
        """Return whether a new message is the reply to the messages of the last turn, edited since.

        Another conversation may come in their place, whose thinking is whole: the message before the reply,
        or half of the messages, must be unchanged.
        """
        length = self._kept + len(self._dropped)
        if index == length and self._kept * 2 >= length:
            return True
        return index > self._kept and self._is_known(self._looks[-1], *self._messages.looks(index - 1, index))

    def _edited(
        self, places: Sequence[int], originals_of: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> list[int]:
        """Return the places of dropped messages where the model reads another message than before."""
        passed, kept = self._messages.passed, self._kept
        olds, news = self._looks[: len(places)], self._messages.looks(kept, kept + len(places))
        unknown = [*edits(olds, news, self._is_known)]
        originals = originals_of([olds[at].received for at in unknown]) if unknown else ()
        pairs = zip((kept + at for at in unknown), originals, strict=True)
        edited = [at for at, old in pairs if _content(old) != _content(self._as_kept(passed[at]))]
        return [*edited, *filter(self._has_gap, places)]

    def _has_gap(self, index: int) -> bool:
        """Return whether a message lacks thinking of the dropped one at its place, between other thinking."""
        place = index - self._kept
        old, new = self._dropped[place], self._states[index]
        # Thinking may be left out from the first on, not between other thinking.
        is_left_out = old.left_out is not None and not new.thinking
        is_left_out = is_left_out or (self._as_kept is not _as_is and new.left_out is not None)
        is_gap = not is_left_out and [t.key for t in old.thinking] != [t.key for t in new.thinking]
        return is_gap and bool(self.at) and self.at[0] < index

    def _is_known(self, dropped: Look, new: Look) -> bool:
        """Return whether a message is a dropped one, as the caller had it or as the caller received it."""
        messages = new.sent, new.passed
        olds = dropped.seen, dropped.received
        if any(is_same(old, message) for message in messages for old in olds):
            return True
        digests = [_content(self._as_kept(message)) for message in messages]
        return any(_content(old) in digests for old in olds)


def _as_is(message: Any) -> Any:
    return message


def _content(message: Any) -> Any:
    """Return what to compare of a message: all but its thinking and the marks of the cache."""
    try:
        return content_digest(message)
    except OffloadError:
        return look(message)
