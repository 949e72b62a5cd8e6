"""This machine's cache of listings: a SQLite file for each store, for pages of a large session.

    <cache folder>/<hash of the store's URL>-v1.sqlite
        listing(number, session, began, took)       the newest listing of each session
        entry_<number>(position, ref, ...)          its entries; the position grows with time
        amount(number, item_type, tool, entries)    how many of each: counting 100,000 takes too long

A connection lives for one call, so threads and forked processes share nothing. Whatever is wrong with the
file, the answer is None or False and the caller does without it; a damaged file is removed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from offload.errors import ConfigError, InvalidKeyError
from offload.index._keys import parse_key, session_prefix
from offload.index._listing import MAX_AGE, Listing, Page, Query, is_fresh
from offload.keys import decode_part
from offload.record import RecordInfo, encodable
from offload.store import StoredObject

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")
_Row = tuple[str, str, str | None, str, int, float]

# How long a writer waits for another one.
_PATIENCE = 2.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS listing (number INTEGER PRIMARY KEY, session UNIQUE, began REAL, took REAL)",
    "CREATE TABLE IF NOT EXISTS amount (number INTEGER, item_type TEXT, tool TEXT, entries INTEGER)",
    "CREATE INDEX IF NOT EXISTS amounts_of ON amount (number, item_type, tool)",
)


class Applied(NamedTuple):
    """How many of a process's own entries are in which listing."""

    listing: int = 0
    entries: int = 0


