"""One object for each conversation of a gateway, from which a new process knows all that was sent in it.

It has what a new process would read one by one: the heads of the records whose placeholders are in the latest
request, the thinking that was removed, and the hidden calls of its replies. All of it is in other objects
too: if the object is missing or old, these are read. gc deletes it when it deletes the bytes of a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from offload.engine.results import Remembered
from offload.errors import CorruptError, NotFoundError
from offload.gateway._apis.base import digest_of
from offload.gateway._behind import WriteBehind
from offload.gateway._status import Status
from offload.records.index.derived import compressed, opened
from offload.records.record.header import Head
from offload.storage.layout import SENT, encode_part
from offload.storage.store import OffloadStore

# Fewer objects are read one by one.
FEW = 3
_THREADS = 2
_MOST_BYTES, _MOST_READ = 16 * 1024 * 1024, 64 * 1024 * 1024


class NotRecalledError(Exception):
    """The store did not say in time what was sent before of a conversation under way."""


class ThreadId(NamedTuple):
    """The id of a conversation: a session, and a name in it."""

    session: str
    name: str

    @property
    def key(self) -> str:
        """The key of what was sent in it."""
        return SENT.key(session=encode_part(self.session), root=digest_of(self.name))


class SentParts(msgspec.Struct):
    """The content of the object; `calls` are objects of hidden calls by the last part of their keys."""

    version: Literal[1] = 1
    heads: dict[str, Head] = {}
    thinking: dict[str, str] = {}
    calls: dict[str, bytes] = {}

    @property
    def names(self) -> set[str]:
        """The last parts of the keys of all objects in it."""
        return {*self.heads, *self.thinking, *self.calls}


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_BODIES = msgspec.msgpack.Decoder(SentParts)


@dataclass(slots=True)
class _SentState:
    """The knowledge of this process of a conversation.

    Attributes:
        body: what was sent in it; `stored` are the names in the object in the store.
        reading: held by the task that reads the object; `is_read` says that one did.
        saving: the task that stores it.
    """

    body: SentParts = field(default_factory=SentParts)
    stored: set[str] = field(default_factory=set)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_read: bool = False
    saving: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a new process would read many objects one by one."""
        return len(self.body.names - self.stored) >= FEW


class SentStore(WriteBehind[ThreadId, _SentState]):
    """Reads and stores what was sent, of many conversations."""

    def __init__(self, store: OffloadStore, status: Status) -> None:
        super().__init__(store, status, _SentState, "offload-gateway-sent", _THREADS)

    async def read(self, thread: ThreadId) -> SentParts:
        """Return what is known of a conversation, with what other processes stored. Raises `OffloadError`."""
        known = self.known(thread)
        async with known.reading:
            if not known.is_read:
                body = await self._call(self._get, thread.key)
                known.is_read, known.stored = True, body.names
                known.body = SentParts(
                    heads=body.heads | known.body.heads,
                    thinking=body.thinking | known.body.thinking,
                    calls=body.calls | known.body.calls,
                )
        return known.body

    def note_records(self, thread: ThreadId, remembered: Remembered) -> None:
        """Note the records of the latest request, and store them later if a new process needs that."""
        body = self.known(thread).body
        body.heads, body.thinking = remembered.heads, remembered.thinking
        self._save(thread)

    def note_calls(self, thread: ThreadId, calls: Mapping[str, bytes]) -> None:
        """Note the hidden calls of the latest request and its reply in the same way."""
        self.known(thread).body.calls = dict(calls)
        self._save(thread)

    def _save(self, thread: ThreadId) -> None:
        known = self.known(thread)
        if known.is_due and (known.saving is None or known.saving.done()):
            known.saving = self._written(self._saved(thread, known))

    async def _saved(self, thread: ThreadId, known: _SentState) -> None:
        """Store what was sent, again if more came meanwhile."""
        while known.is_due:
            names = known.body.names
            data = msgspec.msgpack.encode(known.body)  # Here, since the body changes in this thread.
            try:
                await self._call(self._put, thread.key, data)
            except Exception as error:  # noqa: BLE001 # the objects that it repeats are stored
                self._status.lost("what was sent is not stored in one object for a restart", error)
                return
            known.stored = names

    def _put(self, key: str, data: bytes) -> None:
        packed = compressed(data)
        if len(packed) <= _MOST_BYTES and len(data) <= _MOST_READ:
            self._store.put(key, packed, overwrite=True)

    def _get(self, key: str) -> SentParts:
        """Return what is stored; nothing if there is none, or a damaged one."""
        try:
            packed = self._store.get(key, end=_MOST_BYTES)
        except (NotFoundError, CorruptError):
            return SentParts()
        return opened(packed, _MOST_READ, _BODIES.decode) or SentParts()
