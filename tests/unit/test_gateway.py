"""Requests of a gateway as text: what is read, what is split off, what is put back; usage in answers."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import brotli
import formats
import pytest
import zstandard
from gateways import LOG, USAGE, body_of, turns

from offload import Offloader, OffloadPolicy, Rule
from offload.base import json_reader
from offload.gateway import _events, _spans
from offload.gateway._apis import CALLS_OF
from offload.gateway._edits import edited
from offload.gateway._incoming import APIS, api_of
from offload.gateway._parsed import ElsewhereError, read_request
from offload.gateway._threads import name_of, policy_for
from offload.gateway._usage import UsageReader
from offload.messages.usage import usage_of

_NAMED = {api.name: api for api in APIS}
ANTHROPIC, CHAT, RESPONSES = (_NAMED[n] for n in ("Anthropic Messages", "OpenAI chat", "OpenAI Responses"))
REMINDER = "\n<system-reminder>Note.</system-reminder>"
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk=" * 5000}}


def rewritten(
    messages: Any, api=ANTHROPIC, policy: OffloadPolicy | None = None, **fields: Any
) -> tuple[bytes, bytes, Offloader]:
    """Return a request before and after, and the offloader that has its records."""
    body = body_of(messages, **fields)
    if api is RESPONSES:
        body = body.replace(b'"messages"', b'"input"')
    off = Offloader("memory://", session="s", policy=policy_for(policy or OffloadPolicy(), api))
    request = read_request(body, api)
    assert request is not None
    return body, edited(request, off.offload(request.views).messages).body(), off


def with_result(content: Any, name: str = "Bash", **fields: Any) -> list[dict[str, Any]]:
    """Return messages with one result that the model has seen."""
    use = {"type": "tool_use", "id": "t", "name": name, "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": content, **fields}
    return [
        {"role": "user", "content": "Build it."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go on."},
    ]


def content_after(content: Any, **fields: Any) -> Any:
    _, after, _ = rewritten(with_result(content, **fields))
    return json.loads(after)["messages"][2]["content"][0]["content"]


# Which request it is


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/messages", ANTHROPIC),
        ("/any/base/v1/messages", ANTHROPIC),
        ("/v1/chat/completions", CHAT),
        ("/openai/deployments/x/chat/completions", CHAT),
        ("/v1/responses", RESPONSES._replace(end="/responses", compacts=False)),
        ("/v1/messages/count_tokens", None),
        ("/v1/messages/batches", None),
        ("/v1/responses/resp_1", None),
        ("/v1beta/interactions/i1", None),
        ("/v1/responses/compact", RESPONSES),
        ("/v1beta/models/x:countTokens", None),
        ("/v1beta/models/x:embedContent", None),
        ("/v1beta/x", None),
    ],
)
def test_the_end_of_a_path_names_the_api(path, api):
    assert api_of(path) == api


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "messages": turns(0)},
        {"tools": None, "messages": [*turns(0), {"role": "assistant", "content": "Hi."}, *turns(0)]},
        {"tools": [], "messages": turns(1)[2:]},
        {"messages": []},
        {"messages": "text"},
    ],
)
def test_a_request_without_messages_or_anything_of_tools_is_left_alone(fields):
    body = body_of(**{"messages": turns(2), **fields})

    assert read_request(body, ANTHROPIC) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "r"},
        {"previous_interaction_id": "i"},
        {"conversation": {"id": "c"}},
        {"thread": {"type": "continue", "previous_message_id": "m"}, "tools": None},
    ],
)
def test_a_request_whose_conversation_the_provider_keeps_is_told_apart(fields):
    with pytest.raises(ElsewhereError):
        read_request(body_of(turns(2), **fields), ANTHROPIC)


@pytest.mark.parametrize("name", ["context_read", "mcp__offload__context_read", "offload_context_read"])
def test_tools_to_read_back_are_found_under_any_prefix(name):
    for tool in ({"name": name}, {"type": "function", "function": {"name": name}}):
        request = read_request(body_of(turns(1), tools=[{"name": "Bash"}, tool]), ANTHROPIC)
        assert request is not None
        assert request.can_read_back


# What is read


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """The characters of all JSON that is decoded, value by value."""
    lengths: list[int] = []
    scan = json_reader.scan_strictly

    def counted(text: str, at: int) -> Any:
        value, end = scan(text, at)
        lengths.append(end - at)
        return value, end

    for module in (json_reader, _spans):
        monkeypatch.setattr(module, "scan_strictly", counted)
    return lengths


@pytest.mark.parametrize("note", ["plain", "✓ geprüft"])
def test_of_a_request_that_repeats_another_only_what_is_new_is_decoded(decoded, note):
    tools = [{"name": "Bash", "description": "x" * 5000}]
    before = read_request(body_of(turns(30, note), tools=tools, system=note), ANTHROPIC)
    assert before is not None
    body = body_of(turns(32, note), tools=tools, system=f"{note}!")
    again = body_of(turns(32, note), tools=tools, system=f"{note}!", max_tokens=1)
    decoded.clear()
    after = read_request(body, ANTHROPIC, [before])
    assert after is not None

    assert len(after.views) == 65
    assert all(view is known for view, known in zip(after.views, before.views[:-1], strict=False))
    assert sum(decoded) < 5000
    decoded.clear()
    moved = read_request(again, ANTHROPIC, [after])

    assert moved == read_request(again, ANTHROPIC)
    assert moved is not None
    assert moved.fields["tools"] is after.fields["tools"]


@pytest.mark.parametrize("place", ["messages", "tools", "metadata"])
def test_a_body_that_is_not_utf_8_anywhere_is_not_read(place):
    body = body_of(turns(1), metadata={"user_id": "u"})
    at = body.index(b'"', body.index(f'"{place}"'.encode()) + len(place) + 2)

    with pytest.raises(ValueError, match="expected a value") as caught:
        read_request(body[: at + 1] + b"\xe9" + body[at + 1 :], ANTHROPIC)
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


# What is put back


def test_only_the_text_of_the_result_changes_also_in_raw_utf_8():
    messages = with_result(f"✓ geprüft … 完了 🎉\n{LOG}")
    messages[0]["content"] = "Grüße 🎉"
    raw = json.dumps({"tools": [{"name": "x"}], "messages": messages, "größe": "é"}, ensure_ascii=False)
    request = read_request(raw.encode(), ANTHROPIC)
    assert request is not None
    off = Offloader("memory://", session="s", policy=policy_for(OffloadPolicy(), ANTHROPIC))

    after = edited(request, off.offload(request.views).messages).body()

    [record] = off.records()
    assert b"".join(off.content(record.ref)).decode() == messages[2]["content"][0]["content"]
    text = json.loads(after)["messages"][2]["content"][0]["content"]
    result = json.dumps(messages[2]["content"][0]["content"], ensure_ascii=False)
    assert after == raw.replace(result, json.dumps(text)).encode()


def test_only_the_text_of_the_result_changes():
    before, after, off = rewritten(with_result(LOG))

    [record] = off.records()
    text = json.loads(after)["messages"][2]["content"][0]["content"]
    assert record.ref in text
    assert after == before.replace(json.dumps(LOG).encode(), json.dumps(text).encode())


def test_reminders_at_the_end_of_a_result_stay_and_are_not_stored():
    _, after, off = rewritten(with_result(LOG + REMINDER * 2))

    text = json.loads(after)["messages"][2]["content"][0]["content"]
    assert text.endswith(f"]\n{REMINDER * 2}")
    [record] = off.records()
    assert b"".join(off.content(record.ref)).decode() == LOG.rstrip()


def test_no_number_of_reminders_holds_a_request_up():
    tail = REMINDER * 40_000

    assert content_after(LOG + tail).endswith(REMINDER * 50)


def test_a_reminder_in_a_block_of_its_own_stays_as_it_is():
    reminder = {"type": "text", "text": REMINDER.strip(), "cache_control": {"type": "ephemeral"}}
    shown = [{"type": "text", "text": LOG}, reminder]

    text, last = content_after(shown)

    assert text["text"].startswith("[Offloaded: ")
    assert last == reminder


def test_texts_of_one_result_become_one_and_a_reminder_between_them_stays():
    texts = [{"type": "text", "text": part} for part in (LOG, LOG, LOG + REMINDER)]

    first, kept, reminder = content_after([texts[0], PICTURE, *texts[1:]])

    assert first["text"].startswith("[Offloaded: ")
    assert kept == PICTURE
    assert reminder["text"] == REMINDER.strip()


@pytest.mark.parametrize(
    "messages",
    [
        with_result([{"type": "text", "text": LOG}, {"type": "tool_reference", "tool_name": "x"}]),
        with_result(f"[Offloaded: Bash result, 9 lines, 900 characters, id abcdefghij]\n{LOG}{REMINDER}"),
        with_result([PICTURE]),
        with_result(None),
        with_result(7),
        with_result(LOG, "context_read"),
        with_result(LOG, "mcp__plugin_offload_store__context_grep"),
        with_result(LOG, "x_context_query"),
        # A prefilled answer does not count as seen.
        [*turns(1), {"role": "assistant", "content": "So"}],
    ],
)
def test_what_may_not_leave_stays(messages):
    before, after, _ = rewritten(messages)

    assert after == before


MARKS = [
    {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    {"prompt_cache_breakpoint": {"mode": "explicit"}},
]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("marked_at", range(4))
def test_a_cache_mark_of_any_block_of_a_result_stays_with_its_placeholder(marked_at, mark):
    content = [{"text": f"{n}\n{LOG}", "type": "text"} for n in range(4)]
    content[marked_at] |= mark

    before, after, off = rewritten(with_result(content))

    [block] = json.loads(after)["messages"][2]["content"][0]["content"]
    assert block["text"].startswith("[Offloaded: ")
    assert block == {"text": block["text"], "type": "text", **mark}
    assert [len(r) for r in (off.records(), before.split(next(iter(mark)).encode()))] == [1, 2]


PERSISTED = f"""<persisted-output>
Output too large (29.4KB). Full output saved to: /x/y.txt

