"""The offline token estimate: its figures, its bounds, its steadiness."""

from __future__ import annotations

import json
import random
import string

import pytest

from offload.base.tokens import TokenCounter, estimate_tokens

PROSE = "The quick brown fox jumps over the lazy dog while it rains. " * 40
LISTING = '{"id": 4711, "state": "OPEN", "at": "2026-01-31T23:59:59Z"}\n' * 40


def test_no_text_has_no_tokens() -> None:
    assert estimate_tokens("") == 0


R = random.Random(20260101)  # noqa: S311 - the same texts on each run


def _number(most: int = 10**6) -> int:
    return int(R.random() * most)


def _pick(choices: str) -> str:
    return choices.split()[_number(len(choices.split()))]


def _words(n: int) -> str:
    words = "parser reads each line and returns the first error when a configured timeout was reached"
    return " ".join(_pick(words) for _ in range(n))


def _hex(n: int) -> str:
    return "".join("0123456789abcdef"[_number(16)] for _ in range(n))


ROWS = [
    {"id": _number(), "name": _words(2), "ok": n % 2 == 0, "price": _number(9999) / 100} for n in range(40)
]
ALPHABET = string.ascii_letters + string.digits + "+/"
# Each with its count by o200k_base of bpe-openai 0.1.4.
KINDS = {
    "English": (
        341,
        "The committee agreed on Tuesday that the bridge, closed since March, will open again. " * 20,
    ),
    "German": (
        381,
        "Die Versammlung beschloss, dass die Brücke nach den Prüfungen wieder geöffnet werden soll. " * 20,
    ),
    "French": (
        441,
        "L'assemblée a décidé que le pont, fermé depuis mars, serait rouvert après les contrôles. " * 20,
    ),
    "Russian": (361, "Комиссия решила, что закрытый с марта мост снова откроют после проверки. " * 20),  # noqa: RUF001
    "Greek": (521, "Η επιτροπή αποφάσισε ότι η γέφυρα θα ανοίξει ξανά μετά τον έλεγχο. " * 20),  # noqa: RUF001
    "Hebrew": (401, "הוועדה החליטה כי הגשר ייפתח מחדש לאחר הבדיקה בחודש הבא. " * 20),
    "Arabic": (381, "قررت اللجنة أن الجسر المغلق منذ مارس سيفتح مرة أخرى بعد الفحص. " * 20),
    "Hindi": (342, "समिति ने निर्णय लिया कि मार्च से बंद पुल जाँच के बाद फिर खुलेगा। " * 20),
    "Thai": (441, "คณะกรรมการตัดสินใจว่าสะพานจะเปิดอีกครั้งหลังจากการตรวจสอบ " * 20),
    "Chinese": (300, "委员会决定，自三月以来关闭的大桥将在检查后重新开放。" * 20),  # noqa: RUF001
    "Japanese": (540, "委員会は、三月から閉鎖されている橋を点検後に再開すると決めました。" * 20),
    "Korean": (440, "위원회는 3월부터 폐쇄된 다리를 점검 후 다시 열기로 결정했습니다. " * 20),
    "JSON, compact": (805, json.dumps(ROWS, separators=(",", ":"))),
    "JSON, by two": (1405, json.dumps(ROWS, indent=2)),
    "JSON, by four": (1419, json.dumps({"data": {"rows": ROWS}}, indent=4)),
    "JSON numbers": (802, json.dumps([_number(1000) for _ in range(200)], indent=2)),
    "Go": (
        880,
        "".join(f"\tif v{n} > {n} {{\n\t\treturn load(ctx, v{n})\n\t}}\n\tcount[{n}]++\n" for n in range(40)),
    ),
    "Python": (
        960,
        "".join(
            f"    def find_{n}(self, key: str) -> int:\n        return self.rows[key] + {n}\n\n"
            for n in range(40)
        ),
    ),
    "minified": (
        1200,
        "".join(f"function a{n}(t,e){{return t.b{n}&&e?t[{n}]:null}}var c{n}=!0;" for n in range(50)),
    ),
    "log": (
        1350,
        "".join(
            f"2026-01-01 10:{n % 60:02}:07,{_number(900) + 99} INFO app.db: {_words(4)} took {n} ms\n"
            for n in range(50)
        ),
    ),
    "trace": (
        1150,
        "".join(
            f'  File "/usr/lib/python/{_pick("json http email")}/main.py", line {n}, in read\n    read({n})\n'
            for n in range(50)
        ),
    ),
    "diff": (
        1450,
        "".join(f"@@ -{n},3 +{n},4 @@\n-    x = {n}\n+    x = {n + 1}\n     return x\n" for n in range(50)),
    ),
    "hex": (1136, _hex(2000)),
    "UUIDs": (1191, "\n".join(f"{_hex(8)}-{_hex(4)}-{_hex(4)}-{_hex(4)}-{_hex(12)}" for _ in range(50))),
    "base64": (1354, "".join(ALPHABET[_number(64)] for _ in range(2000))),
    "numbers": (1049, "\n".join(f"{_number() / 1000:.3f},{_number()}" for _ in range(150))),
    "CSV": (
        1001,
        "".join(f"{_number()},{_words(2)},user{n}@example.com,2026-01-{n % 28 + 1:02}\n" for n in range(60)),
    ),
    "aligned": (
        723,
        "".join(f"{_words(1):20}{_number():>10}  {_words(1):15}{_number():>10}\n" for _ in range(60)),
    ),
    "Markdown": (
        734,
        "| id | name | price |\n|---|---|---|\n"
        + "".join(f"| {n} | {_words(2)} | {n * 1.5} |\n" for n in range(60)),
    ),
    "dashes": (80, ("-" * 80 + "\n") * 40),
    "headings": (240, "".join("=" * 20 + f" {_words(2)} " + "=" * 20 + "\n" for _ in range(40))),
    "blanks": (80, (" " * 70 + "\n") * 40),
    "boxes": (660, ("│ a │ b │\n├───┼───┤\n" + "─" * 60 + "\n") * 30),
    "emoji": (485, "".join(_pick("😀 🎉 🚀 🔥 👍 ✅ ❌ 💡 🐛 📦") for _ in range(300))),
    "URLs": (
        837,
        "\n".join(
            f"https://www.example.com/{_words(1)}/{_number()}?page={n}&q={_words(1)}" for n in range(50)
        ),
    ),
    "HTML": (
        1200,
        "".join(
            f'<div class="row"><a href="/item/{n}" target="_blank">{_words(3)}</a></div>\n' for n in range(50)
        ),
    ),
    "SQL": (
        960,
        "".join(
            f"SELECT id, name FROM users WHERE age >= {n} AND state = 'open' ORDER BY name LIMIT {n};\n"  # noqa: S608 - a text, run nowhere
            for n in range(40)
        ),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_is_near_the_count_of_o200k(kind: str) -> None:
    count, text = KINDS[kind]
    assert 0.8 <= estimate_tokens(text) / count <= 1.5


# What o200k, claude-2 and deepseek make of 4,000 characters: the least and the most.
RUNS = {
    "spaces": (" ", 7, 32),
    "tabs": ("\t", 250, 500),
    "NULs": ("\0", 7, 4000),
    "escapes": ("\x1b", 4000, 4000),
    "carriage returns": ("\r", 2000, 4000),
    "letters apart": ("x ", 2000, 2001),
}


@pytest.mark.parametrize(("unit", "least", "most"), RUNS.values(), ids=RUNS)
def test_a_text_of_blanks_or_odd_runs_takes_what_real_vocabularies_make_of_it(
    unit: str, least: int, most: int
) -> None:
    assert least <= estimate_tokens((unit * 4000)[:4000]) <= 1.1 * most


def test_the_line_ends_of_another_system_take_no_more_tokens() -> None:
    assert estimate_tokens(LISTING.replace("\n", "\r\n")) == estimate_tokens(LISTING)


def test_an_estimate_lies_where_real_vocabularies_do() -> None:
    # 12-13 tokens a sentence of the prose, 28-36 a row of the listing, in o200k and its like.
    assert 10 <= estimate_tokens(PROSE) / 40 <= 16
    assert 24 <= estimate_tokens(LISTING) / 40 <= 42


def test_a_lone_surrogate_is_counted_and_does_no_harm() -> None:
    assert 500 <= estimate_tokens("\ud800" * 1000) <= 3000


@pytest.mark.parametrize("text", [PROSE, LISTING], ids=["prose", "listing"])
def test_a_long_text_is_sampled_and_comes_out_as_the_sum_of_its_parts(text: str) -> None:
    times = 4 * 1024 * 1024 // len(text)
    whole = estimate_tokens(text * times)
    assert whole == pytest.approx(estimate_tokens(text) * times, rel=0.02)


def test_what_stands_at_the_end_of_a_long_text_is_weighed_too() -> None:
    spaces = " " * 1024 * 1024
    blank = estimate_tokens(spaces)
    assert estimate_tokens(spaces + "A" * 8192) > 2 * blank
    assert estimate_tokens("A" * 8192 + spaces) > 2 * blank


def test_the_same_text_always_has_the_same_estimate() -> None:
    text = LISTING * 500
    assert len({estimate_tokens(text) for _ in range(3)}) == 1


def test_a_plain_function_is_a_counter() -> None:
    assert isinstance(estimate_tokens, TokenCounter)
    assert isinstance(len, TokenCounter)
