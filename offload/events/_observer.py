"""What an offloader tells of itself: to `logging`, to listeners, and as counts of what was read back.

Every event carries ids and sizes, never content. Each is logged under the name `offload`, at DEBUG; a
failure at WARNING, whether anybody listens or not. The data by type, each with the name of its `session`:

    item_stored        ref, item_type, tool_name, tool_use_id, chars, tokens, bytes, stored_bytes and
                       chars_freed of an item whose record is durable and whose placeholder is known
    item_kept          item_type, tool_name, tool_use_id, chars, tokens and reason of a text that offload_text
                       or a sink gives back as it came
    offload_failed     kind: the code of the error for which something was left in its message
    call_ended         operation: offload, offload_text, restore, gc, verify or the name of a tool;
                       seconds; kind, if it raised; reads, of a tool: the characters it showed by ref;
                       of offload also what `OffloadResult.figures` says
    records_collected  what `GcReport.figures` says; of a whole store `session` is None
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from offload.errors import MessageError, OffloadError
from offload.events._bus import ContextEvent, EventBus, EventType
from offload.locks import Lock
from offload.record import RecordInfo

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("offload")
# What is told of a record.
_TOLD = ("ref", "item_type", "tool_name", "tool_use_id", "chars", "tokens", "bytes", "stored_bytes")
_TOLD_OF_KEPT = ("item_type", "tool_name", "tool_use_id", "chars", "tokens")
# What the call that runs now will tell; None where nobody listens.
_running: ContextVar[dict[str, Any] | None] = ContextVar("_running", default=None)


class Observer:
    """Tells what becomes of the items of one session.

    While nobody listens and the log takes no DEBUG, no event is made and no clock is asked.

    Args:
        session: name of the session; None for what concerns a whole store.
        events: who is told.

    Attributes:
        events: the same.
    """

    def __init__(self, session: str | None, events: EventBus | None = None) -> None:
        self.events = EventBus() if events is None else events
        self._session = session
        self._place = "store" if session is None else f"session {session}"
        self._reads: dict[str, int] = {}
        self._chars_read = 0
        self._lock = Lock()

    @property
    def is_heard(self) -> bool:
        """Whether an event would reach a listener or the log."""
        return self.events.has_listeners or _log.isEnabledFor(logging.DEBUG)

    @property
    def reads(self) -> dict[str, int]:
        """How often each record was read back, by ref."""
        with self._lock:
            return dict(self._reads)

    @property
    def chars_read(self) -> int:
        """Characters of all that was read back."""
        return self._chars_read

    def stored(self, info: RecordInfo, placeholder: str) -> None:
        """Tell that an item is durable in the store, and what stands for it."""
        if self.is_heard:
            detail = f"{info.ref}: {info.chars} characters stored in {info.stored_bytes} bytes"
            data = {name: getattr(info, name) for name in _TOLD}
            self._tell(EventType.ITEM_STORED, detail, {**data, "chars_freed": info.chars - len(placeholder)})

    def kept(self, facts: Mapping[str, Any], reason: str) -> None:
        """Tell that a text stays as it came, and why; `facts` are those of its item by name."""
        if self.is_heard:
            detail = f"{facts['item_type']}: {facts['chars']} characters stay: {reason}"
            data = {name: facts[name] for name in _TOLD_OF_KEPT}
            self._tell(EventType.ITEM_KEPT, detail, {**data, "reason": reason})

    def failed(self, error: OffloadError) -> None:
        """Tell that something was left in its message."""
        detail = f"left in the message: {error_text(error)}"
        _log.warning("%s: %s", self._place, detail)
        if self.events.has_listeners:
            data = {"session": self._session, "kind": error.kind}
            self.events.emit(ContextEvent(EventType.OFFLOAD_FAILED, detail, data))

    def collected(self, figures: Mapping[str, int]) -> None:
        """Tell what a collection did."""
        if self.is_heard:
            detail = f"{figures['marked']} records marked, {figures['deleted']} deleted"
            self._tell(EventType.RECORDS_COLLECTED, detail, figures)

    def read_back(self, ref: str, shown: str) -> str:
        """Count that `shown` shows a part of a record, and return it."""
        with self._lock:
            self._reads[ref] = self._reads.get(ref, 0) + 1
            self._chars_read += len(shown)
        call = _running.get()
        if call is not None:
            call.setdefault("reads", {})[ref] = len(shown)
        return shown

    @contextmanager
    def call(self, operation: str) -> Iterator[dict[str, Any]]:
        """Tell how long a block took and how it ended, with what it adds to the data that it is given."""
        data: dict[str, Any] = {"operation": operation}
        before = _running.set(data)
        started = time.perf_counter()
        try:
            yield data
        except BaseException as error:
            data["kind"] = error.kind if isinstance(error, OffloadError) else type(error).__name__
            raise
        finally:
            _running.reset(before)
            data["seconds"] = time.perf_counter() - started
            ending = f": {data['kind']}" if "kind" in data else ""
            self._tell(EventType.CALL_ENDED, f"{operation}, {1000 * data['seconds']:.1f} ms{ending}", data)

    def _tell(self, event_type: EventType, detail: str, data: Mapping[str, Any]) -> None:
        _log.debug("%s: %s", self._place, detail)
        self.events.emit(ContextEvent(event_type, detail, {"session": self._session, **data}))


class _Observed(Protocol):
    _observer: Observer


S = TypeVar("S", bound=_Observed)


def observed(
    operation: str, figures: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Have each call of a method told, by the `_observer` of its object.

    Args:
        operation: what the call is named.
        figures: returns what is told of a result beside that.
    """

    def decorate(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        @wraps(method)
        def told(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if not self._observer.is_heard:
                return method(self, *args, **kwargs)
            with self._observer.call(operation) as data:
                result = method(self, *args, **kwargs)
                data.update(figures(result) if figures else {})
                return result

        return told

    return decorate


def failure(what: str, error: Exception) -> OffloadError:
    """Return what a part of the caller's own raised as an error of ours, with that as its cause."""
    failed = OffloadError(f"{what} {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


def error_text(error: OffloadError) -> str:
    """Return what a log may say of an error: what another's exception says may quote what it choked on."""
    if type(error) in (OffloadError, MessageError) and error.__cause__ is not None:
        return f"{error.kind}, after {type(error.__cause__).__name__}"
    return str(error)