class ListingCache:
    """The listings of one store that this machine keeps.

    Args:
        url: the store's URL.
        folder: where the file is; the default is `OFFLOAD_CACHE_DIR` or the user's cache folder.
    """

    def __init__(self, url: str, folder: str | os.PathLike[str] | None = None) -> None:
        self._url = url
        self._folder = folder

    @property
    def path(self) -> Path:
        """The file; nothing is there before the first listing is kept."""
        folder = self._folder or os.environ.get("OFFLOAD_CACHE_DIR")
        if not folder:
            from platformdirs import user_cache_path  # noqa: PLC0415 # only a large session needs it

            try:
                folder = user_cache_path("offload")
            except RuntimeError:
                folder = os.devnull  # nothing can be there: a user without a home has no cache
        digest = hashlib.sha256(encodable(self._url).encode()).hexdigest()
        return Path(folder) / f"{digest[:32]}-v1.sqlite"

    def fill(self, session: str, listing: Listing, now: float) -> bool:
        """Keep a listing of `session` unless a fresh one is there; tell whether the cache has one now."""
        with suppress(OSError):
            # `parents=True` would make those above with the modes that the umask leaves.
            for folder in reversed(self.path.parents):
                folder.mkdir(0o700, exist_ok=True)
            self.path.touch(0o600)
        return self._run(lambda db: _fill(db, session, listing, now)) is not None

    def page(
        self, session: str, query: Query, now: float, own: Sequence[RecordInfo], applied: Applied
    ) -> tuple[Page, Applied] | None:
        """Return a page of a fresh listing of `session`, None if there is none.

        Args:
            session: the session.
            query: what is asked for.
            now: seconds since the epoch.
            own: entries that a listing may have missed; they are added to it.
            applied: what the call before returned: those need not be added again.

        Raises:
            ConfigError: the ref to go on after is not among the entries.
        """

        def read(db: Connection) -> tuple[Page, Applied] | None:
            fresh = _fresh(db, session, now)
            if fresh is None:
                return None
            number, began = fresh
            done = applied.entries if applied.listing == number else 0
            # Those that are older were listed; the clock of who listed may be another one.
            missed = [info for info in own[done:] if info.created_at >= began - MAX_AGE]
            if missed:
                with _writing(db):
                    _add(db, number, missed)
            db.execute("BEGIN")  # All that follows sees one state.
            return _page(db, number, session, query), Applied(number, len(own))

        return self._run(read)

    def listing(self, session: str, now: float) -> Listing | None:
        """Return the whole of a fresh listing of `session`, None if there is none."""

        def read(db: Connection) -> Listing | None:
            db.execute("BEGIN")
            fresh = _fresh(db, session, now)
            return None if fresh is None else _whole(db, fresh[0])

        return self._run(read)

    def drop(self, session: str, key: str) -> None:
        """Forget the entry of a key that is gone."""
        name = key.rpartition("/")[2]

        def write(db: Connection) -> None:
            with _writing(db):
                for (number,) in db.execute(
                    "SELECT number FROM listing WHERE session = ?", (_part(session),)
                ):
                    _remove(db, number, "ref = ? AND name = ?", (_ref_of(name), name))

        self._run(write)

    def forget(self, session: str) -> None:
        """Forget the listing of `session`."""

        def write(db: Connection) -> None:
            with _writing(db):
                _forget(db, session)

        self._run(write)

    def _run(self, action: Callable[[Connection], T]) -> T | None:
        """Return what `action` does with the file; None if there is no file or it is of no use."""
        if not self.path.exists():
            return None
        import sqlite3  # noqa: PLC0415 # 5 ms that only a large session pays

        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = OFF")
                return action(db)
        except sqlite3.OperationalError:
            return None  # Locked, read-only, full: it is of use to others or later.
        except sqlite3.DatabaseError:
            self._remove_file()
            return None

    def _remove_file(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


@contextmanager
def _writing(db: Connection) -> Iterator[None]:
    """Make what is inside one change; an error takes all of it back, as closing the connection does."""
    db.execute("BEGIN IMMEDIATE")
    yield
    db.execute("COMMIT")


def _fill(db: Connection, session: str, listing: Listing, now: float) -> bool:
    db.execute("PRAGMA journal_mode = WAL")
    with _writing(db):
        for statement in _TABLES:
            db.execute(statement)
        if _fresh(db, session, now) is not None:
            return True
        _forget(db, session)
        # Drawn, so that no other listing is taken for it, even after the file was removed.
        number = secrets.randbits(62)
        found = (number, _part(session), listing.began, listing.took)
        db.execute("INSERT INTO listing VALUES (?, ?, ?, ?)", found)
        _insert(db, number, listing)
    return True


def _insert(db: Connection, number: int, listing: Listing) -> None:
    """Make the table of a listing."""
    amounts: Counter[tuple[str, str | None]] = Counter()
    db.execute(
        f"CREATE TABLE entry_{number} (position INTEGER PRIMARY KEY, ref TEXT, item_type TEXT,"
        " tool TEXT, name TEXT, size INTEGER, modified REAL)"
    )
    sql = f"INSERT INTO entry_{number} VALUES (NULL, ?, ?, ?, ?, ?, ?)"  # noqa: S608 # a number
    db.executemany(sql, _counted(_rows(listing), amounts))
    for column in ("ref", "item_type", "tool"):
        # After the rows: that is faster than with each of them.
        db.execute(f"CREATE INDEX entry_{number}_{column} ON entry_{number} ({column})")
    counts = [(number, *of, count) for of, count in amounts.items()]
    db.executemany("INSERT INTO amount VALUES (?, ?, ?, ?)", counts)


def _forget(db: Connection, session: str) -> None:
    found = db.execute("SELECT number FROM listing WHERE session = ?", (_part(session),)).fetchall()
    for (number,) in found:
        db.execute(f"DROP TABLE entry_{number}")
        db.execute("DELETE FROM amount WHERE number = ?", (number,))
        db.execute("DELETE FROM listing WHERE number = ?", (number,))


def _fresh(db: Connection, session: str, now: float) -> tuple[int, float] | None:
    """Return the number of a fresh listing, and when it began."""
    sql = "SELECT number, began, took FROM listing WHERE session = ?"
    for number, began, took in db.execute(sql, (_part(session),)):
        if is_fresh(now - began, took):
            return number, began
    return None


def _add(db: Connection, number: int, infos: Sequence[RecordInfo]) -> None:
    """Add entries as the newest; another key of the same ref makes room."""
    for row in _rows(Listing.of(infos, 0, 0)):
        ref, item_type, tool, name = row[:4]
        _remove(db, number, "ref = ? AND name <> ?", (ref, name))
        sql = (
            f"INSERT INTO entry_{number} SELECT NULL, ?, ?, ?, ?, ?, ?"  # noqa: S608 # a number
            f" WHERE NOT EXISTS (SELECT 1 FROM entry_{number} WHERE ref = ?)"
        )
        if db.execute(sql, (*row, ref)).rowcount:
            db.execute("INSERT INTO amount VALUES (?, ?, ?, 1)", (number, item_type, tool))


def _remove(db: Connection, number: int, condition: str, values: tuple[str, ...]) -> None:
    sql = f"DELETE FROM entry_{number} WHERE {condition} RETURNING item_type, tool"  # noqa: S608 # ours
    for item_type, tool in db.execute(sql, values).fetchall():
        db.execute("INSERT INTO amount VALUES (?, ?, ?, -1)", (number, item_type, tool))


def _page(db: Connection, number: int, session: str, query: Query) -> Page:
    given = {"item_type": query.item_type, "tool": query.tool}
    where = "".join(f" AND {column} = ?" for column, value in given.items() if value is not None)
    values = [encodable(value) for value in given.values() if value is not None]
    start, below = 0, 1 << 62
    if query.after is not None:
        below = _position(db, number, query.after, where, values)
        sql = f"SELECT count(*) FROM entry_{number} WHERE position >= ?{where}"  # noqa: S608 # ours
        [start] = db.execute(sql, (below, *values)).fetchone()
    sql = f"SELECT total(entries) FROM amount WHERE number = ?{where}"  # noqa: S608 # ours
    [total] = db.execute(sql, (number, *values)).fetchone()
    sql = (
        f"SELECT name, size, modified FROM entry_{number}"  # noqa: S608 # ours
        f" WHERE position < ?{where} ORDER BY position DESC LIMIT ?"
    )
    rows = db.execute(sql, (below, *values, query.limit)).fetchall()
    prefix = session_prefix(session)
    parsed = (parse_key(StoredObject(prefix + name, size, modified)) for name, size, modified in rows)
    return Page([info for info in parsed if isinstance(info, RecordInfo)], start, int(total))


def _position(db: Connection, number: int, ref: str, where: str, values: Sequence[str]) -> int:
    sql = f"SELECT position FROM entry_{number} WHERE ref = ?{where}"  # noqa: S608 # ours
    found = db.execute(sql, (encodable(ref), *values)).fetchone()
    if found is None:
        raise ConfigError(f"cursor {ref[:40]!r} is not of an answer here; leave it out to start over")
    return int(found[0])


def _whole(db: Connection, number: int) -> Listing:
    began, took = db.execute("SELECT began, took FROM listing WHERE number = ?", (number,)).fetchone()
    sql = f"SELECT name, size, modified FROM entry_{number} ORDER BY position"  # noqa: S608 # a number
    rows = db.execute(sql).fetchall()
    return Listing(began, took, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def _rows(listing: Listing) -> Iterator[_Row]:
    for name, size, modified in zip(listing.names, listing.sizes, listing.times, strict=True):
        parts = name.split("~", 3)
        if len(parts) == 4:  # noqa: PLR2004 # ref, type, tool and the rest
            yield _ref_of(name), parts[1], _tool_of(parts[2]), name, size, modified


def _counted(rows: Iterator[_Row], amounts: Counter[tuple[str, str | None]]) -> Iterator[_Row]:
    for row in rows:
        amounts[row[1:3]] += 1
        yield row


def _ref_of(name: str) -> str:
    return name.partition("~")[0].partition(".")[0]


@lru_cache(maxsize=1024)
def _tool_of(part: str) -> str | None:
    """Return the name of a tool as the listing of a small session has it."""
    with suppress(InvalidKeyError):
        return encodable(decode_part(part)) if part else None
    return None


def _part(session: str) -> str:
    return session_prefix(session)
