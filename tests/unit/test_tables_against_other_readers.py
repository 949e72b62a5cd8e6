"""Drawn tables of many kinds, as DuckDB and pandas read them: right or refused, never wrong in silence.

Each table is written in its kind, and as plain CSV. What only one of our readers knows is compared with what
the two read of that CSV; what they know too, with what they read of the text itself. The same texts are
damaged too: then all that is not read right is said.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from _tables import KINDS, Drawn, damages, draw, mistakes, ours, separated, table

from offload.errors import ConfigError
from offload.reading.tables import schema_line

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: the dependency group `tables` has it")
pandas = pytest.importorskip("pandas", reason="pandas is not installed: the dependency group `tables` has it")

NEVER_REFUSED = {
    name for name in KINDS if not name.startswith(("aligned", "printed", "TSV with", "CSV with blanks"))
}


def check(kind: str, numbers: range, folder: Path) -> None:
    refused, read = 0, 0
    for number in numbers:
        drawn = draw(kind, number)
        agree_with_others(drawn, folder)
        try:
            found = mistakes(drawn)
        except ConfigError as error:
            refused += "there is no t: " in str(error) and not schema_line(drawn.text)
            continue
        read += 1
        assert not found, f"{kind} {number}: {found[:3]}\n{drawn.text[:600]}\n{ours(drawn.text)}"
    assert refused + read == len(numbers)
    assert refused <= (0 if kind in NEVER_REFUSED else len(numbers) // 4), f"{kind}: {refused} refused"


def agree_with_others(drawn: Drawn, folder: Path) -> None:
    """Assert that DuckDB and pandas read the expected values, of the text itself if it is CSV."""
    if drawn.is_ragged:
        return
    options = {"sep": ",", **(drawn.options or {})}
    text = drawn.text if drawn.options is not None else separated(table(drawn.columns))
    frame = pandas.read_csv(
        io.StringIO(text.removeprefix("\ufeff")), dtype=str, keep_default_na=False, **options
    )
    assert [*map(list, frame.itertuples(index=False))] == [
        [text.strip() if options.get("skipinitialspace") else text for text in row]
        for row in table(drawn.columns)[1:]
    ]
    path = folder / "table.csv"
    path.write_text(separated(table(drawn.columns)), "utf-8", newline="")
    relation = duckdb.read_csv(str(path), header=True, sep=",", quotechar='"')
    for (text, expected), value in (
        pair
        for column, values in zip(drawn.columns, zip(*relation.fetchall(), strict=True), strict=True)
        for pair in zip(column.cells, values, strict=True)
    ):
        if isinstance(value, int | float) and isinstance(expected, int | float):
            assert math.isclose(value, expected, rel_tol=1e-9), (text, value)


def check_damaged(kind: str, numbers: range) -> None:
    for number in numbers:
        for damage, text, is_silent in damages(kind, number):
            assert not is_silent, f"{kind} {number}: {damage}\n{text[-600:]}\n{ours(text)}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_table_is_read_as_before_or_what_is_not_is_said(kind: str) -> None:
    check_damaged(kind, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_tables_are_read_as_before_or_what_is_not_is_said(kind: str) -> None:
    check_damaged(kind, range(4, 60))


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_table_is_read_as_by_others_or_refused(kind: str, tmp_path: Path) -> None:
    check(kind, range(6), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_drawn_tables_are_read_as_by_others_or_refused(kind: str, tmp_path: Path) -> None:
    check(kind, range(6, 150), tmp_path)
