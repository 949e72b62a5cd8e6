"""Transcripts of a framework's sessions: batches of entries, each an object that is written once.

A batch has the number of the batches that its writer found, plus one. So batches sort in the order of their
writing, two writers at once may have one number, and a number above its place shows that a batch is missing.
A batch of a main transcript may have a summary of it up to there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from offload.base.threads.calls import in_thread
from offload.errors import ConfigError, CorruptError, OffloadError, result_or_error
from offload.records.index.derived import compressed, opened
from offload.storage.layout import TRANSCRIPT, decode_part, encode_part, is_hashed, name_of, random_letters
from offload.storage.registry import open_store
from offload.storage.store import check_plain, delete_many, folders, get_many

Entry = dict[str, Any]
Summary = dict[str, Any]
# Returns the summary of more entries, from that of the entries before them or None.
Fold = Callable[[Summary | None, list[Entry]], Summary]

_T = TypeVar("_T")

_MAIN = encode_part("")
_MAX_BYTES = 2**30


class Names(NamedTuple):
    """The names of a transcript; the main one of a session is ""."""

    project: str
    session: str
    transcript: str = ""

    @property
    def parts(self) -> dict[str, str]:
        """Its names in keys."""
        return {field: encode_part(name) for field, name in self._asdict().items()}

    @property
    def session_prefix(self) -> str:
        """The beginning of the keys of its session."""
        return f"{TRANSCRIPT.prefix(self.parts['project'])}{self.parts['session']}/"

    @property
    def prefix(self) -> str:
        """The beginning of its keys."""
        return f"{self.session_prefix}{self.parts['transcript']}/"


class Listed(NamedTuple):
    """A session, the milliseconds of its last write, and its last batch if that follows all others."""

    session: str
    modified: int
    last: str | None


class Transcripts:
    """The transcripts in a store; arguments and errors are those of `offload.Offloader`."""

    def __init__(self, store: Any, storage_options: Any = None) -> None:
        self._store = open_store(store, storage_options=storage_options)

    def append(self, names: Names, entries: list[Entry], fold: Fold | None = None) -> None:
        """Store a batch, with a summary by `fold`.

        Raises `ConfigError` if JSON cannot hold the entries or they are too large, and `StoreError`.
        """
        keys = self._keys(names.prefix)
        summary = None if fold is None else self._summary(keys, entries, fold)
        head = {"session": names.session, "transcript": names.transcript, "summary": summary}
        try:
            body = "\n".join(map(json.dumps, [head, *entries])).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"entries must be JSON objects: {error}") from error
        if len(body) > _MAX_BYTES:
            raise ConfigError(f"entries must have at most {_MAX_BYTES} bytes as JSON, got {len(body)}")
        number = max([len(keys), *map(_number, keys[-1:])]) + 1
        key = TRANSCRIPT.key(**names.parts, number=f"{number:09}", letters=random_letters())
        self._store.put(key, compressed(body))

    def load(self, names: Names) -> list[Entry] | None:
        """Return the entries, of those with one `uuid` the first; None without a batch.

        Raises `CorruptError` if a batch is damaged or missing, and `StoreError`.
        """
        keys = self._keys(names.prefix)
        return self._entries(keys) if keys else None

    def sessions(self, project: str) -> list[Listed]:
        """Return the sessions of a project with a main transcript, by one listing."""
        found: dict[str, tuple[int, float, str]] = {}
        prefix = TRANSCRIPT.prefix(encode_part(project))
        for stored in self._store.keys(prefix):
            match = TRANSCRIPT.match(stored.key)
            if match and match["transcript"] == _MAIN:
                count, modified, _ = found.get(match["session"], (0, 0.0, ""))
                found[match["session"]] = count + 1, max(modified, stored.modified), stored.key
        return [
            Listed(name, int(modified * 1000), last if _number(last) == count else None)
            for part, (count, modified, last) in found.items()
            for name in self._names([part], prefix, "session")
        ]

    def summaries(self, project: str) -> Iterator[tuple[Listed, Summary]]:
        """Yield the sessions of a project with their summaries, by one listing and one read of many.

        A session whose last batch has none, cannot be read, or was written with another at once, is omitted.
        """
        last = {each.last: each for each in self.sessions(project) if each.last}
        for key, data in zip(last, get_many(self._store, last), strict=True):
            lines = result_or_error(_lines, key, data)
            if not isinstance(lines, OffloadError) and lines[0]["summary"] is not None:
                yield last[key], lines[0]["summary"]

    def transcripts(self, names: Names) -> list[str]:
        """Return the names of the other transcripts of a session."""
        parts = [part for part in folders(self._store, names.session_prefix) if part != _MAIN]
        return [*self._names(parts, names.session_prefix, "transcript")]

    def delete(self, names: Names) -> None:
        """Delete a transcript, the main one with all others of its session. Raises `StoreError`."""
        prefix = names.prefix if names.transcript else names.session_prefix
        delete_many(self._store, [stored.key for stored in self._store.keys(prefix)])

    def _keys(self, prefix: str) -> list[str]:
        return [stored.key for stored in self._store.keys(prefix) if TRANSCRIPT.match(stored.key)]

    def _names(self, parts: Iterable[str], prefix: str, field: str) -> Iterator[str]:
        """Yield the names in folders; one that is hashed is read from a batch."""
        for part in parts:
            if is_hashed(part):
                keys = islice(self._store.keys(f"{prefix}{part}/"), 1)
                yield from (lines[0][field] for lines in self._read([stored.key for stored in keys]))
            else:
                yield decode_part(part)

    def _summary(self, keys: Sequence[str], entries: list[Entry], fold: Fold) -> Summary | None:
        """Return the summary of a transcript with `entries` added; None if a batch of it cannot be read."""
        try:
            if keys and _number(keys[-1]) == len(keys):
                [[head, *_]] = self._read(keys[-1:])
                if head["summary"] is not None:
                    return fold(head["summary"], entries)
            return fold(None, [*self._entries(keys), *entries])
        except CorruptError:
            return None

    def _entries(self, keys: Sequence[str]) -> list[Entry]:
        for place, key in enumerate(keys, 1):
            if _number(key) > place:
                raise CorruptError(f"{key!r}: a batch before it is missing, number {place}")
        found: dict[object, Entry] = {}
        for _, *entries in self._read(keys):
            for entry in entries:
                uuid = entry.get("uuid")
                found.setdefault(uuid if isinstance(uuid, str) else len(found), entry)
        return [*found.values()]

    def _read(self, keys: Sequence[str]) -> Iterator[list[Any]]:
        return map(_lines, keys, get_many(self._store, keys))


class TranscriptTurns:
    """Calls of one event loop in threads, in their order for each transcript.

    A cancelled call may still be writing: the next one waits for it.
    """

    def __init__(self) -> None:
        self._latest: WeakValueDictionary[Any, asyncio.Task[Any]] = WeakValueDictionary()

    async def take(self, names: Names, function: Callable[..., _T], *arguments: Any) -> _T:
        """Return the result of `function` after all earlier calls for the transcript."""
        turn = asyncio.get_running_loop(), names
        task = asyncio.create_task(_after(self._latest.get(turn), function, *arguments))
        self._latest[turn] = task
        return await asyncio.shield(task)


async def _after(before: Any, function: Callable[..., _T], *arguments: Any) -> _T:
    if before is not None:
        await asyncio.wait([before])
    return await in_thread(function, *arguments)


def _number(key: str) -> int:
    return int(name_of(key).partition("~")[0])


def _lines(key: str, data: bytes | OffloadError) -> list[Any]:
    """Return the head and the entries of a batch. Raises `CorruptError`, or the error of its read."""
    if isinstance(data, OffloadError):
        raise data
    with suppress(ValueError):
        if lines := opened(data, _MAX_BYTES, lambda body: [json.loads(line) for line in body.splitlines()]):
            return lines
    check_plain(data, key)
    raise CorruptError(f"{key!r}: the batch of a transcript is damaged")