Preview (first 2KB):
{LOG[:2048]}
...
</persisted-output>"""
NOT_SHOWN = f"""Error: result (110,000 characters across 8,547 lines) exceeds maximum allowed tokens. \
Output has been saved to /x/y.txt.
{"Read all of it. " * 200}"""


@pytest.mark.parametrize("notice", [PERSISTED, NOT_SHOWN])
@pytest.mark.parametrize("cost_plan", ["small", "all"])
def test_a_notice_of_claude_code_that_it_cut_an_output_stays_whole(notice, cost_plan):
    policy = policy_for(
        OffloadPolicy(cost_plan=cost_plan, types={"tool_result": Rule(min_tokens=50)}), ANTHROPIC
    )
    body = body_of(with_result(notice + REMINDER))
    request = read_request(body, ANTHROPIC)
    off = Offloader("memory://", session="s", policy=policy)

    assert request is not None
    assert edited(request, off.offload(request.views).messages).body() == body


def test_a_result_that_only_quotes_such_a_notice_leaves():
    assert content_after(PERSISTED + LOG).startswith("[Offloaded: ")


HUGE = LOG * 12


@pytest.mark.parametrize("api", [ANTHROPIC, CHAT, RESPONSES])
@pytest.mark.parametrize("is_block", [True, False])
def test_a_paste_above_the_ceiling_leaves_before_it_is_sent_and_a_smaller_one_never(api, is_block):
    kind = "input_text" if api is RESPONSES else "text"
    texts = ["Fix it.", HUGE + REMINDER, LOG]
    contents = [[{"type": kind, "text": text}] if is_block else text for text in texts]
    messages = [{"role": "user", "content": content} for content in contents]
    if api is not RESPONSES:
        messages.insert(1, {"role": "assistant", "content": "Well?"})

    before, after, off = rewritten(messages, api)

    sent = [m["content"] for m in json.loads(after)[api.messages] if m["role"] == "user"]
    shown = [content if isinstance(content, str) else content[0]["text"] for content in sent]
    assert (shown[0], shown[2]) == (texts[0], texts[2])
    assert shown[1].startswith("[Offloaded: user message")
    assert shown[1].endswith(REMINDER)
    [record] = off.records()
    assert b"".join(off.content(record.ref)).decode() == HUGE.rstrip()
    assert after == before.replace(json.dumps(texts[1]).encode(), json.dumps(shown[1]).encode())


def test_instructions_of_the_client_stay_at_any_size():
    reminder = f"<system-reminder>{HUGE}</system-reminder>"
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": reminder}, {"type": "text", "text": "Fix it."}],
        },
        {"role": "assistant", "content": "Well."},
        {"role": "system", "content": HUGE},
        {"role": "user", "content": "Go on."},
    ]

    before, after, _ = rewritten(messages, system=HUGE)

    assert after == before


@pytest.mark.parametrize("wrap", ["{}", "<system-reminder>\n{}\n</system-reminder>", "{}" + REMINDER])
@pytest.mark.parametrize("role", ["system", "user"])
def test_the_report_of_a_background_task_leaves_at_append_and_all_around_it_stays(role, wrap):
    report = "".join(f"{n}. the module has no test\n" for n in range(1400))
    before, _, end = wrap.format("<task-notification>\n<result>|</result>\n</task-notification>").partition(
        "|"
    )
    messages = [*turns(1, "ok"), {"role": role, "content": [{"type": "text", "text": before + report + end}]}]

    sent, after, off = rewritten(messages)

    text = json.loads(after)["messages"][-1]["content"][0]["text"]
    assert text.startswith(f"{before}[Offloaded: Agent result")
    assert text.endswith(f"]{end}")
    assert after == sent.replace(json.dumps(before + report + end).encode(), json.dumps(text).encode())
    [record] = off.records()
    assert b"".join(off.content(record.ref)).decode() == report


@pytest.mark.parametrize("look", ["", "[Offloaded: Bash result, 9 lines, 900 characters, id abcdefghij]\n"])
def test_all_that_is_no_result_of_a_tool_stays_also_if_it_looks_like_a_placeholder(look):
    written = look + LOG
    long = {"type": "text", "text": written}
    use = {"type": "tool_use", "id": "t", "name": "Write", "input": {"path": "x", "content": LOG}}
    thinking = {"type": "thinking", "thinking": LOG, "signature": "c2ln"}
    messages = [
        {"role": "user", "content": [long]},
        {"role": "assistant", "content": [thinking, long, use]},
        {"role": "system", "content": LOG},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}, long]},
        {"role": "assistant", "content": written},
        {"role": "user", "content": written},
    ]

    before, after, _ = rewritten(messages, system=LOG)

    assert after == before


def with_call(api: Any, given: Any) -> list[dict[str, Any]]:
    """Return messages with one call, to whose result the model has replied."""
    kinds = {ANTHROPIC: "anthropic", CHAT: "openai-chat", RESPONSES: "openai-responses"}
    call = formats.exchange(kinds[api], "Write", given, "ok", "t")
    if api is ANTHROPIC:
        [use] = call[0]["content"]
        call[0]["content"] = [{"type": "text", "text": "I write it."}, {**use, "cache_control": {"a": 1}}]
    ends = [{"role": role, "content": "Go on."} for role in ("assistant", "user")]
    return [{"role": "user", "content": "Build it."}, *call, *ends]


@pytest.mark.parametrize("api", [ANTHROPIC, CHAT, RESPONSES])
@pytest.mark.parametrize("given", [{"path": "x", "content": LOG}, {"content": LOG}])
def test_only_the_arguments_of_a_call_change_once_the_model_went_on(api, given):
    messages = with_call(api, given)
    policy = OffloadPolicy(types={"tool_call": Rule(min_tokens=1500, after_replies=1)})

    before, early, _ = rewritten(messages[:-2], api, policy)
    assert early == before

    before, after, off = rewritten(messages, api, policy)

    [record] = off.records()
    _, _, tail = before.partition(b'"Go on."')
    assert record.item_type == "tool_call"
    assert len(after) < len(before)
    assert after.startswith(before[: before.index(b"Write")])
    assert after.endswith(tail)
    assert json.loads(after) == {**json.loads(before), api.messages: off.offload(messages).messages}


def test_a_key_that_comes_twice_on_the_way_to_a_result_lets_it_stay():
    body = body_of(with_result("")).replace(
        b'"content": ""', b'"content": "a", "content": ' + json.dumps(LOG).encode()
    )
    request = read_request(body, ANTHROPIC)
    off = Offloader("memory://", session="s", policy=policy_for(OffloadPolicy(), ANTHROPIC))
    assert request is not None

    made = edited(request, off.offload(request.views).messages)

    assert made.body() == body
    assert made.problems == ["a message cannot be changed"]


def test_results_in_items_of_the_responses_api_leave():
    items = [
        {"role": "user", "content": "Build it."},
        {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": LOG}]},
        {"type": "mcp_call", "id": "m", "name": "run", "arguments": "{}", "output": LOG},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
        {"role": "user", "content": "Go on."},
    ]

    _, after, _ = rewritten(items, RESPONSES)

    sent = json.loads(after)["input"]
    assert sent[2]["output"][0]["text"].startswith("[Offloaded: run result")
    assert sent[3:] == items[3:]


# Conversations


def named(messages: Any, headers: dict[str, str] | None = None, **fields: Any) -> str:
    request = read_request(body_of(messages, **fields), ANTHROPIC)
    assert request is not None
    return name_of(request, headers or {})


def test_a_conversation_keeps_its_name_as_it_grows_and_a_side_request_has_another():
    first, later = turns(1), turns(3)
    first[0]["content"][0]["cache_control"] = {"type": "ephemeral"}
    title = [{"role": "user", "content": "Write a title."}]

    for headers in ({}, {"x-claude-code-session-id": "a"}):
        assert named(first, headers) == named(later, headers) != named(title, headers)


@pytest.mark.parametrize(
    "difference",
    [
        {"headers": {"x-claude-code-session-id": "a"}},
        {"headers": {"session-id": "a"}},
        {"headers": {"x-session-affinity": "a"}},
        {"headers": {"x-claude-code-agent-id": "a"}},
        {"prompt_cache_key": "a"},
        {"metadata": {"user_id": '{"session_id": "a"}'}},
        {"system": "You are another."},
    ],
)
def test_another_session_agent_or_beginning_is_another_conversation(difference):
    assert named(turns(1), **difference) != named(turns(1))


# The policy


def test_settings_of_the_user_apply_to_results_that_the_model_has_seen():
    policy = OffloadPolicy(tools={"Bash": Rule(min_tokens=10)}, exclude_tools=("secret",))

    changed = policy_for(policy, CHAT)
    priced = policy_for(OffloadPolicy(cache="deepseek-flash"), CHAT).cache

    assert (priced.read, priced.ttl, priced.lookback) == (0.02, 7200, None)

    assert changed.tools["Bash"].min_tokens == 10
    assert changed.tools["Bash"].after_replies == 1
    assert changed.exclude_tools[0] == "secret"
    assert changed.cache.ttl == 1800
    enabled = {name for name, rule in changed.types.items() if rule.enabled}
    assert enabled == {"tool_result", "tool_call", "user_message"}


def marked(mark: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of one turn, the last block with a cache mark."""
    *first, last = turns(1)
    return [*first, {**last, "content": [{**last["content"][0], **mark}]}]


