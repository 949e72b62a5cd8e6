"""Events of an offloader: logged, passed to listeners, and counted for retrieval.

Every event carries ids and sizes, never content. Each is logged under the name `offload`, at DEBUG; a
failure and what is above the ceiling at WARNING, even without listeners. The data by type, each with the
name of its `session`:

    item_stored        ref, item_type, tool_name, tool_use_id, chars, tokens, bytes, stored_bytes and
                       chars_freed of an item whose record is durable and whose placeholder is known
    item_kept          item_type, tool_name, tool_use_id, chars and tokens of a text that offload_text or a
                       sink returns unchanged; kind: the code of the reason; reason: its text
    offload_failed     kind: the code of the error that cost an item its offload
    above_ceiling      kind: "above_ceiling", of an item or a turn that is kept above `max_view_tokens` by
                       design: it is pinned, bound, or of a kind that the policy keeps; nothing failed
    index_failed       kind: the code of the error that kept an index file of the store, such as
                       `index.json`, from being updated; every record is stored, and the next call tries again
    journal_failed     kind: the code of the error that kept a request, or one of its messages, out of the
                       journal; the next request tries again
    call_ended         operation: offload, offload_text, restore, gc, verify or the name of a tool;
                       seconds; kind, if it raised; reads, for a tool: the characters it returned by ref;
                       for offload also `OffloadResult.figures`
    reference_resolved ref, tool_name, field and chars of content that a model's call got in place of an id
    reference_refused  tool_name of such a call that was refused, and kind, the code of the cause
    thinking_removed   blocks of signed thinking that no later request has, since a message before them
                       changed; the first of a session is logged at WARNING
    records_collected  `GcReport.figures`; `session` is None for a whole store
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from offload.base.events import ContextEvent, EventBus, EventType
from offload.base.patterns import lazy_pattern
from offload.base.threads.locks import Lock
from offload.errors import ConfigError, MessageError, OffloadError
from offload.records.record import RecordInfo

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("offload")
_PLACE = lazy_pattern(r"messages\[\d+\][\w.\[\]]*")
_STORED_FIELDS = ("ref", "item_type", "tool_name", "tool_use_id", "chars", "tokens", "bytes", "stored_bytes")
_KEPT_FIELDS = ("item_type", "tool_name", "tool_use_id", "chars", "tokens")
_FAILED = {
    EventType.OFFLOAD_FAILED: "offloading failed",
    EventType.INDEX_FAILED: "index not updated",
    EventType.JOURNAL_FAILED: "journal not written",
}
# The data of the call that runs now; None without listeners.
_running: ContextVar[dict[str, Any] | None] = ContextVar("_running", default=None)


class Activity:
    """Collects what the offloaders of one session created and read back, for its journal."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._created: dict[str, None] = {}
        self._reads = 0

    def created(self, ref: str) -> None:
        """Note the record of an item that was offloaded, new or adopted."""
        with self._lock:
            self._created[ref] = None

    def read_back(self) -> None:
        """Note one read of a record."""
        with self._lock:
            self._reads += 1

    def take(self) -> tuple[list[str], int]:
        """Return the ids of the records, and the number of reads since the last call."""
        with self._lock:
            taken, self._created, self._reads = ([*self._created], self._reads), {}, 0
        return taken


