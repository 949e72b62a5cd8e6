"""Comparisons made to take long or to fill memory: each is answered in bounded work, or refused in words."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from answers import MAX_ANSWER, put, session

from offload.reading.tools import Tools, _diff as diff, budget
from offload.records.codec.content import StoredContent

COUNT = 20_000
RNG = random.Random(4)  # noqa: S311 # reproducible


def letters(alphabet: str, count: int = COUNT) -> str:
    return "".join(f"{letter}\n" for letter in RNG.choices(alphabet, k=count))


def blocks() -> str:
    return "".join(f"{letters('abc', 48)}unique {n}\n" for n in range(40))


NUMBERS = [f"{n}\n" for n in range(COUNT)]
PAIRS = {
    "two letters": (letters("ab"), letters("ab")),
    "blocks of equal lines": (blocks(), blocks()),
    "shuffled": ("".join(NUMBERS), "".join(RNG.sample(NUMBERS, COUNT))),
    "reversed": ("".join(NUMBERS), "".join(NUMBERS[::-1])),
    "every second line": ("".join(NUMBERS), "".join(n if int(n) % 2 else f"x{n}" for n in NUMBERS)),
    "nothing in common": ("".join(NUMBERS), "".join(f"x{n}" for n in NUMBERS)),
    "blank lines": ("\n" * COUNT, "\n" * (3 * COUNT)),
    "carriage returns": ("\r" * COUNT, "\r\n" * COUNT),
    "NUL": ("\0" * COUNT, "\0" * COUNT + "\n\0"),
    "surrogates": ("\ud800" * COUNT, "\ud800" * COUNT + "\udfff" * COUNT),
}


def compared(old: str, new: str) -> str:
    into = session()
    refs = put(into, old, call="t1"), put(into, new, call="t2")
    return Tools(into).call("context_diff", {"old": refs[0], "new": refs[1]})


@pytest.mark.parametrize("name", PAIRS)
def test_a_hostile_pair_costs_a_bounded_number_of_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = 0

    def counted(one: Callable[..., diff.ChangedLines]) -> Callable[..., diff.ChangedLines]:
        def count(old: diff.Hashes, new: diff.Hashes, part: diff.ChangedLines) -> diff.ChangedLines:
            nonlocal parts
            parts += len(part.old) + len(part.new)
            return one(old, new, part)

        return count

    monkeypatch.setattr(diff, "_without_common_ends", counted(diff._without_common_ends))

    answer = compared(*PAIRS[name])

    assert answer.startswith("[")
    assert len(answer) <= MAX_ANSWER
    assert parts <= diff._MAX_STEPS // diff._STEPS_OF_A_LINE + 4 * 3 * COUNT


def test_work_that_is_used_up_shows_the_rest_as_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "_MAX_STEPS", 10)
    assert compared("a\nb\nc\nd\n", "z\nb\nc\ny\n").startswith("[")
    olds, news = [1, 2, 3, 9, 4], [5, 2, 3, 9, 6]
    monkeypatch.setattr(diff, "_MAX_STEPS", 0)
    assert diff.changes(olds, news) == [diff.ChangedLines(range(5), range(5))]


def test_too_many_lines_are_refused_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "MAX_DIFFERENT_LINES", 10)
    same = "same\n" * 100
    answer = compared(same + letters("ab")[:40], same + letters("cd")[:42])
    assert "too different to compare in one call: after 100 equal lines, 20 lines" in answer
    assert "1 change, lines: 0 removed, 100 added" in compared(same, same + same)
    monkeypatch.setattr(diff, "MAX_LINES", 10)
    assert "an item of 100 lines is too long to compare (at most 10)" in compared(same, "x")


def test_too_many_bytes_are_refused_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_BYTES", 1000)
    assert "too large to compare in one call (1 GiB or 10 seconds)" in compared("a" * 600, "b" * 600)


def test_lines_longer_than_a_chunk_are_equal_wherever_they_begin() -> None:
    long = "0123456789" * 60_000
    answer = compared(f"{long}\nold\n", f"a\nb\n{'c' * 1000}\n{long}\nold\n")
    assert "1 change, lines: 0 removed, 3 added" in answer


@pytest.mark.slow
def test_two_records_of_100_mb_and_a_line_of_50_mb_are_compared() -> None:
    line = "x" * 25_000_000
    assert "OLD" in (answer := compared(f"{line}OLD{line}", f"{line}NEWER{line}"))
    assert "NEWER" in answer
    log = "".join(
        f"{n:09} a line of a log that is as long as they are, more or less ...............\n"
        for n in range(1_250_000)
    )
    answer = compared(log, log.replace("000777777 a", "000777777 another"))
    assert "1 change, lines: 1 removed, 1 added" in answer


def test_a_damaged_record_is_an_error_that_names_it() -> None:
    into = session()
    refs = [put(into, "".join(RNG.sample(NUMBERS, COUNT)), call=call) for call in ("t1", "t2")]
    [key] = [stored.key for stored in into.store.keys() if f"/{refs[1]}~" in stored.key]
    data = bytearray(into.store.get(key))
    data[len(data) // 2] ^= 1
    into.store.put(key, bytes(data), overwrite=True)
    answer = Tools(session(into.store)).call("context_diff", {"old": refs[0], "new": refs[1]})
    assert answer.startswith(f"Error: item '{refs[1]}' (Bash) is damaged and cannot be read. Do not retry")


def test_a_record_is_read_once_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    chunks_from = StoredContent.chunks_from

    def noted(content: StoredContent, byte: int) -> object:
        read.append(byte)
        return chunks_from(content, byte)

    monkeypatch.setattr(StoredContent, "chunks_from", noted)
    assert compared("a\n" * 500_000, "a\n" * 500_001).startswith("[")
    assert read == [0, 0]
