"""The notice of a compaction: the task, a model's summary, and the ledger of the removed messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from offload.agent.compaction._archive import MessageArchive
from offload.agent.compaction._ledger import CommandOutcome, Ledger, Mention, mentions_of, stored_item
from offload.base.threads.locks import cached
from offload.base.tokens import estimate_tokens
from offload.engine.placeholder import Notice
from offload.engine.placeholder.notice import NOTICE_TYPE
from offload.errors import OffloadError, result_or_error
from offload.messages.adapter import Scan
from offload.messages.base import Item
from offload.messages.formats import adapter_for, is_result, role_or_none, scan_of
from offload.records.observer import error_text
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader
from offload.records.session.titles import with_titles

_log = logging.getLogger("offload")
# The most characters of an offloaded item that is read back for its facts.
_MOST_READ_CHARS = 200_000
_CUT = " [… {} more characters are stored]"


class Digest:
    """The parts of the next notice of a conversation; each message is scanned once for all plans.

    The `redact` of the session of `archive` is applied to all that the notice quotes.
    """

    def __init__(self, messages: Sequence[Any], archive: MessageArchive) -> None:
        self._messages = messages
        self._archive = archive
        self._offloader = archive.offloader
        self._redact = archive.offloader.options.redacted
        self._mentions: dict[int, list[Mention | CommandOutcome]] = {}

    def notice(
        self, removed: Sequence[int], summary: str, ledger_tokens: float, task_tokens: float
    ) -> Notice:
        """Return the notice that replaces the messages at the indices `removed`.

        Its ledger and task have at most these numbers of estimated tokens. Raises `OffloadError` if the store
        fails.
        """
        at, task = self._task
        task = _cut(task, task_tokens) if at in removed else ""
        ledger = self._ledger(removed, f"{task}\n{summary}", ledger_tokens)
        return replace(self._notice, messages=len(removed), summary=summary, ledger=ledger, task=task)

    @cached
    def _notice(self) -> Notice:
        return self._archive.notice(self._messages)

    @cached
    def _infos(self) -> dict[str, RecordInfo]:
        return {info.ref: info for info in self._offloader.records(is_fresh=False)}

    @cached
    def _listed(self) -> dict[str, RecordInfo]:
        return {info.ref: info for info in self._offloader.records()}

    def _info(self, ref: str) -> RecordInfo | None:
        """Return the entry of a record; the first one that another process stored takes a listing."""
        if ref not in self._infos and ref in self._listed:
            self._infos[ref] = self._listed[ref]
        return self._infos.get(ref)

    @cached
    def _apart(self) -> list[tuple[list[dict[str, str]], Any]]:
        """The earlier notices in each message, as their parts, and the message without them."""
        pairs = zip(self._messages, self._scans, strict=True)
        found = [_told_apart(message, scan, self._is_notice) for message, scan in pairs]
        return [([self._notice.parts(text) for text in texts], _joined(others)) for texts, others in found]

    def _is_notice(self, item: Item) -> bool:
        ref = Notice().find_ref(item.text) if item.item_type == NOTICE_TYPE else None
        return ref is not None and self._info(ref) is not None

    @cached
    def _task(self) -> tuple[int, str]:
        """The index of the message that has the task, and the task; -1 and "" if there is none."""
        for index, (notices, message) in enumerate(self._apart):
            task = next((notice["task"] for notice in notices if notice.get("task")), "")
            if not task and message is not None:
                task = self._redact(_request(message))
            if task:
                return index, task
        return -1, ""

    def _ledger(self, removed: Sequence[int], shown: str, tokens: float) -> str:
        ledger, gone = Ledger(), set(removed)
        self._scan(index for index in removed if self._apart[index][1] is not None)
        for index in removed:
            for notice in self._apart[index][0]:
                ledger.add_earlier(notice.get("ledger", ""))
            is_task = index == self._task[0] and not self._apart[index][0]
            mentions = self._mentions.get(index, ())
            ledger.add(mention for mention in mentions if not (is_task and _is_said(mention)))
        kept = [text for index, text in enumerate(self.texts) if index not in gone]
        return ledger.render(tokens, "\n".join([shown, *kept]))

    @cached
    def _scans(self) -> list[Scan]:
        return [scan_of(message) for message in self._messages]

    @cached
    def texts(self) -> list[str]:
        return ["\n".join(scan.all_texts) for scan in self._scans]

    def _scan(self, indices: Iterable[int]) -> None:
        """Collect the facts of messages; those of offloaded items are in the store."""
        new = [index for index in indices if index not in self._mentions]
        messages = {index: self._apart[index][1] for index in new}
        records = {index: self._records(index, message) for index, message in messages.items()}
        self._read_titles(info for infos in records.values() for info in infos)
        offloaded = [i for i in new if 0 < max((r.chars for r in records[i]), default=0) <= _MOST_READ_CHARS]
        originals = self._offloader.originals([messages[i] for i in offloaded])
        messages |= {i: one for i, one in zip(offloaded, originals, strict=True) if one is not None}
        offloaded = [i for i, one in zip(offloaded, originals, strict=True) if one is None]
        restored = self._offloader.restore([messages[i] for i in offloaded], on_missing="keep")
        if restored.missing:
            # The placeholders have some of the facts.
            _report_unread(len(restored.missing), restored.missing[0].error)
        # A notice is several messages, and has its facts itself.
        if len(restored) == len(offloaded):
            messages |= zip(offloaded, restored, strict=True)
        for index, message in messages.items():
            titles = [(info.ref, self._infos[info.ref].title) for info in records[index]]
            stored = [stored_item(ref, title) for ref, title in titles if title]
            self._mentions[index] = [*stored, *mentions_of(message, self._redact)]

    def _read_titles(self, infos: Iterable[RecordInfo]) -> None:
        """Add the titles of records that another process stored."""
        unknown = [info for info in infos if info.title is None]
        reader = SessionReader(self._offloader.store, self._offloader.session)
        titled = result_or_error(with_titles, reader, unknown)
        if isinstance(titled, OffloadError):
            _report_unread(len(unknown), titled)
        else:
            self._infos.update((info.ref, info) for info in titled)

    def _records(self, index: int, message: Any) -> list[RecordInfo]:
        """Return the entries of the records whose placeholders are in a message, without its notices."""
        find_ref = self._offloader.options.placeholder.find_ref
        scan = self._scans[index] if message is self._messages[index] else scan_of(message)
        refs = filter(None, (find_ref(item.text) for item in scan.items))
        infos = map(self._info, refs)
        # The answer of a retrieval tool repeats another record.
        return [info for info in infos if info is not None and not info.is_answer]


def _report_unread(count: int, error: OffloadError) -> None:
    text = error_text(error)
    _log.warning("a notice lacks facts of %d offloaded items that could not be read: %s", count, text)


def _is_said(mention: Mention | CommandOutcome) -> bool:
    return isinstance(mention, Mention) and mention.kind == "said"


def _cut(task: str, most: float) -> str:
    shown = first = task
    while (tokens := estimate_tokens(shown)) > most:
        first = first[: max(0, int(len(first) * most / tokens) - len(_CUT))]
        first = first.rpartition("\n")[0] or first
        shown = first + _CUT.format(len(task) - len(first)) if first else ""
    return shown


def _told_apart(message: Any, scan: Scan, is_notice: Callable[[Item], bool]) -> tuple[list[str], list[Any]]:
    """Return the texts of the notices in a message, and the other messages that were joined with them."""
    for item in filter(is_notice, scan.items):
        if len(scan.items) == 1:
            return [item.text], []
        parts = adapter_for(message).split(message, item.block)
        if len(parts) > 1:
            found = [_told_apart(part, scan_of(part), is_notice) for part in parts]
            return [text for texts, _ in found for text in texts], [one for _, own in found for one in own]
    return [], [message]


def _joined(messages: Sequence[Any]) -> Any:
    """Return messages as one; None if there are none."""
    return adapter_for(messages[0]).join(messages) if len(messages) > 1 else next(iter(messages), None)


def _request(message: Any) -> str:
    """Return what a message says if it is the user's, else ""."""
    if role_or_none(message) != "user" or is_result(message):
        return ""
    return "\n".join(item.text for item in scan_of(message).items)
