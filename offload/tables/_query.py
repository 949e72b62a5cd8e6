"""One read-only query over the tables of records: bounded in time, memory, rows and characters."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from offload.errors import ConfigError
from offload.locks import Recent, renew_in_child
from offload.tables._compared import misread_columns
from offload.tables._database import Database, Table
from offload.tables._form import NoTableError
from offload.tables._memory import memory_meter
from offload.tables._survey import quoted

# Of content up to this size all columns are loaded, and kept; of more, those that a query names.
WHOLE_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 256 * 1024 * 1024
_SECONDS = 2.0
_GROWTH_BYTES = 256 * 1024 * 1024
_STEPS = 1000
# A longer value is an error. It bounds what one function of SQLite does, which nothing can interrupt.
_VALUE_BYTES = 256 * 1024
_MOST_COUNTED = 100_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
_OTHER_TABLES = ("json_each", "json_tree")
# A width of printf() beyond the longest value makes NULL, without an error.
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\d{5}|\*)")
_STAR = re.compile(r"(?:\bselect\s+(?:distinct\s+|all\s+)?|,\s*|\.)\*", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d]\w*")
_IN_QUOTES = re.compile(r"(?<!\w)\"((?:[^\"]|\"\")+)\"")
_ALIAS = re.compile(r"\bas\s+\"((?:[^\"]|\"\")+)\"", re.IGNORECASE)
_ARROW_VERSION = (3, 38)


class Record(NamedTuple):
    """A record to query.

    Attributes:
        key: what no other record has.
        bytes: bytes of its content.
        chunks: its text, by the chunk; read again at each iteration.
    """

    key: Any
    bytes: int
    chunks: Iterable[str]


class Result(NamedTuple):
    """The answer to a query.

    Attributes:
        columns: names of the columns.
        rows: the first rows, each value whole or a text cut to the size that was asked for.
        total: number of all rows, or of those counted.
        is_more: whether there are more than `total`.
        tables: the tables that the query names.
        notes: lines about what the tables do not show.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int
    is_more: bool
    tables: dict[str, Table]
    notes: list[str]


class _Kept:
    """Databases of this process, the least recently used ones dropped; a forked child begins without any.

    A child does not close those of its parent: another thread may have held one when it was forked.
    """

    def __init__(self) -> None:
        self._abandoned: list[object] = []
        self.databases = self._new()
        renew_in_child(self)

    def renew(self) -> None:
        """Begin again without any database."""
        self._abandoned.append(self.databases)
        self.databases = self._new()

    @staticmethod
    def _new() -> Recent[Any, tuple[Database, int]]:
        return Recent(_KEPT_BYTES, lambda kept: kept[1])


_kept = _Kept()


def query(records: Sequence[Record], sql: str, max_chars: int) -> Result:
    """Run one SELECT over records.

    Args:
        records: the records; one has the tables `t` and `lines`, several `t1`, `lines1`, `t2` and so on.
        sql: the statement.
        max_chars: characters of the first rows that are returned; the others are counted.

    Raises:
        ConfigError: a wrong statement, with its fix; or too much time or memory.
    """
    words = {word.lower() for word in _WORDS.findall(sql)}
    numbers = [""] if len(records) == 1 else [str(number + 1) for number in range(len(records))]
    ones = [_loaded(record, number, words, sql) for record, number in zip(records, numbers, strict=True)]
    database = ones[0][0] if len(records) == 1 else _joint(records, ones)
    reasons = {f"t{number}": reason for number, (_, reason) in zip(numbers, ones, strict=True) if reason}
    with database.lock:
        return _run(database, sql, words, max_chars, reasons)


def _loaded(record: Record, number: str, words: set[str], sql: str) -> tuple[Database, str]:
    """Return the database of one record with the tables that a query names, and why it has no table."""
    is_whole = record.bytes <= WHOLE_BYTES
    found = _kept.databases.get(record.key) if is_whole else None
    database = found[0] if found else Database()
    reason = ""
    with database.lock:
        if f"lines{number}" in words and "lines" not in database.tables:
            database.load_lines("lines", record.chunks)
        if f"t{number}" in words and "t" not in database.tables:
            wanted = None if is_whole or _STAR.search(sql) else words | _quoted_words(sql)
            try:
                database.load_table("t", record.chunks, wanted)
            except NoTableError as error:
                reason = str(error)
        if is_whole:
            _kept.databases.put(record.key, (database, database.bytes))
    return database, reason


def _joint(records: Sequence[Record], ones: Sequence[tuple[Database, str]]) -> Database:
    """Return a database with the tables of several records."""
    key = tuple(record.key for record in records)
    found = _kept.databases.get(key)
    database = found[0] if found else Database()
    with database.lock:
        for number, (one, _) in enumerate(ones, 1):
            with one.lock:
                for name in one.tables:
                    if f"{name}{number}" not in database.tables:
                        database.copy(f"{name}{number}", one, name)
        if all(record.bytes <= WHOLE_BYTES for record in records):
            _kept.databases.put(key, (database, database.bytes))
    return database


