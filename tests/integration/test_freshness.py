"""What an answer says about the source of a record: in a loop of each format, and on recorded sessions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kit.store import ActingStore
from recorded import FILES, needed

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.reading.tools.answers import REPEATED
from offload_backends.memory import MemoryStore

OLD = "".join(f"line {n} of the file\n" for n in range(2000))
NEW = OLD.replace("line 7 ", "line seven ")
READ, EDIT, FAILED = "the file", "OK", "Error: old_str was not found"


class Chat:
    """A conversation in one format, to which calls and results are added."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls = 0
        self.messages: list[Any] = [self.said("user", "Change line 7.")]

    def said(self, role: str, text: str) -> Any:
        if self.kind == "gemini":
            return {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
        if self.kind == "bedrock":
            return {"role": role, "content": [{"text": text}]}
        return {"role": role, "content": text}

    def call(self, name: str, result: str, **arguments: Any) -> None:
        self.calls += 1
        key = f"call_{self.calls}"
        made, answer = MAKERS[self.kind](key, name, arguments, result)
        self.messages += [made, answer]


def anthropic(key: str, name: str, arguments: Any, result: str) -> tuple[Any, Any]:
    use = {"type": "tool_use", "id": key, "name": name, "input": arguments}
    block = {"type": "tool_result", "tool_use_id": key, "content": result}
    return {"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}


def openai(key: str, name: str, arguments: Any, result: str) -> tuple[Any, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": key, "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": key, "content": result}
    return {"role": "assistant", "content": None, "tool_calls": [call]}, answer


def responses(key: str, name: str, arguments: Any, result: str) -> tuple[Any, Any]:
    call = {"type": "function_call", "call_id": key, "name": name, "arguments": json.dumps(arguments)}
    return call, {"type": "function_call_output", "call_id": key, "output": result}


def bedrock(key: str, name: str, arguments: Any, result: str) -> tuple[Any, Any]:
    use = {"toolUse": {"toolUseId": key, "name": name, "input": arguments}}
    answer = {"toolResult": {"toolUseId": key, "content": [{"text": result}]}}
    return {"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}


def gemini(_: str, name: str, arguments: Any, result: str) -> tuple[Any, Any]:
    """Return a call without an id, as this API usually makes it."""
    response = {"functionResponse": {"name": name, "response": {"output": result}}}
    call = {"functionCall": {"name": name, "args": arguments}}
    return {"role": "model", "parts": [call]}, {"role": "user", "parts": [response]}


MAKERS = {make.__name__: make for make in (anthropic, openai, responses, bedrock, gemini)}
KINDS = tuple(MAKERS)


def opened(store: Any = None, **options: Any) -> Offloader:
    # A file leaves after the model's next reply.
    policy = OffloadPolicy(file_readers=Rule(min_tokens=1500, after_replies=1), cost_plan="none")
    return Offloader(store or MemoryStore(), **{"session": "s", "policy": policy, **options})


def source_of(off: Offloader, ref: str) -> str:
    """Return the line of an answer that is about the source, empty if there is none."""
    lines = off.tools.read(ref, limit=5).split("\n")[1:-1]
    return next((line for line in lines if line.startswith("[") and line != REPEATED), "")


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_edit_an_answer_says_so_without_a_request(kind: str) -> None:
    counted = ActingStore(MemoryStore())
    off, chat = opened(counted), Chat(kind)
    chat.call("read_file", OLD, path="./a.py")
    chat.messages.append(chat.said("assistant", "I see."))
    out = off.offload(chat.messages)
    [record] = out.records
    assert source_of(off, record.ref) == ""
    sent = out.messages

    chat.call("str_replace", FAILED, path="a.py", old_str="x", new_str="y")
    chat.call("str_replace", EDIT, path="b/a.py", old_str="x", new_str="y")
    off.offload(chat.messages)
    assert "edited" not in source_of(off, record.ref)

    chat.call("str_replace", EDIT, path="a.py", old_str="line 7 ", new_str="line seven ")
    counted.asked.clear()
    again = off.offload(chat.messages)
    assert source_of(off, record.ref) == (
        "[read at call 1; edited at call 4 (str_replace): read the file again for its present text]"
    )
    assert counted.asked == []
    assert again.messages[: len(sent)] == sent, "a placeholder changed"
    assert "edited since, at call 4" in off.tools.list()


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_read_is_named_and_both_can_be_compared(kind: str) -> None:
    off, chat = opened(), Chat(kind)
    chat.call("read_file", OLD, path="a.py")
    chat.call("str_replace", EDIT, path="a.py", old_str="line 7 ", new_str="line seven ")
    chat.call("read_file", NEW, path="a.py")
    chat.messages.append(chat.said("assistant", "Done."))
    offered = off.tools.definitions()
    out = off.offload(chat.messages)
    old, new = (record.ref for record in out.records)

    assert source_of(off, old) == (
        f"[read at call 1; edited at call 2 (str_replace); read again at call 3, as {new}]"
    ), "the model does not have the tool"
    assert off.tools.definitions() == offered, "thinking and the cache are bound to the tools"
    off = off.with_options(tools=(*TOOL_NAMES, "context_diff"))
    off.offload(chat.messages)
    call = f'context_diff(old="{old}", new="{new}")'
    assert source_of(off, old).endswith(f": {call}]")
    assert source_of(off, new) == f"[read at call 3; an older version, of call 1, is {old}: {call}]"
    assert "+line seven of the file" in off.tools.call("context_diff", {"old": old, "new": new})
    assert "read again at call 3" in off.tools.list()


def test_a_shell_may_have_changed_a_file_and_that_is_said_once() -> None:
    off, chat = opened(), Chat("anthropic")
    chat.call("read_file", OLD, path="a.py")
    chat.call("Bash", OLD, command="sed -i s/7/8/ a.py")
    chat.messages.append(chat.said("assistant", "I see."))
    file, output = (record.ref for record in off.offload(chat.messages).records)

    assert source_of(off, file) == "[read at call 1; whether it changed since is not known here]"
    assert "not known" not in off.tools.read(file, offset=100, limit=10)
    assert source_of(off, output) == ""


EDITED = "edited at call 2 (Edit)"
UNCLEAR = "[read at call 1; whether it changed since is not known here]"


def said_after(name: str, result: str, read: str = "src/a.py", **arguments: Any) -> str:
    """Return the line of an answer about a file that was read before a call."""
    off, chat = opened(), Chat("openai")
    chat.call("read_file", OLD, path=read)
    chat.call(name, result, **arguments)
    chat.messages.append(chat.said("assistant", "I see."))
    ref = next(record.ref for record in off.offload(chat.messages).records if record.tool_name == "read_file")
    return source_of(off, ref)


@pytest.mark.parametrize(
    "result",
    [
        "Error handling was added to the parser.",
        "Invalid inputs are refused now.",
        "Failed requests are tried again: 3 lines changed.",
        "No changes to the tests; a.py was updated.",
        "Path traversal, which was not found before, is closed.",
        '{"error": null, "changed": 3}',
        "Exception classes are exported.",
        "Error: old_str was not found",
    ],
)
def test_an_edit_whose_result_only_sounds_like_a_failure_leaves_the_file_in_doubt(result: str) -> None:
    assert said_after("Edit", result, file_path="src/a.py") == UNCLEAR


@pytest.mark.parametrize(
    "result",
    [
        "<tool_use_error>String to replace not found in file.</tool_use_error>",
        "No replacement was performed, old_str `x` did not appear verbatim in src/a.py.",
        "ENOENT: no such file or directory, open 'src/a.py'",
    ],
)
def test_an_edit_that_says_by_the_words_of_its_tool_that_it_failed_changed_nothing(result: str) -> None:
    assert said_after("Edit", result, file_path="src/a.py") == ""


def test_the_mark_of_an_error_says_that_nothing_changed_whatever_the_text() -> None:
    off, chat = opened(), Chat("anthropic")
    chat.call("read_file", OLD, path="a.py")
    chat.call("Edit", "Done.", file_path="a.py")
    chat.messages[-1]["content"][0]["is_error"] = True
    chat.messages.append(chat.said("assistant", "I see."))
    [record] = off.offload(chat.messages).records
    assert source_of(off, record.ref) == ""


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("amend", {"target": "src/a.py", "text": "x"}),
        ("mcp__ide__refactor", {"changes": [{"where": {"document": "/project/src/a.py"}}]}),
        ("upsert", {"uri": "file:///project/src/a.py", "body": "x\ny"}),
        ("polish", {"input": "a.py"}),
    ],
)
def test_a_call_of_an_unknown_tool_that_names_the_file_leaves_it_in_doubt(tool: str, arguments: Any) -> None:
    assert said_after(tool, "ok", **arguments) == UNCLEAR


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("amend", {"target": "src/b.py"}),
        ("grep", {"path": "src/a.py", "pattern": "x"}),
        ("list_symbols", {"path": "src/a.py"}),
        ("mcp__offload__context_read", {"id": "src/a.py"}),
        ("think", {"thought": "the file src/a.py\nis long"}),
    ],
)
def test_a_call_that_names_another_file_or_only_looks_leaves_no_doubt(tool: str, arguments: Any) -> None:
    assert said_after(tool, "ok", **arguments) == ""


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (r"C:\project\src\a.py", "C:/project/src/a.py"),
        (r"c:\project\a.py", r"C:\project\.\a.py"),
        ("file:///project/a%20b.py", "/project/a b.py"),
        ("file:///C:/project/a.py", r"C:\project\a.py"),
    ],
)
def test_two_spellings_that_name_one_file_are_one(read: str, written: str) -> None:
    assert EDITED in said_after("Edit", "ok", read, file_path=written)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("src/a.py", r"src\a.py"),
        ("src/A.py", "src/a.py"),
        ("/home/me/src/a.py", "~/src/a.py"),
        ("/home/me/src/a.py", "$HOME/src/a.py"),
        ("/c/src/a.py", "C:/src/a.py"),
        ("src/caf\u00e9.py", "src/cafe\u0301.py"),
        ("/var/a.py", "/private/var/a.py"),
        ("src/a.py", " src/a.py"),
    ],
)
def test_two_spellings_that_may_name_one_file_leave_a_doubt(read: str, written: str) -> None:
    for one, other in ((read, written), (written, read)):
        assert said_after("Edit", "ok", one, file_path=other) == UNCLEAR