class Observer:
    """Reports the items and calls of one session.

    Without listeners and DEBUG logging, only a failure creates an event, and no clock is read. The session is
    None for a whole store. A journal reads `activity`, if there is one. If a failure `keeps_originals` in
    their messages, its report says so.
    """

    def __init__(
        self, session: str | None, events: EventBus | None = None, *, keeps_originals: bool = False
    ) -> None:
        self.activity: Activity | None = None
        self.events: EventBus = EventBus() if events is None else events
        self._session = session
        self._place = "store" if session is None else f"session {session}"
        self._kept = ", originals are kept" if keeps_originals else ""
        self._has_removed_thinking = False
        self._reads: dict[str, int] = {}
        self._chars_read = 0
        self._lock = Lock()

    @property
    def is_heard(self) -> bool:
        """Whether an event would reach a listener or the log."""
        return self.events.has_listeners or _log.isEnabledFor(logging.DEBUG)

    @property
    def reads(self) -> dict[str, int]:
        """Number of reads of each record, by ref."""
        with self._lock:
            return dict(self._reads)

    @property
    def chars_read(self) -> int:
        """Characters of all reads."""
        return self._chars_read

    def uses(self, info: RecordInfo) -> None:
        """Note for the journal that a message needs a record."""
        if self.activity is not None:
            self.activity.created(info.ref)

    def stored(self, info: RecordInfo, placeholder: str) -> None:
        """Report a durable record and its placeholder."""
        if self.is_heard:
            detail = f"{info.ref}: {info.chars} characters stored in {info.stored_bytes} bytes"
            data = {name: getattr(info, name) for name in _STORED_FIELDS}
            self._report(
                EventType.ITEM_STORED, detail, {**data, "chars_freed": info.chars - len(placeholder)}
            )

    def kept(self, facts: Mapping[str, Any], kind: str, reason: str) -> None:
        """Report that a text is kept, and why; `facts` are the fields of its item by name."""
        if self.is_heard:
            detail = f"{facts['item_type']}: {facts['chars']} characters kept: {reason}"
            data = {name: facts[name] for name in _KEPT_FIELDS}
            self._report(EventType.ITEM_KEPT, detail, {**data, "kind": kind, "reason": reason})

    def failed(self, error: OffloadError, event: EventType = EventType.OFFLOAD_FAILED) -> None:
        """Report an error that cost an item its offload, or as another event what was not done, and why."""
        kept = self._kept if event is EventType.OFFLOAD_FAILED else ""
        what = f"{_FAILED[event]}{kept}: " if event in _FAILED else ""
        detail = f"{what}{error_text(error)}"
        self._report(event, detail, {"kind": error.kind}, logging.WARNING)

    def thinking_removed(self, blocks: int, cause: str) -> None:
        """Report that signed thinking was stored and left out; `cause` says why."""
        level = logging.DEBUG if self._has_removed_thinking else logging.WARNING
        self._has_removed_thinking = True
        some = "1 block" if blocks == 1 else f"{blocks} blocks"
        detail = f"{some} of thinking left out from now on, since {cause}; restore returns all of it"
        self._report(EventType.THINKING_REMOVED, detail, {"blocks": blocks}, level)

    def collected(self, figures: Mapping[str, int]) -> None:
        """Report the figures of a garbage collection."""
        if self.is_heard:
            detail = f"{figures['marked']} records marked, {figures['deleted']} deleted"
            self._report(EventType.RECORDS_COLLECTED, detail, figures)

    def referenced(self, ref: str, tool_name: str, field: str, chars: int) -> None:
        """Report content that was inserted in the arguments of a model's call."""
        if self.is_heard:
            detail = f"{ref}: {chars} characters inserted in {field} of a call of {tool_name}"
            data = {"ref": ref, "tool_name": tool_name, "field": field, "chars": chars}
            self._report(EventType.REFERENCE_RESOLVED, detail, data)

    def reference_refused(self, tool_name: str, error: OffloadError) -> None:
        """Report a reference in the arguments of a model's call that was refused."""
        cause = error.__cause__ if isinstance(error.__cause__, OffloadError) else error
        detail = f"a reference in a call of {tool_name} was refused: {cause.kind}"
        data = {"tool_name": tool_name, "kind": cause.kind}
        self._report(EventType.REFERENCE_REFUSED, detail, data, logging.WARNING)

    def read_back(self, ref: str, text: str) -> str:
        """Count a read of a record and return its text."""
        with self._lock:
            self._reads[ref] = self._reads.get(ref, 0) + 1
            self._chars_read += len(text)
        if self.activity is not None:
            self.activity.read_back()
        call = _running.get()
        if call is not None:
            call.setdefault("reads", {})[ref] = len(text)
        return text

    @contextmanager
    def call(self, operation: str) -> Iterator[dict[str, Any]]:
        """Report the duration and end of a block, with the data that the block adds to the yielded dict."""
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
            self._report(EventType.CALL_ENDED, f"{operation}, {1000 * data['seconds']:.1f} ms{ending}", data)

    def _report(
        self, event_type: EventType, detail: str, data: Mapping[str, Any], level: int = logging.DEBUG
    ) -> None:
        _log.log(level, "%s: %s", self._place, detail)
        self.events.emit(ContextEvent(event_type, detail, {"session": self._session, **data}))


class _Observed(Protocol):
    _observer: Observer


S = TypeVar("S", bound=_Observed)


def observed(
    operation: str, figures: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Report each call of a method to the `_observer` of its object, with the `figures` of its result."""

    def decorate(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        @wraps(method)
        def reported(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if not self._observer.is_heard:
                return method(self, *args, **kwargs)
            with self._observer.call(operation) as data:
                result = method(self, *args, **kwargs)
                data.update(figures(result) if figures else {})
                return result

        return reported

    return decorate


def error_text(error: OffloadError) -> str:
    """Return the text of an error for a log, without what may quote content.

    Of a foreign exception that is the name, of a malformed message the place.
    """
    is_foreign = error.__cause__ is not None and type(error.__cause__) is not ConfigError
    if is_foreign and type(error) in (OffloadError, MessageError):
        return f"{error.kind}, after {type(error.__cause__).__name__}"
    if isinstance(error, MessageError):
        place = _PLACE.match(str(error))
        return f"{place[0] if place else 'a message'} is malformed (the result's `errors` say why)"
    return str(error)
