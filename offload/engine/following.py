"""Following a conversation: its tool calls, their results and records, for the tools of the model."""

from __future__ import annotations

from contextlib import suppress

from offload.engine.history import History, MessageState
from offload.messages import Call, CallId
from offload.record import escape_surrogates
from offload.tools import CallKey, Sources


class Follower:
    """Passes what is new in a history on to `sources`, at a cost that depends on what is new."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._seen: list[MessageState] = []
        # The calls of messages that were dropped earlier and not passed since.
        self._absent: set[CallKey] = set()

    def follow(self, history: History) -> None:
        """Note the messages of a history that were added, dropped or offloaded since the last call."""
        states, seen = history.states, self._seen
        kept = min(len(seen), len(states))
        while kept and seen[kept - 1] is not states[kept - 1]:
            kept -= 1
        dropped = [_key(*made) for state in seen[kept:] for made in state.calls.items()]
        self._sources.drop(dropped, {_key(*made) for state in states[kept:] for made in state.calls.items()})
        del seen[kept:]
        again = {*dropped}
        for state in states[kept:]:
            with suppress(Exception):  # A message object may raise anything; its calls are then unknown.
                self._add(state, again)
            seen.append(state)
        self._absent |= again
        for item, ref in history.items.take_standing():
            key = item.tool_use_id if item.call is None else _key(item.tool_use_id, item.call)
            if key is not None:
                self._sources.add_record(key, ref, is_result=item.item_type == "tool_result")

    def _add(self, state: MessageState, again: set[CallKey]) -> None:
        """Note a message; `again` has the calls of dropped messages that were not passed again yet."""
        if state.answers > (self._seen[-1].answers if self._seen else 0):
            self._sources.end_calls()
        for made in state.calls.items():
            key = _key(*made)
            self._sources.add_call(key, made[1], is_again=key in again, was_absent=key in self._absent)
            again.discard(key)
            self._absent.discard(key)
        for slot in state.slots:
            item = slot.item
            if item.item_type == "tool_result" and item.call is not None and item.media is None:
                text = None if slot.proof == "ours" else item.text
                self._sources.add_result(_key(item.tool_use_id, item.call), text, is_error=item.is_error)


def _key(call_id: CallId | None, call: Call) -> CallKey:
    """Return the key of a call; one without an id has its own object, which the history keeps."""
    return escape_surrogates(call_id) if isinstance(call_id, str) else id(call)