def in_result(mark):
    """Return messages whose last result has a marked text."""
    *first, last = turns(1)
    result = {**last["content"][0], "content": [{"type": "text", "text": "done", **mark}]}
    return [*first, {**last, "content": [result]}]


HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


SHORT = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("fields", "kept_for"),
    [
        (HOUR, 3600),
        ({"system": [{"type": "text", "text": "Be brief.", **HOUR}]}, 3600),
        ({"messages": marked(HOUR)}, 3600),
        ({"prompt_cache_options": {"ttl": "12h"}}, 43_200),
        ({"prompt_cache_options": {"ttl": "soon"}}, None),
        ({"messages": marked(SHORT), **SHORT}, None),
        ({"system": [{"type": "text", "text": "Be brief.", **HOUR}], "messages": marked(SHORT)}, None),
        ({"messages": in_result(HOUR)}, 3600),
    ],
)
def test_a_request_says_how_long_it_is_cached(fields, kept_for):
    request = read_request(body_of(**{"messages": turns(1), **fields}), ANTHROPIC)

    assert request is not None
    assert request.kept_for == kept_for


@pytest.mark.parametrize(
    ("model", "kept_for", "cache"),
    [
        ("claude-opus-5-5", 3600, (0.05, 2.0, 3600)),
        ("gpt-6.1-sol", 43_200, (0.05, 2.5, 43_200)),
        ("gpt-5.5", None, (0.1, 1.0, 300)),
        ("house-model", None, (0.1, 1.25, 300)),
    ],
)
def test_a_conversation_has_the_cache_of_its_model_and_of_its_marks(model, kept_for, cache):
    found = policy_for(OffloadPolicy(), ANTHROPIC).cache_for(model, kept_for)
    assert (found.read, found.write, found.ttl) == cache
    assert found.marks == 2


