"""Documents in messages leave with all around their text kept; what cannot leave is counted and named."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import from_user, model_of, tool_result, user_of
from kit.values import in_base64

from offload import Offloader, OffloadPolicy, OffloadResult
from offload.base.tokens import estimate_tokens
from offload.engine.policy.policy import MAX_VIEW_TOKENS
from offload.gateway._edits import edited
from offload.gateway._incoming import APIS
from offload.gateway._parsed import read_request
from offload.messages.adapter import Scan
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for

LINE = "another line of some words to read\n"
LONG = LINE * 12_000
SMALL = OffloadPolicy.model_validate({"preset": "balanced", "max_view_tokens": 4000, "cost_plan": "none"})


def scan(message: Any) -> Scan:
    return adapter_for(message).scan(message, "messages[0]", Calls())


def tokens(message: Any) -> int:
    return scan(message).tokens(estimate_tokens)


def fixed(message: Any) -> list[tuple[str, str, int]]:
    return [(p.where, p.kind, p.read(len)) for p in scan(message).fixed]


def offloaded(message: Any, policy: OffloadPolicy | None = None) -> OffloadResult:
    """Offload one message and check that it is restored byte for byte."""
    before = json.dumps(message, default=repr)
    off = Offloader("memory://", policy=policy)
    out = off.offload([message])
    assert json.dumps(off.restore(out.messages), default=repr) == f"[{before}]"
    return out


def search_result(text: str, title: str = "a title") -> dict[str, Any]:
    return {
        "type": "search_result",
        "source": "https://example.com/a",
        "title": title,
        "content": [{"type": "text", "text": text}],
        "citations": {"enabled": True},
    }


def test_ten_search_results_in_a_result_leave_and_keep_titles_sources_and_citations() -> None:
    results = [search_result(f"{i} {LONG}", f"title {i}") for i in range(10)]
    message = user_of({"type": "tool_result", "tool_use_id": "t", "content": results})
    out = offloaded(message)

    assert out.tokens_before > 10 * 80_000
    assert out.tokens_after < 10_000
    assert out.errors == []
    assert [info.tool_use_id for info in out.records] == ["t"] * 10
    for before, after in zip(results, out.messages[0]["content"][0]["content"], strict=True):
        [block] = after["content"]
        assert {**after, "content": before["content"]} == before
        assert block["type"] == "text"
        assert "[Offloaded: " in block["text"]


def text_document(source: dict[str, Any]) -> dict[str, Any]:
    about = {"title": "a", "context": "b", "citations": {"enabled": True}}
    return {"type": "document", "source": source, **about}


TEXT = {"type": "text", "media_type": "text/plain", "data": LONG}
BLOCKS = {"type": "content", "content": [{"type": "text", "text": LONG}, {"text": "more", "type": "text"}]}
FILE = {
    "type": "file",
    "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{in_base64(LONG)}"},
}
DATA_URL = f"data:text/markdown;base64,{in_base64(LONG)}"
INPUT_FILE = {"type": "input_file", "filename": "a.md", "file_data": DATA_URL}
PART = {"inlineData": {"mimeType": "text/plain", "data": in_base64(LONG)}}
BEDROCK_RESULT = {"searchResult": {"source": "s", "title": "t", "content": [{"text": LONG}], "citations": {}}}


def leaves(value: Any, *path: Any) -> dict[tuple[Any, ...], Any]:
    """Return the values of a message that hold no others, by their paths."""
    parts = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if parts is None:
        return {path: value}
    return {place: leaf for key, part in parts for place, leaf in leaves(part, *path, key).items()}


@pytest.mark.parametrize(
    "message",
    [
        user_of(text_document(TEXT)),
        user_of(text_document(BLOCKS)),
        user_of(text_document({"type": "content", "content": LONG})),
        user_of(search_result(LONG)),
        user_of(FILE),
        user_of(INPUT_FILE),
        {"type": "function_call_output", "call_id": "c", "output": [INPUT_FILE]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": LONG}},
        {"role": "user", "parts": [PART]},
        {"role": "user", "parts": [{"inline_data": {"mime_type": "text/csv", "data": LONG.encode()}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}, "parts": [PART]}}]},
        user_of({"document": {"format": "txt", "name": "a", "source": {"text": LONG}, "context": "b"}}),
        user_of({"document": {"format": "md", "name": "a", "source": {"bytes": LONG.encode()}}}),
        user_of({"document": {"format": "md", "name": "a", "source": {"content": [{"text": LONG}]}}}),
        user_of(BEDROCK_RESULT),
        user_of(
            {"toolResult": {"toolUseId": "c", "content": [{"text": "a"}, BEDROCK_RESULT, {"text": "b"}]}}
        ),
        user_of({"guardContent": {"text": {"text": LONG, "qualifiers": ["query"]}}}),
        {"type": "human", "content": [{"type": "text-plain", "text": LONG, "title": "a"}]},
        {"type": "tool", "tool_call_id": "c", "content": [search_result(LONG)]},
    ],
)
def test_a_document_leaves_in_its_place_and_nothing_else_changes(message: Any) -> None:
    policy = OffloadPolicy.model_validate({"preset": "archive"})
    out = offloaded(message, policy)

    assert out.tokens_before > 80_000
    assert out.tokens_after < 1000
    before = leaves(message)
    [shown] = [leaf for path, leaf in leaves(out.messages[0]).items() if before[path] != leaf]
    if isinstance(shown, str) and not shown.startswith(("[Offloaded", '{"')):
        shown = base64.b64decode(shown.partition("base64,")[2] or shown).decode()
    assert "Offloaded: " in (shown.decode() if isinstance(shown, bytes) else shown)


SERVER = {
    "mcp_tool_result": {
        "type": "mcp_tool_result",
        "tool_use_id": "m",
        "content": [{"type": "text", "text": LONG}],
    },
    "web_fetch_tool_result": {
        "type": "web_fetch_tool_result",
        "tool_use_id": "s",
        "content": {"type": "web_fetch_result", "url": "https://example.com", "content": text_document(TEXT)},
    },
    "bash_code_execution_tool_result": {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": "s",
        "content": {"type": "bash_code_execution_result", "stdout": LONG, "stderr": "", "return_code": 0},
    },
    "server_tool_use": {"type": "server_tool_use", "id": "s", "name": "f", "input": {"command": LONG}},
    "compaction": {"type": "compaction", "content": LONG},
    "of_next_year": {"type": "of_next_year", "parts": [{"deep": {"er": [LONG]}}]},
}


ITEMS: list[dict[str, Any]] = [
    {"type": "code_interpreter_call", "id": "i", "code": "1", "outputs": [{"type": "logs", "logs": LONG}]},
    {"type": "file_search_call", "id": "i", "queries": [], "results": [{"file_id": "f", "text": LONG}]},
    {"type": "mcp_list_tools", "id": "i", "tools": [{"name": "f", "description": LONG}]},
    {"type": "tool_search_output", "call_id": "c", "tools": [{"name": "f", "description": LONG}]},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "text": LONG}},
    {"type": "transfer_of_next_year", "state": {"notes": LONG}},
]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        *(
            (model_of({"type": "text", "text": "I look."}, SERVER[kind]), f"[0].content[1]: {kind} of")
            for kind in SERVER
        ),
        *((item, "[0]") for item in ITEMS),
    ],
    ids=[*SERVER, *(item["type"] for item in ITEMS)],
)
def test_what_only_the_provider_may_change_is_counted_and_named_with_its_place(
    message: dict[str, Any], where: str
) -> None:
    out = offloaded(message)

    assert out.messages[0] is message
    assert out.tokens_before == pytest.approx(estimate_tokens(LONG), rel=0.05)
    # A message of no known format is said to be one first.
    *_, error = out.errors
    assert str(error).startswith(f"messages{where}")
    assert f"max_view_tokens ({MAX_VIEW_TOKENS})" in str(error)
    assert "cannot be offloaded" in str(error)


def test_parts_that_are_above_the_ceiling_together_are_named() -> None:
    part = {"type": "mcp_tool_result", "tool_use_id": "m", "content": LINE * 300}
    out = offloaded(model_of(part, part, part), SMALL)

    [error] = out.errors
    counted = re.search(r"(\d+) tokens in total are above .*; (\d+) of them cannot", str(error))
    assert counted is not None
    assert counted[1] == counted[2]
    assert offloaded(model_of(part), SMALL).errors == []


def test_parts_are_above_the_ceiling_together_with_the_items_that_stay() -> None:
    part = {"type": "mcp_tool_result", "tool_use_id": "m", "content": LINE * 300}
    call = {"type": "tool_use", "id": "c", "name": "Write", "input": {"content": LINE * 300}}
    ceiling = int(tokens(model_of(part, call)) * 0.75)
    limited = {"preset": "balanced", "max_view_tokens": ceiling, "cost_plan": "none"}
    out = offloaded(model_of(part, call), OffloadPolicy.model_validate(limited))

    [error] = out.errors
    assert str(error).startswith(f"messages[0] and later: {out.tokens_before} tokens in total are above")
    assert f"{tokens(model_of(part))} of them cannot" in str(error)
    assert out.messages == [model_of(part, call)]


def test_a_message_that_cannot_be_read_is_counted_and_named() -> None:
    out = offloaded({"role": "user", "content": {"text": LONG}})

    assert out.tokens_before > 80_000
    assert any("max_view_tokens" in str(error) for error in out.errors)
    assert any("expected a string or a list of blocks" in str(error) for error in out.errors)


def test_data_that_is_no_text_has_an_estimate_of_its_own() -> None:
    data = in_base64("x" * 300_000)
    image = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{data}"}
    assert tokens({"type": "computer_call_output", "call_id": "c", "output": image}) == 1600
    assert tokens({"type": "image_generation_call", "id": "i", "result": data}) == 1600
    assert tokens(user_of({"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}})) == 600
    video = {"inlineData": {"mimeType": "video/mp4", "data": data}}
    assert tokens({"role": "user", "parts": [video]}) == 600


def test_what_is_encrypted_is_counted_by_its_length_and_named() -> None:
    found = {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "E" * 640_000}
    message = model_of({"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]})
    out = offloaded(message)

    assert out.tokens_before == pytest.approx(120_000, rel=0.01)
    assert [str(error).partition(":")[0] for error in out.errors] == ["messages[0].content[0]"]


def test_a_signature_is_not_counted_beside_the_thinking_that_it_signs() -> None:
    text = "I think about it. " * 100
    shown = model_of({"type": "thinking", "thinking": text, "signature": "E" * 800})
    hidden = model_of({"type": "thinking", "thinking": "", "signature": "E" * 800})

    assert tokens(shown) == estimate_tokens(text)
    assert tokens(hidden) == 150


def test_types_ids_and_names_of_fields_are_free() -> None:
    plain = {"role": "user", "content": LINE}
    block = {"type": "tool_result", "tool_use_id": "toolu_01abcdefghijklmnopqrstuv", "content": LINE}

    assert tokens(plain) == tokens(user_of({"type": "text", "text": LINE})) == tokens(user_of(block))


def test_a_call_of_langchain_is_counted_once() -> None:
    call = {"id": "c", "name": "f", "args": {"text": LINE}, "type": "tool_call"}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"text": LINE}}
    function = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": json.dumps({"text": LINE})},
    }
    more = {
        "additional_kwargs": {"tool_calls": [function]},
        "response_metadata": {"headers": LONG},
        "usage_metadata": {"input_tokens": 1},
    }
    once = {"type": "ai", "content": "", "tool_calls": [call]}

    assert tokens({**once, "content": [block], **more}) == tokens(once) > 0
    assert tokens({"type": "tool", "tool_call_id": "c", "content": LINE, "artifact": LONG}) < 20


def test_a_value_inside_itself_is_counted_once() -> None:
    loop: dict[str, Any] = {"note": LINE}
    loop["again"] = [loop]

    assert fixed(model_of({"type": "new", "loop": loop})) == [("content[0]", "new", len(LINE))]


def test_a_file_of_other_bytes_than_text_is_kept() -> None:
    for data in (b"\xff\xfe" + LONG.encode("utf-16-le"), b"PK\x03\x04\0" + b"x" * 50_000):
        url = f"data:application/json;base64,{base64.b64encode(data).decode()}"
        message = user_of({"type": "input_file", "filename": "a.json", "file_data": url})
        assert scan(message).documents == []


def test_a_document_is_restored_by_another_process(tmp_path: Path) -> None:
    message = user_of(tool_result("t", [search_result(LONG), INPUT_FILE]))
    sent = Offloader(tmp_path, session="s").offload([message]).messages

    assert len(json.dumps(sent)) < 10_000
    assert Offloader(tmp_path, session="s").restore(sent) == [message]
    assert Offloader(tmp_path, session="s").offload([message]).messages == sent


# --- the order of fields --------------------------------------------------------------------------

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 20_000).decode()
IMAGES = [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    {"source": {"data": PNG, "type": "base64", "media_type": "image/png"}, "type": "image"},
    {
        "type": "image",
        "cache_control": {"type": "ephemeral"},
        "source": {"type": "base64", "data": PNG, "media_type": "image/png"},
    },
]
MEDIA = OffloadPolicy.model_validate({"preset": "archive", "tool_media": {"min_bytes": 1}})


BLOCKS_IN_ORDERS = [
    {"text": LONG, "type": "text"},
    {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
    {"text": "c", "citations": [{"b": 1, "a": 2}], "type": "text"},
]


@pytest.mark.parametrize("content", [*([image] for image in IMAGES), BLOCKS_IN_ORDERS])
def test_what_is_restored_has_its_fields_in_their_order(content: list[Any]) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    assert len(offloaded(user_of(result), MEDIA).records) == 1


def test_equal_images_with_other_orders_of_fields_are_two_records(tmp_path: Path) -> None:
    message = user_of({"type": "tool_result", "tool_use_id": "t", "content": IMAGES[:2]})
    off = Offloader(tmp_path, session="s", policy=MEDIA)
    sent = off.offload([message]).messages
    again = Offloader(tmp_path, session="s", policy=MEDIA)

    assert len(off.records()) == 2
    assert json.dumps(again.restore(sent)) == json.dumps([message])
    assert again.offload([message]).messages == sent


def test_the_gateway_changes_the_text_of_a_search_result_and_no_other_byte() -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "find", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [search_result(LONG), search_result("b")]}
    body = {"tools": [{"name": "context_read"}], "messages": [from_user("a"), call, user_of(result)]}
    text = json.dumps(body, indent=1)
    request = read_request(text.encode(), APIS[0])
    assert request is not None
    sent = edited(request, Offloader("memory://").offload(request.views).messages).body()

    before, after = text.encode().split(json.dumps(LONG).encode())
    assert sent.startswith(before)
    assert sent.endswith(after)
    assert len(sent) < 3000
