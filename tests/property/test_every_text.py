"""A long text anywhere in a message leaves and comes back as it was, or is counted and named in `errors`."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from kit.conversation import model_of, user_of
from kit.values import in_base64
from strength import examples

from offload import Offloader, OffloadPolicy
from offload.messages import formats

CEILING = 1000
POLICY = OffloadPolicy.model_validate({"preset": "balanced", "max_view_tokens": CEILING, "cost_plan": "none"})
LONG = "Some words of prose, and a number: 17. " * 400
LEAST = 3000


def text_block(text: str = "short") -> dict[str, Any]:
    return {"type": "text", "text": text}


def document(source: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "document",
        "title": "a title",
        "context": "of today",
        "source": source,
        "citations": {"enabled": True},
    }


PLAIN_SOURCE = {"media_type": "text/plain", "type": "text", "data": "short"}
BLOCK_SOURCE = {"type": "content", "content": [text_block(), {"text": "second", "type": "text"}]}
SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://example.com/a",
    "title": "a title",
    "content": [text_block(), {"text": "second", "type": "text"}],
    "citations": {"enabled": True},
}


def tool_result(*content: Any) -> dict[str, Any]:
    return user_of({"type": "tool_result", "tool_use_id": "t", "content": [*content]})


def server_result(kind: str, content: Any) -> dict[str, Any]:
    return model_of({"type": f"{kind}_tool_result", "tool_use_id": "srvtoolu_1", "content": content})


ANTHROPIC = {
    "text with a citation": model_of(
        {**text_block(), "citations": [{"type": "char_location", "cited_text": "short", "document_index": 0}]}
    ),
    "document of text": user_of(document(PLAIN_SOURCE)),
    "document of blocks": user_of(document(BLOCK_SOURCE)),
    "search_result": user_of(SEARCH_RESULT),
    "search_results in a result": tool_result(SEARCH_RESULT, text_block(), SEARCH_RESULT, text_block("b")),
    "documents in a result": tool_result(document(PLAIN_SOURCE), document(BLOCK_SOURCE), text_block()),
    "mcp_tool_use": model_of(
        {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {"q": "short"}}
    ),
    "mcp_tool_result": model_of(
        {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": [text_block()]}
    ),
    "mcp_tool_listing": model_of(
        {"type": "mcp_tool_listing", "server_name": "s", "tools": [{"name": "f", "description": "short"}]}
    ),
    "bash_code_execution_tool_result": server_result(
        "bash_code_execution",
        {
            "type": "bash_code_execution_result",
            "stdout": "out",
            "stderr": "err",
            "return_code": 0,
            "content": [],
        },
    ),
    "text_editor_code_execution_tool_result": server_result(
        "text_editor_code_execution",
        {"type": "text_editor_code_execution_view_result", "content": "short", "file_type": "text"},
    ),
    "web_fetch_tool_result": server_result(
        "web_fetch",
        {"type": "web_fetch_result", "url": "https://example.com", "content": document(PLAIN_SOURCE)},
    ),
    "web_search_tool_result": server_result(
        "web_search",
        [
            {
                "type": "web_search_result",
                "title": "a",
                "url": "https://example.com",
                "encrypted_content": "Eq",
            }
        ],
    ),
    "tool_search_tool_result": server_result(
        "tool_search",
        {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "f"}],
        },
    ),
    "server_tool_use": model_of(
        {"type": "server_tool_use", "id": "s", "name": "bash_code_execution", "input": {"command": "ls"}}
    ),
    "compaction": model_of(
        {"type": "compaction", "content": "short", "encrypted_content": "Eq", "signature": "Eq"}
    ),
    "container_upload": user_of({"type": "container_upload", "file_id": "file_1"}),
    "thinking": model_of({"type": "thinking", "thinking": "hm", "signature": "Eq"}, text_block()),
    "redacted_thinking": model_of({"type": "redacted_thinking", "data": "Eq"}, text_block()),
    "tool_use": model_of({"type": "tool_use", "id": "t", "name": "f", "input": {"a": "short", "b": "c"}}),
    "fallback": model_of({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}),
}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


FILE = item("input_file", filename="a.txt", file_data=f"data:text/plain;base64,{in_base64('short')}")
RESPONSES = {
    "computer_call": item("computer_call", call_id="c", id="i", action={"type": "type", "text": "short"}),
    "computer_call_output": item(
        "computer_call_output",
        call_id="c",
        acknowledged_safety_checks=[{"id": "a", "message": "short"}],
        output={"type": "computer_screenshot", "image_url": "https://example.com/a.png"},
    ),
    "code_interpreter_call": item(
        "code_interpreter_call", id="i", code="1 + 1", container_id="c", outputs=[item("logs", logs="2")]
    ),
    "file_search_call": item(
        "file_search_call",
        id="i",
        queries=["short"],
        results=[
            {"file_id": "f", "filename": "a.txt", "score": 0.5, "text": "short", "attributes": {"k": "v"}}
        ],
    ),
    "web_search_call": item("web_search_call", id="i", action={"type": "search", "query": "short"}),
    "mcp_list_tools": item(
        "mcp_list_tools",
        id="i",
        server_label="s",
        tools=[{"name": "f", "description": "short", "input_schema": {"type": "object", "title": "t"}}],
    ),
    "mcp_call": item("mcp_call", id="i", name="f", server_label="s", arguments="{}", output="short"),
    "mcp_approval_request": item("mcp_approval_request", id="i", name="f", server_label="s", arguments="{}"),
    "tool_search_output": item(
        "tool_search_output", call_id="c", tools=[{"type": "function", "name": "f", "description": "short"}]
    ),
    "additional_tools": {
        "role": "developer",
        **item("additional_tools", tools=[{"name": "f", "x": "short"}]),
    },
    "message with a file": user_of(item("input_text", text="short"), FILE),
    "output with a file": item(
        "function_call_output", call_id="c", output=[FILE, item("input_text", text="a"), FILE]
    ),
    "output text": model_of(item("output_text", text="short", annotations=[item("url_citation", title="a")])),
    "refusal": model_of(item("output_text", text="short"), item("refusal", refusal="no")),
    "shell_call_output": item(
        "shell_call_output", call_id="c", output=[{"stdout": "a", "stderr": "b", "outcome": item("exit")}]
    ),
    "shell_call": item("shell_call", call_id="c", action={"commands": ["ls"]}),
    "local_shell_call_output": item("local_shell_call_output", id="i", output='{"stdout": "a"}'),
    "apply_patch_call": item(
        "apply_patch_call", call_id="c", operation=item("create_file", path="a", diff="b")
    ),
    "apply_patch_call_output": item("apply_patch_call_output", call_id="c", status="failed", output="short"),
    "custom_tool_call": item("custom_tool_call", call_id="c", name="f", input="short"),
    "custom_tool_call_output": item("custom_tool_call_output", call_id="c", output="short"),
    "reasoning": item("reasoning", id="i", summary=[item("summary_text", text="a")], encrypted_content="Eq"),
    "compaction": item("compaction", id="i", encrypted_content="Eq"),
    "image_generation_call": item("image_generation_call", id="i", revised_prompt="short", result="Eq"),
    "program": item("program", id="i", call_id="c", code="short", fingerprint="Eq"),
    "program_output": item("program_output", id="i", call_id="c", result="short"),
    "of next year": item("thought_transfer", id="i", payload={"notes": [{"note": "short"}]}),
}
CHAT = {
    "file": user_of({"type": "file", "file": {"filename": "a.txt", "file_data": FILE["file_data"]}}),
    "raw file": user_of({"type": "file", "file": {"filename": "a.txt", "file_data": in_base64("short")}}),
    "function_call": {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": "{}"},
    },
    "function": {"role": "function", "name": "f", "content": "short"},
    "tool": {"role": "tool", "tool_call_id": "t", "content": [text_block(), text_block("b")]},
    "tool calls": {
        "role": "assistant",
        "content": None,
        "refusal": "no",
        "reasoning_content": "hm",
        "annotations": [item("url_citation", url_citation={"title": "a"})],
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    "sound": user_of({"type": "input_audio", "input_audio": {"data": "Eq", "format": "wav"}}),
    "system": {"role": "system", "content": "short"},
}
GEMINI = {
    "text": {"role": "user", "parts": [{"text": "short"}]},
    "inlineData": {
        "role": "user",
        "parts": [{"inlineData": {"mimeType": "text/plain", "data": in_base64("a")}}],
    },
    "inline_data": {"role": "user", "parts": [{"inline_data": {"mime_type": "text/csv", "data": b"a,b"}}]},
    "functionResponse": {
        "role": "user",
        "parts": [
            {
                "functionResponse": {
                    "name": "f",
                    "response": {"a": "short", "b": "c"},
                    "parts": [
                        {"inlineData": {"mimeType": "text/plain", "data": in_base64("a"), "displayName": "b"}}
                    ],
                }
            }
        ],
    },
    "functionCall": {
        "role": "model",
        "parts": [
            {"functionCall": {"name": "f", "args": {"a": "short", "b": "c"}}, "thoughtSignature": "Eq"}
        ],
    },
    "code": {
        "role": "model",
        "parts": [
            {"executableCode": {"code": "1 + 1", "language": "PYTHON"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
            {"text": "hm", "thought": True},
        ],
    },
    "toolResponse": {"role": "model", "parts": [{"toolResponse": {"id": "i", "response": {"a": "short"}}}]},
}
BEDROCK_SEARCH_RESULT = {
    "searchResult": {
        "source": "https://example.com",
        "title": "a",
        "content": [{"text": "short"}, {"text": "second"}],
        "citations": {"enabled": True},
    }
}
BEDROCK_DOCUMENT = {
    "document": {"format": "txt", "name": "a", "source": {"text": "short"}, "context": "of today"}
}
BEDROCK = {
    "document of text": user_of(BEDROCK_DOCUMENT),
    "document of blocks": user_of(
        {"document": {"format": "md", "name": "a", "source": {"content": [{"text": "short"}]}}}
    ),
    "document of bytes": user_of({"document": {"format": "csv", "name": "a", "source": {"bytes": b"short"}}}),
    "document of base64": user_of(
        {"document": {"format": "md", "name": "a", "source": {"bytes": in_base64("a")}}}
    ),
    "searchResult": user_of(BEDROCK_SEARCH_RESULT),
    "guardContent": user_of({"guardContent": {"text": {"text": "short", "qualifiers": ["query"]}}}),
    "toolResult": user_of(
        {
            "toolResult": {
                "toolUseId": "t",
                "content": [
                    {"text": "short"},
                    {"json": {"a": "b", "c": 1}},
                    BEDROCK_SEARCH_RESULT,
                    BEDROCK_DOCUMENT,
                    {"text": "last"},
                ],
            }
        },
        {"cachePoint": {"type": "default"}},
    ),
    "citationsContent": model_of(
        {
            "citationsContent": {
                "content": [{"text": "short"}],
                "citations": [{"title": "a", "sourceContent": [{"text": "short"}]}],
            }
        }
    ),
    "reasoningContent": model_of({"reasoningContent": {"reasoningText": {"text": "hm", "signature": "Eq"}}}),
    "redactedContent": model_of({"reasoningContent": {"redactedContent": b"Eq"}}, {"text": "short"}),
    "toolUse": model_of({"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": "short", "b": "c"}}}),
    "toolAddition": user_of(
        {"toolAddition": {"tool": {"type": "tool_reference", "name": "f", "x": "short"}}}
    ),
}
INTERACTIONS = {
    "user_input": item("user_input", content=[text_block()]),
    "model_output": item("model_output", content=[text_block(), text_block("b")]),
    "thought": item("thought", summary=[text_block()], signature="Eq"),
    "function_call": item("function_call", id="c", name="f", arguments={"a": "short", "b": "c"}),
    "function_result": item("function_result", call_id="c", name="f", result="short"),
    "blocks": item("function_result", call_id="c", name="f", result=[text_block(), text_block("b")]),
    "object": item("function_result", call_id="c", name="f", result={"a": "short", "b": "c"}),
    "google_search_call": item("google_search_call", id="c", arguments={"queries": ["short"]}),
}
LANGCHAIN = {
    "text-plain": {"type": "human", "content": [{"type": "text-plain", "text": "short", "title": "a"}]},
    "file": {
        "type": "human",
        "content": [{"type": "file", "mime_type": "text/plain", "base64": in_base64("a")}],
    },
    "tool": {
        "type": "tool",
        "tool_call_id": "t",
        "content": [
            "short",
            SEARCH_RESULT,
            text_block(),
            {"type": "text-plain", "text": "short", "title": "a"},
        ],
    },
    "server_tool_call": {
        "type": "ai",
        "content": [
            {"type": "server_tool_call", "id": "s", "name": "web_search", "args": {"query": "short"}},
            {"type": "server_tool_result", "tool_call_id": "s", "output": {"logs": "short"}},
            {"type": "non_standard", "value": {"a": "short"}},
            {"type": "reasoning", "reasoning": "hm", "extras": {"signature": "Eq"}},
        ],
    },
    "old function_call": {
        "type": "ai",
        "content": "",
        "additional_kwargs": {"function_call": {"name": "f", "arguments": "{}"}, "refusal": "no"},
    },
    "of messages_to_dict": {"type": "human", "data": {"type": "human", "content": [SEARCH_RESULT]}},
}
FORMATS: dict[str, dict[str, Any]] = {
    "anthropic": ANTHROPIC,
    "openai-responses": RESPONSES,
    "openai-chat": CHAT,
    "gemini": GEMINI,
    "gemini-interactions": INTERACTIONS,
    "bedrock": BEDROCK,
    "langchain": LANGCHAIN,
}
KINDS = [(format_, kind) for format_, kinds in FORMATS.items() for kind in kinds]
# The fields of what a provider encrypted or signed.
OPAQUE = {"signature", "encrypted_content", "redactedContent", "thoughtSignature", "fingerprint"}

Place = tuple[Any, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all strings and bytes."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*place, name))
    elif isinstance(value, str | bytes):
        yield place


def with_text(message: Any, place: Place, text: str) -> Any:
    """Return a copy with `text` in a place: as bytes or base64 if there are such."""
    message = copy.deepcopy(message)
    holder = message
    for step in place[:-1]:
        holder = holder[step]
    old = holder[place[-1]]
    url = old.partition("base64,") if isinstance(old, str) else ("", "", "")
    if isinstance(old, bytes):
        holder[place[-1]] = text.encode()
    elif url[1]:
        holder[place[-1]] = url[0] + url[1] + in_base64(text)
    elif old in (in_base64("a"), in_base64("short")):
        holder[place[-1]] = in_base64(text)
    else:
        holder[place[-1]] = text
    return message


def as_json(value: Any) -> str:
    return json.dumps(value, default=repr)


def assert_has_a_way_out(message: Any, least: int = LEAST, policy: OffloadPolicy = POLICY) -> bool:
    """Check one message; return whether a part of it left."""
    before = copy.deepcopy(message)
    off = Offloader("memory://", policy=policy)
    out = off.offload([message])
    assert message == before
    assert out.tokens_before >= least
    if out.records:
        assert as_json(off.restore(out.messages)) == as_json([before])
    named = [str(error) for error in out.errors if "max_view_tokens" in str(error)]
    assert named or out.tokens_after <= CEILING + 200
    if named:
        assert "messages[0]" in named[0]
    return bool(out.records)


def test_every_format_has_a_long_text_at_each_place() -> None:
    assert FORMATS.keys() == {adapter.name for adapter in formats.FORMATS}


@pytest.mark.parametrize(("format_", "kind"), KINDS)
def test_a_long_text_at_any_place_of_a_block_leaves_or_is_named(format_: str, kind: str) -> None:
    message = FORMATS[format_][kind]
    for place in places(message):
        if not OPAQUE.isdisjoint(place) or "redacted_thinking" in str(message):
            continue
        if place[-1] in ("data", "result") and kind in ("sound", "image_generation_call"):
            continue
        assert_has_a_way_out(with_text(message, place, LONG))


inner = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=9),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(max_size=9), value, max_size=3),
    max_leaves=8,
)
unknown = st.dictionaries(st.text(min_size=1, max_size=9), inner, min_size=1, max_size=4)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), unknown, st.data())
def test_a_long_text_in_an_unknown_block_of_any_message_is_named(
    kind: tuple[str, str], fields: dict[str, Any], data: st.DataObject
) -> None:
    message = copy.deepcopy(FORMATS[kind[0]][kind[1]])
    block = {**fields, "of": "next year"} if kind[0] in ("gemini", "bedrock") else {**fields, "type": "new"}
    holder = message.get("data", message)
    field = next((name for name in ("content", "parts") if isinstance(holder.get(name), list)), "new_field")
    holder.setdefault(field, []).append(block)
    at = (*(("data",) if holder is not message else ()), field, len(holder[field]) - 1)
    place = data.draw(st.sampled_from([(*at, *place) for place in places(block)]))
    assert_has_a_way_out(with_text(message, place, LONG))


@pytest.mark.parametrize("name", ["signature", "encrypted_content", "thoughtSignature"])
def test_what_is_encrypted_counts_by_its_length(name: str) -> None:
    message = model_of({"type": "new", name: "E" * 160_000})
    assert_has_a_way_out(message, 30_000)
