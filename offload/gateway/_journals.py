"""The journals of a gateway, one for each conversation, written behind the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from offload.base.threads.locks import NO_FORK
from offload.engine.results import OffloadResult
from offload.errors import OffloadError
from offload.gateway._edits import Edited
from offload.gateway._status import Status
from offload.messages import Usage
from offload.offloader import Offloader
from offload.records.journal.writer import JournalWriter
from offload.records.observer import error_text
from offload.records.session.reader import SessionReader

# Journals that are written at once, and of each the requests that wait for the store, with their messages.
_LANES, _MOST_WAITING = 4, 32
_STOP_SECONDS = 5


class ThreadJournal:
    """The journal of one conversation: a session of its own, which reads the records that it cites.

    The records are in the session `owner`, where the tools to read back find them.

    Args:
        offloader: has the store and the options.
        owner: the session with the records.
        name: the name of the conversation.
    """

    def __init__(self, offloader: Offloader, owner: str, name: str) -> None:
        self._store, self._owner = offloader.store, owner
        self.session = f"{owner}.{name}"
        options = offloader.options
        self.writer = JournalWriter(
            self._store,
            self.session,
            options.redacted,
            options.clock,
            is_shared=True,
            on_created=self._share,
        )
        self._known: set[str] | None = None
        self._failed: list[OffloadError] = []

    def write(self, edited: Edited, result: OffloadResult, used: Usage | None) -> list[OffloadError]:
        """Store a request and the provider's counts for it; return the failures.

        Args:
            edited: it, as it was sent.
            result: what the engine returned for its views.
            used: what the provider counted for it, if it is known.
        """
        self._failed = []
        self._share(decision.ref for decision in result.decisions if decision.ref is not None)
        returned, parsed = result.messages, edited.parsed
        # Equal ones may have been sent with other reminders. Those of the model at the end are not for the
        # engine.
        marks = [*returned, *(object() for _ in parsed.starts[len(returned) :])]
        failed = self.writer.record(
            self,
            self.writer.known(marks),
            lambda start: marks[start:],
            # The text of a thread has its new messages alone.
            lambda index: returned[index] if index < parsed.first else edited.message(index),
            tokens=result.tokens_after,
            tokens_before=result.tokens_before,
            model=parsed.model,
        )
        self.writer.used = used
        return [*self._failed, *failed]

    def _share(self, refs: Iterable[str]) -> None:
        """Let the session of the journal read records, and note a failure."""
        with NO_FORK:
            from offload.maintenance import transfer  # noqa: PLC0415 # slow to load

        try:
            if self._known is None:
                self._known = {info.ref for info in SessionReader(self._store, self.session).infos()}
            new = sorted({*refs} - self._known)
            for ref, error in transfer.share_each(self._store, self._owner, new, self.session):
                self._known.add(ref) if error is None else self._failed.append(error)
        except OffloadError as error:
            self._failed.append(error)


class _Lane:
    """A thread, and what waits for it."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "offload-gateway-journal")
        self.waiting: set[asyncio.Future[None]] = set()


class JournalQueue:
    """Writes the entries of each journal one after another in a thread, so that no request waits for one.

    Attributes:
        sessions: the names of the sessions whose journals it wrote.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._lanes = [_Lane() for _ in range(_LANES)]
        self.sessions: set[str] = set()

    def add(self, journal: ThreadJournal, edited: Edited, result: OffloadResult, used: Usage | None) -> None:
        """Write an entry later; the next one has its messages if the store is too slow for it."""
        lane = self._lanes[hash(journal.session) % _LANES]
        if len(lane.waiting) >= _MOST_WAITING:
            self._status.failed("requests are missing in the timeline, since the store is slow")
            return
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(lane.thread, self._write, journal, edited, result, used)
        lane.waiting.add(work)
        work.add_done_callback(lane.waiting.discard)

    def _write(
        self, journal: ThreadJournal, edited: Edited, result: OffloadResult, used: Usage | None
    ) -> None:
        try:
            failed = journal.write(edited, result, used)
        except Exception as error:  # noqa: BLE001 # a journal costs no request
            self._status.failed(f"a request is missing in the timeline: {type(error).__name__}")
            return
        self.sessions.add(journal.session)
        for one in failed:
            self._status.failed(f"the timeline of a conversation is not written: {error_text(one)}")

    async def close(self) -> None:
        """Write what waits, for a few seconds."""
        if waiting := [work for lane in self._lanes for work in lane.waiting]:
            await asyncio.wait(waiting, timeout=_STOP_SECONDS)
        for lane in self._lanes:
            lane.thread.shutdown(wait=False, cancel_futures=True)