@pytest.mark.parametrize(
    ("written", "is_unclear"),
    [
        ("src/x/../a.py", True),
        ("../src/a.py", True),
        ("/project/lib/../src/a.py", True),
        ("lib/../a.py", True),
        ("src/../lib/a.py", False),
        ("lib/a.py", False),
        ("/project/src/x/a.py", False),
        ("src../a.py", False),
    ],
)
def test_a_path_that_may_be_the_same_file_is_neither_an_edit_nor_left_out(
    written: str, is_unclear: bool
) -> None:
    assert said_after("write_file", "ok", path=written) == UNCLEAR * is_unclear


def test_a_process_without_the_history_does_not_know_and_one_with_placeholders_does() -> None:
    off, chat = opened(), Chat("anthropic")
    chat.call("read_file", OLD, path="a.py")
    chat.call("Bash", OLD, command="make")
    chat.messages.append(chat.said("assistant", "I see."))
    out = off.offload(chat.messages)
    file, output = (record.ref for record in out.records)

    other = opened(off.store)
    assert source_of(other, file) == "[whether it changed since is not known here]"
    assert source_of(other, output) == ""

    third = opened(off.store)
    chat.messages[:] = out.messages
    chat.call("Edit", EDIT, file_path="a.py")
    third.offload(chat.messages)
    assert source_of(third, file) == (
        "[read at call 1; edited at call 3 (Edit): read the file again for its present text]"
    )


