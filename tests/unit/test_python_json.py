"""The text of a Python value as JSON."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from offload.integrations._python import as_json


class Color(Enum):
    RED = "red"
    ONE = 1


class Row(BaseModel):
    number: int
    note: str
    color: Color = Color.RED
    at: Any = None


class Table(BaseModel):
    rows: list[Row]
    total: float = -1.5e-7


@dataclass
class Pair:
    left: Any
    right: Any = (1,)


class Named(NamedTuple):
    a: int
    b: str


NOTE = "it's \"x\" (a=1) {'k': 1}\n\\ \u2028 \x00 é \U0001f600"


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": 1, "b": [True, None, False]}, {"a": 1, "b": [True, None, False]}),
        ([1, (2,), (), {}, [[]]], [1, [2], [], {}, [[]]]),
        ({"k": {1: 2, -3: "x"}}, {"k": {"1": 2, "-3": "x"}}),
        ({"note": NOTE, "quoted": '"hi"', "empty": ""}, {"note": NOTE, "quoted": '"hi"', "empty": ""}),
        (
            Table(rows=[Row(number=1, note=NOTE), Row(number=-2, note="", color=Color.ONE)]),
            {
                "rows": [
                    {"number": 1, "note": NOTE, "color": "red", "at": None},
                    {"number": -2, "note": "", "color": "1", "at": None},
                ],
                "total": -1.5e-7,
            },
        ),
        (Pair([Named(1, "x")]), {"left": [{"a": 1, "b": "x"}], "right": [1]}),
        (
            Pair(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2026, 1, 2)),
            {"left": "2026-01-02T03:04:05.000006+00:00", "right": "2026-01-02"},
        ),
        (Pair(Decimal("1.50"), uuid.UUID(int=3)), {"left": "1.50", "right": str(uuid.UUID(int=3))}),
        (Pair(range(3), timedelta(seconds=3)), {"left": "range(0, 3)", "right": {"seconds": 3}}),
    ],
)
def test_a_value_becomes_json(value, data):
    written = as_json(str(value))

    assert written is not None
    assert json.loads(written) == data


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "(hello)", "[", "R(", "a=", "{'", "'quoted'", "12", "f(1, (2, ", "[1]]", "[1}"),
        *('{"a": 1}', "[1, 2]", "{}", '{"a": "\\/"}'),
        *("{'a': 1}\n", "a=1 a=2", "{'a': 1, 'a': 2}", "key: value", "FOO=bar"),
        *map(str, [{1, 2}, {"b": b"x"}, {"n": float("nan")}, {"o": object()}, {"f": frozenset("a")}]),
        "datetime.date(2026, 13, 1)",
        "['" + "x" * 4_000_000 + "']",
        "[" * 100_000,
        "f(1, " * 20_000,
    ],
    ids=lambda text: text[:20],
)
def test_any_other_text_is_left_alone(text):
    assert as_json(text) is None
