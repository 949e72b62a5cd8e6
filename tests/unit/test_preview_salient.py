"""The preview of each kind of content, and the small part of a long text that it reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from base64 import b64encode, encodebytes
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import cycle, islice, product
from typing import Any

import pytest
from pairs import every_pair
from strength import some
from watched import WatchedText

from offload import Offloader
from offload.engine.preview import _choose, names, preview_of
from offload.engine.preview._json import json_shape
from offload.engine.preview.names import TROUBLE
from offload.engine.preview.preview import head_tail
from offload.engine.preview.sample import END_CHARS, sample_of


def lines_of(shown: str) -> dict[int, str]:
    """Return the numbered lines of a preview: number → text."""
    numbered = (re.match(r"(\d+) (.*)", line) for line in shown.split("\n")[1:])
    return {int(match[1]): match[2].strip() for match in numbered if match}


def source(functions: int = 60) -> str:
    """Return code whose definitions have plain words for names; the names that are told are in the bodies."""
    parts = [
        f"def settle{chr(97 + n // 26)}{chr(97 + n % 26)}(first, second):\n"
        f"    total_{n} = first.value_{n} + second\n    return total_{n}\n"
        for n in range(functions)
    ]
    return (
        "import json\n\n\n" + "".join(parts) + "class Ledger:\n    limit_of_all = 3\n    limit_of_one = 4\n"
    )


def log() -> str:
    rows = [f"2026-01-02 10:00:{n % 60:02} INFO step {n} done" for n in range(700)]
    rows[333] = "2026-01-02 10:05:33 ERROR cannot reach billing-db.internal:5432"
    return "\n".join([*rows, "3 failed, 697 passed in 12.5s", "Exit code 3"])


def test_code_is_shown_by_its_definitions_in_order_and_names_that_no_shown_line_holds() -> None:
    text = source()
    shown = preview_of(text, 1000).text
    assert shown.startswith("[Preview: code. ")
    numbered = lines_of(shown)
    definitions = [line for line in numbered.values() if line.startswith(("def ", "class "))]
    assert "class Ledger:" in definitions
    assert len(definitions) >= 5
    assert list(numbered) == sorted(numbered)
    assert (min(numbered), max(numbered)) == (1, text.rstrip("\n").count("\n") + 1)

    listed = re.search(r"\[Names within it: (.*)\]$", shown)
    assert listed
    names = listed[1].split()
    assert all(name in text for name in names)
    assert not [name for name in names if any(name in line for line in numbered.values())]


def test_a_log_is_shown_with_its_error_its_totals_and_its_exit_code() -> None:
    shown = preview_of(log(), 600).text
    assert shown.startswith("[Preview: log. ")
    assert "334 2026-01-02 10:05:33 ERROR cannot reach billing-db.internal:5432" in shown
    assert "3 failed, 697 passed in 12.5s" in shown
    assert "702 Exit code 3" in shown


def test_a_log_is_shown_with_its_last_lines_and_each_of_its_errors_once() -> None:
    rows = [f"12:00:{n % 60:02} ERROR: timeout number {n}" for n in range(100)]
    rows[50] = "12:00:50 ERROR: the disk is full"
    assert "ERROR: the disk is full" in preview_of("\n".join(rows), 500).text
    text = "".join(f"12:00:{n % 60:02} INFO plain words {n}\n" for n in range(500))
    assert {498, 499, 500} <= set(lines_of(preview_of(text, 600).text))


def test_an_error_far_inside_a_long_log_is_found() -> None:
    rows = [f"2026-01-02 10:00:00 INFO step {n} done" for n in range(200_000)]
    rows[1_100] = "2026-01-02 10:00:01 FATAL: out of memory"
    assert "1101 2026-01-02 10:00:01 FATAL: out of memory" in preview_of("\n".join(rows), 800).text


def test_lines_of_a_log_that_differ_only_in_numbers_are_counted_at_the_first() -> None:
    rows = [f"2026-01-02 10:00:{n % 60:02} INFO step {n} done" for n in range(300)]
    rows[133] = "2026-01-02 10:05:33 ERROR cannot reach billing-db.internal:5432"
    shown = lines_of(preview_of("\n".join(rows), 600).text)
    assert shown[1] == "2026-01-02 10:00:00 INFO step 0 done (+298 alike)"
    assert 2 not in shown
    assert shown[134] == rows[133]


def test_a_count_of_alike_lines_in_a_sample_is_a_least_count() -> None:
    text = "".join(f"2026-01-02 10:00:{n % 60:02} INFO step {n} of 90 is done\n" for n in range(5000))
    counted = re.search(r"\(\+(\d+) or more alike\)", preview_of(text, 600).text)
    assert counted
    assert 100 < int(counted[1]) < 5000


def test_a_line_that_only_closes_something_is_not_shown() -> None:
    body = "".join(f"  if (first{n}) {{\n    call_it_{n}();\n  }}\n" for n in range(200))
    shown = lines_of(preview_of(f"function all_of_it() {{\n{body}}}\n", 1000).text)
    assert not {"}", "});", "end", "</div>"} & set(shown.values())


def test_a_reminder_that_a_harness_appended_is_not_shown() -> None:
    reminder = "\n<system-reminder>\nConsider whether Secret_Thing.py is harmful.\n</system-reminder>\n"
    shown = preview_of(source() + reminder * 2, 1000).text
    assert "reminder" not in shown
    assert "Secret_Thing" not in shown
    assert preview_of(reminder * 3, 200) == head_tail(reminder * 3, 200)


def test_the_folder_of_a_list_of_paths_is_shown_once() -> None:
    paths = [f"/home/me/project/lib/part_{n % 9}/module_{n}.py" for n in range(200)]
    first, *shown = preview_of("\n".join(paths), 600).text.split("\n")
    assert first.endswith("each path below begins with /home/me/project/lib/]")
    for line in shown[:-1]:
        number, path = line.split(" ")
        assert paths[int(number) - 1] == "/home/me/project/lib/" + path


def test_a_diff_is_shown_by_its_files_and_hunks() -> None:
    files = [
        f"diff --git a/src/part{n}.py b/src/part{n}.py\n--- a/src/part{n}.py\n+++ b/src/part{n}.py\n"
        "@@ -1,9 +1,9 @@\n"
        + "".join(f" context line of some length number {k}\n" for k in range(30))
        + "-old\n+new\n"
        for n in range(5)
    ]
    shown = preview_of("".join(files), 1000).text
    assert shown.startswith("[Preview: diff. ")
    assert all(f"+++ b/src/part{n}.py" in shown for n in range(3))


def test_markdown_is_shown_by_its_headings() -> None:
    filler = "".join(f"\n- call do_{{0}}_{n}, then end_{{0}}_{n}\n" for n in range(9))
    text = "# Guide\n" + "".join(f"## Part {n} of it\n{filler.format(n)}" for n in "ABCDEFGH")
    shown = preview_of(text, 600).text
    assert shown.startswith("[Preview: Markdown. ")
    assert all(f"## Part {n} of it" in shown for n in "ABCDEFGH")


def test_json_is_shown_by_its_shape_and_its_first_and_last_item() -> None:
    text = json.dumps([{"id": n, "owner": {"name": f"o{n}"}, "tags": ["a"]} for n in range(300)])
    shown = preview_of(text, 1000).text
    assert shown.startswith("[Preview: JSON list of 300, each like {id, owner: {name}, tags: list of 1}. ")
    assert '\n1 [{"id": 0, "owner": {"name": "o0"}' in shown
    assert '{"id": 299, "owner": {"name": "o299"}, "tags": ["a"]}]' in shown


ROWS = [{"id": n, "owner": {"name": f"n{n}"}} for n in range(3000)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (ROWS, "list of items like {id, owner: {name}}"),
        (
            {"count": 3000, "rows": ROWS, "last": 1},
            "{count, rows: list of items like {id, owner: {name}}, and more}",
        ),
        (
            {"data": {"page": {"rows": ROWS}}},
            "{data: {page: {rows: list of items like object of 2 keys, and more}, and more}, and more}",
        ),
        ({"name": "x", "text": "y" * 90_000, "end": 1}, "{name, text, and more}"),
        ({f"key_{n}": n for n in range(9000)}, f"{{{', '.join(f'key_{n}' for n in range(12))}, and more}}"),
        (
            [{"name": "x", "rows": ROWS}],
            "list of items like {name, rows: list of items like {id, owner: {name}}, and more}",
        ),
    ],
)
def test_json_too_long_to_parse_has_the_shape_of_its_beginning(
    value: object, shape: str, indent: int | None
) -> None:
    shown = preview_of(json.dumps(value, indent=indent), 1000).text
    assert shown.startswith(f"[Preview: JSON {shape}. ")


@pytest.mark.parametrize("start", ['{"a" 1, ', '{"a": b, ', "{1: 2, ", '[{"a" 1}, ', "{,"])
def test_a_long_text_that_only_begins_like_json_has_no_shape(start: str) -> None:
    assert json_shape(start + '"x": 1, ' * 10_000 + "}", 250) == ""


def test_a_piece_of_json_never_looks_whole() -> None:
    text = json.dumps([{"id": n, "name": f"n{n}"} for n in range(300)])
    pieces = preview_of(text, 800).text.split("\n")[1:]
    pieces = [piece.split(" ", 1)[1] for piece in pieces if not piece.startswith("[also")]
    assert pieces
    for piece in pieces:
        assert piece.startswith("…") != text.startswith(piece[:20])
        assert piece.endswith("…") != text.endswith(piece[-20:])


@pytest.mark.parametrize("text", ["[" * 50_000 + "]" * 50_000, '{"a": ' * 3_000 + "}", "[1, 2, " * 900 + "]"])
def test_json_that_is_none_or_too_deep_is_shown_without_a_shape(text: str) -> None:
    assert preview_of(text, 500).text.startswith("[Preview: JSON. ")


def test_lines_of_json_are_told_from_one_json() -> None:
    text = "".join(json.dumps({"id": n, "event": "created"}) + "\n" for n in range(200))
    assert preview_of(text, 500).text.startswith("[Preview: JSON lines. ")


@pytest.mark.parametrize("kind", ["JSON {", "JSON lines. ", "table. "])
def test_an_error_within_data_is_shown(kind: str) -> None:
    said = [f"request {n} done" for n in range(600)]
    said[333] = "Error: billing-db refused"
    text = json.dumps({"stdout": "\n".join(said), "exit_code": 1})
    if kind == "JSON lines. ":
        text = "\n".join(json.dumps({"at": n, "message": line}) for n, line in enumerate(said))
    if kind == "table. ":
        text = "at,host,message\n" + "\n".join(f"{n},web{n % 3},{line}" for n, line in enumerate(said))
    shown = preview_of(text, 1000).text
    assert shown.startswith(f"[Preview: {kind}")
    assert "Error: billing-db refused" in shown


@pytest.mark.parametrize(
    "row",
    ['{{"level":"{}","msg":"{}"}}', '{{"level": "{}", "msg": "{}"}}', "ts=2026-11-27 level={} msg='{}'"],
)
def test_an_error_is_found_by_its_level(row: str) -> None:
    rows = [row.format("info", f"user {chr(97 + n % 23)} asked page_{n}.html") for n in range(600)]
    rows[333] = row.format("error", "the upstream refused")
    assert "the upstream refused" in preview_of("\n".join(rows), 700).text


def test_a_table_is_shown_with_its_header_and_its_last_row() -> None:
    text = "id,name,email\n" + "".join(f"{n},user{n},user{n}@example.com\n" for n in range(500))
    shown = preview_of(text, 500)
    assert shown.text.startswith("[Preview: table. ")
    assert lines_of(shown.text)[1] == "id,name,email"
    assert lines_of(shown.text)[501] == "499,user499,user499@example.com (+499 alike)"


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ('{"query": "user321"}', "322,user321,user321@example.com"),
        ("what of user77?\\nuser123", "124,user123,user123@example.com"),
    ],
)
def test_the_line_that_was_asked_for_is_shown(asked: str, line: str) -> None:
    text = "id,name,email\n" + "".join(f"{n + 1},user{n},user{n}@example.com\n" for n in range(500))
    assert line not in preview_of(text, 500).text
    assert line in preview_of(text, 500, query=asked).text


def test_what_was_asked_for_in_chinese_is_shown() -> None:
    rows = [f"第{n}节　" + "一般性说明文字、没有特别内容。" * 4 for n in range(100)]
    rows[60] = "数据库连接超时的原因是防火墙规则。"
    assert rows[60] in preview_of("\n".join(rows), 600, query="为什么连接超时").text


def test_numbers_that_a_tool_wrote_before_the_lines_are_not_shown_twice() -> None:
    numbered = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(source().split("\n"), 1))
    assert preview_of(numbered, 1000).text == preview_of(source(), 1000).text


def test_numbers_of_a_part_of_a_file_are_told_from_those_of_the_lines() -> None:
    numbered = "\n".join(f"{n:6}→{line}" for n, line in enumerate(source().split("\n"), 801))
    shown = preview_of(numbered, 1000).text
    assert "numbers printed in the text are 800 higher" in shown.split("\n")[0]
    assert lines_of(shown)[1] == "import json"


def test_a_piece_of_a_long_line_stands_at_its_offset() -> None:
    text = " ".join(f"word{n} says" for n in range(4000))
    pieces = re.findall(r"^@(\d+) …? ?(.*?) ?…?$", preview_of(text, 800).text, re.MULTILINE)
    assert len(pieces) > 1
    for offset, piece in pieces:
        assert text[int(offset) :].startswith(piece)


def test_base64_is_named_and_not_shown_and_what_only_looks_like_it_is_shown() -> None:
    data = b"".join(sha256(bytes([n])).digest() for n in range(256))
    for text in (b64encode(data).decode(), encodebytes(data).decode(), encodebytes(data).decode() * 40):
        assert preview_of(text, 1000) == ("[Preview: base64, not shown]", 0)
    words = [f"{chr(65 + n % 26)}ame{n}/Part{n}" for n in range(900)]
    for text in ("\n".join(words), " ".join(words), data.hex(), "supercalifragilistic" * 600):
        assert "not shown" not in preview_of(text, 1000).text


def test_frames_of_a_progress_bar_are_counted_at_the_first() -> None:
    bar = "\r".join(f"Receiving {n:3}% [{'#' * (n // 4):25}] {n * 9}/900" for n in range(101))
    end = "unpacked into /srv/data"
    first, *_, last = preview_of(f"{bar}, done.\n{end}\n", 700).text.split("\n")[1:]
    assert first == "1 Receiving   0% [                         ] 0/900 (+99 alike)"
    assert last == f"2 {end}"
    old_mac = "\r".join(f"the heading {chr(97 + n % 26)} of section {n}" for n in range(900))
    assert "1 the heading a of section 0 (+" in preview_of(old_mac, 700).text


def test_a_rule_of_underscores_is_no_name() -> None:
    text = "\n".join(["_" * 9 + f" test_{n} " + "_" * (10 + n) for n in range(300)])
    assert re.search(r"(^|[ :])_+[\] ]", preview_of(text, 700).text.split("[Names within it")[1]) is None


@pytest.mark.parametrize("errors", ["replace", "surrogateescape", "latin-1"])
def test_binary_content_is_named_and_not_shown(errors: str) -> None:
    content = bytes(range(256)) * 100
    for head, kind in {b"": "binary content", b"\x7fELF\x02\x01": "ELF program"}.items():
        data = head + content
        text = data.decode("latin-1") if errors == "latin-1" else data.decode("utf-8", errors)
        assert preview_of(text, 1000) == (f"[Preview: {kind}, not shown]", 0)


def test_control_sequences_of_terminals_are_not_shown() -> None:
    text = "".join(f"\x1b[31mstep_{n}\x1b[0m done\x07\r\n" for n in range(300))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u2400-\u241f]", preview_of(text, 500).text)


def test_a_line_is_as_long_as_a_terminal_shows_it() -> None:
    words = [f"word_{n}_of_the_line" for n in range(8)]
    lines = "".join(" ".join(f"\x1b[35m\x1b[K{word}\x1b[m" for word in words) + f" {n}\n" for n in range(300))
    shown = preview_of(lines, 500).text
    assert f"1 {' '.join(words)} 0" in shown
    assert "…" not in shown


# Two of the same use: one came to Unicode in 15.0 or later, or never yet, and the other long before. Some
# versions of Python know only the latter.
LIKE = [
    pytest.param("\U00011f55", "\U00011050", id="letters or digits of scripts of the second plane"),
    pytest.param("\u1c89", "\u1c80", id="Cyrillic letters"),
    pytest.param("\ua7cb", "\ua7b2", id="Latin letters"),
    pytest.param("\U00031350", "\U00030000", id="Chinese characters"),
    pytest.param("\U0002ebf0", "\U00020001", id="more Chinese characters"),
    pytest.param("\u0897", "\u0898", id="Arabic marks"),
    pytest.param("\u1ace", "\u1ab0", id="accents"),
    pytest.param("\U0001fae9", "\U0001f600", id="pictures"),
    pytest.param("\u20c1", "\u20ac", id="currencies"),
    pytest.param("\U0001cc00", "\U0001d000", id="symbols"),
    pytest.param("\U000cfffe", "\U000e1000", id="nothing"),
]


@pytest.mark.parametrize(("new", "old"), LIKE)
def test_what_is_shown_does_not_hang_on_which_characters_a_python_knows(new: str, old: str) -> None:
    def shown(char: str) -> str:
        text = "\n".join(
            [
                f"class {char}thing of config_{n}.py:\n    def {char * 3}_{n}(x):\n{char}: {n}\n"
                f"{char}alpha_{n}.beta{char} gamma_{n}{char} {char}{n}\n"
                + "w" * (n % 40 + 120)
                + f"{char * 6} etc"
                for n in range(300)
            ]
        )
        return preview_of(text, 3000, query=f"{char * 4} {char}{char}").text.replace(char, "@")

    assert shown(new) == shown(old)


@pytest.mark.parametrize(
    "mark", ["\u0301", "\u0897", "\u1ace", "\u3099", "\U0001f3fd", "\ufe0f", "\u0301👍🏽"]
)
def test_a_mark_stays_with_its_character_where_a_line_is_cut(mark: str) -> None:
    for before in (*range(4), *range(150, 172)):
        shown = preview_of("y" * before + ("e" + mark) * 300, 500).text
        pieces = [line.partition(" ")[2].strip("… ") for line in shown.split("\n")[1:]]
        assert pieces
        assert not any(piece.startswith((mark[0], mark[-1])) for piece in pieces)


def test_head_chars_is_where_the_first_gap_begins() -> None:
    text = "".join(f"alpha_{n} beta\n" for n in range(300))
    preview = preview_of(text, 500)
    shown = lines_of(preview.text)
    first_missing = next(n for n in range(1, 300) if n not in shown)
    assert preview.head_chars == len("\n".join(text.split("\n")[: first_missing - 1]))


def test_the_budget_is_kept_and_used() -> None:
    text = source()
    budgets = some(range(200, 1500, 7), 4)
    lengths = {budget: len(preview_of(text, budget).text) for budget in budgets}
    assert [budget for budget, length in lengths.items() if not 0.85 * budget <= length <= budget] == []


def test_with_little_room_and_for_a_short_text_it_is_the_plain_preview() -> None:
    assert preview_of(source(), 150) == head_tail(source(), 150)
    assert preview_of("short", 1000) == head_tail("short", 1000)


@pytest.mark.parametrize("text", ["\n" * 5000, " \n\t\n" * 3000, "\x00" * 5000])
def test_a_text_with_nothing_to_see_is_no_error(text: str) -> None:
    assert len(preview_of(text, 500).text) <= 500


@pytest.mark.parametrize("piece", ["x", "line of words, in_it\n", "\n", '{"a": "ERROR: b"}, '])
def test_at_most_the_two_ends_of_a_long_text_are_looked_at(piece: str) -> None:
    text = WatchedText(piece * (20_000_000 // len(piece)))
    preview_of(text, 1000, query="where is in_it and user_name?")
    assert 16 <= text.blocks_seen <= 2 * (END_CHARS // 1024 + 2)


def steps_of(text: str, asked: str = "") -> int:
    """Return how many calls a preview makes, those of functions in C among them."""
    steps = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    preview_of(text, 1000, query=asked)
    sys.setprofile(count)
    try:
        preview_of(text, 1000, query=asked)
    finally:
        sys.setprofile(None)
    return steps


SHAPES = {
    "characters": lambda n: "x" if n % 2 else "y",
    "nothing": lambda _n: "",
    "headings": lambda _n: "# a",
    "errors": lambda n: f"FAILED a{n}",
    "names": lambda n: f"mod{n}.func_{n * 7919 % 10007}",
    "short names": lambda n: f"a{n:05}",
    "paths": lambda n: f"/a/{n}",
    "definitions": lambda n: f"def a{n}",
    "rows": lambda n: f"{n},b,c",
    "items": lambda n: f'{{"a":{n}}}',
}


@pytest.mark.parametrize(("shape", "joint", "lines"), every_pair([*SHAPES], ["\n", ", "], [12_000, 100_000]))
def test_steps_are_bounded_whatever_the_shape(shape: str, joint: str, lines: int) -> None:
    text = joint.join(SHAPES[shape](n) for n in range(lines))
    asked = " ".join(SHAPES["names"](n) for n in range(3000))
    assert len(sample_of(text, [(word, [range(len(text))]) for word in ("a0", "FAILED")]).texts) <= 900
    assert steps_of(text) <= 40_000
    assert steps_of(text, asked) <= 40_000


def test_names_and_looks_at_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    known, gain = names._known, _choose.Choice._gain
    calls: Counter[str] = Counter()

    def judge(tokens: Sequence[bytes]) -> dict[bytes, str]:
        calls["names"] += len(tokens)
        return known(tokens)

    def look(choice: _choose.Choice, i: int) -> float:
        calls["looks"] += 1
        return gain(choice, i)

    monkeypatch.setattr(names, "_known", judge)
    monkeypatch.setattr(_choose.Choice, "_gain", look)
    preview_of("\n".join(SHAPES["names"](n) for n in range(12_000)), 1000)
    assert 100 < calls["names"] <= 400
    assert 10 < calls["looks"] <= 400


def test_characters_of_a_sample_are_bounded_whatever_words_are_in_a_text() -> None:
    lines = [f"{'a_name.of_it ' * 30}{word} {n}{' a_name.of_it' * 30}" for word in TROUBLE for n in range(3)]
    text = "\n".join(["plain"] * 2000 + lines + ["plain"] * 2000)
    words = [(word, [range(len(text))]) for word in TROUBLE]
    assert 10_000 < sum(map(len, sample_of(text, words).texts)) <= 40_000


def test_the_terms_of_a_query_are_found_once_for_all_results_of_a_message() -> None:
    names.terms_of.cache_clear()
    for text in (source(), log(), source(80)):
        preview_of(text, 1000, query="Which total_7 is wrong in Ledger?")
    assert names.terms_of.cache_info().misses == 1
    assert len(names.terms_of(" ".join(f"name_{n} word{chr(97 + n)}" for n in range(26)))) <= 32


def test_an_error_far_inside_a_text_of_very_short_lines_is_found_under_its_number() -> None:
    lines = ["x"] * 8000
    lines[5432] = "ERROR: disk full"
    shown = preview_of("\n".join(lines), 1000, query="").text
    assert "\n5433 ERROR: disk full\n" in shown
    assert "\n8000 x" in shown


@pytest.mark.parametrize("piece", ["x", "line of words, in_it\n", '{"a": "ERROR: b"}, ', "a b_c\nERROR: é\n"])
def test_the_two_ends_of_a_long_text_give_the_same_preview_as_the_whole(piece: str) -> None:
    text = "".join(piece.replace("b", f"b{n}") for n in range(400_000 // len(piece)))
    ends = text[:END_CHARS] + text[-END_CHARS:]
    shown = preview_of(text, 2000, query="b77").text
    assert preview_of(ends, 2000, query="b77", left_out=len(text) - len(ends)).text == shown


def test_what_is_shown_behind_the_middle_of_a_long_text_stands_at_its_offset_in_the_whole() -> None:
    text = "".join(f"{n} alpha_{n} beta\n" for n in range(100_000))
    places = re.findall(r"^@(\d+) (\d+ alpha_.*)$", preview_of(text, 2000).text, re.MULTILINE)
    assert places
    for offset, line in places:
        assert text[int(offset) :].startswith(line + "\n")


def test_a_gap_between_the_parts_of_a_long_text_is_never_taken_for_read() -> None:
    text = "".join(f"{n} alpha_{n} beta\n" for n in range(10_000))
    preview = preview_of(text, 20_000)
    shown = lines_of(preview.text)
    first_missing = next(n for n in range(1, 10_000) if n not in shown)
    assert preview.head_chars <= text.index(f"\n{first_missing - 1} alpha")


def test_the_preview_does_not_depend_on_the_process() -> None:
    program = (
        "import sys; from offload.engine.preview import preview_of; "
        "shown = preview_of(sys.stdin.read(), 900, query='settleab Ledger total_7').text; "
        "sys.stdout.buffer.write(shown.encode())"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", program],
            input=source().encode(),
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert shown == {preview_of(source(), 900, query="settleab Ledger total_7").text.encode()}


def test_an_error_in_the_middle_of_a_long_text_is_shown_at_its_offset() -> None:
    lines = [f"[{n}/20000] Compiling src/module_{n % 300}/file_{n}.c" for n in range(20_000)]
    lines[9000] = "src/module_7/file_9.c:12:5: error: unknown type name 'uint'"
    text = "\n".join(lines)
    middle = text[END_CHARS:-END_CHARS]
    shown = preview_of(text, 1000, middle=middle).text

    assert f"\n@{text.index('src/module_7/file_9.c:12')} {lines[9000]}" in shown
    assert len(shown) <= 1000
    assert "error:" not in preview_of(text, 1000).text
    ends = text[:END_CHARS] + text[-END_CHARS:]
    assert preview_of(ends, 1000, left_out=len(middle), middle=middle).text == shown


@pytest.mark.parametrize("border", [END_CHARS, 300_000 - END_CHARS])
@pytest.mark.parametrize("before", range(1, 5))
def test_an_error_word_across_a_border_of_the_middle_is_shown(border: int, before: int) -> None:
    start = border - before - len("\ndisk full ")
    text = "ab cd ef gh\n" * 25_000
    line = "disk full ERROR: sda1 is gone"
    text = f"{text[:start]}\n{line}\n{text[start + len(line) + 2 :]}"
    middle = text[END_CHARS:-END_CHARS]
    shown = preview_of(text, 1000, middle=middle).text
    assert f"\n@{start + 1} {line}" in shown
    assert (
        preview_of(text[:END_CHARS] + text[-END_CHARS:], 1000, left_out=len(middle), middle=middle).text
        == shown
    )


def test_the_labels_of_a_long_text_with_errors_in_the_middle_rise_and_the_first_lines_are_a_run() -> None:
    lines = [f"2026-01-02 10:00:{n % 60:02} INFO step {n} of job-{n % 9}" for n in range(20_000)]
    for n in (3000, 9000, 15_000):
        lines[n] = f"2026-01-02 10:00:00 ERROR job-{n} died of {n}: disk_{n} is full"
    text = "\n".join(lines)
    preview = preview_of(text, 2000, middle=text[END_CHARS:-END_CHARS])

    found = re.findall(r"^@(\d+) (.*)$", preview.text, re.MULTILINE)
    offsets = [int(offset) for offset, _ in found]
    assert offsets == sorted(offsets)
    assert sum("ERROR" in line for _, line in found) == 3
    assert all(
        text[offset:].startswith(line.partition(" (+")[0])
        for offset, (_, line) in zip(offsets, found, strict=True)
    )
    assert text[: preview.head_chars].count("\n") < 20


def test_an_error_in_the_middle_is_shown_whichever_way_a_text_is_stored() -> None:
    lines = [f"2026-01-02 10:00:{n % 60:02} INFO step {n} of job-{n % 9}" for n in range(20_000)]
    lines[5000] = "2026-01-02 10:00:00 ERROR job-5 died: disk_5 is full"
    text = "\n".join(lines)
    shown = list[str]()
    for off in (Offloader("memory://", session="s"), Offloader("memory://", session="s")):
        if not shown:
            shown.append(off.offload_text(text, tool_name="Bash", tool_use_id="t"))
            continue
        with off.open_sink(tool_name="Bash", tool_use_id="t") as sink:
            sink.write(text)
        shown.append(str(sink.placeholder))
    assert "ERROR job-5 died: disk_5 is full" in shown[0]
    assert shown[0] == shown[1]


def test_names_of_a_long_text_are_those_in_it_also_where_its_two_ends_meet() -> None:
    letters = ("".join(each) for each in product("abcdefghijklmnop", repeat=3))
    words = islice(cycle(letters), 5000)
    text = "\n".join(f"GET /api/items/{word} 200 {n % 90} ms" for n, word in enumerate(words))
    shown = preview_of(text, 1000, names_chars=3000).text
    names = shown.rpartition("[Names within it: ")[2].rstrip("]").split()
    assert len(names) > 100
    assert [name for name in names if name not in text] == []


def test_of_names_that_differ_only_in_digits_some_are_shown() -> None:
    text = "\n".join(f"GET /api/items/{n} 200 {n % 90} ms" for n in range(1000, 2000))
    names = preview_of(text, 1000, names_chars=3000).text.rpartition("[Names within it: ")[2]
    assert names.count("api/items/") <= 12


UNSEEN = "".join(f".c{n}{{color:#{n:06x};margin:{n}px}}" for n in range(400))
PAGE = (
    f"<!DOCTYPE html><html><head><title>Limits</title><style>{UNSEEN}</style><script>{UNSEEN}</script></head>"
    f"<body>{'<p>Some words about the service in general.</p>' * 90}<h2>Breaking change</h2><p>Warning: 40 a "
    f"minute.</p>{'<p>Some words about the service in general.</p>' * 90}</body></html>"
)
CASES = '  <testcase classname="tests.mod" name="case_{}" time="0.01"/>'
JUNIT = (
    '<?xml version="1.0"?>\n<testsuite tests="300">\n'
    + "\n".join(CASES.format(n) for n in range(300)).replace(
        "/>", "><failure>41 is not 42</failure></testcase>", 1
    )
    + "\n</testsuite>"
)
PLAN = "Terraform will perform the following actions:\n" + "\n".join(
    f"\n  # aws_instance.web[{n}] will be {'destroyed' if n == 12 else 'created'}\n"
    '  + resource "aws_instance" "web" {\n      + tags = { "Name" = "web" }\n    }'
    for n in range(60)
)
IMAGE = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" + "QUJD" * 800}}
FAILED = {"ename": "ValueError", "evalue": "shapes (3,) and (5,) differ", "output_type": "error"}
NOTEBOOK = {"cells": [{"cell_type": "code", "outputs": [IMAGE if n != 7 else FAILED]} for n in range(20)]}
HAR = {
    "log": {
        "entries": [
            {"request": {"url": f"https://shop.example/{n}"}, "response": {"status": 503 if n == 57 else 200}}
            for n in range(400)
        ]
    }
}
GRAPHQL = {
    "data": [{"id": n, "body": "words " * 9} for n in range(99)],
    "errors": [{"message": "no field foo"}],
}
REFUSED = {
    "rows": [{"id": n, "v": "x" * 20} for n in range(60)],
    "error": {"code": "E42", "message": "quota exceeded"},
    "more": [{"id": n} for n in range(99)],
}
CHECKS = [{"id": n, "ok": n != 41, "error": None if n != 41 else "timeout after 30 s"} for n in range(90)]
SYSLOG = [f"Nov  5 10:{n:02}:00 host sshd[12]: {'disk failure' if n == 31 else 'ok'} {n}" for n in range(60)]
EXITS = [{"id": n, "exit_code": 137 if n == 123 else 0} for n in range(400)]
COUNTS = [f"{n * 37 % 97 + 2:7} GET /items/{n}" for n in range(300)]
COUNTS[211] = "  90210 GET /items/211"


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        pytest.param(PAGE, "HTML.", "<h2>Breaking change</h2><p>Warning: 40 a minute.</p>", id="page"),
        pytest.param(
            PAGE.replace("}", "}\n").replace("</p>", "</p>\n"), "HTML.", "Breaking change", id="lines"
        ),
        pytest.param(JUNIT, "XML.", "<failure>41 is not 42</failure>", id="JUnit"),
        pytest.param(
            JUNIT.replace("\n", ""), "XML.", "<failure>41 is not 42</failure>", id="JUnit on a line"
        ),
        pytest.param(PLAN, "Terraform plan.", "# aws_instance.web[12] will be destroyed", id="plan"),
        pytest.param(
            "".join(f"# step {n}\nrun --step {n}\n" for n in range(200)), "text.", "run", id="script"
        ),
        pytest.param(json.dumps(NOTEBOOK), "JSON {", "shapes (3,) and (5,) differ", id="notebook on a line"),
        pytest.param(json.dumps(NOTEBOOK, indent=1), "JSON {", "shapes (3,) and (5,) differ", id="notebook"),
        pytest.param(json.dumps(HAR), "JSON {", '"status": 503', id="HAR on a line"),
        pytest.param(json.dumps(HAR, indent=2), "JSON {", '"status": 503', id="HAR"),
        pytest.param(json.dumps(GRAPHQL), "JSON {", "no field foo", id="errors"),
        pytest.param(json.dumps(REFUSED), "JSON {", '"message": "quota exceeded"', id="error on a line"),
        pytest.param(json.dumps(CHECKS), "JSON list", "timeout after 30 s", id="not ok"),
        pytest.param(
            "<svg id='a'>" + "".join(f"<path d='M{n} 0'/>" for n in range(200)) + "</svg>",
            "XML.",
            "M0",
            id="image",
        ),
        pytest.param("\n".join(SYSLOG), "log.", "disk failure", id="syslog"),
        pytest.param(json.dumps(EXITS), "JSON list", '"exit_code": 137', id="exit code"),
        pytest.param("\n".join(COUNTS), "text.", "90210 GET /items/211", id="count"),
        pytest.param(
            "\n".join(f"INFO request {n} took {30123 if n == 133 else n % 50} ms" for n in range(400)),
            "log.",
            "134 INFO request 133 took 30123 ms",
            id="times",
        ),
    ],
)
def test_what_failed_or_is_highest_is_shown_under_the_right_kind(text: str, kind: str, shown: str) -> None:
    preview = preview_of(text, 1000).text
    assert preview.startswith(f"[Preview: {kind}")
    assert shown in preview
    assert "margin:" not in preview
    assert "QUJDQUJD" not in preview
