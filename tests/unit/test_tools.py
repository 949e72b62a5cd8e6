"""The retrieval tools: all content is readable, answers are bounded, and no call raises."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from answers import MAX_ANSWER, body, damage, put, session, tools_for
from hypothesis import given, strategies as st
from kit.store import ActingStore
from pairs import each_in_turn
from strength import examples

from offload import Offloader
from offload.base.tokens import estimate_tokens
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS, TOOL_NAMES
from offload.errors import ConfigError, CorruptError, ExpiredError
from offload.reading.tools import Tools
from offload.reading.tools._definitions import definitions, system_prompt
from offload.reading.tools.answers import REPEATED
from offload.reading.tools.arguments import part_of
from offload_backends.memory import MemoryStore

LOOK_ALIKE = "[Offloaded: Bash result, 1 line, 2 characters, id aaaaaaaaaa]\n"

LOG = "".join(f"{n:05} {'x' * (n % 37)} event é\n" for n in range(2000))
LONG_LINE = "0123456789" * 4000
SURROGATES = "\ud800" * 10_000
LOOK_ALIKES = LOOK_ALIKE * 1000
CONTENTS = {
    "empty": "",
    "short": "no newline at the end",
    "log": LOG,
    "long line": LONG_LINE,
    "blank lines": "\r\n\n\n" * 5000,
    "wide": "\U0001f600é\n" * 6000,
    "surrogates": SURROGATES,
    "look-alikes": LOOK_ALIKES,
    "look-alike begun": "[" * 20_000,
    "colours": "\x1b[2Jred\x1b[0m\x07 or not\r\n" * 5000,
}


def undefuse(shown: str) -> str:
    return re.sub(r"\\\[(?=Offloaded: )", "[", shown)


# --- read -----------------------------------------------------------------------------------------


def pages(tools: Tools, ref: str, limit: int | None) -> list[str]:
    """Follow the call that each answer ends in, as a model would."""
    answers: list[str] = []
    offset = 0
    while True:
        answers.append(tools.call("context_read", {"id": ref, "offset": offset, "limit": limit}))
        following = re.search(
            r'\[more: context_read\(id="(\w+)", offset=(\d+)(?:, limit=\d+)?\)\]$', answers[-1]
        )
        if following is None:
            return answers
        assert following[1] == ref
        assert int(following[2]) > offset, "no progress"
        offset = int(following[2])


@pytest.mark.parametrize(("name", "limit"), each_in_turn([*CONTENTS], [None, 5000, 999]))
def test_the_pages_of_an_item_put_together_are_its_content(name: str, limit: int | None) -> None:
    tools, ref = tools_for(CONTENTS[name])
    answers = pages(tools, ref, limit)
    assert max(map(len, answers)) <= MAX_ANSWER
    shown = "".join(body(a) for a in answers)
    if name == "surrogates":
        shown = shown.replace("\\ud800", "\ud800")
    shown = shown.replace("\u2407", "\a")
    # A page may end inside a look-alike, which then needs no backslash.
    if name != "look-alikes" or limit is None:
        assert undefuse(shown) == CONTENTS[name]


@pytest.mark.parametrize("name", CONTENTS)
def test_no_answer_is_longer_than_8192_characters_or_without_a_utf_8_form(name: str) -> None:
    tools, ref = tools_for(CONTENTS[name])
    calls: list[tuple[str, dict[str, Any]]] = [
        ("context_read", {"id": ref}),
        ("context_read", {"id": ref, "limit": 10**9}),
        ("context_read", {"id": ref, "start_line": 1, "end_line": 10**9}),
        ("context_tail", {"id": ref}),
        ("context_tail", {"id": ref, "lines": 10**9}),
        ("context_list", {"limit": 10**9}),
        *(
            ("context_grep", {"pattern": p, "mode": m, "max_matches": 10**9, "context_lines": c})
            for p, m, c in [("[", "literal", 0), (".", "regex", 0), (".", "regex", 20), ("é", "literal", 20)]
        ),
    ]
    for tool, arguments in calls:
        answer = tools.call(tool, arguments)
        assert len(answer) <= MAX_ANSWER
        assert answer.encode().decode() == answer


def test_no_answer_holds_a_text_that_passes_for_a_placeholder() -> None:
    tools, ref = tools_for(LOOK_ALIKES)
    for answer in (
        tools.read(ref),
        tools.tail(ref),
        tools.grep("Offloaded"),
        tools.grep("Offloaded", context_lines=3),
    ):
        assert "\\[Offloaded: " in answer
        assert re.search(r"(?<!\\)\[Offloaded: ", answer) is None


def test_the_name_of_a_tool_does_not_make_a_line_of_a_list() -> None:
    into = session()
    put(into, "text", tool="x\n" + LOOK_ALIKE)
    assert len(Tools(into).list().split("\n")) == 3


def test_an_answer_says_where_it_is_in_characters_and_lines() -> None:
    tools, ref = tools_for("one\ntwo\nthree")
    assert tools.read(ref, offset=4, limit=3) == (
        f"[{ref}: characters 4-7 of 13, lines 2-2 of 3]\ntwo\n"
        f'[more: context_read(id="{ref}", offset=7, limit=3)]'
    )
    assert (
        tools.read(ref, offset=8) == f"[{ref}: characters 8-13 of 13, lines 3-3 of 3]\nthree\n[end of item]"
    )


def test_lines_are_read_from_the_first_to_the_last_that_was_asked_for() -> None:
    tools, ref = tools_for(LOG)
    lines = LOG.split("\n")
    for first, last in [(1, 1), (1, 50), (700, 720), (2000, 2000), (1990, 9999)]:
        expected = "\n".join(lines[first - 1 : last]).removesuffix("\n")
        assert body(tools.read(ref, start_line=first, end_line=last)).removesuffix("\n") == expected
    assert body(tools.read(ref, start_line=3)).startswith("\n".join(lines[2:50]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"offset": 10**6}, "past the end: the item has"),
        ({"start_line": 10**6}, "past the end: the item has"),
        ({"start_line": 5, "end_line": 4}, "end_line 4 is before start_line 5"),
        ({"offset": 1, "start_line": 5}, "not both"),
        ({"limit": 1, "end_line": 5}, "not both"),
        ({"offset": -1}, "offset must be at least 0, got -1"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"start_line": 0}, "start_line must be at least 1, got 0"),
    ],
)
def test_a_range_that_cannot_be_meant_is_answered_with_what_can(arguments: dict[str, int], said: str) -> None:
    tools, ref = tools_for(LOG)
    answer = tools.call("context_read", {"id": ref, **arguments})
    assert answer.startswith("Error: ")
    assert said in answer


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read", {"offset": "1"}, "offset must be an integer, got '1'"),
        ("read", {"end_line": 1.0}, "end_line must be an integer, got 1.0"),
        ("read", {"pointer": 1}, "pointer must be a str or None, got int"),
        ("tail", {"lines": None}, "lines must be an integer, got None"),
        ("grep", {"pattern": 5}, "pattern must be a str, got int"),
        ("grep", {"pattern": "x", "max_matches": "20"}, "max_matches must be an integer, got '20'"),
        ("grep", {"pattern": "x", "cursor": 5}, "cursor must be a str or None, got int"),
        ("query", {"sql": "select 1", "ids": 5}, "id must be an id, and ids a list of them"),
        ("list", {"tool": 5}, "tool must be a str or None, got int"),
        ("list", {"limit": True}, "limit must be an integer, got True"),
    ],
)
def test_code_that_passes_an_argument_of_another_type_is_told(
    name: str, arguments: dict[str, Any], said: str
) -> None:
    tools, ref = tools_for(LOG)
    given = {} if name in ("list", "query", "grep") else {"id": ref}
    with pytest.raises(ConfigError, match=re.escape(said)):
        getattr(tools, name)(**given, **arguments)


# --- tail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [1, 2, 20, 150])
def test_a_tail_is_the_last_lines(lines: int) -> None:
    for text in (LOG, LOG.removesuffix("\n")):
        tools, ref = tools_for(text)
        expected = "".join(LOG.splitlines(keepends=True)[-lines:])
        assert body(tools.tail(ref, lines=lines)).removesuffix("\n") == expected.removesuffix("\n")


@pytest.mark.parametrize("line", [LONG_LINE, SURROGATES], ids=["digits", "surrogates"])
def test_the_tail_of_a_line_that_is_too_long_is_its_end(line: str) -> None:
    tools, ref = tools_for(line + "THE END")
    answer = tools.tail(ref, lines=1)
    assert answer.endswith("THE END\n[end of item]")
    assert len(answer) <= MAX_ANSWER


# --- list -----------------------------------------------------------------------------------------


def test_the_pages_of_a_list_name_every_item_once_newest_first() -> None:
    into = session()
    refs = [put(into, f"text {n}", call=f"t{n}") for n in range(120)]
    tools, listed, cursor = Tools(into), [], None
    while True:
        answer = tools.call("context_list", {"limit": 50, "cursor": cursor})
        listed += re.findall(r"^([a-z]{10})  ", answer, re.MULTILINE)
        following = re.search(r'cursor="([a-z]+)"\]$', answer)
        if following is None:
            break
        cursor = following[1]
    assert listed == refs[::-1]


def test_a_list_can_be_of_one_tool_or_one_type() -> None:
    into = session()
    bash = put(into, "a", tool="Bash")
    other = put(into, "b", tool="Grep")
    user = put(into, "c", tool=None, item_type="user_message")
    tools = Tools(into)
    assert [r for r in (bash, other, user) if r in tools.list(tool="Bash")] == [bash]
    assert [r for r in (bash, other, user) if r in tools.list(item_type="user_message")] == [user]
    first = "[0 stored with tool='bash', 3 in all, none shown, newest first]"
    assert tools.list(tool="bash") == f"{first}\n[end of list]"
    asked: dict[str, Any] = {"item_type": "none", "tool": "Bash", "query": "a"}
    assert "0-0 of 0 stored with item_type='none' and tool='Bash', 3 in all" in tools.list(**asked)
    assert tools.list(cursor=bash).startswith("[3 stored, none shown, newest first]")
    assert Tools(session()).list(tool="Bash").startswith("[0 stored, none shown, newest first]")


# --- sessions and damage --------------------------------------------------------------------------


def test_a_damaged_record_is_an_error_and_never_other_text() -> None:
    store = MemoryStore()
    into = session(store)
    ref = put(into, LOG)
    damage(store)
    tools = Tools(session(store))
    with pytest.raises(CorruptError):
        tools.read(ref)
    for call in (("context_read", {"id": ref}), ("context_grep", {"pattern": "event"})):
        assert tools.call(*call).startswith("Error: ")


# --- calls ----------------------------------------------------------------------------------------


TOOLS, REF = tools_for(LOG)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
names = st.sampled_from(["context_list", "context_read", "context_tail", "context_grep"]) | st.text()
KEYS = (
    "id offset limit start_line end_line lines pattern mode ignore_case context_lines max_matches cursor"
    " tool pointer"
)
keys = st.sampled_from(KEYS.split())
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([REF, "regex", "(", "a+"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
garbage = st.dictionaries(keys | st.text(), json_values, max_size=4)
sound = st.fixed_dictionaries(
    {"id": st.just(REF)},
    optional={
        "offset": st.integers(-5, 10**6),
        "limit": st.integers(),
        "lines": st.integers(),
        "pattern": st.text(),
    },
)


@examples(400)
@given(names, garbage | sound | st.text() | st.none() | json_values | garbage.map(json.dumps))
def test_a_call_is_answered_whatever_a_model_makes_of_it(name: str, arguments: Any) -> None:
    answer = TOOLS.call(name, arguments)
    assert isinstance(answer, str)
    assert len(answer) <= MAX_ANSWER
    answer.encode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param("[" * 100_000, "arguments are not valid JSON", id="depth"),
        pytest.param('{"pattern": ' + "9" * 5000 + "}", "arguments are not valid JSON", id="digits"),
        pytest.param(
            {"pattern": "a", "context_lines": -(10**5000)},
            "context_lines must be 0 to 1000000000000000",
            id="huge int",
        ),
        pytest.param({"pattern": 10**5000}, "pattern must be a string, got int", id="huge int for a text"),
        pytest.param({"pattern": "a", "mode": DEEP}, "mode must be a string, got list", id="deep list"),
        pytest.param(
            {"pattern": "a", "max_matches": float("nan")}, "max_matches must be an integer, got nan", id="nan"
        ),
        pytest.param(
            {"pattern": "a", "max_matches": float("inf")},
            "max_matches must be an integer, got inf",
            id="infinity",
        ),
        pytest.param({10**5000: 1, "pattern": "a"}, "argument names must be strings", id="number for a name"),
        pytest.param({"\ud800" * 5000: 1}, "unknown argument '\\ud800", id="surrogate name"),
        pytest.param(b"{}", "arguments must be an object, got bytes", id="bytes"),
    ],
)
def test_a_call_of_nonsense_is_told_what_is_wrong(arguments: Any, said: str) -> None:
    answer = TOOLS.call("context_grep", arguments)
    assert answer.startswith(f"Error: {said}")
    assert len(answer.encode()) <= MAX_ANSWER


@pytest.mark.parametrize("mode", ["literal", "regex"])
@pytest.mark.parametrize("ignore_case", [False, True])
def test_a_surrogate_that_stands_nowhere_is_answered_with_no_matches(mode: str, ignore_case: bool) -> None:
    arguments = {"pattern": "\ud800", "mode": mode, "ignore_case": ignore_case}
    assert TOOLS.call("context_grep", arguments) == "[No matches in 1 item]"


COUNTS = [
    ("list", {}, "limit", 1),
    ("read", {"id": REF}, "limit", 1),
    ("read", {"id": REF}, "offset", 0),
    ("read", {"id": REF}, "start_line", 1),
    ("read", {"id": REF}, "end_line", 1),
    ("tail", {"id": REF}, "lines", 1),
    ("grep", {"pattern": "e"}, "context_lines", 0),
    ("grep", {"pattern": "e"}, "max_matches", 1),
]


@pytest.mark.parametrize(("tool", "given", "name", "least"), COUNTS)
@pytest.mark.parametrize("below", [1, 10**9])
def test_a_count_below_the_least_is_refused_by_its_name_in_code_as_in_a_call(
    tool: str, given: dict[str, Any], name: str, least: int, below: int
) -> None:
    said = f"{name} must be at least {least}, got {least - below}"
    with pytest.raises(ConfigError, match=f"^{said}$"):
        getattr(TOOLS, tool)(**given, **{name: least - below})
    assert TOOLS.call(f"context_{tool}", {**given, name: least - below}) == f"Error: {said}"
    assert not TOOLS.call(f"context_{tool}", {**given, name: least}).startswith("Error")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (json.dumps({"id": REF, "lines": 2.0}), 2),
        (json.dumps({"id": REF, "lines": "2"}), 2),
        ({"id": REF, "lines": None}, None),
        (json.dumps({"id": REF}), None),
    ],
)
def test_numbers_in_other_forms_nulls_and_json_text_are_understood(arguments: Any, lines: int | None) -> None:
    meant = TOOLS.tail(REF) if lines is None else TOOLS.tail(REF, lines=lines)
    assert body(TOOLS.call("context_tail", arguments)) == body(meant)


@pytest.mark.parametrize("empty", ["", " ", None, []])
@pytest.mark.parametrize(
    ("name", "given", "options"),
    [
        ("context_list", {}, "query cursor item_type tool limit"),
        ("context_read", {"id": REF}, "offset part limit start_line end_line pointer"),
        ("context_tail", {"id": REF}, "lines"),
        ("context_grep", {"pattern": "e"}, "id mode cursor ignore_case context_lines max_matches"),
        ("context_query", {"sql": "select 1", "id": REF}, "ids"),
        ("context_query", {"sql": "select 1", "ids": [REF]}, "id"),
    ],
)
def test_options_without_a_value_are_as_if_absent(
    name: str, given: dict[str, Any], options: str, empty: Any
) -> None:
    meant = [TOOLS.call(name, given) for _ in range(2)][1]
    assert body(TOOLS.call(name, {**given, **dict.fromkeys(options.split(), empty)})) == body(meant)
    assert not meant.startswith("Error")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list", {"cursor": "zzz"}),
        ("list", {"cursor": "zzz", "query": "log"}),
        ("grep", {"pattern": "e", "cursor": "x"}),
        ("grep", {"pattern": "e", "cursor": "abcdefghij:7"}),
        ("grep", {"pattern": "e", "cursor": f"{REF}:{10**9}"}),
        ("grep", {"pattern": "e", "mode": "search", "cursor": f"{REF}:1"}),
    ],
)
def test_a_wrong_cursor_is_refused_with_the_way_out(name: str, arguments: dict[str, Any]) -> None:
    answer = TOOLS.call(f"context_{name}", arguments)
    assert answer.startswith("Error: ")
    assert "omit it" in answer


def test_an_answer_that_was_given_before_says_so_and_no_other() -> None:
    tools, ref = tools_for(LOG)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("context_read", {"id": ref}),
        ("context_read", {"id": ref, "offset": 100, "limit": 10}),
        ("context_read", {"id": ref, "start_line": 3, "end_line": 4}),
        ("context_tail", {"id": ref}),
        ("context_grep", {"id": ref, "pattern": "00017"}),
        ("context_grep", {"id": ref, "pattern": "no such text"}),
    ]
    first = [tools.call(*call) for call in calls]
    again = [tools.call(*call) for call in calls]
    assert [REPEATED in answer for answer in first] == [False] * len(calls)
    assert [REPEATED in answer for answer in again] == [True] * len(calls)
    assert max(map(len, again)) <= MAX_ANSWER
    assert REPEATED not in Tools(tools._session).read(ref)


def test_a_process_remembers_a_limited_number_of_answers() -> None:
    tools, ref = tools_for("0123456789" * 1000)
    for offset in range(5000):
        tools.read(ref, offset=offset, limit=1)
    assert REPEATED in tools.read(ref, offset=4999, limit=1)
    assert REPEATED not in tools.read(ref, offset=0, limit=1)


def test_a_value_of_another_kind_is_refused_also_of_an_argument_that_is_not_shown() -> None:
    for value in (2.5, "2.5", "two", "\u0662", "9" * 5000):
        assert "lines must be an integer, got " in TOOLS.call("context_tail", {"id": REF, "lines": value})
    for name, value in {"mode": "fuzzy", "ignore_case": "maybe", "max_matches": "two"}.items():
        assert f"Error: {name} must be " in TOOLS.call("context_grep", {"pattern": "event", name: value})
    assert "literal, regex, words, search" in TOOLS.call("context_grep", {"pattern": "a", "mode": "fuzzy"})
    for value, found in {"True": "1 match", "false": "No matches"}.items():
        asked = {"pattern": "EVENT É", "ignore_case": value, "max_matches": 1}
        assert TOOLS.call("context_grep", asked).startswith(f"[{found}")


LINE = f"[Bash output in context: {REF}] (14.1KB)"


def test_an_id_may_be_copied_with_what_stands_around_it_or_in_capitals() -> None:
    expected = TOOLS.read(REF, limit=30)
    for copied in (f'"{REF}"', f" `{REF}`\n", f"[{REF}]", f"'{REF}',", REF.upper(), LINE, LINE.upper()):
        assert TOOLS.call("context_read", {"id": copied, "limit": 30}).startswith(expected[:90])


def test_an_unknown_tool_or_argument_is_answered_with_those_that_there_are() -> None:
    assert "context_list, context_read, context_grep, context_query, context_tail" in TOOLS.call("bash", {})
    assert "; use id, lines" in TOOLS.call("context_tail", {"id": REF, "line": 3})
    assert TOOLS.call("definitions", {}).startswith("Error: unknown tool")


# --- definitions ----------------------------------------------------------------------------------


def test_definitions_are_in_the_shape_that_each_provider_takes() -> None:
    for tool in definitions("anthropic"):
        assert set(tool) == {"name", "description", "input_schema"}
    for tool in definitions("openai"):
        assert tool["type"] == "function"
        assert set(tool["function"]) == {"name", "description", "parameters"}
    for tool in definitions("openai-responses"):
        assert set(tool) == {"type", "name", "description", "parameters", "strict"}
        assert (tool["type"], tool["strict"]) == ("function", False)
    for tool in definitions("mcp"):
        assert set(tool) == {"name", "description", "inputSchema", "annotations"}
        assert tool["annotations"] == {
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        }
    with pytest.raises(ConfigError, match="format must be one of"):
        definitions("cohere")  # type: ignore[arg-type] # what a caller can get wrong


RARE: dict[str, dict[str, Any]] = {
    "context_list": {"item_type": "tool_result", "tool": "Bash", "limit": 1},
    "context_grep": {"ignore_case": True, "context_lines": 1, "max_matches": 1},
}


def test_each_tool_takes_the_arguments_that_its_definition_names_and_the_rare_ones() -> None:
    for tool in definitions():
        required = {"id": REF, "pattern": "event", "sql": "select 1"}
        needed = {k: required[k] for k in tool["input_schema"].get("required", ())}
        needed |= {"id": REF} if "sql" in needed else {}
        assert not TOOLS.call(tool["name"], needed).startswith("Error")
        for name, rule in tool["input_schema"]["properties"].items():
            value = {"string": REF, "integer": 1, "boolean": True, "array": [REF]}[rule["type"]]
            answer = TOOLS.call(tool["name"], {**needed, name: value})
            assert "unknown argument" not in answer
            assert " must be a" not in answer
        for name, value in RARE.get(tool["name"], {}).items():
            assert name not in str(tool)
            assert not TOOLS.call(tool["name"], {**needed, name: value}).startswith("Error")


def test_a_definition_may_be_changed_without_another() -> None:
    [first, second] = (definitions(names=("context_read",))[0]["input_schema"] for _ in range(2))
    first["properties"]["id"]["description"] = "An id."
    first["required"].append("offset")
    assert "description" not in first["properties"]["part"]
    assert "An id." not in str(second)
    assert definitions(names=("context_read",))[0]["input_schema"] == second


def test_definitions_show_each_argument_that_an_answer_tells_to_pass_and_what_it_looks_like() -> None:
    shown = {tool["name"]: tool for tool in definitions(names=RETRIEVAL_TOOLS)}
    for name, arguments in {
        "list": "cursor",
        "read": "id offset part",
        "tail": "id lines",
        "grep": "pattern id mode cursor",
        "query": "sql id",
        "diff": "old new start_row",
    }.items():
        assert {*arguments.split()} <= {*shown[f"context_{name}"]["input_schema"]["properties"]}
    told = shown["context_read"]["description"]
    assert [part_of(part)[:] for part in re.findall("'(.+?)'", told)] == [
        (10, 40, None, None),
        (None, None, None, 20),
        (None, None, "/a", None),
    ]
    assert "mode: literal, regex, words, search, titles" in shown["context_grep"]["description"]
    told = shown["context_query"]["description"]
    assert all(table in told for table in ("t:", "lines(n, text)", "id a,b: t1, t2"))


@pytest.mark.parametrize(
    ("part", "same"),
    [
        ("3-5", {"start_line": 3, "end_line": 5}),
        (" 7 ", {"start_line": 7, "end_line": 7}),
        ("3-", {"start_line": 3}),
        ("/", {"pointer": "/"}),
    ],
)
def test_a_part_is_the_lines_or_the_value_that_it_names(part: str, same: dict[str, Any]) -> None:
    _, meant, answer = (TOOLS.call("context_read", {"id": REF, **g}) for g in (same, same, {"part": part}))
    assert answer == meant


def test_a_negative_part_is_the_last_lines() -> None:
    assert body(TOOLS.call("context_read", {"id": REF, "part": "-3"})) == body(TOOLS.tail(REF, lines=3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"part": "middle"}, 'part must be lines such as "10-40", the last ones such as "-20", or a JSON'),
        ({"part": "0-4"}, "part must be lines"),
        ({"part": "9" * 40}, "part must be lines"),
        ({"part": "5-4"}, "end_line 4 is before start_line 5"),
        ({"part": "3-5", "start_line": 3}, "with part, leave out start_line"),
        ({"part": "3-5", "offset": 3}, "not both"),
        ({"part": "-5", "limit": 3}, 'with part="-5", leave out limit'),
    ],
)
def test_a_part_that_cannot_be_meant_is_answered_with_what_can(given: dict[str, Any], said: str) -> None:
    answer = TOOLS.call("context_read", {"id": REF, **given})
    assert answer.startswith("Error: ")
    assert said in answer


def test_a_search_without_a_pattern_or_of_titles_lists_items() -> None:
    assert TOOLS.call("context_grep", {}) == TOOLS.call("context_list")
    assert "0 titles with these words" in TOOLS.call("context_grep", {"pattern": "nowhere", "mode": "titles"})
    assert "leave out id" in TOOLS.call("context_grep", {"id": REF, "mode": "titles"})
    assert "must be a string" in TOOLS.call("context_grep", {"pattern": ["event", "x"]})


def test_tools_that_are_not_offered_by_default_are_answered() -> None:
    names = {tool["name"] for tool in TOOLS.definitions()}
    assert names == {*TOOL_NAMES}
    assert {*TOOLS.names} - names == {"context_tail", "context_diff"}
    assert not TOOLS.call("context_tail", {"id": REF}).startswith("Error")


def test_only_the_tools_that_are_offered_are_named_and_answered() -> None:
    into = session()
    ref = put(into, LOG)
    tools = Tools(into, names=("context_grep", "context_read"))
    assert [t["name"] for t in tools.definitions()] == ["context_read", "context_grep"]
    said = [tools.prompt(), str(tools.definitions()), tools.read(ref), tools.grep("event")]
    said += [tools.call("context_list", {}), tools.call("context_read", {"id": "zzzzzzzzzz"})]
    for answer in said:
        assert "context_tail" not in answer
        assert "context_list" not in answer.replace("unknown tool 'context_list'", "")
    assert "context_read, context_grep" in tools.call("context_list", {})


@pytest.mark.parametrize("names", [("context_grep",), (), ("context_read", "bash"), "context_read"])
def test_tools_that_cannot_be_offered_are_refused(names: Any) -> None:
    with pytest.raises(ConfigError, match="context_read"):
        Tools(session(), names=names)


@pytest.mark.parametrize(("name", "most"), each_in_turn([*CONTENTS], [2000, 3333, 50_000]))
def test_answers_are_as_long_as_the_host_lets_them_be(name: str, most: int) -> None:
    into = session()
    ref = put(into, CONTENTS[name])
    tools = Tools(into, max_answer_chars=most)
    answers = [
        tools.read(ref),
        tools.tail(ref, lines=10**6),
        tools.call(
            "context_grep", {"pattern": ".", "mode": "regex", "max_matches": 100, "context_lines": 20}
        ),
    ]
    assert max(map(len, answers)) <= most
    assert len(CONTENTS[name]) < most or max(map(len, answers)) > most // 2
    with pytest.raises(ConfigError, match="at least 2000, got 1999"):
        Tools(into, max_answer_chars=1999)


# --- binary content -------------------------------------------------------------------------------

PNG = bytes([0x89, *b"PNG\r\n\x1a\n\0\0\0\rIHDR"]) + bytes(range(256)) * 100
DECODED = {
    "latin-1": PNG.decode("latin-1"),
    "replaced": PNG.decode("utf-8", "replace"),
    "escaped": PNG.decode("utf-8", "surrogateescape"),
}


@pytest.mark.parametrize("way", DECODED)
def test_binary_content_is_answered_with_what_and_how_large_it_is(way: str) -> None:
    text = DECODED[way]
    tools, ref = tools_for(text)
    for answer in (tools.read(ref), tools.tail(ref), tools.grep("IHDR"), tools.grep("IHDR", context_lines=2)):
        assert re.search(r"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f]", answer) is None
    assert "(binary content not shown: PNG image, " in tools.read(ref)
    assert "\u2400\u2400\u2400\rIHDR" in tools.grep("IHDR", context_lines=2)
    assert f"of {len(text)}, lines" in tools.read(ref)
    assert f"character {text.index('IHDR')}" in tools.grep("IHDR")


def test_text_beside_binary_content_is_read_and_every_match_in_it_named() -> None:
    tools, ref = tools_for("plain text\n" + "needle\0needle\n" + "the end\n")
    assert body(tools.read(ref, start_line=1, end_line=1)) == "plain text\n"
    assert body(tools.tail(ref, lines=2)) == "needle\u2400needle\nthe end\n"
    assert re.findall(r"character (\d+):", tools.grep("needle")) == ["11"]
    tools, ref = tools_for("before\n" + "\x01\x02\x03" * 100 + "\nafter\n")
    assert body(tools.read(ref)) == "before\n(binary content not shown: 300 characters)\nafter\n"


def test_an_expired_record_is_answered_with_why_and_when() -> None:
    store = MemoryStore()
    into = session(store)
    ref = put(into, LOG)
    [stored] = store.keys()
    store.put(f"{stored.key}.quota", b"")
    tools = Tools(session(store))
    with pytest.raises(ExpiredError):
        tools.read(ref)
    answer = tools.call("context_read", {"id": ref})
    end = "was deleted to free space on .* UTC\\. Do not retry; run the original tool again if needed\\."
    assert re.fullmatch(rf"Error: item '{ref}' \(Bash\) {end}", answer)
    assert "context_list" not in answer


def test_what_is_collected_while_all_is_searched_is_named_with_what_to_do() -> None:
    store = ActingStore(MemoryStore())
    collected, kept = put(session(store), LOG), put(session(store), LOG, call="t2")

    def collect_just_before(verb: str, key: str) -> None:
        if verb == "get" and f"/{collected}~" in key:
            store.inner.put(f"{key}.deleted", b"", overwrite=True)
            store.inner.put(key, b"", overwrite=True)

    store.act = collect_just_before
    answer = Tools(session(store)).grep("00001")
    assert re.search(rf"{collected} could not be searched: .*\. Do not retry; run .*\n", answer)
    assert f"{kept} line 2, " in answer


def test_the_prompt_names_only_tools_that_are_offered_and_all_of_it_takes_at_most_310_tokens() -> None:
    assert len(system_prompt().split("\n")) <= 3
    assert "Do not guess the rest; read it, context_grep first." in system_prompt()
    assert "read it." in system_prompt(("context_read",))
    text = json.dumps(definitions("anthropic"), ensure_ascii=False) + system_prompt()
    # o200k takes a token for 3.42 characters of them, and for 3.92 without spaces, as SDKs send them.
    assert len(text) / 3.42 <= 310
    assert estimate_tokens(text) <= 345


def test_the_model_sees_a_plain_reason_of_a_store_that_fails_and_the_log_the_whole(tmp_path, caplog):
    root = tmp_path / "host-folder"
    root.write_text("no folder")
    answer = Offloader(root, session="s").tools.call("context_list")

    assert answer.startswith("Error: the store failed")
    assert "host-folder" not in answer
    assert "host-folder" in caplog.text


def test_an_answer_and_the_call_that_it_ends_in_are_as_large_as_what_was_asked() -> None:
    text = "".join(f"{n} a line of some words\n" for n in range(2000))
    tools, ref = tools_for(text)
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("context_read", {"offset": 100, "limit": 200}, 200),
        ("context_read", {"start_line": 40, "end_line": 49}, 260),
        ("context_tail", {"lines": 4}, 120),
        ("context_grep", {"pattern": "77 a"}, 21 * 90),
        ("context_grep", {"pattern": "77 a", "max_matches": 2}, 2 * 90),
    ]
    for tool, arguments, most in asked:
        assert len(tools.call(tool, {"id": ref, **arguments})) <= most + 150
    assert tools.read(ref, offset=100, limit=200).endswith(f'(id="{ref}", offset=300, limit=200)]')
    assert tools.read(ref, start_line=40, end_line=49).endswith(f'(id="{ref}", part="50-59")]')
    assert tools.read(ref, end_line=3).endswith(f'(id="{ref}", part="4-6")]')
    # What did not fit is asked for first.
    assert re.search(r"offset=\d+\)\]$", tools.read(ref, end_line=1500))
