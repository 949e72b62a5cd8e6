"""Results of tool calls that code makes: that code reads them, so nothing may stand in their place."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import ServerToolCaller20260120, ToolUseBlock
from langchain_core.messages import AIMessage, ToolMessage, messages_to_dict
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputItem
from pydantic import TypeAdapter

from offload import Offloader, OffloadPolicy, ReasonKind, Rule
from offload.messages.formats import adapter_for, role_of

ROWS = "".join(f"{n},{n * n},row of a table\n" for n in range(2000))
CODE = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
PROGRAM = {"type": "program", "caller_id": "prog_1"}
DIRECT = {"type": "direct"}
Messages = list[Any]


def anthropic(caller: Any) -> Messages:
    use = {"type": "tool_use", "id": "c1", "name": "query", "input": {}, "caller": caller}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": ROWS}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def responses(caller: Any) -> Messages:
    call = {"type": "function_call", "call_id": "c1", "name": "query", "arguments": "{}", "caller": caller}
    return [call, {"type": "function_call_output", "call_id": "c1", "output": ROWS}]


def chat(caller: Any) -> Messages:
    function = {"name": "query", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function, "caller": caller}
    result = {"role": "tool", "tool_call_id": "c1", "content": ROWS}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result]


def langchain(content: Any = "", beside: Any = None, **call: Any) -> Messages:
    made = {"name": "query", "args": {}, "id": "c1", "type": "tool_call", **call}
    message = AIMessage(content, additional_kwargs=beside or {})
    # Whatever a provider's package keeps beside the fields of a call, the constructor would drop it.
    message.tool_calls = [made]  # type: ignore[list-item]
    return [message, ToolMessage(ROWS, tool_call_id="c1")]


def langchain_block(caller: Any) -> Messages:
    return langchain([{"type": "tool_use", "id": "c1", "name": "query", "input": {}, "caller": caller}])


def langchain_call_block(caller: Any) -> Messages:
    return langchain(
        [{"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "q", "caller": caller}]
    )


def langchain_extras(caller: Any) -> Messages:
    return langchain(extras={"caller": caller})


def langchain_standard_block(caller: Any) -> Messages:
    block = {"type": "tool_call", "id": "c1", "name": "query", "args": {}, "extras": {"caller": caller}}
    return langchain([block])


def langchain_beside(caller: Any) -> Messages:
    return langchain(beside={"tool_calls": [{"id": "c1", "caller": caller}]})


def langchain_as_dicts(caller: Any) -> Messages:
    return messages_to_dict(langchain_block(caller))


def objects(caller: Any) -> Messages:
    use = ToolUseBlock(id="c1", name="query", input={}, type="tool_use")
    use.caller = ServerToolCaller20260120(**caller) if caller is not DIRECT else None
    return [{"role": "assistant", "content": [use]}, *anthropic(caller)[1:]]


FORMATS = [
    (anthropic, CODE),
    (anthropic, {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}),
    (objects, CODE),
    (responses, PROGRAM),
    (chat, CODE),
    (langchain_block, CODE),
    (langchain_call_block, PROGRAM),
    (langchain_extras, CODE),
    (langchain_standard_block, CODE),
    (langchain_beside, CODE),
    (langchain_as_dicts, CODE),
]


@pytest.mark.parametrize(("make", "caller"), FORMATS)
def test_what_code_reads_stays_and_what_the_model_reads_leaves(make: Any, caller: Any) -> None:
    kept = Offloader("memory://").offload(make(caller))

    assert kept.records == []
    [decision] = [d for d in kept.decisions if d.item.item_type == "tool_result"]
    assert decision.reason.kind is ReasonKind.READ_BY_CODE
    assert len(Offloader("memory://").offload(make(DIRECT)).records) == 1


@pytest.mark.parametrize(("make", "caller"), FORMATS)
def test_what_code_reads_stays_when_its_call_is_far_before_it_or_cut_off(make: Any, caller: Any) -> None:
    call, result = make(caller)
    between = [{"role": "user", "content": "wait"}] * 3
    off = Offloader("memory://")

    assert off.offload([call, *between]).records == []
    assert off.offload([call, *between, result]).records == []
    assert off.offload([result]).records == []


def test_an_output_that_tells_its_caller_needs_no_call_and_a_call_of_the_sdk_tells_it_too() -> None:
    result = responses(None)[1]
    call = ResponseFunctionToolCall(call_id="c1", name="query", arguments="{}", type="function_call")
    told = call.model_copy(update={"caller": PROGRAM})

    assert Offloader("memory://").offload([{**result, "caller": PROGRAM}]).records == []
    assert Offloader("memory://").offload([told, result]).records == []
    assert len(Offloader("memory://").offload([call, result]).records) == 1


def test_what_code_reads_stays_whatever_the_policy_and_though_it_looks_like_a_placeholder() -> None:
    policy = OffloadPolicy(
        types={"tool_result": Rule(min_tokens=1)}, tools={"*": Rule(min_tokens=1)}, max_view_tokens=1
    )
    out = Offloader("memory://", policy=policy).offload(anthropic(CODE))
    assert out.messages == anthropic(CODE)
    assert [str(e).rpartition(": ")[2] for e in out.errors] == ["read by code"]

    messages = anthropic(CODE)
    shown = Offloader("memory://", session="other").offload_text(ROWS, tool_name="query")
    messages[1]["content"][0]["content"] = shown
    off = Offloader("memory://")
    out = off.offload(messages)
    assert out.messages == messages
    assert off.restore(out.messages) == messages


def test_a_call_by_the_model_beside_one_by_code_leaves() -> None:
    [use, result], [other, more] = anthropic(CODE), anthropic(DIRECT)
    other["content"][0]["id"] = more["content"][0]["tool_use_id"] = "c2"
    use["content"] += other["content"]
    result["content"] += more["content"]

    out = Offloader("memory://").offload([use, result])

    assert [info.tool_use_id for info in out.records] == ["c2"]


def test_a_program_and_its_output_are_items_of_a_response_that_never_move() -> None:
    program = {"type": "program", "id": "p", "call_id": "prog_1", "code": ROWS, "fingerprint": "f"}
    output = {
        "type": "program_output",
        "id": "o",
        "call_id": "prog_1",
        "result": ROWS,
        "status": "completed",
    }
    out = Offloader("memory://").offload([program, output])

    assert (out.errors, out.records, out.messages) == ([], [], [program, output])
    assert out.tokens_before > len(ROWS) / 4
    assert [role_of(m) for m in (program, output)] == ["assistant", "tool"]


def test_every_type_of_item_that_the_api_knows_is_understood() -> None:
    variants = TypeAdapter(ResponseOutputItem).json_schema()["$defs"].values()
    kinds = {v["properties"]["type"]["const"] for v in variants if "const" in v["properties"].get("type", {})}
    items = {k for k in kinds if k.endswith(("_call", "_output", "program", "search_output", "compaction"))}

    assert {adapter_for({"type": kind}).name for kind in items} == {"openai-responses"}
