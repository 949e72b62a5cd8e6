"""The program of the process that runs SQL: it has tables of its own, in memory, and no files.

`_process` starts it. It imports the standard library alone. A request is a marshalled list: the name of
a method, the number of a database, more arguments. An answer is JSON. Both follow their length. The operating
system limits the memory, time and files of the process; SQLite limits its own memory on every system.
"""

from __future__ import annotations

import json
import marshal
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

try:
    import resource as _resource

    resource: Any = _resource
except ImportError:  # on Windows
    resource = None

WorkerAnswer = dict[str, Any]

_IDLE_SECONDS = 60.0
_PAGE_BYTES = 4096
# Bytes that the interpreter needs besides SQLite.
_OWN_BYTES = 128 * 1024 * 1024
_CPU_SECONDS = 15
_STEPS = 1000
# A longer value is an error. It bounds what one function of SQLite does, which nothing can interrupt.
VALUE_BYTES = 256 * 1024
_MOST_COUNTED = 100_000
# Characters of a cell that any answer shows, and of one that is returned.
_LEAST_CELL, _MOST_CELL = 40, 20_001
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
# They compute a value from their arguments, and reach nothing else.
FUNCTIONS = frozenset(
    (
        *("->", "->>", "abs", "avg", "ceil", "ceiling", "char", "coalesce", "concat", "count", "date"),
        *("datetime", "dense_rank", "exp", "floor", "format", "glob", "group_concat", "hex", "if"),
        *("ifnull", "iif", "instr", "json", "json_array_length", "json_extract", "json_group_array"),
        *("json_group_object", "json_type", "json_valid", "julianday", "lag", "lead", "length", "like"),
        *("ln", "log", "log10", "log2", "lower", "ltrim", "max", "median", "min", "mod", "nullif"),
        *("percentile", "pow", "power", "printf", "quote", "random", "randomblob", "rank", "replace"),
        *("round", "row_number", "rtrim", "sign", "sqrt", "strftime", "string_agg", "substr", "substring"),
        *("sum", "time", "timediff", "total", "trim", "trunc", "typeof", "unicode", "unixepoch", "upper"),
        "zeroblob",
    )
)
_JSON_TABLES = frozenset({"json_each", "json_tree"})
_OWN_TABLES = ("sqlite_", "pragma_", "dbstat", "bytecode", "tables_used")
_ONLY_SELECT = "only SELECT is allowed: items are read-only"


class FailedError(Exception):
    """A request that cannot be answered; the arguments are the members of its answer."""


