"""What happens to a context, for whoever wants to know.

One bus serves an offloader, the context in front of it and the agent loop around both:

    off = Offloader("s3://bucket/prefix", session="research-42")
    off.events.subscribe(lambda event: print(event.event_type, event.detail))

What an offloader tells, and the figures of each event, stands at `offload.events`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from offload.errors import ConfigError
from offload.threads import Gate

_log = logging.getLogger("offload")


class EventType(StrEnum):
    """What happened; the values are stable codes for programs."""

    ITEM_ADDED = "item_added"
    ITEM_REMOVED = "item_removed"
    CONVERSATION_REPLACED = "conversation_replaced"
    CONTEXT_COMPACTED = "context_compacted"
    COMPACTION_FAILED = "compaction_failed"
    ITEMS_OFFLOADED = "items_offloaded"
    CONTEXT_FAILED = "context_failed"
    ITEM_STORED = "item_stored"
    ITEM_KEPT = "item_kept"
    OFFLOAD_FAILED = "offload_failed"
    CALL_ENDED = "call_ended"
    RECORDS_COLLECTED = "records_collected"


@dataclass(frozen=True, slots=True)
class ContextEvent:
    """One thing that happened.

    Attributes:
        event_type: what it was.
        detail: the same in words, without content of the conversation.
        data: its figures and texts by name; those of each type stand at what emits it.
    """

    event_type: EventType
    detail: str
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[ContextEvent], object]


class _Later:
    """What is told once a call lets others in again."""

    def __init__(self) -> None:
        self.events: list[tuple[EventBus, ContextEvent]] = []
        self.is_over = False


# Where events wait, and the listeners that are being told.
_later: ContextVar[_Later | None] = ContextVar("_later", default=None)
_told: ContextVar[tuple[object, ...]] = ContextVar("_told", default=())


class EventBus:
    """Tells listeners what happens, in the order in which they subscribed.

    A listener is called by the thread whose call it is told of, which waits for it: it should be quick. It
    holds up no other call. A call in which it uses the offloader that tells it raises `ConfigError`, but for
    those that read, and it is not told of what it causes itself.
    """

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[EventType | None, Listener]] = {}

    @property
    def has_listeners(self) -> bool:
        """Whether anybody is told."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener, event_type: EventType | None = None) -> Callable[[], None]:
        """Have `listener` called with each event; return the function that ends it.

        Args:
            listener: a plain function of one event. What it raises is logged, and reaches nobody.
            event_type: the only type it is called with; None is all of them.

        Raises:
            ConfigError: `listener` is an async function, which nobody would wait for.
        """
        if inspect.iscoroutinefunction(listener):
            raise ConfigError(f"a listener is a plain function of one event, not {listener!r:.80}")
        name = object()
        self._listeners[name] = event_type, listener

        def unsubscribe() -> None:
            self._listeners.pop(name, None)

        return unsubscribe

    def emit(self, event: ContextEvent) -> None:
        """Tell every listener of `event`."""
        later = _later.get()
        if later is not None and not later.is_over:
            later.events.append((self, event))
            return
        for name, (wanted, listener) in self._listeners.copy().items():
            if wanted in (None, event.event_type):
                _tell(name, listener, event)


@contextmanager
def exclusive(gate: Gate) -> Iterator[None]:
    """Be the only call inside of `gate`; listeners are told what happened once others are let in again.

    Raises `ConfigError` as the gate does.
    """
    with gate.entered(), deferred_events(), gate.alone():
        yield


@contextmanager
def deferred_events() -> Iterator[None]:
    """Have listeners told at the end of what happens inside: one that blocks must hold up nobody else."""
    outer = _later.get()
    if outer is not None and not outer.is_over:
        yield
        return
    later = _Later()
    token = _later.set(later)
    try:
        yield
    finally:
        _later.reset(token)
        later.is_over = True
        for bus, event in later.events:
            bus.emit(event)


def _tell(name: object, listener: Listener, event: ContextEvent) -> None:
    told = _told.get()
    if name in told:
        return
    token = _told.set((*told, name))
    try:
        listener(event)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 # a listener of the caller's own may raise anything
        _log.exception("a listener failed on %s", event.event_type)
    finally:
        _told.reset(token)
