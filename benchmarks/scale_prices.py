"""Requests, money and hours of large stores on S3, from AWS's published figures, for docs/scale.md.

Nothing is measured here; tests/unit/test_scale.py counts the requests of the commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

RECORDS = (10**2, 10**5, 10**8)
AGENTS = (1, 100, 10_000)
WORKERS = (1, 16, 256)

# AWS's limits for each partition of a prefix, and its price list for US East (N. Virginia), S3 Standard.
PUTS_A_SECOND, GETS_A_SECOND = 3_500, 5_500
PUT_DOLLARS, GET_DOLLARS, GIGABYTE_DOLLARS = 0.005 / 1000, 0.0004 / 1000, 0.023
# The lower end of what AWS gives for the first byte of a small object.
REQUEST_SECONDS = 0.1

# An agent that never rests, as in the recorded sessions: a turn, of which .35 offload a record, and each
# writes an entry of its journal.
TURN_SECONDS, RECORDS_A_TURN, ENTRIES_A_TURN = 15, 0.35, 1
RECORD_BYTES, ENTRY_BYTES = 8_000, 1_500
RECORDS_A_SESSION = 1_000
_PAGE = 1_000
_MONTH_SECONDS = 30 * 24 * 3600


def puts_a_second(agents: int) -> float:
    """Return the PUTs that agents send in a second: a record or a journal entry each."""
    return agents * (RECORDS_A_TURN + ENTRIES_A_TURN) / TURN_SECONDS


def dollars_a_month(records: int, agents: int) -> float:
    """Return the price of keeping records with their journals, and of the PUTs of agents, for a month."""
    stored = records * (RECORD_BYTES + ENTRY_BYTES * ENTRIES_A_TURN / RECORDS_A_TURN)
    return stored / 1e9 * GIGABYTE_DOLLARS + puts_a_second(agents) * _MONTH_SECONDS * PUT_DOLLARS


def gc_lists(records: int, workers: int) -> tuple[int, int]:
    """Return the LISTs of gc that one process sends, and those that workers share."""
    sessions = ceil(records / RECORDS_A_SESSION)
    if workers == 1:
        entries = records / RECORDS_A_TURN * ENTRIES_A_TURN
        return sum(ceil(count / _PAGE) for count in (records, entries, sessions)), 0
    return 3 * ceil(sessions / _PAGE), 3 * sessions


def verify_requests(records: int) -> tuple[int, int]:
    """Return the LISTs of verify, which one process sends, and its GETs, which workers share."""
    entries = ceil(records / RECORDS_A_TURN * ENTRIES_A_TURN)
    return ceil(records / _PAGE) + ceil(entries / _PAGE), records + entries


def hours(alone: int, shared: int, workers: int) -> float:
    """Return the hours that requests take of which some are shared among workers, within S3's limit."""
    at_once = min(workers, GETS_A_SECOND * REQUEST_SECONDS)
    return (alone + shared / at_once) * REQUEST_SECONDS / 3600


def tables() -> list[str]:
    """Return the tables of docs/scale.md in Markdown."""
    load = [
        (f"{agents:,}", f"{puts_a_second(agents):,.1f}", _percent(puts_a_second(agents) / PUTS_A_SECOND))
        for agents in AGENTS
    ]
    money = [
        (_count(records), *(f"${dollars_a_month(records, agents):,.2f}" for agents in AGENTS))
        for records in RECORDS
    ]
    work = []
    for records in RECORDS:
        collected = (_time(hours(*gc_lists(records, workers), workers)) for workers in WORKERS)
        verified = (_time(hours(*verify_requests(records), workers)) for workers in WORKERS)
        gets = verify_requests(records)[1] * GET_DOLLARS
        work.append((_count(records), *collected, *verified, f"${gets:,.2f}"))
    by_workers = [f"{what}, {workers:,}" for what in ("gc", "verify") for workers in WORKERS]
    return [
        _table(("agents at work", "PUT a second", "of one partition"), load),
        _table(("records", *(f"agents: {agents:,}" for agents in AGENTS)), money),
        _table(("records", *by_workers, "GETs of a verify"), work),
    ]


def _percent(share: float) -> str:
    return f"{share:.2%}"


def _count(number: int) -> str:
    return f"{number:,}"


def _time(value: float) -> str:
    """Return hours as a person reads them."""
    if value < 1 / 60:
        return f"{ceil(value * 3600)} s"
    return f"{value * 60:.0f} min" if value < 1 else f"{value:,.1f} h"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(names) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (names, rule, *rows))


if __name__ == "__main__":
    print("\n\n".join(tables()))
