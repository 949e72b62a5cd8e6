"""The subject of a tool call: the argument that says what its result is of, in every format."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from formats import FORMATS, exchange

from offload import Offloader, OffloadPolicy
from offload.engine.log import Log
from offload.messages import Call
from offload.messages.access import with_field
from offload.messages.base import Item
from offload.messages.calls import Asked, Calls, Subject, plain_name
from offload.messages.context.pairs import split_groups, waiting_from
from offload.messages.formats import adapter_for

FIELDS = {"file_path": "src/app.py", "limit": 40}
PATH = Subject("path", "src/app.py")
Pair = tuple[str, str]


def items(*messages: Any) -> list[Item]:
    """Return the items of messages, each scanned with the calls of those before it."""
    calls = Calls()
    found: list[Item] = []
    for message in messages:
        scan = adapter_for(message).scan(message, "message", calls)
        calls.add(scan.calls, scan.results, is_reply=scan.is_reply)
        found += scan.items
    return found


def openai_chat_of_2023() -> list[Any]:
    call = {"name": "Read", "arguments": json.dumps(FIELDS)}
    answer = {"role": "function", "name": "Read", "content": "text"}
    return [{"role": "assistant", "content": None, "function_call": call}, answer]


def responses_mcp() -> list[Any]:
    call = {"type": "mcp_call", "id": "c", "name": "Read", "arguments": json.dumps(FIELDS), "output": "text"}
    return [call]


def langchain() -> list[Any]:
    call = {"id": "c", "name": "Read", "args": FIELDS, "type": "tool_call"}
    answer = {"type": "tool", "tool_call_id": "c", "content": "text"}
    return [{"type": "ai", "content": "", "tool_calls": [call]}, answer]


def objects() -> list[Any]:
    call = SimpleNamespace(type="tool_use", id="c", name="Read", input=FIELDS)
    result = SimpleNamespace(type="tool_result", tool_use_id="c", content="text", is_error=False)
    return [
        SimpleNamespace(role="assistant", content=[call]),
        SimpleNamespace(role="user", content=[result]),
    ]


@pytest.mark.parametrize(
    "conversation",
    [
        *(exchange(kind, "Read", FIELDS, "text") for kind in FORMATS),
        *(openai_chat_of_2023(), responses_mcp(), langchain(), objects()),
    ],
)
def test_arguments_and_result_of_a_call_have_its_subject_in_every_format(conversation: Any) -> None:
    found = items(*conversation)
    *_, result = [item for item in found if item.item_type == "tool_result"]
    assert result.text == "text"
    assert {item.subject for item in found if item.item_type != "assistant_message"} == {PATH}


def test_a_call_of_the_shell_of_the_api_has_its_commands_as_subject() -> None:
    call = {"type": "shell_call", "call_id": "c", "action": {"commands": ["make clean", "make test"]}}
    output = {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "ok", "stderr": ""}]}
    [item] = items(call, output)
    assert item.subject == Subject("command", "make clean; make test")


def test_results_without_ids_answer_the_calls_to_their_tools_in_order() -> None:
    def call(path: str, tool: str = "read") -> dict[str, Any]:
        return {"functionCall": {"name": tool, "args": {"path": path}}}

    def response(tool: str = "read") -> dict[str, Any]:
        return {"functionResponse": {"name": tool, "response": {"result": "text"}}}

    first = [
        {"role": "model", "parts": [call("a"), call("x", "stat"), call("b")]},
        {"role": "user", "parts": [response(), response(), response("stat")]},
    ]
    second = [{"role": "model", "parts": [call("c")]}, {"role": "user", "parts": [response()]}]
    results = [item for item in items(*first, *second) if item.item_type == "tool_result"]
    assert [item.subject and item.subject.text for item in results] == ["a", "b", "x", "c"]


def parallel(
    kind: str, calls: list[tuple[str, str]], results: list[tuple[str, str]], call_id: str
) -> list[Any]:
    """Return calls of one turn that all have one id, by tool and path, and results by tool and text."""
    pairs = [exchange(kind, tool, {"path": path}, "", call_id) for tool, path in calls]
    answers = [exchange(kind, tool, {}, text, call_id)[1] for tool, text in results]
    made = [each for each, _ in pairs]
    if kind in ("openai-chat", "langchain"):
        joined = [each["tool_calls"] if isinstance(each, dict) else each.tool_calls for each in made]
        made = [with_field(made[0], "tool_calls", [one for some in joined for one in some])]
        if kind == "langchain":
            answers = [with_field(a, "name", tool) for a, (tool, _) in zip(answers, results, strict=True)]
    elif kind not in ("openai-responses", "gemini-interactions"):
        field = "parts" if kind == "gemini" else "content"
        made = [{**made[0], field: [part for each in made for part in each[field]]}]
        answers = [{**answers[0], field: [part for each in answers for part in each[field]]}]
    return [*made, *answers]


@pytest.mark.parametrize("call_id", ["call_0", ""])
@pytest.mark.parametrize("kind", FORMATS)
def test_results_whose_calls_have_one_id_answer_these_in_order_in_each_turn(kind: str, call_id: str) -> None:
    turns = [[("Read", "a"), ("Bash", "b"), ("Read", "c")], [("Bash", "d"), ("Read", "e")]]
    conversation = [
        message
        for turn in turns
        for message in (*parallel(kind, turn, turn, call_id), {"role": "user", "content": "Go on."})
    ]

    results = [item for item in items(*conversation) if item.item_type == "tool_result"]

    assert [(i.text, i.tool_name, i.call and i.call.fields) for i in results] == [
        (path, tool, {"path": path}) for turn in turns for tool, path in turn
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_result_of_an_excluded_tool_stays_where_another_call_has_its_id(kind: str) -> None:
    plan, make = ("\n".join(f"{word} row {n} value {n * 7919 % 1000}" for n in range(900)) for word in "ab")
    calls = [("get_plan", "p"), ("bash", "q")]
    conversation = parallel(kind, calls, [("get_plan", plan), ("bash", make)], "call_0")
    off = Offloader("memory://", session="s", policy=OffloadPolicy(exclude_tools=("get_plan",)))

    out = off.offload(conversation)

    [record] = out.records
    assert (record.tool_name, record.title) == ("bash", "q")
    assert plan in [item.text for item in items(*out.messages)]
    assert off.restore(out.messages) == conversation
    assert Offloader(off.store, session="s", policy=off.policy).offload(conversation).messages == out.messages


@pytest.mark.parametrize("kind", FORMATS)
def test_a_conversation_is_not_cut_between_calls_of_one_id_and_their_results(kind: str) -> None:
    calls = [("Read", "a"), ("Bash", "b")]
    whole = parallel(kind, calls, calls, "call_0")

    assert split_groups(whole) == [range(len(whole))]
    if len(whole) > 2:
        assert waiting_from(whole[:-1]) < len(whole) - 1, "one result is still to come"
    assert waiting_from(whole) == len(whole)


def test_a_result_without_its_call_has_no_subject() -> None:
    [item] = items({"role": "tool", "tool_call_id": "c", "content": "text"})
    assert item.subject is None


def test_a_history_gives_back_the_earlier_call_of_an_id_when_a_message_is_dropped() -> None:
    from offload.engine.parts import MessageState  # noqa: PLC0415 # only here

    history, calls = Log(), [Call("Read", {"path": path}) for path in "ab"]
    replies = [
        MessageState([], 0, [("c", call)], {}, "assistant", answers=n) for n, call in enumerate(calls, 1)
    ]
    for message in (replies[0], MessageState([], 0, (), {"c": [None]}, "tool"), replies[1]):
        history.add({"n": len(history)}, message)
    assert history.calls.get("c") == Asked(2, (calls[1],))
    history.keep_common([{"n": 0}, {"n": 1}])
    assert history.calls.get("c") == Asked(1, (calls[0],), (None,))
    history.keep_common([{"n": 0}])
    assert history.calls.get("c") == Asked(1, (calls[0],))
    history.keep_common([])
    assert history.calls.get("c") is None


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "text"),
    [
        ("Bash", {"command": "pytest -q", "description": "Run the tests"}, "command", "pytest -q"),
        ("Grep", {"pattern": "def f", "path": "src", "output_mode": "content"}, "query", "def f in src"),
        ("Glob", {"pattern": "**/*.py"}, "query", "**/*.py"),
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, "path", "a.py"),
        ("NotebookEdit", {"notebook_path": "a.ipynb", "new_source": "1"}, "path", "a.ipynb"),
        ("WebFetch", {"url": "https://x.org/a", "prompt": "Sum it up"}, "url", "https://x.org/a"),
        ("WebSearch", {"query": "how to"}, "query", "how to"),
        ("Task", {"description": "Find it", "prompt": "Look\nup", "subagent_type": "x"}, "text", "Find it"),
        ("TaskUpdate", {"taskId": "3", "status": "done"}, "text", "taskId=3, status=done"),
        ("shell", {"command": ["bash", "-lc", "rg -n x"], "workdir": "/w"}, "command", "rg -n x"),
        ("shell", {"command": ["git", "log", "-m", "a b"]}, "command", "git log -m 'a b'"),
        ("exec_command", {"cmd": "ls"}, "command", "ls"),
        ("apply_patch", "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n", "path", "a.py"),
        ("apply_patch", {"type": "update_file", "path": "b.py", "diff": "@@"}, "path", "b.py"),
        ("view_image", {"path": "a.png"}, "path", "a.png"),
        ("tavily_search", {"query": "q", "max_results": 5}, "query", "q"),
        ("Python_REPL", {"query": "print(1)"}, "text", "print(1)"),
        ("terminal", {"commands": ["cd a", "ls"]}, "command", "cd a; ls"),
        ("mcp__filesystem__read_text_file", {"path": "/a/b", "head": 5}, "path", "/a/b"),
        ("read_multiple_files", {"paths": ["a", "b"]}, "path", "a, b"),
        ("edit_file", {"path": "a", "edits": [{"oldText": "x", "newText": "y"}]}, "path", "a"),
        ("move_file", {"source": "a", "destination": "b"}, "path", "a"),
        ("search_files", {"path": "/w", "pattern": "*.md"}, "query", "*.md in /w"),
        ("str_replace_editor", {"command": "view", "path": "/a.py", "view_range": [1, 9]}, "path", "/a.py"),
        ("execute_bash", {"command": "make"}, "command", "make"),
        ("execute_ipython_cell", {"code": "1 + 1"}, "text", "1 + 1"),
        ("browser_navigate", {"url": "https://x.org"}, "url", "https://x.org"),
        ("browser_click", {"element": "Save", "ref": "s1e5"}, "text", "element=Save, ref=s1e5"),
        ("web_browser_click", {"element_id": 16}, "text", "element_id=16"),
        ("run_shell_command", {"command": "npm t", "description": "d"}, "command", "npm t"),
        ("read_file", {"absolute_path": "/a"}, "path", "/a"),
        ("read", {"filePath": "/a", "offset": 2}, "path", "/a"),
        ("codebase_search", {"query": "auth", "target_directories": []}, "query", "auth"),
        ("git_log", {"repo_path": "/r", "max_count": 5}, "path", "/r"),
        ("run_query", {"sql": "select 1"}, "query", "select 1"),
        ("get_user_details", {"user_id": "mia_li_3668"}, "text", "mia_li_3668"),
        ("TaskOutput", {"task_id": "bd0a", "block": True, "timeout": 120000}, "text", "bd0a"),
        ("book", {"from": "JFK", "notes": "n" * 100, "paid": True}, "text", "JFK"),
        ("write", {"a": "x" * 300, "b": "y" * 200}, "text", "y" * 200),
        ("custom", "free text", "text", "free text"),
        ("sh", '{"broken', "text", '{"broken'),
    ],
)
def test_the_subject_of_a_known_tool_is_its_main_argument(
    tool: str, arguments: Any, kind: str, text: str
) -> None:
    assert Call(tool, arguments).subject == (kind, text)


@pytest.mark.parametrize(
    "arguments",
    [
        *(None, {}, "", "{}", [], {"todos": [{"content": "x"}]}, {"path": ""}, {"path": " \n"}),
        *({"flag": True}, {1: 2}, {"password": "hunter2"}, {"api_key": "k1"}, {"n": None}, {"sign": "--"}),
        {"path": "[Offloaded: Write arguments, 9 lines, id kqzmwpxhva]\n"},
    ],
)
def test_arguments_that_say_nothing_or_are_secret_give_no_subject(arguments: Any) -> None:
    assert Call("do", arguments).subject is None


def test_deep_arguments_give_no_subject_and_no_error() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert Call("do", deep).subject is None
    assert Call("do", '{"a":' * 100_000 + "1" + "}" * 100_000).subject is not None


@pytest.mark.parametrize("part", ["a", "_", "a.", "__a", "/"])
def test_a_name_of_any_length_is_read_in_one_pass(part: str) -> None:
    """A pattern that goes back in such a name takes minutes."""
    name = (part * 60_000)[:60_000]
    turn = exchange("openai-chat", name, {"path": "a"}, "line\n" * 4000)
    [record] = Offloader("memory://", session="s").offload(turn).records
    assert (record.tool_name, record.title) == (name, "a")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("mcp__files__Read_File", "readfile"),
        ("a.b:c/Read", "read"),
        ("Read__", "read"),
        ("a__.", ""),
        ("", ""),
    ],
)
def test_the_name_of_a_server_is_no_part_of_that_of_its_tool(name: str, plain: str) -> None:
    assert plain_name(name) == plain
