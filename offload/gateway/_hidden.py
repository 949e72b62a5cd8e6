"""Calls of the retrieval tools that the gateway answered itself, which the client does not see.

The client gets one reply of the model without these calls, and repeats it in its next request; there the
calls and their answers are inserted again. So they must be found from that request alone, by any process,
as long as the session is there. They are kept in the session of the records, one small object for each
reply that has any. Its key has three digests: of the conversation up to its first user message, so that one
listing finds all of a conversation; of all messages before the reply; and of the reply as the client has
it. An object without the last one is empty, and marks a conversation whose first request got the tools:
later ones get them too.

Calls, answers and texts that the client does not get pass `redact` before they are sent to the provider, so
that later requests have what was sent. Another text or thinking of the model, which the client repeats, is
stored only if a later part of the reply may be bound to its spelling, and only if `redact` changes nothing in
it. `FORMAT.md` has the form.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from offload.errors import CorruptError, ExistsError
from offload.gateway._behind import WriteBehind
from offload.gateway._status import Status
from offload.records.record.digested import check_digest, undigested, with_digest
from offload.storage.layout import CALLS, encode_part, name_of
from offload.storage.store import OffloadStore, check_plain

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS = 4
# The replies of a conversation that are known to need no listing.
_MOST_PASSED = 64
# A reply waits no longer for its calls to be stored; they are stored later then.
DEADLINE = 1.0
_MOST_BYTES = 16 * 1024 * 1024


class Root(NamedTuple):
    """The beginning of conversations: their session, and the digest of what they have in common."""

    session: str
    digest: str


class HiddenCalls(NamedTuple):
    """The hidden calls of one reply.

    Attributes:
        before: digest of all messages before the reply, and `reply` that of the reply as the client has it.
        steps: the steps that rebuild the reply, see the file of its API.
        marks: the signatures of its thinking, as digests, and the ids of the client's calls in it: a message
            that has one of them is this reply.
        unfounded: those of the thinking that was made behind an answer.
        data: its object in the store.
    """

    before: str
    reply: str
    steps: Sequence[Any]
    marks: Sequence[str] = ()
    unfounded: Sequence[str] = ()
    data: bytes = b""


@dataclass(slots=True)
class HiddenState:
    """Facts that this process knows of the conversations with one beginning.

    Attributes:
        begun: digests of the first requests that got the tools; `is_listed` says that the store was asked.
        hidden: by the digests of what precedes a reply and of the reply, its calls; None until they are read.
        passed: replies to the latest requests of this process, in the same way.
        unstored: objects that the store has not taken yet, and `writing`, held by the task that stores them.
    """

    begun: set[str] = field(default_factory=set)
    is_listed: bool = False
    hidden: dict[str, dict[str, HiddenCalls | None]] = field(default_factory=dict)
    passed: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)
    unstored: dict[str, bytes] = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def note_passed(self, before: str, reply: str) -> None:
        """Note a reply that this process passed: what was before it is known here."""
        self.passed[before, reply] = None
        while len(self.passed) > _MOST_PASSED:
            self.passed.popitem(last=False)


class HiddenStore(WriteBehind[Root, HiddenState]):
    """Keeps hidden calls in their sessions, and in memory those of the latest conversations."""

    def __init__(self, store: OffloadStore, status: Status) -> None:
        super().__init__(store, status, HiddenState, "offload-gateway-calls", _THREADS)

    async def listed(self, root: Root, seconds: float) -> None:
        """Learn what other processes stored. Raises `OffloadError` and `TimeoutError`."""
        known = self.known(root)
        for before, reply in await self._in_time(seconds, self._list, root):
            if reply is None:
                known.begun.add(before)
            else:
                known.hidden.setdefault(before, {}).setdefault(reply, None)
        known.is_listed = True

    def unread(self, root: Root, befores: Sequence[str]) -> list[tuple[str, str]]:
        """Return the places of calls behind some messages that this process has not read."""
        hidden = self.known(root).hidden
        return [(before, reply) for before in befores for reply, one in hidden[before].items() if not one]

    def learn(self, root: Root, calls: Mapping[str, bytes]) -> None:
        """Take objects of calls that `noted` returned in another process."""
        for name, data in calls.items():
            digest, before, reply = name.split("~")
            held = self.known(root).hidden.get(before, {})
            if digest == root.digest and reply in held and held[reply] is None:
                with suppress(CorruptError):
                    held[reply] = _parsed(name, data)

    def noted(self, root: Root, befores: Sequence[str]) -> dict[str, bytes]:
        """Return the objects of the calls behind some messages, by the last part of their keys."""
        hidden = self.known(root).hidden
        some = (one for before in dict.fromkeys(befores) for one in hidden.get(before, {}).values() if one)
        return {f"{root.digest}~{one.before}~{one.reply}": one.data for one in some}

    async def read(self, root: Root, befores: Sequence[str], seconds: float) -> dict[str, list[HiddenCalls]]:
        """Return the calls of all replies behind some messages, by the digests of these.

        Raises `OffloadError` and `TimeoutError`.
        """
        known, new = self.known(root), self.unread(root, befores)
        reads = (self._in_time(seconds, self._read, root, *place) for place in new)
        for one in await asyncio.gather(*reads):
            known.hidden[one.before][one.reply] = one
        return {before: [one for one in known.hidden[before].values() if one] for before in befores}

    def begin(self, root: Root, before: str) -> asyncio.Task[None]:
        """Mark a conversation whose first request gets the tools."""
        known = self.known(root)
        is_new = before not in known.begun
        known.begun.add(before)
        if is_new:
            known.unstored[self._key(root, before)] = b""
        return self._written(self._store_pending(known))

    def keep(self, root: Root, hidden: HiddenCalls) -> asyncio.Task[None]:
        """Store the hidden calls of a reply; they are known at once."""
        known = self.known(root)
        fields = {"steps": hidden.steps, "marks": hidden.marks, "unfounded": hidden.unfounded}
        key = self._key(root, hidden.before, hidden.reply)
        data = with_digest(undigested(json.dumps(fields, separators=(",", ":")).encode()), name_of(key))
        known.hidden.setdefault(hidden.before, {})[hidden.reply] = hidden._replace(data=data)
        known.unstored[key] = data
        return self._written(self._store_pending(known))

    async def _store_pending(self, known: HiddenState) -> None:
        async with known.writing:
            for key, data in [*known.unstored.items()]:
                try:
                    stored = await self._call(self._put, key, data)
                except Exception as error:  # noqa: BLE001 # a reply passes in any case
                    self._status.lost("answered calls are not stored", error)
                    return
                if known.unstored[key] is data:
                    del known.unstored[key]
                if stored != data and (match := CALLS.match(key)):
                    # Later processes take what is stored for an equal reply to an equal request.
                    known.hidden[match["before"]][match["reply"]] = None

    def _put(self, key: str, data: bytes) -> bytes:
        """Store an object if there is none; return what is stored."""
        try:
            self._store.put(key, data)
        except ExistsError:
            return self._store.get(key) if data else data
        return data

    async def _in_time(self, seconds: float, function: Callable[[*Ts], T], *args: *Ts) -> T:
        async with asyncio.timeout(seconds):
            return await self._call(function, *args)

    def _list(self, root: Root) -> list[tuple[str, str | None]]:
        prefix = f"{CALLS.prefix(encode_part(root.session))}{root.digest}~"
        keys = (stored.key for stored in self._store.keys(prefix))
        return [(match["before"], match["reply"]) for match in map(CALLS.match, keys) if match]

    def _read(self, root: Root, before: str, reply: str) -> HiddenCalls:
        key = self._key(root, before, reply)
        return _parsed(name_of(key), self._store.get(key, end=_MOST_BYTES))

    def _key(self, root: Root, before: str, reply: str | None = None) -> str:
        return CALLS.key(session=encode_part(root.session), root=root.digest, before=before, reply=reply)


def _parsed(name: str, data: bytes) -> HiddenCalls:
    """Return the calls in an object, given the last part of its key. Raises `CorruptError`."""
    check_plain(data)
    check_digest(data, name)
    _, before, reply = name.split("~")
    try:
        fields = json.loads(data)
        return HiddenCalls(before, reply, fields["steps"], fields["marks"], fields["unfounded"], data)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptError("an object of answered calls has another form") from error