def test_a_rollback_undoes_what_was_known_and_a_compaction_does_not() -> None:
    off, chat = opened(), Chat("anthropic")
    chat.call("read_file", OLD, path="a.py")
    chat.messages.append(chat.said("assistant", "I see."))
    [record] = off.offload(chat.messages).records
    before = list(chat.messages)
    chat.messages.append(chat.said("user", "Now edit it."))
    chat.call("Edit", EDIT, file_path="a.py")
    chat.call("Bash", "ok", command="make")
    off.offload(chat.messages)
    assert "edited at call 2" in source_of(off, record.ref)

    summary = [chat.said("user", "Summary: a.py was read and edited."), *chat.messages[-2:]]
    off.offload(summary)
    assert "edited at call 2" in source_of(off, record.ref)

    off.offload(chat.messages)
    off.offload(before)
    assert "edited" not in source_of(off, record.ref)
    chat.messages[:] = before
    chat.messages.append(chat.said("user", "Another way."))
    chat.call("Write", EDIT, file_path="a.py", content="x")
    off.offload(chat.messages)
    assert "edited at call 2 (Write)" in source_of(off, record.ref)


@pytest.mark.parametrize("by_call", [False, True])
def test_of_calls_with_one_id_nothing_is_said_but_that_a_change_is_unknown(by_call: bool) -> None:
    off, chat = opened(), Chat("anthropic")

    def call(name: str, result: str, path: str) -> None:
        chat.calls = 0  # The next id is `call_1` again.
        chat.call(name, result, path=path)
        if by_call:
            off.offload(chat.messages)

    call("read_file", OLD, "a.py")
    call("str_replace", EDIT, "a.py")
    call("read_file", OLD.replace("7", "8"), "b.py")
    call("read_file", NEW, "a.py")
    chat.call("str_replace", EDIT, path="a.py")
    chat.messages.append(chat.said("assistant", "Done."))
    off.offload(chat.messages)
    off.offload(json.loads(json.dumps(chat.messages)))

    said = [source_of(off, record.ref) for record in off.records()]
    assert said == ["[whether it changed since is not known here]"] * 3