# Usage

STREAM = (
    b"event: message_start\ndata: "
    + json.dumps({"type": "message_start", "message": {"usage": USAGE}}).encode()
    + b'\n\nevent: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":9}}\n\n'
)
JSON = json.dumps({"type": "message", "usage": USAGE}).encode()
CHAT_STREAM = b'data: {"choices":[],"usage":null}\n\ndata: {"usage":{"prompt_tokens":7}}\n\ndata: [DONE]\n\n'
RESPONSES_STREAM = b'data: {"type":"response.completed","response":{"usage":{"input_tokens":8}}}\r\n\r\n'
GEMINI_CHUNKS = [
    b'{"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":6}}',
    b'{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9}}',
]
GEMINI_STREAM = b"".join(b"data: %s\r\n\r\n" % chunk for chunk in GEMINI_CHUNKS)
INTERACTION_STREAM = (
    b'event: step.stop\ndata: {"event_type":"step.stop","index":0}\n\nevent: interaction.completed\n'
    b'data: {"event_type":"interaction.completed","interaction":{"usage":{"total_input_tokens":5}}}\n\n'
)
GEMINI_ARRAY = b"[%s\n]" % b",\r\n".join([*GEMINI_CHUNKS, b'{"promptFeedback":{}}'])


@pytest.mark.parametrize(
    ("kind", "data", "count"),
    [
        (b"text/event-stream; charset=utf-8", STREAM, 40),
        (b"application/json", JSON, 40),
        (b"text/event-stream", CHAT_STREAM, 7),
        (b"text/event-stream", RESPONSES_STREAM, 8),
        (b"text/event-stream", GEMINI_STREAM, 9),
        (b"text/event-stream", INTERACTION_STREAM, 5),
        (b"application/json; charset=UTF-8", GEMINI_ARRAY, 9),
    ],
)
@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        (b"", bytes),
        (b"gzip", gzip.compress),
        (b"deflate", zlib.compress),
        (b"zstd", zstandard.compress),
        (b"br", brotli.compress),
    ],
)
def test_usage_is_read_from_every_form_in_parts_of_any_size(kind, data, count, encoding, encode):
    for size in (1, 7, 10_000):
        reader = UsageReader(kind, encoding)
        encoded = encode(data)
        for at in range(0, len(encoded), size):
            reader.feed(encoded[at : at + size])

        usage = usage_of(reader.close())

        assert usage is not None
        assert count in (usage.tokens, usage.tokens - (usage.read or 0) - usage.written)


