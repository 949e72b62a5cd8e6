"""Following a conversation: its tool calls, their results and records, for the tools of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from offload.base.text import escape_surrogates
from offload.engine.log import Log
from offload.engine.parts import MessageState
from offload.engine.sources import CallKey, Sources
from offload.messages import Call
from offload.messages.calls import Made
from offload.messages.files import request_of


class Follower:
    """Passes what is new in a log on to `sources`, at a cost that depends on what is new."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        # The keys of the calls without an id, by the calls' objects, which the messages seen hold.
        self._keys: dict[int, int] = {}
        self._last_key = 0

    def follow(self, log: Log) -> None:
        """Note the messages of a log that were added, dropped or offloaded since the last call."""
        dropped, first = log.take_change()
        new = log.states[first:]
        calls = _calls(new)
        again = self._renamed(_calls(dropped), calls)
        self._sources.drop(again, {self._key(*made) for made in calls})
        answers = log.answers_of(first - 1)
        for state in new:
            with suppress(Exception):  # A message object may raise anything; its calls are then unknown.
                self._add(state, answers, again)
            answers = state.answers
        for item, ref in log.items.take_placeholders():
            key = item.tool_use_id if item.call is None else self._key(item.tool_use_id, item.call)
            if key is not None:
                self._sources.add_record(key, ref, is_result=item.item_type == "tool_result")

    def _add(self, state: MessageState, answers: int, again: set[CallKey]) -> None:
        """Note a message after so many replies.

        `again` has the calls of dropped messages that were not passed again yet.
        """
        if state.answers > answers:
            self._sources.end_calls()
        for made in state.calls:
            key = self._key(*made)
            self._sources.add_call(key, made[1], is_again=key in again)
            again.discard(key)
        for slot in state.slots:
            item = slot.item
            if item.item_type == "tool_result" and item.call is not None and item.media is None:
                text = None if slot.proof == "proven" else item.text
                key = self._key(item.tool_use_id, item.call)
                self._sources.add_result(key, text, is_error=item.is_error)

    def _renamed(self, dropped: Sequence[Made], new: Sequence[Made]) -> set[CallKey]:
        """Give keys to the new calls without an id; return the keys of the dropped calls.

        A host that drops its first messages passes the others again: from the last one on, a call gets the
        key of a dropped one that asked for the same.
        """
        gone = {self._key(*made) for made in dropped}
        nameless = [call for call_id, call in dropped if not call_id]
        free: dict[str, list[int]] = {}
        for call in nameless:
            free.setdefault(_request(call), []).append(self._keys.pop(id(call)))
        for call_id, call in reversed(new):
            if not call_id:
                equal = free.get(_request(call)) if free else None
                self._last_key += not equal
                self._keys[id(call)] = equal.pop() if equal else self._last_key
        return gone

    def _key(self, call_id: str | None, call: Call) -> CallKey:
        return escape_surrogates(call_id) if call_id else self._keys[id(call)]


def _calls(states: Iterable[MessageState]) -> list[Made]:
    return [made for state in states for made in state.calls]


def _request(call: Call) -> str:
    try:
        return request_of(call)
    except Exception:  # noqa: BLE001 # an argument may raise anything
        return ""