def test_a_call_that_replaces_one_of_the_same_id_does_not_get_its_edit() -> None:
    off, chat = opened(), Chat("anthropic")
    chat.call("read_file", OLD, path="a.py")
    before = list(chat.messages)
    for path in ("a.py", "b.py"):
        chat.messages[:], chat.calls = before, 1
        chat.call("Edit", EDIT, file_path=path)
        chat.messages.append(chat.said("assistant", "Done."))
        off.offload(chat.messages)
    [record] = off.records()
    assert source_of(off, record.ref) == "[read at call 1; whether it changed since is not known here]"


def test_the_same_command_run_again_is_named_with_its_later_output() -> None:
    off, chat = opened(), Chat("openai")
    chat.call("Bash", OLD, command="pytest", description="Run the tests")
    chat.call("Bash", NEW, command="pytest", description="Run them again")
    chat.call("Bash", NEW, command="pytest -x")
    chat.call("Bash", NEW, command="pytest", timeout=10)
    chat.messages.append(chat.said("assistant", "I see."))
    first, second, other, third = (record.ref for record in off.offload(chat.messages).records)

    assert source_of(off, first) == (
        f'[result of call 1; called again at call 4, as {third}: context_diff(old="{first}", new="{third}")]'
    )
    assert source_of(off, second) == "[result of call 2; called again at call 4, unchanged]"
    assert source_of(off, other) == ""


def test_the_tools_of_an_agent_loop_know_what_its_conversation_says() -> None:
    off, chat = opened(), Chat("anthropic")
    manager = ContextManager(off, AgentConfig(window_tokens=1_000_000))
    chat.call("read_file", OLD, path="a.py")
    chat.messages.append(chat.said("assistant", "I see."))
    chat.messages.append(chat.said("user", "Edit it."))
    chat.call("Edit", EDIT, file_path="a.py")
    for message in chat.messages:
        manager.add(message)
    manager.before_model_call()
    [record] = off.records()

    for tools in (manager.tools, off.tools):
        assert "edited at call 2 (Edit)" in tools.read(record.ref, limit=10)


def test_the_line_fits_into_the_answer_whatever_the_names() -> None:
    off, chat = opened(max_answer_chars=2000), Chat("anthropic")
    name = "str_replace" + "\n[Offloaded: x, id aaaaaaaaaa]\n"
    for number in range(3):
        chat.call("read_file", OLD + str(number), path="a" * 5000)
        chat.call("edit" + "\u200b" * 300, EDIT, path="a" * 5000)
        chat.call(name, EDIT, path="a" * 5000)
    chat.messages.append(chat.said("assistant", "I see."))
    for record in off.offload(chat.messages).records:
        for _ in range(2):
            for answer in (
                off.tools.read(record.ref),
                off.tools.tail(record.ref),
                off.tools.grep("line", record.ref, max_matches=100),
            ):
                assert len(answer) <= 2000
                assert not re.search(r"(?m)(?<!\\)^\[Offloaded", answer)


