"""The signed thinking of a conversation, which is bound to what was sent before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from offload.engine.parts import MessageState
from offload.engine.policy.models import HistoryRule, binds_thinking
from offload.engine.results import HistoryMode
from offload.engine.watching import Look, WatchedMessages, is_same, look
from offload.errors import OffloadError
from offload.messages.thinking import content_digest, signed_thinking


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
        # Whether another process sent these, and how its journal keeps a message.
        self._is_resumed = False
        self._as_kept: Callable[[Any], Any] = _as_is

    def resume(self, sent: Sequence[Any], as_kept: Callable[[Any], Any]) -> None:
        """Note the messages of the last request of another process, before this one has any.

        `as_kept` returns a message as they are: redacted, if the session redacts.
        """
        self._is_resumed, self._as_kept, self._kept = True, as_kept, 0
        self._dropped = [
            MessageState([], 0, (), {}, "", thinking=signed_thinking(message)) for message in sent
        ]
        self._looks = [Look(message, message, message, message) for message in sent]

    def drop(self, kept: int) -> None:
        """Note that a turn replaces all messages but the first `kept`."""
        if not self._states:
            return
        self._is_resumed, self._as_kept = False, _as_is
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
        if self._is_resumed:
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
        most = min(len(self._dropped), len(self._states) - self._kept)
        known = sum(1 for _ in takewhile(lambda n: self._is_known(self._kept + n, n), range(most)))
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
        return index > self._kept and self._is_known(index - 1, -1)

    def _edited(
        self, places: Sequence[int], originals_of: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> list[int]:
        """Return the places of dropped messages where the model reads another message than before."""
        passed, kept = self._messages.passed, self._kept
        unknown = [at for at in places if not self._is_known(at, at - kept)]
        originals = originals_of([self._looks[at - kept].received for at in unknown]) if unknown else ()
        pairs = zip(unknown, originals, strict=True)
        edited = [at for at, old in pairs if _content(old) != _content(self._as_kept(passed[at]))]
        return [*edited, *filter(self._has_gap, places)]

    def _has_gap(self, index: int) -> bool:
        """Return whether a message lacks thinking of the dropped one at its place, between other thinking."""
        place = index - self._kept
        old, new = self._dropped[place], self._states[index]
        # Thinking may be left out from the first on, not between other thinking.
        is_left_out = old.left_out is not None and not new.thinking
        is_left_out = is_left_out or (self._is_resumed and new.left_out is not None)
        is_gap = not is_left_out and [t.key for t in old.thinking] != [t.key for t in new.thinking]
        return is_gap and bool(self.at) and self.at[0] < index

    def _is_known(self, index: int, place: int) -> bool:
        """Return whether a message is a dropped one, as the caller had it or as the caller received it."""
        messages = self._messages.sent[index], self._messages.passed[index]
        olds = self._looks[place].seen, self._looks[place].received
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


def mode_of(rule: HistoryRule, model: str | None, thinking_at: Sequence[int]) -> HistoryMode:
    """Return whether messages that were sent may change, and why.

    Args:
        rule: that of the policy.
        model: the name of the model; None if it is not known.
        thinking_at: indices of the messages with signed thinking.
    """
    if rule == "rewrite":
        return HistoryMode("editable", "the policy says so, without the thinking after a change")
    if rule != "auto":
        return HistoryMode(rule, "the policy says so")
    if not thinking_at:
        return HistoryMode()
    place = f"messages[{thinking_at[0]}] has signed thinking"
    binds = binds_thinking(model)
    if binds is False:
        return HistoryMode("editable", f"{model} allows it, although {place}")
    named = "no model is named" if not model else "" if binds else f"{model} is not known"
    return HistoryMode("append_only", f"{place}{named and f', and {named}'}")
