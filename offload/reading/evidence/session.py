"""The check of a text against a session: what its requests showed, and what its records have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from offload.base.threads.locks import Lock, renew_in_child
from offload.engine.settings.hooks import Hooks
from offload.errors import ConfigError, check_messages
from offload.reading.evidence._finder import Finder
from offload.reading.evidence._journal import JournalRequests
from offload.reading.evidence._records import Records
from offload.reading.evidence._requests import Requests
from offload.reading.evidence._results import Evidence, Value
from offload.reading.evidence._values import Stated, values_of
from offload.reading.evidence.missing import has
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader

MAX_TEXT_CHARS, MAX_VALUES, MAX_MENTIONS = 1_000_000, 500, 5_000
# The seconds that one check reads, and then looks for values.
_SECONDS = 8.0


class SessionEvidence:
    """Finds the values of texts in one session; what was read is kept in memory for the next check.

    Args:
        reader: the records that the session may read.
        hooks: those of the session; `redact` is applied to each text first.
    """

    def __init__(self, reader: SessionReader, hooks: Hooks) -> None:
        self._reader, self._hooks = reader, hooks
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Forget all texts, in a forked child: a thread of the parent may have been reading."""
        self._lock = Lock()
        self._records = Records(self._reader, may_be_redacted=self._hooks.redact is None)
        self._journal = JournalRequests(self._reader)

    def check(self, text: str, *, at: int | None, messages: Sequence[Any] | None) -> Evidence:
        """Return the values in a text and where the session has them; see `Offloader.evidence`."""
        if not isinstance(text, str):
            raise ConfigError(f"text must be a str, got {type(text).__name__}")
        if at is not None and messages is not None:
            raise ConfigError("pass either at= or messages=, not both")
        if messages is not None:
            check_messages(messages)
        text = self._hooks.redacted(text)
        stated, checked = _bounded(text)
        with self._lock:
            deadline = time.monotonic() + _SECONDS
            infos = self._infos()
            requests, partly = self._requests(at, messages, deadline)
            self._records.complete(infos[::-1], deadline)
            unsearched = {info.ref: why for info in infos if (why := self._records.why_not(info))}
            if partly is not None:
                unsearched = {"journal": partly} | unsearched
            has_journal = requests is not None and messages is None
            finder = Finder(requests, self._records, infos, has_journal=has_journal, is_whole=not unsearched)
            values = _found(finder, stated, time.monotonic() + _SECONDS)
            if len(values) < len(stated):
                checked = stated[len(values)].start
            return Evidence(
                self._reader.name,
                text,
                values,
                request=requests.number if requests is not None and has_journal else None,
                records=len(self._records.keys),
                chars=self._records.texts.chars + (0 if requests is None else requests.texts.chars),
                checked_chars=checked,
                unsearched=unsearched,
            )

    def lacking(self, stated: Sequence[Stated]) -> list[Stated]:
        """Return which values no record has; none if not all records can be read. Raises `StoreError`."""
        with self._lock:
            infos = self._infos()
            self._records.complete(infos[::-1], time.monotonic() + _SECONDS)
            if any(self._records.why_not(info) for info in infos):
                return []
            return [value for value in stated if not has(self._records.texts, value)]

    def _infos(self) -> list[RecordInfo]:
        """Return the records; what one quotes is in others."""
        return [info for info in self._reader.catalog.recent() if not info.quotes]

    def _requests(
        self, at: int | None, messages: Sequence[Any] | None, deadline: float
    ) -> tuple[Requests | None, str | None]:
        """Return the requests that count, and why they are not whole."""
        if messages is not None:
            requests = Requests()
            requests.add_request(messages)
            return requests, requests.left_out
        journal = self._journal if at is None else JournalRequests(self._reader)
        return journal.requests(at, deadline)


def _found(finder: Finder, stated: Sequence[Stated], deadline: float) -> list[Value]:
    """Return the first values with their places, as many as there is time for, at least one."""
    known: dict[Stated, Value] = {}
    values: list[Value] = []
    for value in stated:
        key = value._replace(start=0)
        if key not in known:
            if values and time.monotonic() > deadline:
                break
            known[key] = finder.find(value)
        values.append(replace(known[key], start=value.start))
    return values


def _bounded(text: str) -> tuple[list[Stated], int]:
    """Return the values in a text up to the limits, and how many characters of it were checked."""
    found: list[Stated] = []
    different: set[Stated] = set()
    checked = min(len(text), MAX_TEXT_CHARS)
    for value in values_of(text[:MAX_TEXT_CHARS]):
        different.add(value._replace(start=0))
        if len(different) > MAX_VALUES or len(found) == MAX_MENTIONS:
            return found, value.start
        found.append(value)
    return found, checked
