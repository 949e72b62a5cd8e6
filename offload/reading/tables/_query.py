"""One read-only query over the tables of records: bounded in time, memory, rows and characters."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unicodedata import normalize

from offload.base.text import composable
from offload.errors import ConfigError
from offload.reading.tables._compared import misread_columns
from offload.reading.tables._database import Database, Table
from offload.reading.tables._form import NoTableError
from offload.reading.tables._process import LateError, Pool, Worker, WorkerError
from offload.reading.tables._survey import quoted

# The tables of content up to this size are kept for later queries.
WHOLE_BYTES = 32 * 1024 * 1024
# Tables that a process keeps for later queries.
_KEPT_BYTES = 128 * 1024 * 1024
_MOST_KEPT = 64
_SECONDS = 2.0
# SQLite stops at the end of its time, but not while it prepares a statement: then its process ends.
_GRACE_SECONDS = 0.5
_LOAD_SECONDS = 15.0
_VALUE_KIB = 256
_WORDS = re.compile(r"[^\W\d]\w*")
# A text, which may have double quotes, or a name in double quotes.
_IN_QUOTES = re.compile(r"'(?:[^']|'')*+'|(?<!\w)\"((?:[^\"]|\"\")+)\"")
_ALIAS = re.compile(r"\bas\s+\"((?:[^\"]|\"\")+)\"", re.IGNORECASE)
_NO_COLUMN = re.compile("no such column: (.+)", re.DOTALL)
_NO_TABLE = re.compile(r"no such table: (?:main\.)?(.+)", re.DOTALL)
# A text or a comment; or a name where a table is named, or one whose column is named.
_NAMED = (
    r"'(?:[^']|'')*+'|--[^\n]*|/\*.*?\*/"
    r"|(?P<before>\b(?:from|join)\s+){name}(?![\w.(])|(?<![\w.]){name}(?=\.)"
)
# They name tables of a database about its tables.
_OWN_NAMES = ("sqlite_", "pragma_", "pg_", "information_schema")
_TABLE_WORD = re.compile(r'near "(table)": syntax error', re.IGNORECASE)
_SYNTAX = re.compile(r'near "(.*)": syntax error', re.DOTALL)
_SHOWN_CHARS = 60
_IS_COMPOSED = "the text has accents as characters of their own, which are composed here"
_HAS_NULS = "the text has NULs, at which LIKE and most functions end a value"
# Words in errors of SQLite, in lower case, and the error in their place.
_FIXES = {
    "no such function: regexp": 'there is no REGEXP; use LIKE, or context_grep with mode="regex"',
    "one statement": "sql must be one statement; remove what follows the first ;",
    "too big": f"a value would exceed {_VALUE_KIB} KiB; use substr(), or fewer rows in group_concat()",
}


class Record(NamedTuple):
    """A record to query.

    Attributes:
        key: what no other record has.
        bytes: bytes of its content.
        chunks: its text, by the chunk; read again at each iteration.
        ref: a name for its table that a statement may use.
    """

    key: Any
    bytes: int
    chunks: Iterable[str]
    ref: str = ""


class QueryResult(NamedTuple):
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


pool: Pool[Database] = Pool()


def query(records: Sequence[Record], sql: str, max_chars: int) -> QueryResult:
    """Run one SELECT over records, in a process of its own.

    Args:
        records: the records; one has the tables `t` and `lines`, several `t1`, `lines1`, `t2` and so on.
        sql: the statement.
        max_chars: characters of the first rows that are returned; the others are counted.

    Raises:
        ConfigError: a wrong statement, with its fix; too much time or memory; no process can be started.
    """
    key = records[0].key if len(records) == 1 else tuple(record.key for record in records)
    with pool.lease(key) as worker:
        try:
            return _Query(worker, key, records, sql).result(max_chars)
        except LateError:
            raise ConfigError(_STOPPED["late"]) from None


_STOPPED = {
    "late": f"stopped after {_SECONDS:g} seconds; filter or join on fewer rows",
    "memory": "stopped: it needs too much memory; filter before you join or sort",
}


class _Query:
    """One query in a worker, which loads a table when SQLite asks for it.

    Attributes:
        sql: the statement.
        database: the tables that it may read.
        reasons: why a record has no table, by the name of that table.
        renamed: notes on the names that were read as those of other tables.
    """

    def __init__(self, worker: Worker[Database], key: Hashable, records: Sequence[Record], sql: str) -> None:
        self.sql = normalize("NFC", sql)
        self.reasons: dict[str, str] = {}
        self.renamed: list[str] = []
        self._worker = worker
        numbers = [""] if len(records) == 1 else [str(number + 1) for number in range(len(records))]
        self._records = dict(zip(numbers, records, strict=True))
        self._is_kept = all(record.bytes <= WHOLE_BYTES for record in records)
        self.database = _kept(worker, key) if self._is_kept else Database(worker)

    @property
    def _names(self) -> set[str]:
        return {word.lower() for word in _WORDS.findall(self.sql)}

    def result(self, max_chars: int) -> QueryResult:
        """Return the answer. Raises `ConfigError`, `LateError`."""
        try:
            answer = self._answer(max_chars)
            read = {(table, column) for table, column in answer["reads"]}
            tables = {name: table for name, table in self.database.tables.items() if name in self._names}
            notes = [*self.renamed]
            notes += [f"{name}: {remark}" for name, table in tables.items() for remark in table.remarks]
            notes += _column_notes(tables, read)
            notes += self._text_notes(tables)
            notes += _name_notes(self.sql, self.database.tables)
        finally:
            self._leave()
        rows = [tuple(map(_cell, row)) for row in answer["rows"]]
        return QueryResult(tuple(answer["columns"]), rows, answer["total"], answer["is_more"], tables, notes)

    def _text_notes(self, tables: dict[str, Table]) -> Iterator[str]:
        """Yield notes on texts that are cast, or not NULL. Raises `ConfigError` for texts read as numbers."""
        try:
            with self._worker.within(_SECONDS + _GRACE_SECONDS):
                misread = misread_columns(self.database.ask, self.sql)
        except WorkerError as failure:
            raise ConfigError(self._taught(failure)) from None
        for name, column in sorted(misread.numbers):
            if name in tables:
                why = tables[name].notes.get(column) or f"{quoted(column)} is text"
                raise ConfigError(f"{name}: {why}: compare it with a text in quotes, or CAST its numbers")
        for name, column in sorted(misread.casts):
            yield f"{name}: {quoted(column)} is text; a cast takes the number at its beginning, or 0"
        for name, column in sorted(misread.nulls):
            if note := tables[name].empty_notes.get(column) if name in tables else None:
                yield f"{name}: {quoted(column)} {note}"

    def _leave(self) -> None:
        if not self._worker.is_usable:
            self._worker.close()
        elif not self._is_kept:
            self.database.drop()

    def _answer(self, max_chars: int) -> dict[str, Any]:
        """Return the rows; load the tables that SQLite lacks."""
        while True:
            try:
                with self._worker.within(_SECONDS + _GRACE_SECONDS):
                    answer = self.database.query(self.sql, max_chars, _SECONDS)
            except WorkerError as failure:
                if self._supply_for(failure):
                    continue
                raise ConfigError(self._taught(failure)) from None
            return answer

    def _supply_for(self, failure: WorkerError) -> bool:
        """Load the table that a statement lacks; return whether there is one."""
        if failure.kind != "sqlite":
            return False
        found = _NO_TABLE.fullmatch(failure.details[0]) or _TABLE_WORD.fullmatch(failure.details[0])
        name = found[1].lower() if found else ""
        if self._can_supply(*_parts_of(name)):
            self._supply(*_parts_of(name))
            return True
        return name != "" and self._rename(name)

    def _rename(self, name: str) -> bool:
        """Let a statement read the table that an unknown name can only mean; return whether there is one."""
        refs = {record.ref.lower(): f"t{number}" for number, record in self._records.items()}
        meant = refs.get(name, "lines" if name.startswith("lines") else "t")
        is_taken = re.search(rf"\b(?:from|join)\s+{meant}\b", self.sql, re.IGNORECASE) is not None
        if name not in refs and (len(refs) > 1 or is_taken or name.startswith(_OWN_NAMES)):
            return False
        pattern = _NAMED.format(name=rf"[\"'`\[]?\b{re.escape(name)}\b[\"'`\]]?")
        renamed = re.sub(
            pattern,
            lambda found: found[0] if found[0][0] in "'-/" else f"{found['before'] or ''}{meant}",
            self.sql,
            flags=re.IGNORECASE | re.DOTALL,
        )
        is_renamed, self.sql = renamed != self.sql, renamed
        if is_renamed and name not in refs:
            self.renamed.append(f"there is no table {name[:_SHOWN_CHARS]}: {meant} was read")
        return is_renamed

    def _can_supply(self, kind: str, number: str) -> bool:
        name = f"{kind}{number}"
        is_known = name in self.database.tables or name in self.reasons
        return bool(kind) and number in self._records and not is_known

    def _supply(self, kind: str, number: str) -> None:
        record, name = self._records[number], f"{kind}{number}"
        try:
            with self._worker.within(_LOAD_SECONDS):
                _load(self.database, name, record)
        except NoTableError as error:
            self.reasons[name] = str(error)
        _evict(self._worker, self.database)

    def _taught(self, failure: WorkerError) -> str:
        if failure.kind == "memory":
            self._worker.close()
        if failure.kind not in ("select", "sqlite"):
            return _STOPPED.get(failure.kind) or str(failure.details[0])
        self._supply_named()
        if failure.kind == "select":
            return f"sql must be one SELECT; {_example(self.database.tables)}"
        return self._taught_by_sqlite(*failure.details)

    def _taught_by_sqlite(self, message: str) -> str:
        """Return an error of SQLite with what would be right."""
        tables = self.database.tables
        if found := _NO_COLUMN.search(message):
            return f"unknown column {found[1][:_SHOWN_CHARS]}; {_nested(found[1], tables)}{_shown(tables)}"
        if found := _NO_TABLE.search(message):
            return self._unknown_table(found[1])
        if fix := next((fix for words, fix in _FIXES.items() if words in message.lower()), ""):
            return fix
        if found := _SYNTAX.search(message):
            return f"syntax error near {found[1][:_SHOWN_CHARS]!r}; {_example(tables)}"
        return f"SQLite: {message}; {_example(tables)}"

    def _unknown_table(self, name: str) -> str:
        reason = self.reasons.get(name.lower())
        if reason:
            return f"there is no {name}: {reason}; use lines(n, text)"
        return f"unknown table {name[:_SHOWN_CHARS]}; {_shown(self.database.tables)}"

    def _supply_named(self) -> None:
        """Load the tables that a wrong statement may mean, for its error names their columns."""
        for name in sorted(self._names):
            parts = _parts_of(name)
            if self._can_supply(*parts):
                self._supply(*parts)


def _parts_of(name: str) -> tuple[str, str]:
    """Return the kind of a table and the number of its record: "t" and "2" of "t2"."""
    kind = "lines" if name.startswith("lines") else "t" if name.startswith("t") else ""
    return kind, name.removeprefix(kind)


class _Composed:
    """The chunks of a text as a statement writes it, with accents composed.

    Attributes:
        notes: what a comparison must know of the text, as keys.
    """

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks = chunks
        self.notes: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        for text in composable(self._chunks):
            composed = text if text.isascii() else normalize("NFC", text)
            self.notes |= {_IS_COMPOSED: None} if composed != text else {}
            self.notes |= {_HAS_NULS: None} if "\0" in text else {}
            yield composed


def _load(database: Database, name: str, record: Record) -> None:
    chunks = _Composed(record.chunks)
    if name.startswith("lines"):
        database.load_lines(name, chunks)
    else:
        database.load_table(name, chunks)
    database.tables[name].remarks += chunks.notes


def _kept(worker: Worker[Database], key: Hashable) -> Database:
    """Return the database that a worker keeps for records."""
    database = worker.kept.pop(key, None) or Database(worker)
    worker.kept[key] = database
    return database


def _evict(worker: Worker[Database], used: Database) -> None:
    """Drop the databases that were used least recently, if there are too many."""
    room = _KEPT_BYTES - sum(database.bytes for database in worker.kept.values())
    for key, database in [*worker.kept.items()]:
        if (room < 0 or len(worker.kept) > _MOST_KEPT) and database is not used:
            room += database.bytes
            worker.kept.pop(key).drop()


def _cell(value: Any) -> Any:
    return bytes.fromhex(value["blob"]) if isinstance(value, dict) else value


def _shown(tables: dict[str, Table]) -> str:
    if not tables:
        return "the tables are t and lines(n, text); of several items t1, lines1, t2 and so on"
    return "; ".join(
        f"{name} has {', '.join(map(quoted, [*table.columns][:40]))}" for name, table in tables.items()
    )


def _nested(name: str, tables: dict[str, Table]) -> str:
    """Return how to read what an unknown column such as `user.name` means, if `user` is a column."""
    parts = name.split(".")
    columns = {column for table in tables.values() for column in table.columns}
    place = next((i for i, part in enumerate(parts[:-1]) if part in columns), None)
    if place is None:
        return ""
    path = ".".join(parts[place + 1 :])
    return f"for a value within it use json_extract({quoted(parts[place])}, '$.{path[:_SHOWN_CHARS]}'); "


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


def _name_notes(sql: str, tables: dict[str, Table]) -> Iterator[str]:
    """Yield a note on each name in double quotes that SQLite takes as a text, since no column has it."""
    known = {name.lower() for table in tables.values() for name in (*table.columns, *tables)}
    known |= {name.lower() for name in _ALIAS.findall(sql)}
    for name in dict.fromkeys(filter(None, _IN_QUOTES.findall(sql))):
        if name.replace('""', '"').lower() not in known:
            yield f'"{name[:60]}" is not a column, so it is a text here'