def _quoted_words(sql: str) -> set[str]:
    return {name.replace('""', '"').lower() for name in _IN_QUOTES.findall(sql)}


def _run(database: Database, sql: str, words: set[str], max_chars: int, reasons: dict[str, str]) -> Result:
    tables = {name: table for name, table in database.tables.items() if name in words}
    connection = database.connection
    guard = _Guard(sql)
    with guard.around(connection):
        try:
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise ConfigError(f"sql must be one SELECT; {_example(database.tables)}")
            columns = tuple(column[0] for column in cursor.description)
            rows, count, is_more = _fetched(cursor, max_chars, guard)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise ConfigError(guard.reason or _Wrong(str(error), sql, database, reasons).taught()) from None
    notes = [f"{name}: {remark}" for name, table in tables.items() for remark in table.remarks]
    notes += _column_notes(tables, guard.columns)
    notes += _misread_notes(tables, misread_columns(connection, sql))
    notes += _name_notes(sql, database.tables)
    return Result(columns, rows, count, is_more, tables, notes)


class _Guard:
    """The limits of one query, as SQLite asks for them.

    Attributes:
        reason: why a query was refused or stopped, "" if it was not.
        columns: the columns that a query reads, with their tables.
    """

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self.reason = ""
        self.columns: set[tuple[str, str]] = set()
        self._end = time.monotonic() + _SECONDS
        self._memory: Callable[[], int] = int
        self._most_bytes = 0

    @contextmanager
    def around(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Apply the limits to a connection."""
        before = {limit: connection.setlimit(limit, value) for limit, value in _LIMITS.items()}
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._check, _STEPS)
        try:
            with memory_meter() as self._memory:
                self._most_bytes = self._memory() + _GROWTH_BYTES
                yield
        finally:
            connection.set_progress_handler(None, 0)
            connection.set_authorizer(None)
            for limit, value in before.items():
                connection.setlimit(limit, value)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if action == sqlite3.SQLITE_READ and first is not None:
            name = first.lower()
            self.columns.add((name, (second or "").lower()))
            if name in _OTHER_TABLES or not name.startswith(
                ("sqlite_", "pragma_", "dbstat", "bytecode", "tables_used")
            ):
                return sqlite3.SQLITE_OK
            self.reason = f"{first} cannot be read"
        elif action == sqlite3.SQLITE_FUNCTION:
            self.reason = self._problem_of((second or "").lower())
            return sqlite3.SQLITE_DENY if self.reason else sqlite3.SQLITE_OK
        elif action in _ALLOWED:
            return sqlite3.SQLITE_OK
        else:
            self.reason = "only SELECT is allowed: items are read-only"
        return sqlite3.SQLITE_DENY

    def _problem_of(self, function: str) -> str:
        if function == "load_extension":
            return "load_extension is not allowed"
        is_wide = function in ("printf", "format") and _WIDE.search(self._sql)
        return f"the width in {function}() must have at most 4 digits, and no *" if is_wide else ""

    def _check(self) -> int:
        if time.monotonic() > self._end:
            self.reason = f"stopped after {_SECONDS:g} seconds; filter or join on fewer rows"
        elif self._memory() > self._most_bytes:
            self.reason = "stopped: it needs too much memory; filter before you join or sort"
        return bool(self.reason)


def _fetched(
    cursor: sqlite3.Cursor, max_chars: int, guard: _Guard
) -> tuple[list[tuple[Any, ...]], int, bool]:
    """Return the first rows, how many there are, and whether there are more than that."""
    rows: list[tuple[Any, ...]] = []
    room, count = max_chars, 0
    try:
        for row in cursor:
            count += 1
            if room > 0:
                rows.append(tuple(map(_shortened, row)))
                room -= sum(min(_LEAST_CELL, len(str(cell))) + 1 for cell in rows[-1])
            if count == _MOST_COUNTED:
                return rows, count, next(cursor, None) is not None
    except sqlite3.OperationalError:
        if not guard.reason or room > 0:
            raise
        return rows, count, True
    return rows, count, False


# Characters of a cell that any answer shows, and of one that is returned.
_LEAST_CELL = 40
_MOST_CELL = 20_001


def _shortened(cell: Any) -> Any:
    return cell[:_MOST_CELL] if isinstance(cell, str | bytes) else cell


class _Wrong(NamedTuple):
    """A statement that SQLite refused, for its error.

    Attributes:
        message: the error of SQLite.
        sql: the statement.
        database: its tables.
        reasons: why a record has no table, by the name of that table.
    """

    message: str
    sql: str
    database: Database
    reasons: dict[str, str]

    def taught(self) -> str:
        """Return the error with what would be right."""
        for pattern, fix in _FIXES:
            if found := re.search(pattern, self.message, re.DOTALL | re.IGNORECASE):
                return fix(self, found)
        if "->" in self.sql and sqlite3.sqlite_version_info < _ARROW_VERSION:
            return f"this SQLite has no -> and ->>; use json_extract(column, '$.key') ({self.message})"
        return f"SQLite: {self.message}; {_example(self.database.tables)}"

    def unknown_column(self, found: re.Match[str]) -> str:
        """Return the error of a column that is not there."""
        return f"unknown column {found[1][:_SHOWN_CHARS]}; {_shown(self.database.tables)}"

    def unknown_table(self, found: re.Match[str]) -> str:
        """Return the error of a table that is not there, or that a record has not."""
        reason = self.reasons.get(found[1].lower())
        if reason:
            return f"there is no {found[1]}: {reason}; use lines(n, text)"
        return f"unknown table {found[1][:_SHOWN_CHARS]}; {_shown(self.database.tables)}"

    def syntax(self, found: re.Match[str]) -> str:
        """Return the error of the syntax, with its place."""
        token, sql = found[1], self.sql
        place = _place_of(token, sql, self.database.connection, self.message)
        near = sql[max(0, place - 30) : place + 30]
        return (
            f"syntax error at character {place + 1} near {token[:_SHOWN_CHARS]!r}: {near!r}; "
            f"{_example(self.database.tables)}"
        )


_SHOWN_CHARS = 60
_FIXES: tuple[tuple[str, Callable[[_Wrong, re.Match[str]], str]], ...] = (
    ("no such column: (.+)", _Wrong.unknown_column),
    ("no such table: (.+)", _Wrong.unknown_table),
    (
        "no such function: regexp",
        lambda *_: 'there is no REGEXP; use LIKE, or context_grep with mode="regex"',
    ),
    ("one statement", lambda *_: "sql must be one statement; remove what follows the first ;"),
    (
        "too big",
        lambda *_: (
            f"a value would exceed {_VALUE_BYTES // 1024} KiB; use substr(), or fewer rows in group_concat()"
        ),
    ),
    (r'near "(.*)": syntax error', _Wrong.syntax),
)


def _place_of(token: str, sql: str, connection: sqlite3.Connection, message: str) -> int:
    """Return the offset of the token that SQLite names in an error: the first one at which it stops."""
    places = [found.start() for found in re.finditer(re.escape(token), sql)][:20]
    for place in places[:-1]:
        try:
            connection.execute(f"EXPLAIN {sql[: place + len(token)]}")
        except (sqlite3.Error, sqlite3.Warning) as error:
            if str(error) == message:
                return place
    return places[-1] if places else -1


def _shown(tables: dict[str, Table]) -> str:
    """Return the tables with their columns."""
    if not tables:
        return "the tables are t and lines(n, text); of several items t1, lines1, t2 and so on"
    return "; ".join(
        f"{name} has {', '.join(map(quoted, [*table.columns][:40]))}" for name, table in tables.items()
    )


def _example(tables: dict[str, Table]) -> str:
    name = next((name for name in tables if name.startswith("t")), "lines")
    columns = [*tables[name].columns] if name in tables else ["text"]
    column = quoted(columns[0])
    return f"for example: SELECT {column}, COUNT(*) FROM {name} GROUP BY 1 ORDER BY 2 DESC LIMIT 10"  # noqa: S608 # shown, not run


def _column_notes(tables: dict[str, Table], read: set[tuple[str, str]]) -> Iterator[str]:
    """Yield what the tables say of the columns that a query reads."""
    for name, table in tables.items():
        for column, note in table.notes.items():
            if (name, column.lower()) in read:
                yield f"{name}: {note}"


def _misread_notes(tables: dict[str, Table], misread: set[tuple[str, str]]) -> Iterator[str]:
    """Yield a note on each column of texts that a query compares or adds as numbers."""
    for name, column in sorted(misread):
        if name in tables and column not in tables[name].notes:
            yield (
                f"{name}: {quoted(column)} is text: compared with a number it is compared as text, and a sum "
                "reads only digits at its beginning"
            )


def _name_notes(sql: str, tables: dict[str, Table]) -> Iterator[str]:
    """Yield a note on each name in double quotes that SQLite takes as a text, since no column has it."""
    known = {name.lower() for table in tables.values() for name in (*table.columns, *tables)}
    known |= {name.lower() for name in _ALIAS.findall(sql)}
    for name in dict.fromkeys(_IN_QUOTES.findall(sql)):
        if name.replace('""', '"').lower() not in known:
            yield f'"{name[:60]}" is no column, so it is a text here'
