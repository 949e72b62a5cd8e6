"""Writes the journal of an offloader that a plain loop calls: an entry for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.context import ItemType
from offload.context.ir import item_type_of
from offload.engine.results import OffloadResult
from offload.errors import OffloadError, failure
from offload.events.observer import Activity
from offload.journal.format import Sent
from offload.journal.reader import JournalMessage, JournalState
from offload.journal.writer import Journal
from offload.messages import Usage
from offload.settings.options import Options
from offload.store import OffloadStore


class Recorder:
    """The journal of one session of an `Offloader`.

    Args:
        store: the store of the session.
        session: its name.
        options: the options of its offloader.
        is_new: whether the session has no journal yet.
        is_shared: whether other processes continue the journal too, in turn; it costs a listing a request.

    Attributes:
        activity: what the offloader creates and reads between requests.
        used: what the provider counted for the last request, if it was reported.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        options: Options,
        *,
        is_new: bool,
        is_shared: bool = False,
    ) -> None:
        self.activity = Activity()
        self.used: Usage | None = None
        self._journal = Journal(store, session, options.redacted)
        self._clock = options.clock
        self._is_read = is_new
        self._is_shared = is_shared
        self._is_sure = False
        self._sender: object = None
        self._has_failed = False
        self._unread: list[OffloadError] = []

    def renew(self) -> None:
        """Read the journal before the next request: it may have been deleted, as records were."""
        self._is_read = False

    def interrupt(self) -> None:
        """Note that a turn ended without a request, so that the next one compares all messages."""
        self._is_sure = False

    def record(
        self, result: OffloadResult, marked: tuple[int, Sequence[Any]], model: str | None, *, sender: object
    ) -> list[OffloadError]:
        """Store a request; return the failures that were not returned before.

        Args:
            result: its messages and tokens.
            marked: how many messages are those of the request before, and the marks of the others, see
                `JournalMessage`.
            model: the model that the request goes to.
            sender: the offloader that returns it, one of those that share the session and its options.
        """
        if self._sender is not sender:
            self._sender, self._is_sure = sender, False
        try:
            failed = self._record(result, marked, model)
        except OffloadError as error:
            failed = [error]
        except Exception as error:  # noqa: BLE001 # a message may be an object that raises anything
            failed = [failure("not stored in the journal:", error)]
        new, self._has_failed = [] if self._has_failed else failed, bool(failed)
        return new

    def _record(
        self, result: OffloadResult, marked: tuple[int, Sequence[Any]], model: str | None
    ) -> list[OffloadError]:
        self.read()
        unread, self._unread = self._unread, []
        first, marks = marked
        start = min(first, self._journal.stored) if self._is_sure else 0
        messages = result.messages[start:]
        # A message is its own mark if its mark is not known.
        marks = [*messages[: first - start], *marks]
        lines = [JournalMessage(_type_of(m), m, mark) for m, mark in zip(messages, marks, strict=True)]
        now = self._clock()
        created, reads = self.activity.take()
        # A look-alike of a placeholder grows when it is offloaded.
        freed = max(0, result.tokens_before - result.tokens_after)
        sent = Sent(int(now * 1000), len(result.messages), result.tokens_after, freed, read_backs=reads)
        state = JournalState(lines, {}, requested=now, records=created)
        self._is_sure = False
        failed = self._journal.write(start, state, sent=sent, model=model, used=self.used)
        self._is_sure, self.used = True, None
        return [*unread, *failed]

    def read(self) -> list[Any]:
        """Read the journal that the session has, if that is not known; return the messages that it read.

        The next request reports why it cannot be continued.
        """
        try:
            is_current = self._is_read and not self._journal.was_deleted()
            if is_current and not (self._is_shared and self._journal.is_behind()):
                return []
            self._is_read, self._is_sure = True, False
            return [line.message for line in self._journal.read().messages]
        except OffloadError as error:
            self._unread = [error]
            return []


def _type_of(message: Any) -> ItemType:
    try:
        return item_type_of(message)
    except Exception:  # noqa: BLE001 # an object that is not a message may raise anything
        return ItemType.USER_MESSAGE
