"""Columns of texts that a statement reads as numbers or as NULL, by the program that SQLite makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# A table and a column of it.
_Column = tuple[str, str]
# The name of an instruction and its five operands, as EXPLAIN shows them.
_Step = Sequence[Any]
_COMPARES = frozenset(("Lt", "Le", "Gt", "Ge", "Eq", "Ne"))
_ADDS = frozenset(("Add", "Subtract", "Multiply", "Divide", "Remainder", "And", "Or"))
_CONSTANTS = frozenset(("Integer", "Int64", "Real"))
_COPIES = frozenset(("Copy", "SCopy"))
_INSERTS = frozenset(("Insert", "IdxInsert", "SorterInsert"))
_NUMBERS_ONLY = ("sum(", "total(", "avg(", "abs(", "round(", "ceil", "floor(", "sqrt(", "mod(", "pow")
_CALLS = frozenset(("AggStep", "Function", "PureFunc"))
_TRUTHS = frozenset(("If", "IfNot", "Not"))
# The register that an instruction fills is in its second operand, or in the third.
_INTO_TWO = _CONSTANTS | {"Null", "String8", "Not", "Rowid", "Count", "ZeroOrNull"}
_INTO_THREE = _ADDS | {"Function", "PureFunc", "Concat"}
_NULLS = frozenset(("IsNull", "NotNull"))
# The affinity for texts that an instruction for comparing has in its last operand, and a cast in its second.
_AFFINITY_MASK, _TEXT = 0x47, 0x42


# Returns the rows of a statement.
Ask = Callable[[str], Sequence[Sequence[Any]]]


def misread_columns(ask: Ask, sql: str) -> Misread:
    """Return the columns of type TEXT that a statement may misread."""
    tables = dict(map(tuple, ask("SELECT rootpage, name FROM sqlite_master")))
    steps = [step[1:7] for step in ask(f"EXPLAIN {sql}")]
    program = Misread()
    for name, cursor, page, *_ in steps:
        if name == "OpenRead" and page in tables:
            program.columns[cursor] = _text_columns(ask, tables[page])
    # Parts of a program may come before those that fill their tables.
    for step in steps * 2:
        program.take(step)
    return program


class Misread:
    """The instructions of a statement, with the columns of texts that its cursors and registers hold.

    Attributes:
        numbers: columns that it compares or adds as numbers, or takes as true or false.
        nulls: those that it compares with NULL.
        casts: those that it casts to numbers.
    """

    def __init__(self) -> None:
        self.columns: dict[int, dict[int, _Column]] = {}
        self.numbers: set[_Column] = set()
        self.nulls: set[_Column] = set()
        self.casts: set[_Column] = set()
        self._held: dict[int, _Column] = {}
        self._constants: set[int] = set()
        self._records: dict[int, dict[int, _Column]] = {}

    def take(self, step: _Step) -> None:
        """Take the next instruction into account."""
        name, one, two, three, *_ = step
        if name == "Column":
            self._hold(three, self.columns.get(one, {}).get(two))
        elif name in _COPIES:
            self._hold(two, self._held.get(one))
        elif name == "MakeRecord":
            self._records[three] = {at: self._held[one + at] for at in range(two) if one + at in self._held}
        elif name in _INSERTS:
            self.columns[one] = self._records.get(two, {})
        elif name == "SorterData":
            self.columns[three] = self.columns.get(one, {})
        else:
            self._find(step)
            self._fill(name, one, two, three)

    def _fill(self, name: str, one: int, two: int, three: int) -> None:
        """Take into account which register an instruction fills."""
        if name == "Cast" and two > _TEXT and one in self._held:
            self.casts.add(self._held[one])
        if name in _INTO_TWO | _INTO_THREE | {"Cast"}:
            self._hold(two if name in _INTO_TWO else three if name in _INTO_THREE else one, None)
        if name in _CONSTANTS:
            self._constants.add(two)

    def _hold(self, register: int, column: _Column | None) -> None:
        self._held.pop(register, None)
        self._constants.discard(register)
        if column is not None:
            self._held[register] = column

    def _find(self, step: _Step) -> None:
        name, one, two, three, function, flags = step
        registers: tuple[int, ...] = ()
        if name in _NULLS and one in self._held:
            self.nulls.add(self._held[one])
        elif name == "AggStep" and function == "count(1)" and two in self._held:
            self.nulls.add(self._held[two])
        if name in _COMPARES and flags & _AFFINITY_MASK == _TEXT and {one, three} & self._constants:
            registers = (one, three)
        elif name in _ADDS:
            registers = (one, two)
        elif name in _TRUTHS:
            registers = (one,)
        elif name in _CALLS and str(function).startswith(_NUMBERS_ONLY):
            registers = (two,)
        self.numbers |= {self._held[register] for register in registers if register in self._held}


def _text_columns(ask: Ask, table: str) -> dict[int, _Column]:
    # It numbers the columns that are stored, as the program does.
    rows = ask(f"PRAGMA table_info({table})")
    return {place: (table, name) for place, name, kind, *_ in rows if kind == "TEXT"}
