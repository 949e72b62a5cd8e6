"""Views of a record: syntax colours, a tree of JSON, rows of a query, changes since the version before."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from html import unescape
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pages import Html, path_of, visitor
from retained import clocked, opened, ref_of

from offload import Offloader, OffloadPolicy, Rule
from offload.web import _ansi, _color, _tree, _versions, _views
from offload_backends.memory import MemoryStore

CODE = 'def add(a, b):\n    """Add_two <b>numbers</b>."""\n    return a + 1  # one\n' * 20
CSV = "id,country,total\n" + "".join(f"{n},{'NO' if n % 2 else 'DE'},{n * 2}\n" for n in range(300))


def put(store: Any, text: str, title: str | None = None, call: str = "1") -> str:
    return ref_of(opened(store).offload_text(text, tool_name="Read", tool_use_id=call, title=title))


def put_call(store: Any, text: str) -> str:
    """Store the arguments of a call."""
    policy = OffloadPolicy(types={"tool_call": Rule(min_chars=1)}, min_saving=0)
    off = Offloader(store, session="s", policy=policy)
    off.offload_text(text, item_type="tool_call", tool_name="Write", title="a.py")
    return off.records()[0].ref


def view(store: Any, ref: str, tab: str = "", **query: str) -> str:
    answer = visitor(store).get(path_of("s", ref) + tab, params=query)
    assert answer.status_code == 200
    return answer.text


def code_of(page: str) -> str:
    """Return the text of the numbered lines of a page."""
    return "\n".join(
        unescape(re.sub("<[^>]+>", "", line))
        for line in re.findall("<li id=.*?><code>(.*?)</code>", page, re.DOTALL)
    )


# Colours


def test_code_has_colours_and_the_same_text(store: MemoryStore) -> None:
    page = view(store, put(store, CODE, "src/add_all.py"))

    assert code_of(page) == CODE.removesuffix("\n")
    assert {'class="k">def<', 'class="f">add<', 'class="c"># one<'} <= set(
        re.findall(r'class="\w">[^<]*<', page)
    )
    assert "Add_two &lt;b&gt;" in page


def test_output_that_only_names_a_file_has_no_colours(store: MemoryStore) -> None:
    for number, title in enumerate(["pytest -q tests/test_a.py", "src/a.unknown", None]):
        page = view(store, put(store, f"{number}\n" + "for one of us\n" * 200, title, str(number)))
        assert not re.search('<code><span class="k"', page)


@pytest.mark.parametrize("ending", sorted(_color._BY_ENDING))
def test_every_language_gives_back_its_text(ending: str) -> None:
    language = _color.language_of(f"cat src/a.{ending}", "text")
    lines = ["", "<a b='c'>", "# x \x1b", "'''", '"', "\\", "{", "/*", "a\tb", "é\u202e", ""]

    assert ["".join(text for _, text in line) for line in _color.colored(lines, language)] == lines


def test_a_text_that_takes_a_lexer_too_long_is_shown_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_color, "_SECONDS", -1.0)

    lines = _color.colored(CODE.split("\n"), "python")

    assert "\n".join("".join(text for _, text in line) for line in lines) == CODE
    assert sum(name != "" for line in lines for name, _ in line) <= 1


def test_a_lexer_that_loses_text_colors_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_color, "_runs", lambda _text, _language: [("k", "def")])

    assert _color.colored(["def a", "b"], "python") == [[("", "def a")], [("", "b")]]


def test_the_line_ends_of_windows_are_not_shown(store: MemoryStore) -> None:
    assert code_of(view(store, put(store, "one\r\ntwo\rthree\r\n" * 50))).startswith("one\ntwo␍three\n")


# JSON


def test_json_is_a_tree_in_which_each_member_has_an_address(store: MemoryStore) -> None:
    value = {"a/b": {"deep": [1.50, "x<y", None]}, "": True, "rows": [{"n": n} for n in range(70)]}
    text = json.dumps(value).replace("1.5", "1.50")
    ref = put(store, text)
    page = Html(view(store, ref, "/outline"))

    pointers = {link.partition("pointer=")[2] for link in page.links if "pointer=" in link}
    assert {"/a~1b/deep/0", "/", "/rows"} <= pointers
    assert {"/rows/0/n", "/rows/49/n"} <= pointers
    assert "/rows/50/n" not in pointers
    assert "20 more" in page.text
    for said in ("1.50", '"x<y"', "null", "true"):
        assert said in page.text


def test_a_tree_has_at_most_so_many_nodes_and_levels() -> None:
    root = _tree.tree(json.dumps([[list(range(49))] * 40] * 40), "")

    def nodes(node: _tree.Node) -> int:
        return 1 + sum(map(nodes, node.members or ()))

    assert root is None or nodes(root) <= 500
    deep = _tree.tree("[" * 30 + "]" * 30, "")
    assert deep is not None
    assert nodes(deep) == 7


# The view that a record opens with


def test_a_table_opens_as_rows_that_each_column_sorts(store: MemoryStore) -> None:
    ref = put(store, CSV)

    def rows(**query: str) -> list[list[str]]:
        page = view(store, ref, **query)
        return [
            re.findall(r"<td[^>]*>(.*?)</td>", row) for row in page.partition("<tbody>")[2].split("<tr>")[1:]
        ]

    assert [int(row[0]) for row in rows()] == [*range(50)]
    assert rows(sort="3", desc="1")[0] == ["299", "NO", "598"]
    assert rows(sort="2", rows="6")[-1][1] == "NO"
    assert rows(rows="99") == rows(rows="6")
    page = view(store, ref, sort="3", desc="1")
    assert re.findall(r'aria-sort="(\w+)"><a href="[^"]*\?sort=3"', page) == ["descending"]
    assert "300 rows, 3 columns" in page
    assert code_of(view(store, ref, page="1")) == CSV.removesuffix("\n")
    assert "the table has 3 columns, not 9" in Html(view(store, ref, sort="9")).text


def test_a_table_shows_its_cells_as_they_are_stored_and_sorts_them_by_their_values(
    store: MemoryStore,
) -> None:
    long = "y" * 400
    cells = [("10.50", "11,000", f"007{long}"), ("9.25", "", "7"), ("100.00", "2,000", f"x{long}")]
    ref = put(store, "price,size,code\n" + "".join(f'{a},"{b}",{c}\n' for a, b, c in cells))
    for sort, order in (("0", (0, 1, 2)), ("1", (1, 0, 2)), ("2", (1, 2, 0))):
        body = view(store, ref, sort=sort).partition("<tbody>")[2]
        assert re.findall(r"<td[^>]*>(.*?)</td>", body) == [cell for at in order for cell in cells[at]]


def test_json_of_objects_opens_as_a_table_whose_cells_are_text(store: MemoryStore) -> None:
    texts = [json.dumps([{"a": f"<b>{n}", "n": n} for n in range(90)])]
    texts.append("".join(json.dumps({"a": f"<b>{n}", "n": n}) + "\n" for n in range(90)))
    for number, text in enumerate(texts):
        page = view(store, put(store, text, call=str(number)), sort="2", desc="1")
        assert page.partition("<tbody>")[2].partition("<td")[2].startswith(">&lt;b&gt;89</td>")


def test_one_line_of_json_opens_as_a_tree_with_previews(store: MemoryStore) -> None:
    value = {"meta": {"x<y": [1, 2], "deep": {"er": None}}, "rows": [{"n": n} for n in range(9000)]}
    ref = put(store, json.dumps(value))
    page = Html(view(store, ref))

    assert '{"x<y": […], "deep": {…}}' in page.text
    assert '[{"n": 0}, {"n": 1}' in page.text
    assert "array, " in page.text
    assert page.count("details") > 3
    rows = view(store, ref, "/outline", pointer="/rows")
    assert '{"n": 199}' in Html(rows).text
    assert "Only the first 200 are shown" in rows


def test_a_tool_call_opens_with_its_arguments(store: MemoryStore) -> None:
    arguments = {
        "file_path": "a.py",
        "content": CODE + "<script>",
        "options": {"n": 1.50},
        "note": "x" * 9000,
    }
    ref = put_call(store, json.dumps(arguments))
    page = view(store, ref)

    assert [*map(unescape, re.findall("<dt><a[^>]*>(.*?)</a></dt>", page))] == list(arguments)
    assert 'class="k">def<' in page
    assert Html(page).count("script") == 0
    assert '"""Add_two <b>numbers</b>."""' in Html(page).text
    assert "1,000 further characters" in page
    assert "Show as arguments" in view(store, ref, page="1")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ' * 900 + "1" + "}" * 900,
        "[1, 2," * 900,
        '{"a": [' + "1, " * 900,
        "[" * 20_000 + "]" * 20_000,
        "[1" + "0" * 9000 + "]",
    ],
)
def test_json_that_cannot_be_read_or_is_hostile_opens_as_text(store: MemoryStore, text: str) -> None:
    ref = put(store, text)

    for tab in ("", "/outline"):
        view(store, ref, tab)
    assert view(store, ref, page="1").count("<li id=") >= 1


HOSTILE = '"><img src=x onerror=alert(1)><script>alert(1)</script>\x1b]8;;javascript:alert(1)\x07\u202e\x9b'


@pytest.mark.parametrize("number", ["1e999", "7" * 4000, "-0"])
def test_no_view_lets_content_become_markup_or_a_control(store: MemoryStore, number: str) -> None:
    cells = [HOSTILE.replace('"', "'") + str(n) for n in range(40)]
    value = f'{{"m": {json.dumps({HOSTILE: {HOSTILE: HOSTILE}})}, "n": {number}}}'
    refs = [
        put(store, f"id,{cells[0]}\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)), call="1"),
        put(store, json.dumps([{HOSTILE: cell, "n": n} for n, cell in enumerate(cells)]), call="2"),
        put(store, value, call="3"),
        put(store, "".join(f"\x1b[31m{HOSTILE}{n}\x1b[0m\n" for n in range(40)), call="4"),
        put_call(store, value.replace('"m"', f'"text": {json.dumps(HOSTILE)}, "m"')),
    ]
    client = visitor(store)
    for ref in refs:
        for tab in ("", "?sort=1", "?page=1", "?page=1&raw=1", "/outline", "/query"):
            text = client.get(path_of("s", ref) + tab).text
            page = Html(text)
            assert (page.count("script"), page.count("img")) == (0, 1), tab
            assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
            assert not any(link.startswith("javascript") for link in page.links)
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), tab
            assert "alert(1)" in page.text


def test_an_image_is_shown_and_no_other_data_is(store: MemoryStore) -> None:
    data = b"\x89PNG\r\n\x1a\n" + bytes(900)
    urls = {kind: f"data:image/{kind};base64,{b64encode(data).decode()}" for kind in ("png", "svg+xml")}
    png, svg = (put(store, url, call=kind) for kind, url in urls.items())
    assert f'<img src="{path_of("s", png)}/image"' in view(store, png)
    assert code_of(view(store, png, page="1")) == urls["png"]
    image = visitor(store).get(path_of("s", png) + "/image")
    assert (image.content, image.headers["Content-Type"]) == (data, "image/png")
    assert '/image"' not in view(store, svg)
    assert visitor(store).get(path_of("s", svg) + "/image").status_code == 404


def test_a_large_record_opens_as_text(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_views, "_MOST_BYTES", len(CSV) - 1)

    assert code_of(view(store, put(store, CSV))) == CSV.removesuffix("\n")


# Colors of a terminal

STYLED = (
    "\x1b[1;31mred\x1b[0m plain \x1b[48;5;21mblue\x1b[m "
    "\x1b[38;2;0;200;0mgreen\x1b[39m\x1b]0;title\x07\x1b[2K <b>\n"
) * 30


def test_sequences_of_a_terminal_are_colors_and_others_are_dropped(store: MemoryStore) -> None:
    ref = put(store, STYLED)
    page = view(store, ref)

    assert code_of(page) == ("red plain blue green <b>\n" * 30).removesuffix("\n")
    for styled in ("fg-1 bold", "on on-4", "fg-2"):
        assert page.count(f'<span class="{styled}">') == 30
    assert "␛[1;31mred␛[0m plain" in code_of(view(store, ref, page="1", raw="1"))


@given(st.text("\x1b\x1b[[]];:0123489mmKP\\\x07 a\n", max_size=60))
def test_any_terminal_text_keeps_what_is_no_sequence(text: str) -> None:
    runs = [*_ansi.styled(text)]

    assert "".join(part for _, part in runs) == _ansi._SEQUENCE.sub("", text)
    assert all(re.fullmatch("[a-z0-9 -]*", name) for name, _ in runs)


# Queries


def test_a_query_gives_the_rows_of_its_answer(store: MemoryStore) -> None:
    ref = put(store, CSV)
    sql = "SELECT country, sum(total) AS s FROM t GROUP BY country ORDER BY 1"
    page = view(store, ref, "/query", sql=sql)

    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in page.split("<tr>")]
    sums = [sum(n * 2 for n in range(300) if n % 2 == odd) for odd in (0, 1)]
    assert rows[2:] == [["DE", str(sums[0])], ["NO", str(sums[1])]]
    assert f">{sql}</textarea>" in page


def test_without_a_query_the_first_rows_or_lines_are_shown(store: MemoryStore) -> None:
    page = view(store, put(store, CSV), "/query")
    assert page.count("<tr>") == 51
    assert "300 rows" in page

    prose = "".join(f"This is line {n} of some prose.\n" for n in range(80))
    page = view(store, put(store, prose, call="2"), "/query")
    assert "SELECT * FROM lines LIMIT 50" in page
    assert 'role="alert"' not in page
    assert "This is line 49 of" in page
    assert "This is line 50 of" not in page


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DROP TABLE t", "SELECT"),
        ("SELECT nowhere FROM t", "nowhere"),
        ("SELECT 1 --" + "x" * 10_000, "10,000"),
    ],
)
def test_a_query_that_cannot_run_says_why(store: MemoryStore, sql: str, said: str) -> None:
    page = Html(view(store, put(store, CSV), "/query", sql=sql))

    assert [attrs for _, attrs in page.tags if attrs.get("role") == "alert"]
    assert said in page.text


def test_cells_are_text_and_a_long_answer_is_cut(store: MemoryStore) -> None:
    ref = put(store, json.dumps([{"a": f"<script>{n}</script>\x1b", "b": "x" * 3000} for n in range(400)]))
    page = view(store, ref, "/query", sql="SELECT * FROM t")

    assert Html(page).count("script") == 0
    assert "\x1b" not in page
    assert len(page) < 200_000
    assert "are shown" in page


# Changes


def test_changes_since_the_version_before_are_shown_and_older_ones_can_be_chosen() -> None:
    store = clocked()
    texts = [CODE, CODE + "x_1 = 2\n", CODE + "x_1 = 3\n"]
    refs = []
    for number, text in enumerate(texts):
        refs.append(put(store, text, "src/a.py", str(number)))
        put(store, text.upper(), "copy of src/a.py", f"{number}b")
        store.now += 1
    page = view(store, refs[2], "/changes")

    assert 'class="del">-x_1 = 2' in page
    assert 'class="ins">+x_1 = 3' in page
    assert re.findall('<option value="(.*?)"', page) == refs[1::-1]
    oldest = view(store, refs[2], "/changes", old=refs[0])
    assert 'class="del"' not in oldest
    assert 'class="ins">+x_1 = 3' in oldest


def test_a_record_without_an_older_version_says_so_and_no_other_is_compared(store: MemoryStore) -> None:
    ref, other = put(store, CODE, "src/a.py"), put(store, CSV, "src/b.py", "2")

    assert "no older record" in view(store, ref, "/changes")
    assert "no older record" in view(store, put(store, "1,\n" * 99, None, "3"), "/changes")
    assert visitor(store).get(path_of("s", ref) + "/changes", params={"old": other}).status_code == 404


def test_long_changes_are_shown_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "_SHOWN_ROWS", 10)
    store = clocked()
    put(store, "".join(f"a {n}\n" for n in range(30)), "src/a", "1")
    store.now += 1
    ref = put(store, "".join(f"b {n}\n" for n in range(30)), "src/a", "2")
    client, path, lines = visitor(store), f"{path_of('s', ref)}/changes", list[str]()
    for _ in range(9):
        page = client.get(path).text
        lines += re.findall('class="(?:ins|del)">(.*)', page)
        more = [link for link in Html(page).links if "from=" in link]
        if not more:
            break
        path = more[0]
    assert lines == [*(f"-a {n}" for n in range(30)), *(f"+b {n}" for n in range(30))]