def test_a_restart_and_a_damaged_call_cost_nothing() -> None:
    off, chat = opened(), Chat("anthropic")
    for arguments in ({"path": ["a.py"]}, {"path": None}, {"path": ""}, {"path": {"a": 1}}, {}):
        chat.call("read_file", OLD, **arguments)
        chat.call("Edit", EDIT, **arguments)
    chat.messages.append(chat.said("assistant", "I see."))
    out = off.offload(chat.messages)
    assert out.errors == []
    for record in out.records:
        assert "edited at" not in off.tools.read(record.ref, limit=10)


# Recorded sessions


READERS = {"Read": "file_path", "read": "path", "read_file": "path"}
EDITORS = {
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "Write": "file_path",
    "edit": "path",
    "write": "path",
    "write_file": "path",
    "str_replace": "path",
}
CHANGED = re.compile(
    r"(OBSERVATION:\n)?(The file .* has been (updated|edited)|File created|Successfully |OK)"
)


def calls_of(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any], str, bool]]:
    """Return each call with a result: its id, tool and arguments; the text, and whether it is an error."""
    made: dict[str, tuple[str, dict[str, Any]]] = {}
    results: dict[str, tuple[str, bool]] = {}
    for message in document["messages"]:
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        for block in blocks:
            if block["type"] == "tool_use":
                made[block["id"]] = block["name"], block["input"]
            elif block["type"] == "tool_result":
                results[block["tool_use_id"]] = text_of(block.get("content")), bool(block.get("is_error"))
        for call in message.get("tool_calls") or []:
            try:
                made[call["id"]] = call["function"]["name"], json.loads(call["function"]["arguments"])
            except ValueError:
                continue
        if message["role"] == "tool":
            results[message["tool_call_id"]] = text_of(message["content"]), False
    return [(key, *call, *results[key]) for key, call in made.items() if key in results]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(b.get("text", "") for b in content or [])


def file_of(tool: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Return what a recorded call does, "read" or "edit", and the file; two empty texts for others."""
    if tool == "str_replace_editor":
        return ("read" if arguments.get("command") == "view" else "edit"), arguments.get("path", "")
    if tool in READERS:
        return "read", arguments.get(READERS[tool], "")
    return ("edit", arguments.get(EDITORS[tool], "")) if tool in EDITORS else ("", "")


def is_same_file(one: str, other: str) -> bool:
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


@needed
def test_on_recorded_sessions_no_claim_is_wrong_and_nearly_no_edit_is_missed() -> None:
    policy = OffloadPolicy(
        types={"tool_result": Rule(min_chars=400, preview_chars=0)},
        file_readers=None,
        min_saving=0,
        history="editable",
    )
    claimed, true, both = 0, 0, 0
    for path in FILES:
        document = json.loads(path.read_text())
        off = Offloader(MemoryStore(), session="s", policy=policy)
        out = off.offload(document["messages"])
        calls = calls_of(document)
        of_call = {r.tool_use_id: r.ref for r in out.records if r.item_type == "tool_result"}
        for place, (key, tool, arguments, _, _) in enumerate(calls):
            action, file = file_of(tool, arguments)
            if action != "read" or key not in of_call:
                continue
            edits = [
                file_of(tool, arguments)
                for _, tool, arguments, text, is_error in calls[place + 1 :]
                if not is_error and CHANGED.match(text)
            ]
            is_edited = any(act == "edit" and is_same_file(name, file) for act, name in edits)
            says_so = "; edited" in off.tools.read(of_call[key], limit=1)
            claimed, true, both = claimed + says_so, true + is_edited, both + (says_so and is_edited)
    assert true >= 100
    assert both == claimed
    assert both / true >= 0.95, f"{both} of {true}"