class _StatementLimits:
    """The limits of one statement, as SQLite asks for them.

    Attributes:
        reason: why it was refused or stopped, "" if it was not.
        reads: the columns that it reads, by their table; "" for the rows alone.
        is_late: whether its time is over.
    """

    def __init__(self, tables: set[str], modules: frozenset[str], seconds: float) -> None:
        self._tables = tables
        self._modules = modules
        self._end = time.monotonic() + seconds
        self.reason = ""
        self.reads: set[tuple[str, str]] = set()
        self.is_late = False

    @contextmanager
    def around(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Apply the limits to a connection."""
        before = {limit: connection.setlimit(limit, value) for limit, value in _LIMITS.items()}
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._check, _STEPS)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)
            connection.set_authorizer(None)
            for limit, value in before.items():
                connection.setlimit(limit, value)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if action == sqlite3.SQLITE_READ:
            problem = self._problem_of_read((first or "").lower(), (second or "").lower())
        elif action == sqlite3.SQLITE_FUNCTION:
            problem = "" if (second or "").lower() in FUNCTIONS else f"{second} is not allowed"
        else:
            is_select = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            problem = "" if is_select else _ONLY_SELECT
        self.reason = self.reason or problem
        return sqlite3.SQLITE_DENY if problem else sqlite3.SQLITE_OK

    def _problem_of_read(self, table: str, column: str) -> str:
        if table in self._tables:
            self.reads.add((table, column))
            return ""
        # SQLite names a WITH table too if only its rows are read.
        is_virtual = table in self._modules or table.startswith(_OWN_TABLES)
        is_fine = table in _JSON_TABLES or not (column or is_virtual)
        return "" if is_fine else f"{table} cannot be read"

    def _check(self) -> int:
        self.is_late = self.is_late or time.monotonic() > self._end
        return self.is_late


class _Base:
    """The tables of one database, with a method for each request."""

    def __init__(self, most_bytes: int) -> None:
        self.connection = _connected()
        self.connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        self.connection.execute(f"PRAGMA max_page_count = {most_bytes // _PAGE_BYTES}")
        self._modules = frozenset(row[0].lower() for row in self.connection.execute("PRAGMA module_list"))
        formats = _connected()
        formats.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        for name in ("printf", "format"):
            self.connection.create_function(name, -1, partial(_printf, formats), deterministic=True)
        self.tables: set[str] = set()

    def create(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        declared = ", ".join(f"{_quoted(column)} {kind}" for column, kind in columns)
        self.connection.execute(f"DROP TABLE IF EXISTS {name}")
        self.connection.execute("BEGIN")
        self.connection.execute(f"CREATE TABLE {name} ({declared})")
        self.tables.add(name)

    def insert(self, name: str, rows: Sequence[Sequence[Any]], first: int) -> None:
        insert = f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})"  # noqa: S608 # a name of the library
        try:
            self.connection.executemany(insert, rows)
        except UnicodeEncodeError:
            self.connection.execute(f"DELETE FROM {name} WHERE rowid >= {first}")  # noqa: S608 # a number
            self.connection.executemany(insert, map(_encodable, rows))

    def commit(self) -> WorkerAnswer:
        """Keep what was inserted; answer with the bytes that the tables take."""
        self.connection.execute("COMMIT")
        return {"bytes": self.connection.execute("PRAGMA page_count").fetchone()[0] * _PAGE_BYTES}

    def undo(self, name: str) -> None:
        # If the memory is full, SQLite has already rolled back.
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self.tables.discard(name)

    def ask(self, sql: str) -> WorkerAnswer:
        """Run a statement of the library."""
        return {"rows": self.connection.execute(sql).fetchall()}

    def query(self, sql: str, max_chars: int, seconds: float) -> WorkerAnswer:
        """Run a statement from outside, within all limits."""
        limits = _StatementLimits(self.tables, self._modules, seconds)
        with limits.around(self.connection):
            try:
                return {**self._rows(sql, max_chars, limits), "reads": sorted(limits.reads)}
            except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
                raise self._failure(str(error), limits) from None

    def _rows(self, sql: str, max_chars: int, limits: _StatementLimits) -> WorkerAnswer:
        cursor = self.connection.execute(sql)
        if cursor.description is None:
            raise FailedError("select")
        columns = [column[0] for column in cursor.description]
        rows, total, is_more = _fetched(cursor, max_chars, limits)
        cursor.close()
        return {"columns": columns, "rows": rows, "total": total, "is_more": is_more}

    def _failure(self, message: str, limits: _StatementLimits) -> FailedError:
        if limits.is_late:
            return FailedError("late")
        if limits.reason:
            return FailedError("refused", limits.reason)
        return FailedError("sqlite", message)


def _connected() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
    connection.execute("PRAGMA temp_store = MEMORY")
    # Their first use declares them, which the authorizer of a query would refuse.
    with suppress(sqlite3.Error):
        connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
    return connection


def _printf(connection: sqlite3.Connection, *arguments: Any) -> str | bytes | None:
    """Return what SQLite's `printf` does, but an error in place of NULL for a text that is too long."""
    if not arguments or arguments[0] is None:
        return None
    marks = ", ".join("?" * len(arguments))
    # A text that begins with a character is never NULL for being empty.
    [text] = connection.execute(f"SELECT printf({marks})", (f".{arguments[0]}", *arguments[1:])).fetchone()
    return bytes(VALUE_BYTES + 1) if text is None else str(text)[1:]


def _fetched(
    cursor: sqlite3.Cursor, max_chars: int, limits: _StatementLimits
) -> tuple[list[tuple[Any, ...]], int, bool]:
    """Return the first rows, how many there are, and whether there are more than that."""
    rows: list[tuple[Any, ...]] = []
    room, count = max_chars, 0
    most = min(_MOST_CELL, max_chars + 1)
    try:
        for row in cursor:
            count += 1
            if room > 0:
                rows.append(tuple(_shortened(cell, most) for cell in row))
                room -= sum(min(_LEAST_CELL, len(str(cell))) + 1 for cell in rows[-1])
            if count == _MOST_COUNTED:
                return rows, count, next(cursor, None) is not None
    except sqlite3.OperationalError:
        if not limits.is_late or room > 0:
            raise
        return rows, count, True
    return rows, count, False


def _shortened(cell: Any, most: int) -> Any:
    if isinstance(cell, bytes):
        return {"blob": cell[:most].hex()}
    return cell[:most] if isinstance(cell, str) else cell


def _encodable(row: Sequence[Any]) -> list[Any]:
    """Return a row whose texts have no lone surrogates, which SQLite does not take."""
    return [
        cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell for cell in row
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _answered(bases: dict[int, _Base], method: str, number: int, *arguments: Any) -> WorkerAnswer:
    _limit_cpu()
    try:
        if method == "open":
            bases[number] = _Base(*arguments)
        elif method == "drop":
            bases.pop(number).connection.close()
        else:
            return getattr(bases[number], method)(*arguments) or {}
    except FailedError as failed:
        return {"failed": failed.args}
    except MemoryError:
        return {"failed": ["memory"]}
    except (sqlite3.Error, OverflowError) as error:
        return {"failed": ["sqlite", str(error)]}
    return {}


def _limit(heap_bytes: int) -> None:
    """Take away what the process never needs: memory, files, other processes, dumps of its memory."""
    _connected().execute(f"PRAGMA hard_heap_limit = {heap_bytes}")
    if resource is None:
        return
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0}
    with suppress(OSError), open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 # pathlib takes 10 ms
        pages = int(statm.read().split()[0])
        limits["RLIMIT_AS"] = pages * resource.getpagesize() + heap_bytes + _OWN_BYTES
    for name, value in limits.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _limit_cpu() -> None:
    """Let the system end the process if a request takes too long."""
    if resource is None:
        return
    used, hard = time.process_time(), resource.getrlimit(resource.RLIMIT_CPU)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + _CPU_SECONDS, hard))


def _read(requests: SimpleQueue[Any]) -> None:
    """Read requests until the parent closes its end, or dies."""
    source = sys.stdin.buffer
    while size := source.read(4):
        requests.put(marshal.loads(source.read(int.from_bytes(size, "big"))))  # noqa: S302 # from the parent
    os._exit(0)


def main(heap_bytes: int) -> None:
    """Answer requests until the parent ends, or sends none for a minute."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=[requests], daemon=True).start()
    _limit(heap_bytes)
    bases: dict[int, _Base] = {}
    out = sys.stdout.buffer
    answer: WorkerAnswer = {"version": sqlite3.sqlite_version_info}
    while True:
        data = json.dumps(answer).encode()
        out.write(len(data).to_bytes(4, "big") + data)
        out.flush()
        try:
            answer = _answered(bases, *requests.get(timeout=_IDLE_SECONDS))
        except Empty:
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