@pytest.mark.parametrize(
    ("kind", "encoding", "data"),
    [
        (b"text/html", b"", JSON),
        (b"application/json", b"x-own", JSON),
        (b"application/json", b"gzip", JSON),
        (b"application/json", b"", b"{"),
        (b"application/json", b"", b"[1]"),
        (b"application/json", b"", b"[" * 100_000 + b"]" * 100_000),
        (b"text/event-stream", b"", b'data: "usage"\n\ndata: {"usage": {"usage\n\n'),
        (b"text/event-stream", b"", b"data: " + b"x" * 9_000_000),
    ],
)
def test_an_answer_of_another_form_has_no_usage(kind, encoding, data):
    reader = UsageReader(kind, encoding)
    reader.feed(data)

    assert reader.close() is None


class _Alone:
    """A part that may not be joined to what came before it: the cost of that grows with the square."""

    __slots__ = ()

    def __radd__(self, other: Any) -> Any:
        raise AssertionError("a part was joined to all before it")


class _AloneBytes(_Alone, bytes):
    pass


class _AloneText(_Alone, str):
    __slots__ = ()


@pytest.mark.parametrize("calls", CALLS_OF.values(), ids=CALLS_OF)
def test_the_parts_of_a_whole_reply_are_joined_once(calls):
    reply = calls.reply((), is_stream=False)
    for part in (b'{"choices": ', b"[", b"]}"):
        assert reply.feed(_AloneBytes(part)) == b""
    assert reply.end() == ([], False)


def _deltas(api: str) -> list[Any]:
    """Return events of a stream with a text, thinking and arguments in two parts each."""
    text = _AloneText("{}")
    if api == "OpenAI chat":
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "run", "arguments": text}}
        deltas = [{"content": text}, {"reasoning_content": text}, {"tool_calls": [call]}] * 2
        return [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    parts = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
    events: list[Any] = []
    for index, (kind, name) in enumerate(parts.items()):
        start = {"type": "content_block_start", "index": index, "content_block": {"type": kind, "id": "c"}}
        delta = {"type": "content_block_delta", "index": index, "delta": {"type": "x", name: text}}
        events += [start, delta, delta]
    return events


@pytest.mark.parametrize("api", ["OpenAI chat", "Anthropic Messages"])
def test_the_parts_of_a_streamed_reply_are_joined_once(api, monkeypatch):
    events = _deltas(api)
    left = [*events]
    monkeypatch.setattr(_events, "data_of", lambda _: left.pop(0))
    reply = CALLS_OF[api].reply((), is_stream=True)
    assert reply.feed(b"data: x\n\n" * len(events)) != b""
    assert left == []
