"""The retrieval tools of the gateway: added to a conversation, answered inside a reply, put back later."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import brotli
import openai
import pytest
import zstandard
from _provider import Provider, _events, _Handler, _reply, _response_events, serving
from gateways import HEADERS, LOG, ask, connection, providing, running, status
from kit.store import ActingStore, waiting
from pydantic import BaseModel
from talking import (
    DOCUMENTS,
    FIELDS,
    GEMINI,
    KINDS,
    PATHS,
    READERS,
    Json,
    events_of,
    path_of,
    request_of,
    results_of,
    tools_in,
    user_of,
)

from offload import Offloader, OffloadPolicy, Rule, open_store
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.gateway import _own_tools
from offload.gateway._apis.base import CUT
from offload.gateway._hidden import HiddenCalls, HiddenStore, Root
from offload.gateway._status import Status
from offload.maintenance.retention import delete
from offload.maintenance.transfer import copy_session
from offload.reading.timeline import Timeline
from offload.storage.store import OffloadStore
from offload.storage.wrappers import EncryptingStore
from offload.testing import FaultyStore

BOUND = "claude-opus-5-5"
OWN = [*TOOL_NAMES]
THINKING = {"type": "thinking", "thinking": "hm", "signature": ""}


def said(text: str) -> Json:
    return {"type": "text", "text": text}


def call(number: int, name: str = "context_list", **given: Any) -> Json:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}


class Agent:
    """A client that repeats what it got, in one API, streaming or not."""

    def __init__(
        self, provider: Provider, kind: str = "messages", *, streams: bool = True, model: str = BOUND
    ):
        self.provider, self.kind, self.streams, self.model = provider, kind, streams, model
        self.messages: list[Json] = [user_of(kind, "Build it.")]
        self.fields: Json = {}

    def body(self) -> bytes:
        return request_of(self.kind, self.model, self.messages, streams=self.streams, **self.fields)

    @property
    def path(self) -> str:
        return path_of(self.kind, streams=self.streams)

    def send(self, url: str, *answers: list[Json], status: int = 200) -> Any:
        """Send the conversation to a provider that gives some answers; add the reply and results to it."""
        left = list(answers)
        self.provider.answer = lambda _: left.pop(0)
        reply = ask(url + self.path, self.body())
        assert reply.status == status, reply.body
        if status != 200:
            return reply
        answered = READERS[self.kind](reply.body, streams=self.streams)
        assert left == []
        calls = [block for block in answered.blocks if block["type"] == "tool_use"]
        self.messages += answered.messages
        more = results_of(self.kind, calls, "done") if calls else [user_of(self.kind, "Go on.")]
        self.messages += more
        return answered

    @property
    def arrived(self) -> list[Json]:
        """The requests that the provider got."""
        return [json.loads(body) for _, _, body in self.provider.requests]

    @property
    def last(self) -> list[Json]:
        """The messages that the provider got last."""
        request = self.arrived[-1]
        messages: list[Json] = request[FIELDS.get(self.kind, "messages")]
        return messages


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(keeps=True, is_strict=True)) as provider:
        yield provider
        assert provider.refused == 0


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@contextmanager
def gateway(provider: Provider, store: str | OffloadStore, **options: Any) -> Iterator[str]:
    tools = {"tools": options.pop("tools")} if "tools" in options else {}
    with running(provider.url, Offloader(store, session="gateway", **options), **tools) as url:
        yield url


Answering = Callable[[Any], None]


def reply_to(store: str, answer: Answering, kind: str = "messages", *, streams: bool = False) -> Any:
    """Return the reply of a gateway to one message, whose provider answers so."""
    with providing() as upstream, running(upstream.url, Offloader(store, session="s")) as url:
        upstream.answer = answer
        return ask(url + PATHS[kind], request_of(kind, BOUND, [user_of(kind, "Go.")], streams=streams))


def in_turn(*bodies: bytes, streams: bool = False, headers: Iterable[tuple[str, str]] = ()) -> Answering:
    """Return the answers of a provider, each to one request."""
    left, kind = [*bodies], "text/event-stream" if streams else "application/json"
    return lambda provider: provider.say(200, left.pop(0), *headers, kind=kind)


def written(kind: str, reply: Json, *, streams: bool) -> bytes:
    return ("".join(_events(kind, {}, reply)) if streams else json.dumps(reply)).encode()


def looks_and_is_done(kind: str, **usage: Any) -> list[Json]:
    """Return two answers: the first has a call of the gateway's tools."""
    blocks = [[said("Look."), call(1)], [said("Done.")]]
    return [_reply(kind, {}, each, {"input_tokens": 1, "output_tokens": 1} | usage) for each in blocks]


def kinds(messages: list[Json]) -> list[list[str]]:
    return [[b["type"] for b in m["content"]] for m in messages if isinstance(m["content"], list)]


every_api = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("streams", [False, True])


# Adding the tools


@every_api
def test_the_first_request_gets_the_tools_and_all_later_ones_the_same(provider, store, kind):
    agent = Agent(provider, kind)
    with gateway(provider, store) as url:
        agent.send(url, [said("One.")])
    with gateway(provider, store) as url:
        agent.send(url, [said("Two.")])

    first, second = map(tools_in, agent.arrived)
    assert [tool["name"] for tool in first] == ["Bash", *OWN]
    assert "[Offloaded:" in first[1]["description"]
    assert second == first


BEFORE = {
    "a call": {"type": "tool_use", "id": "toolu_0", "name": "Bash", "input": {}},
    "thinking": {"type": "thinking", "thinking": "I look.", "signature": "c2lnbmVk"},
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_conversation_with_calls_or_thinking_that_began_elsewhere_gets_no_tools_and_passes(
    provider, store, before
):
    agent = Agent(provider, model="claude-opus-5")
    reply = [BEFORE[before], said("Hello.")]
    result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": "done"}
    answer = result if before == "a call" else said("Go on.")
    agent.messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": [answer]}]
    sent = agent.body()
    with gateway(provider, store) as url:
        agent.send(url, [said("One.")])
        passed = status(url)

    assert provider.requests[0][2] == sent
    assert passed["passed"] == {"without tools to read back": 1}
    assert "under way" in " ".join(passed["warnings"])


@every_api
def test_a_conversation_may_begin_with_replies_that_are_text_alone(provider, store, kind):
    """goose writes one itself behind its summary."""
    agent = Agent(provider, kind)
    own = {"role": "assistant", "content": "Got it."}
    of_gemini = {"role": "model", "parts": [{"text": "Got it."}]}
    agent.messages += [of_gemini if kind in GEMINI else own, user_of(kind, "Build it.")]
    with gateway(provider, store) as url:
        agent.send(url, [call(1)], [call(2, "Bash")])
    with gateway(provider, store) as url:
        agent.send(url, [said("Two.")])

    first, *_, last = map(tools_in, agent.arrived)
    assert [tool["name"] for tool in first] == ["Bash", *OWN]
    assert last == first
    assert '"context_list"' in json.dumps(agent.last)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "context_list", "input_schema": {"type": "object"}}]},
        {"tools": [{"name": "mcp__x__context_read", "input_schema": {"type": "object"}}]},
        {"tools": []},
        {"thread": {"type": "create"}},
    ],
)
def test_a_client_with_these_tools_or_none_and_a_thread_get_no_tools(provider, store, fields):
    agent = Agent(provider)
    agent.fields = fields
    sent = agent.body()
    with gateway(provider, store) as url:
        agent.send(url, [said("One.")])
    assert provider.requests[0][2] == sent


def added_tools(*names: str) -> Json:
    """Return tools in a message, as Codex sends them."""
    inner = [{"type": "function", "name": name, "parameters": {}} for name in names]
    space = {"type": "namespace", "name": "functions", "description": "", "tools": inner}
    return {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [space]}


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}])
def test_tools_in_a_message_are_those_of_the_client_and_get_ours_behind_them(provider, store, fields):
    agent = Agent(provider, "responses", model="gpt-6.2-sol")
    agent.fields = fields
    agent.messages.insert(0, added_tools("exec"))
    with gateway(provider, store) as url:
        agent.send(url, [call(1)], [said("One.")])
    with gateway(provider, store) as url:
        agent.send(url, [said("Two.")])

    for request in agent.arrived:
        assert [tool["name"] for tool in request["input"][0]["tools"]] == ["functions", *OWN]
        assert request["tools"] == fields["tools"]
    assert [item.get("type") for item in agent.last].count("function_call") == 1


def test_tools_to_read_back_in_a_message_are_known(provider, store):
    agent = Agent(provider, "responses", model="gpt-6.2-sol")
    agent.fields = {"tools": []}
    agent.messages.insert(0, added_tools("exec", "context_read"))
    sent = agent.body()
    with gateway(provider, store) as url:
        agent.send(url, [said("One.")])
    assert provider.requests[0][2] == sent


@pytest.mark.parametrize("tools", ["client", "none"])
def test_a_host_may_leave_the_tools_to_the_client_or_to_nobody(provider, store, tools):
    agent = Agent(provider)
    sent = agent.body()
    with gateway(provider, store, tools=tools) as url:
        agent.send(url, [said("One.")])
    assert provider.requests[0][2] == sent


def test_a_reply_that_the_user_interrupts_does_not_end_the_tools_of_its_conversation(provider, store):
    agent = Agent(provider)
    with gateway(provider, store) as url:
        provider.failure = lambda _: (500, {"type": "error", "error": {"type": "api_error", "message": "x"}})
        agent.send(url, status=500)
    provider.failure = lambda _: None
    agent.messages += [{"role": "assistant", "content": "A part of"}, {"role": "user", "content": "Go on."}]
    with gateway(provider, store) as url:
        agent.send(url, [said("Two.")])
    assert len(agent.arrived[-1]["tools"]) == 1 + len(OWN)


# Conversations that the provider keeps


def both_calls(request: Json) -> list[Json]:
    """Answer as a model that calls all its tools at once, and ends when it has results."""
    if any(item.get("type") == "function_call_output" for item in request["input"]):
        return [said("Done.")]
    names = [tool["name"] for tool in tools_in(request)]
    return [call(number, name) for number, name in enumerate(names)]


def kept(url: str, items: Any, *, streams: bool, **fields: Any) -> Json:
    """Send a request whose reply the provider keeps; return the response, whose events have one id."""
    request = json.loads(request_of("responses", "gpt-6.2", items, streams=streams, **fields))
    if "store" not in fields:
        del request["store"]
    reply = ask(url + PATHS["responses"], json.dumps(request).encode())
    assert reply.status == 200, reply.body
    events = events_of(reply.body) if streams else [{"response": reply.json}]
    [_] = {event["response"]["id"] for event in events if "response" in event}
    response: Json = events[-1]["response"]
    return response


@both_ways
@pytest.mark.parametrize("fields", [{}, {"store": True}, {"store": None}, {"background": True}])
def test_a_reply_that_the_provider_keeps_is_continued_by_its_id_also_twice_and_by_another_process(
    provider, store, streams, fields
):
    provider.answer = both_calls
    with gateway(provider, store) as url:
        first = kept(url, "Build it.", streams=streams, **fields)
        results = results_of("responses", [{"id": item["call_id"]} for item in first["output"]], LOG)
        second = kept(url, results, streams=streams, previous_response_id=first["id"], **fields)
        passed = status(url)
    with gateway(provider, store) as url:
        kept(url, results, streams=streams, previous_response_id=first["id"], **fields)
        more = [user_of("responses", "Go on.")]
        kept(url, more, streams=streams, previous_response_id=second["id"], **fields)

    assert [item["name"] for item in first["output"]] == ["Bash"]
    assert all(len(tools_in(json.loads(body))) == 1 for _, _, body in provider.requests)
    assert any("`store: false`" in warning for warning in passed["warnings"])


@both_ways
def test_a_conversation_at_the_provider_holds_only_what_the_client_has(provider, store, streams):
    provider.answer = both_calls
    with gateway(provider, store) as url:
        first = kept(url, "Build it.", streams=streams, conversation="conv_1")
        results = results_of("responses", [{"id": item["call_id"]} for item in first["output"]], LOG)
        kept(url, results, streams=streams, conversation="conv_1")
    assert OWN[0] not in json.dumps(provider.kept)


@both_ways
def test_items_that_the_client_only_refers_to_are_those_that_it_got(provider, store, streams):
    """The Vercel AI SDK repeats a conversation so, unless it is told `store: false`."""
    provider.answer = both_calls
    with gateway(provider, store) as url:
        first = kept(url, "Build it.", streams=streams)
        items = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        results = results_of("responses", [{"id": item["call_id"]} for item in first["output"]], LOG)
        kept(url, [user_of("responses", "Build it."), *items, *results], streams=streams)
    assert OWN[0] not in json.dumps(provider.kept)


# Answering inside a reply


@every_api
@both_ways
def test_calls_are_answered_inside_one_reply_and_put_back_by_another_process(provider, store, kind, streams):
    agent = Agent(provider, kind, streams=streams)
    off = Offloader(store, session="gateway")
    off.offload_text(LOG, tool_name="Bash", tool_use_id="toolu_x")
    ref = off.records()[0].ref
    with gateway(provider, store) as url:
        reply = agent.send(
            url,
            [said("Look ✓."), call(1, "context_grep", pattern="unit 2500 ")],
            [call(2, "context_tail", id=ref, lines=2), call(3)],
            [said("Found: é, 完了."), call(4, "Bash", command="ls")],
        )
    inside = agent.last
    with gateway(provider, store) as url:
        agent.send(url, [said("Done.")])

    assert [b for b in reply.blocks if b["type"] == "tool_use"] == [call(4, "Bash", command="ls")]
    assert "context_" not in json.dumps(reply.blocks)
    texts = json.dumps(inside, ensure_ascii=False)
    assert texts.index("Look ✓.") < texts.index("50 checked unit 2500")
    assert "399 checked unit" in texts
    assert agent.last[: len(inside)] == inside
    assert set("✓é完了") < set(json.dumps(agent.last, ensure_ascii=False))
    assert len(provider.charges) == 4


@every_api
@both_ways
def test_calls_beside_those_of_the_client_are_answered_with_its_results(provider, store, kind, streams):
    agent = Agent(provider, kind, streams=streams)
    with gateway(provider, store) as url:
        reply = agent.send(url, [call(1), call(2, "Bash"), call(3)])
        assert len(provider.requests) == 1
    with gateway(provider, store) as url:
        agent.send(url, [said("Done.")])

    assert [block["id"] for block in reply.blocks] == ["toolu_2"]
    assert all(f"toolu_{n}" in json.dumps(agent.last) for n in (1, 2, 3))


@both_ways
def test_thinking_reaches_the_client_signed_and_holds_through_restarts(provider, store, streams):
    agent = Agent(provider, streams=streams)
    for turn in range(3):
        with gateway(provider, store) as url:
            first = 10 * turn
            reply = agent.send(
                url,
                [THINKING, said("Look."), call(first + 1)],
                [THINKING, THINKING, call(first + 2)],
                [THINKING, call(first + 3, "Bash"), call(first + 4)],
            )
            assert [b["type"] for b in reply.blocks].count("thinking") == 4
            assert all(b["signature"] for b in reply.blocks if b["type"] == "thinking")
            assert status(url)["thinking_removed"] == 0
    assert len(provider.binding._made) == 12


@both_ways
def test_the_usage_is_the_sum_over_all_answers(provider, store, streams):
    agent = Agent(provider, streams=streams)
    with gateway(provider, store) as url:
        reply = agent.send(url, [call(1)], [call(2)], [said("Done.")])
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    total = sum(charge.tokens for charge in provider.charges)
    assert sum(reply.usage[name] for name in names) == pytest.approx(total, abs=3)
    assert reply.usage["output_tokens"] == 15


@both_ways
def test_a_count_that_the_end_of_a_stream_leaves_open_is_that_of_its_begin_and_lists_are_joined(
    store, streams
):
    usage: Json = {"input_tokens": 3, "output_tokens": 5, "iterations": [{"input_tokens": 3}]}
    left = b'{"output_tokens": 5}}', b'{"input_tokens": null, "output_tokens": 5}}'
    answers = [
        written("messages", reply, streams=streams).replace(*left if streams else (b"", b""))
        for reply in looks_and_is_done("messages", **usage)
    ]
    reply = reply_to(store, in_turn(*answers, streams=streams), streams=streams)
    total = READERS["messages"](reply.body, streams=streams).usage
    assert total == {"input_tokens": 6, "output_tokens": 10, "iterations": usage["iterations"] * 2}


def test_a_text_arrives_before_the_calls_behind_it_are_answered(store):
    """The provider holds its stream after the text until the client has it."""
    got = threading.Event()
    start = {"type": "message", "id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}
    head = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Here."}},
    ]

    def answer(provider: Any) -> None:
        provider.start_stream()
        for event in head:
            provider.send_part(b"data: %s\n\n" % json.dumps(event).encode())
        assert got.wait(10)
        provider.send_part(b"")

    with providing() as upstream, running(upstream.url, Offloader(store, session="s")) as url:
        upstream.answer = answer
        with closing(connection(url)) as sent:
            body = request_of("messages", BOUND, [{"role": "user", "content": "Go."}], streams=True)
            sent.request("POST", "/v1/messages", body, HEADERS)
            reply = sent.getresponse()
            seen = b""
            while b"Here." not in seen:
                seen += reply.read1()
            got.set()
            reply.read()


def test_an_unchanged_reply_is_the_very_bytes_of_the_provider(store):
    body = b'{"content": [{"text":"x", "type":"text"}],  "stop_reason":"end_turn", "usage":{"x": 1e0}}'
    reply = reply_to(store, in_turn(body))
    assert reply.body == body
    assert ("Content-Length", str(len(body))) in [(name.title(), value) for name, value in reply.headers]


def test_each_answer_of_the_provider_is_a_request_of_the_timeline(provider, store):
    agent = Agent(provider)
    with gateway(provider, store, journal=True) as url:
        agent.send(url, [call(1)], [call(2)], [said("Done.")])
    opened = open_store(store)
    [name] = {key.key.split("/")[1] for key in opened.keys("j/")}
    timeline = Timeline(opened, name)
    assert [len(timeline.at(n)) for n in (1, 2, 3)] == [1, 3, 5]


# Replies that are one document


DOCUMENT = '{"found": 7}'


@every_api
@both_ways
def test_a_document_is_the_text_of_the_last_answer_alone(provider, store, kind, streams):
    agent = Agent(provider, kind, streams=streams)
    agent.fields = DOCUMENTS[kind]
    with gateway(provider, store) as url:
        first = agent.send(url, [said("Look."), call(1)], [said("Hm."), call(2)], [said(DOCUMENT)])
        inside = agent.last
        second = agent.send(url, [said("And."), call(3)], [said("Run."), call(4, "Bash")])
    with gateway(provider, store) as url:
        agent.send(url, [said(DOCUMENT)])

    assert [block["text"] for block in first.blocks] == [DOCUMENT]
    assert [block.get("text") for block in second.blocks] == ["Run.", None]
    assert agent.last[: len(inside)] == inside
    assert all(text in json.dumps(agent.last) for text in ("Look.", "Hm.", "And."))


@every_api
def test_a_stream_of_a_document_without_calls_is_the_very_bytes_of_the_provider(provider, store, kind):
    agent = Agent(provider, kind)
    agent.fields = DOCUMENTS[kind]
    provider.answer = lambda _: [THINKING, said(DOCUMENT)]
    sent: list[bytes] = []

    def cut(data: bytes) -> list[bytes]:
        sent.append(data)
        return [data]

    provider.cut = cut
    with gateway(provider, store) as url:
        assert [ask(url + agent.path, agent.body()).body] == sent


@every_api
@both_ways
def test_a_reply_that_is_ended_before_its_document_says_that_it_is_cut(
    provider, store, monkeypatch, kind, streams
):
    monkeypatch.setattr(_own_tools, "MOST_ROUNDS", 1)
    monkeypatch.setattr("offload.gateway._forward.MOST_ROUNDS", 1)
    agent = Agent(provider, kind, streams=streams)
    agent.fields = DOCUMENTS[kind]
    with gateway(provider, store) as url:
        reply = agent.send(url, [said("Look."), call(1)], [said("Hm."), call(2)])
        agent.send(url, [said(DOCUMENT)])
    assert reply.stop == "max_tokens"
    assert "too often" in reply.blocks[-1]["text"]
    assert "Hm." not in json.dumps(agent.last)


@every_api
@both_ways
def test_a_hidden_text_is_redacted_before_it_is_sent_and_stored(provider, store, kind, streams):
    def redact(text: str) -> str:
        return text.replace("SECRET", "[redacted]")

    agent = Agent(provider, kind, streams=streams)
    agent.fields = DOCUMENTS[kind]
    with gateway(provider, store, redact=redact) as url:
        agent.send(url, [said("My SECRET."), call(1)], [said(DOCUMENT)])
        inside = agent.last
    with gateway(provider, store, redact=redact) as url:
        agent.send(url, [said(DOCUMENT)])
    stored = b"".join(open_store(store).get(found.key) for found in open_store(store).keys("c/"))
    assert b"SECRET" not in stored
    assert "My [redacted]." in json.dumps(inside)
    assert agent.last[: len(inside)] == inside


# Bounds and failures


def text_of(body: bytes) -> bytes:
    """Return the text in a broken stream, which may come in parts."""
    return b"Look." if re.search(rb'Look\.|"Lo".*"ok\."', body, re.DOTALL) else b""


@every_api
@both_ways
def test_a_model_that_calls_without_end_is_told_so_and_then_ended(
    provider, store, monkeypatch, kind, streams
):
    monkeypatch.setattr(_own_tools, "MOST_ROUNDS", 2)
    monkeypatch.setattr("offload.gateway._forward.MOST_ROUNDS", 2)
    agent = Agent(provider, kind, streams=streams)
    with gateway(provider, store) as url:
        reply = agent.send(url, [said("Look."), call(1)], [call(2)], [call(3)])
        assert "no more calls" in json.dumps(agent.last)
        agent.send(url, [call(4)], [call(5)], [call(6)])
        agent.send(url, [said("Done.")])
    assert reply.stop == "end_turn"
    assert "too often" in reply.blocks[-1]["text"]
    assert "toolu_3" not in json.dumps(agent.last)


def test_a_model_that_makes_too_many_calls_at_once_is_told_what_to_do(provider, store):
    calls = [call(number) for number in range(_own_tools.MOST_CALLS + 1)]
    with gateway(provider, store) as url:
        agent = Agent(provider)
        agent.send(url, calls, [said("Done.")])

    *answered, last = [block["content"] for block in agent.arrived[-1]["messages"][-1]["content"]]
    assert all(text.startswith("[0 stored") for text in answered)
    assert last == f"Error: at most {_own_tools.MOST_CALLS} calls at once. Call again with fewer."


@both_ways
def test_a_call_that_is_cut_is_left_out_of_the_reply_and_of_the_conversation(provider, store, streams):
    agent = Agent(provider, streams=streams)
    with gateway(provider, store) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("_provider._reply", cut_reply)
        reply = agent.send(url, [said("Look."), call(1)])
    assert reply.stop == "max_tokens"
    assert reply.blocks == [said("Look.")]


def cut_reply(_kind: str, _request: Json, content: list[Json], usage: Json) -> Json:
    """Return a reply of the Messages API that ran out of tokens."""
    fields = {"stop_reason": "max_tokens", "stop_sequence": None, "usage": usage}
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": content, **fields}


# The end of an answer with calls as the provider writes it, and that of one that ran out of tokens.
CUTS = {
    "messages": (b'"stop_reason": "tool_use"', b'"stop_reason": "max_tokens"'),
    "chat": (b'"finish_reason": "tool_calls"', b'"finish_reason": "length"'),
    "responses": (b"completed", b"incomplete"),
    "gemini": (b'"finishReason": "STOP"', b'"finishReason": "MAX_TOKENS"'),
}


@contextmanager
def running_out_of_tokens(provider: Provider, kind: str) -> Iterator[None]:
    old, new = CUTS[kind.partition(" ")[0]]
    send = _Handler._send_json

    def send_cut(handler: _Handler, status: int, value: Any) -> None:
        send(handler, status, json.loads(json.dumps(value).encode().replace(old, new)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Handler, "_send_json", send_cut)
        patch.setattr(provider, "cut", lambda data: [data.replace(old, new)])
        yield


@every_api
@both_ways
@pytest.mark.parametrize("before", [[], [THINKING], [said("Look."), THINKING]])
def test_a_reply_that_is_cut_in_its_last_call_has_a_text_behind_what_cannot_end_it(
    provider, store, kind, streams, before
):
    agent = Agent(provider, kind, streams=streams)
    with gateway(provider, store) as url:
        with running_out_of_tokens(provider, kind):
            reply = agent.send(url, [*before, call(1)])
        agent.send(url, [said("Done.")])

    texts = [block["text"] for block in reply.blocks if block["type"] == "text"]
    # The gateway leaves reasoning of a response out of later requests if its call is gone.
    is_added = {"messages": True, "responses": not before}.get(kind, before[:1] != [said("Look.")])
    assert texts == ["Look."] * (len(before) > 1) + [CUT] * is_added
    assert "toolu_1" not in json.dumps(agent.last)
    assert all(message.get("content", message.get("parts", "-")) for message in agent.last)


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


def overload_the_second(provider: Provider) -> None:
    """Let a provider refuse the second request alone."""
    answers = iter([None, (529, OVERLOADED)])
    provider.failure = lambda _: next(answers, None)


@every_api
def test_an_error_of_a_later_answer_ends_the_stream_as_the_api_does(provider, store, kind):
    agent = Agent(provider, kind)
    overload_the_second(provider)
    left = [[said("Look."), call(1)]]
    provider.answer = lambda _: left.pop(0)
    with gateway(provider, store) as url:
        broken = ask(url + agent.path, agent.body())
        assert text_of(broken.body) == b"Look."
        if kind == "gemini array":
            assert json.loads(broken.body)[-1] == OVERLOADED
        else:
            assert b"Overloaded" in broken.body.split(b"\n\n")[-2]
        reply = agent.send(url, [said("Look."), call(2)], [said("Done.")])
        agent.send(url, [said("End.")])
    assert "Done." in json.dumps(reply.blocks)


@every_api
def test_an_error_of_a_later_answer_is_the_whole_answer_without_a_stream(provider, store, kind):
    agent = Agent(provider, kind, streams=False)
    overload_the_second(provider)
    with gateway(provider, store) as url:
        reply = agent.send(url, [said("Look."), call(1)], status=529)
        assert reply.json == OVERLOADED
        agent.send(url, [said("Done.")])


def test_thinking_of_a_reply_that_is_asked_for_again_holds(provider, store):
    agent = Agent(provider, streams=False)
    overload_the_second(provider)
    with gateway(provider, store) as url:
        agent.send(url, [THINKING, call(1)], status=529)
        agent.send(url, [THINKING, call(2)], [THINKING, said("Done.")])
        agent.send(url, [said("End.")])
    assert kinds(agent.last)[:3] == [["thinking", "tool_use"], ["tool_result"], ["thinking", "text"]]


def test_a_store_that_fails_answers_the_model_in_words_and_the_conversation_goes_on(provider, tmp_path):
    inner = open_store(str(tmp_path / "store"))
    off = Offloader(inner, session="gateway")
    off.offload_text(LOG, tool_name="Bash", tool_use_id="toolu_x")
    ref = off.records()[0].ref
    failing = FaultyStore(inner, is_lasting=True)
    agent = Agent(provider)
    with gateway(provider, failing) as url:
        agent.send(url, [call(1, "context_read", id=ref)], [said("Done.")])
        assert "Error" in json.dumps(agent.last)
        inside = agent.last
        agent.send(url, [said("End.")])
        assert agent.last[: len(inside)] == inside
        assert "not stored" in " ".join(status(url)["warnings"])


def test_a_store_that_hangs_is_answered_in_words_after_a_while(provider, tmp_path, monkeypatch):
    monkeypatch.setattr(_own_tools, "CALL_SECONDS", 0.2)
    monkeypatch.setattr("offload.gateway._own_tools.DEADLINE", 0.2)
    released = threading.Event()
    inner = open_store(str(tmp_path / "store"))
    off = Offloader(inner, session="gateway")
    off.offload_text(LOG, tool_name="Bash", tool_use_id="toolu_x")
    agent = Agent(provider)
    with gateway(provider, ActingStore(inner, waiting(released, "get"))) as url:
        agent.send(url, [call(1, "context_read", id=off.records()[0].ref)], [said("Done.")])
        released.set()
    assert "cannot be read now" in json.dumps(agent.last)


def test_replies_at_once_with_one_beginning_store_each_of_their_calls_once(store):
    released = threading.Event()
    gated = ActingStore(open_store(store), waiting(released, "put"))

    async def keep():
        calls, root = HiddenStore(gated, Status()), Root("s", "0" * 32)
        tasks = [calls.begin(root, "1" * 32)]
        tasks += [calls.keep(root, HiddenCalls("2" * 32, f"{n:032}", [["b"]])) for n in range(8)]
        released.set()
        await asyncio.gather(*tasks)
        assert not calls.known(root).unstored
        await calls.close()

    asyncio.run(keep())

    puts = [key for verb, key in gated.asked if verb == "put"]
    assert len(puts) == len({*puts}) == 9
    assert sorted(stored.key for stored in open_store(store).keys("c/")) == sorted(puts)


def test_a_client_that_is_gone_ends_the_request_of_a_later_answer(store):
    begun, gone = threading.Event(), threading.Event()
    whole = {
        "type": "message",
        "content": [call(1)],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1},
        "id": "m",
    }
    answers = iter([whole])

    def answer(provider: Any) -> None:
        if (reply := next(answers, None)) is not None:
            provider.say(200, json.dumps(reply).encode())
            return
        begun.set()
        provider.connection.settimeout(10)
        if provider.connection.recv(1) == b"":
            gone.set()

    with providing() as upstream, running(upstream.url, Offloader(store, session="s")) as url:
        upstream.answer = answer
        body = request_of("messages", BOUND, [{"role": "user", "content": "Go."}], streams=False)
        with closing(connection(url)) as sent:
            sent.request("POST", "/v1/messages", body, HEADERS)
            assert begun.wait(10)
        assert gone.wait(10)


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", brotli.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
)
@both_ways
def test_replies_in_any_encoding_are_answered(store, name, encode, streams):
    answers = [encode(written("messages", r, streams=streams)) for r in looks_and_is_done("messages")]
    encoded = in_turn(*answers, streams=streams, headers=[("Content-Encoding", name)])
    reply = reply_to(store, encoded, streams=streams)
    answered = READERS["messages"](reply.body, streams=streams)
    assert answered.blocks == [said("Look."), said("Done.")]


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_an_answer_that_is_not_encoded_as_it_says_is_an_error_of_the_api(store, name):
    reply = reply_to(store, in_turn(b'{"type": "message"}', headers=[("Content-Encoding", name)]))
    assert reply.status == 502
    assert "not encoded as its Content-Encoding says" in json.loads(reply.body)["error"]["message"]


def test_a_reply_that_is_ended_has_numbers_only_where_the_provider_gives_some(store, monkeypatch):
    monkeypatch.setattr(_own_tools, "MOST_ROUNDS", 0)
    monkeypatch.setattr("offload.gateway._forward.MOST_ROUNDS", 0)
    first = _reply("responses", {}, [call(1)], {"input_tokens": 1, "output_tokens": 1})
    events = re.sub(r', "sequence_number": \d+', "", "".join(_events("responses", {}, first)))
    reply = reply_to(store, in_turn(events.encode(), streams=True), "responses", streams=True)
    assert b"too often" in reply.body
    assert b"sequence_number" not in reply.body


def test_hidden_calls_are_in_no_event_of_a_provider_that_numbers_none(store):
    request = {"model": "m", "input": []}
    blocks = [call(1, "context_read"), said("Look."), call(2, "Bash")]
    first = _reply("responses", request, blocks, {"input_tokens": 1, "output_tokens": 1})
    events = re.sub(r', "sequence_number": \d+', "", "".join(_events("responses", request, first)))

    reply = reply_to(store, in_turn(events.encode(), streams=True), "responses", streams=True)

    sent = events_of(reply.body)
    assert "sequence_number" not in events
    assert "context_read" not in reply.body.decode()
    added = [event for event in sent if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1]
    assert [item["type"] for item in sent[-1]["response"]["output"]] == ["message", "function_call"]


@both_ways
def test_items_of_one_response_have_ids_of_their_own_where_the_provider_repeats_them(store, streams):
    """Its events are numbered from 1; an event about an item names it as the item is named in the end."""
    left = [[said("Look."), call(1)], [said("Look."), call(1)], [said("Found."), call(1, "Bash")]]

    def answer(provider: Any) -> None:
        reply = _reply("responses", {}, left.pop(0), {"input_tokens": 1, "output_tokens": 1})
        for item in reply["output"]:
            item["id"] = f"{item['type']}_1"
        events = [{**e, "sequence_number": n} for n, e in enumerate(_response_events(reply), 1)]
        whole = (
            "".join(f"data: {json.dumps(event)}\n\n" for event in events) if streams else json.dumps(reply)
        )
        provider.say(200, whole.encode(), kind="text/event-stream" if streams else "application/json")

    with providing() as upstream, running(upstream.url, Offloader(store, session="s")) as url:
        upstream.answer = answer
        body = request_of("responses", BOUND, [user_of("responses", "Go.")], streams=streams)
        reply = ask(url + PATHS["responses"], body)
        sent = [item["id"] for item in upstream.seen[-1].json["input"] if "id" in item]

    events = events_of(reply.body) if streams else [{"response": reply.json}]
    output = events[-1]["response"]["output"]
    assert [item["id"] for item in output] == ["message_1", "message_1_2", "message_1_3", "function_call_1_3"]
    assert sent == ["message_1", "function_call_1", "message_1_2", "function_call_1_2"]
    assert [event.get("sequence_number", 1) for event in events] == [*range(1, len(events) + 1)]
    for event in (event for event in events if "output_index" in event):
        assert event.get("item_id", event.get("item", {}).get("id")) == output[event["output_index"]]["id"]


@pytest.mark.parametrize(
    ("index", "ids"), [({}, ["a", "b", "c"]), ({}, ["", "", ""]), ({"index": 0}, ["a", "b", "c"])]
)
def test_calls_of_a_chat_that_have_one_index_or_none_are_told_apart(store, index, ids):
    names = ["context_read", "Bash", "context_list"]
    functions = [{"name": name, "arguments": json.dumps({"id": name})} for name in names]
    calls = [
        {**index, "id": one, "type": "function", "function": f} for one, f in zip(ids, functions, strict=True)
    ]
    deltas: list[Json] = [{"role": "assistant"}, {"tool_calls": calls[:2]}, {"tool_calls": calls[2:]}, {}]
    ends = [None, None, None, "tool_calls"]
    choices = [{"delta": d, "finish_reason": end} for d, end in zip(deltas, ends, strict=True)]
    chunks = [{"id": "x", "choices": [{"index": 0, **choice}]} for choice in choices]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    reply = reply_to(store, in_turn(events.encode(), streams=True), "chat", streams=True)

    sent = [
        call
        for event in events_of(reply.body)[:-1]
        for call in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert [(call["index"], call["function"]) for call in sent] == [(0, functions[1])]


def joined_details(details: list[Json]) -> list[Json]:
    """Return the reasoning of a message as a client joins what a stream has of each index."""
    joined: dict[int, Json] = {}
    for one in details:
        held = joined.setdefault(one["index"], {**one, "text": "", "signature": ""})
        held["text"] += one.get("text") or ""
        held["signature"] += one.get("signature") or ""
    return [*joined.values()]


def details_of(number: int, *, streams: bool) -> list[Json]:
    """Return the reasoning of an answer as OpenRouter has it: its index is 0 in each answer."""
    parts: list[Json] = [{"text": "so "}, {"text": f"much {number}"}, {"signature": f"signature-{number}"}]
    detail = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    return [{**detail, **part} for part in (parts if streams else [parts[0] | parts[2]])]


def say_with_details(provider: Any, number: int, content: list[Json], *, streams: bool) -> None:
    """Answer a request for a chat with reasoning."""
    reply, details = _reply("chat", {"model": "m"}, content, {}), details_of(number, streams=streams)
    if not streams:
        reply["choices"][0]["message"]["reasoning_details"] = details
        provider.say(200, json.dumps(reply).encode())
        return
    deltas = [{"index": 0, "delta": {"reasoning_details": [one]}} for one in details]
    events = "".join(f"data: {json.dumps({'id': 'x', 'choices': [delta]})}\n\n" for delta in deltas)
    events += "".join(_events("chat", {}, reply))
    provider.say(200, events.encode(), kind="text/event-stream")


@pytest.mark.parametrize("repeated", [joined_details, list])
@both_ways
def test_reasoning_of_a_chat_is_put_back_with_the_answer_that_it_is_of(store, streams, repeated):
    """Clients join what a stream has of each index, or repeat it as it came."""
    script = iter(enumerate([[call(1)], [call(2)], [call(3, "Bash")], [said("Done.")]]))
    messages = [user_of("chat", "Go.")]
    with providing() as upstream, running(upstream.url, Offloader(store, session="s")) as url:
        upstream.answer = lambda provider: say_with_details(provider, *next(script), streams=streams)
        reply = ask(url + PATHS["chat"], request_of("chat", BOUND, messages, streams=streams))
        chunks = [event for event in events_of(reply.body) if event] if streams else [reply.json]
        parts = [c.get("delta", c.get("message")) for chunk in chunks for c in chunk["choices"]]
        details = [one for part in parts for one in part.get("reasoning_details", ())]
        own = {"id": "toolu_3", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [own]}
        messages.append(message | {"reasoning_details": repeated(details)})
        messages += results_of("chat", [{"id": "toolu_3"}], "done")
        inside = upstream.seen[-1].json["messages"]
        ask(url + PATHS["chat"], request_of("chat", BOUND, messages, streams=streams))
        last = upstream.seen[-1].json["messages"]

    assert {one["index"] for one in details} == {0, 1, 2}
    assert last[: len(inside)] == inside
    of_answers = [message["reasoning_details"] for message in last if message["role"] == "assistant"]
    made = [details_of(number, streams=streams) for number in range(3)]
    assert [*map(joined_details, of_answers)] == [*map(joined_details, made)]
    assert [len(one) for one in of_answers[:2]] == [1, 1]


@both_ways
def test_a_response_without_a_status_has_the_one_of_its_end(store, streams):
    replies = looks_and_is_done("responses")
    for each in replies:
        del each["status"]
    answers = [written("responses", each, streams=streams) for each in replies]
    reply = reply_to(store, in_turn(*answers, streams=streams), "responses", streams=streams)
    assert READERS["responses"](reply.body, streams=streams).blocks == [said("Look."), said("Done.")]


def test_the_filter_results_with_which_azure_begins_come_first_and_give_no_id(store):
    begin = b'data: {"choices": [], "id": "", "prompt_filter_results": [{"prompt_index": 0}]}\n\n'
    answers = [begin + written("chat", each, streams=True) for each in looks_and_is_done("chat")]
    reply = reply_to(store, in_turn(*answers, streams=True), "chat", streams=True)

    first, *events = events_of(reply.body)
    assert "prompt_filter_results" in first
    assert not any("prompt_filter_results" in event for event in events if event)
    [_] = {event["id"] for event in events if event}


def test_a_whole_answer_that_breaks_off_is_an_error_of_the_api(store):
    def break_off(provider: Any) -> None:
        provider.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        provider.wfile.flush()
        provider.connection.shutdown(socket.SHUT_RDWR)
        provider.close_connection = True

    reply = reply_to(store, break_off)
    assert (reply.status, json.loads(reply.body)["type"]) == (502, "error")


def test_a_later_answer_that_breaks_breaks_the_stream_and_keeps_nothing(store):
    request = {"model": "m", "messages": []}
    first = _reply("messages", request, [said("Look."), call(1)], {"input_tokens": 1})
    left = ["".join(_events("messages", request, first)).encode()]

    def answer(provider: Any) -> None:
        provider.start_stream()
        if left:
            provider.send_part(left.pop())
            provider.send_part(b"")
            return
        provider.send_part(b'data: {"type": "message_start", "message": {}}\n\n')
        provider.connection.shutdown(socket.SHUT_RDWR)

    with pytest.raises(http.client.IncompleteRead) as broken:
        reply_to(store, answer, streams=True)
    assert b"Look." in broken.value.partial
    assert b"message_stop" not in broken.value.partial
    assert [found.size for found in open_store(store).keys("c/")] == [0]


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    "events",
    [
        b'data: {"type": "content_block_start"}\n\ndata: {"type": "content_block_stop", "index": 7}\n\n',
        b'data: [1]\n\ndata: {"choices": [3]}\n\n: a comment\n\ndata: {"choices": "x"}\n\n',
        b'event: x\r\ndata: {"type":"response.output_item.done","output_index":{},"item":1}\r\n\r\nrest',
        b'data: {"type": "response.completed", "response": {"output": [null]}}\n\n',
        b'data: {"choices": [{"delta": "x"}]}\n\n',
        b'data: {"type": "content_block_start", "index": 0, "content_block": "x"}\n\n',
        b"no event at all",
    ],
)
def test_a_stream_of_another_form_passes_as_it_is(store, kind, events):
    def answer(provider: Any) -> None:
        provider.start_stream()
        provider.send_part(events)
        provider.send_part(b"")

    assert reply_to(store, answer, kind, streams=True).body == events


# The next request


@pytest.mark.parametrize("kind", PATHS)
def test_reminders_and_notices_of_a_client_may_change(provider, store, kind):
    """Claude Code writes the date and its instructions into the first message, again when it resumes.

    So does Qwen Code, with another API.
    """
    agent = Agent(provider, kind, model="claude-opus-5")

    def first(day: str) -> Json:
        kinds = {"type": "input_text" if kind == "responses" else "text"}
        reminder = said(f"<system-reminder>\nIt is {day}.\n</system-reminder>\n")
        return {"role": "user", "content": [reminder | kinds, said("Build it.") | kinds]}

    agent.messages = [first("Monday"), {"role": "system", "content": "A notice."}]
    with gateway(provider, store) as url:
        agent.send(url, [call(1)], [said("One.")])
        agent.messages[-1]["content"] = "Go on.\n<system-reminder>Hurry.</system-reminder>"
        agent.send(url, [call(2)], [said("Two.")])
    agent.messages[0] = first("Tuesday")
    del agent.messages[1]
    with gateway(provider, store) as url:
        agent.send(url, [said("Three.")])
    assert all(f"toolu_{n}" in json.dumps(agent.last) for n in (1, 2))
    assert len(agent.arrived[-1]["tools"]) == 1 + len(OWN)


def test_a_changed_reply_leaves_its_calls_out_with_the_thinking_that_stood_on_them(provider, store):
    agent = Agent(provider)
    with gateway(provider, store) as url:
        agent.send(url, [THINKING, said("Look."), call(1)], [THINKING, said("Found."), call(2, "Bash")])
        agent.send(url, [THINKING, call(3, "Bash")])
        agent.messages[1]["content"][1]["text"] = "Edited."
        agent.send(url, [said("Done.")])
        said_so = status(url)

    assert kinds(agent.last)[:3] == [
        ["text", "text", "tool_use"],
        ["tool_result"],
        ["tool_use"],
    ]
    assert said_so["calls_left_out"] == 1
    assert "changed a reply" in " ".join(said_so["warnings"])
    assert said_so["thinking_refused"] == 0


def test_a_client_that_joins_the_thinking_around_a_hidden_call_goes_on_without_it(provider, store):
    """Qwen Code joins blocks that follow each other, and their signatures."""
    agent = Agent(provider)
    with gateway(provider, store) as url:
        agent.send(url, [THINKING, call(1)], [THINKING, said("One.")])
        first, second, text = agent.messages[1]["content"]
        joined = first | {"signature": first["signature"] + second["signature"]}
        agent.messages[1]["content"] = [joined, text]
        agent.send(url, [said("Two.")])
        agent.send(url, [said("Three.")])
        said_so = status(url)

    assert "thinking" not in json.dumps(agent.last)
    assert "changed a reply" in " ".join(said_so["warnings"])
    assert provider.refused == 1
    provider.refused = 0


@both_ways
@pytest.mark.parametrize("change", ["reply", "before", "trimmed"])
def test_reasoning_before_a_call_that_is_left_out_goes_with_it_where_the_next_item_must_follow(
    provider, store, streams, change
):
    agent = Agent(provider, "responses", streams=streams)
    with gateway(provider, store) as url:
        agent.send(url, [said("Hello.")])
        agent.send(url, [THINKING, call(1)], [THINKING, said("Found."), THINKING, call(2, "Bash")])
        if change == "reply":
            next(item for item in agent.messages if "Found." in str(item))["content"][0]["text"] = "Edited."
        elif change == "before":
            agent.messages[2]["content"] = "Go on, please."
        else:
            del agent.messages[:2]
        agent.send(url, [said("Done.")])
    assert "toolu_1" not in json.dumps(agent.last)
    assert [item["type"] for item in agent.last if "type" in item].count("reasoning") == 2


def test_clients_may_spell_a_reply_in_another_way_and_leave_thinking_out(provider, store):
    agent = Agent(provider, model="claude-opus-5")
    with gateway(provider, store) as url:
        agent.send(url, [THINKING, said("Look."), call(1)], [said(" "), said("Found."), call(2, "Bash")])
        inside = agent.last
        reply = agent.messages[1]
        reply["content"] = [b | {"citations": None} for b in reply["content"] if b["type"] != "thinking"]
        reply["content"] = [b for b in reply["content"] if b.get("text") != " "]
        reply["content"][0]["cache_control"] = {"type": "ephemeral"}
        agent.send(url, [said("Done.")])

    assert "toolu_1" in json.dumps(agent.last)
    assert [b["type"] for b in agent.last[1]["content"]] == ["text", "tool_use"]
    assert agent.last[1]["content"][0] == inside[1]["content"][1] | {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_a_system_message_with_the_time_of_day_may_change(provider, store, kind):
    agent = Agent(provider, kind)
    agent.messages.insert(0, {"role": "system", "content": "It is 10:00."})
    with gateway(provider, store) as url:
        agent.send(url, [call(1)], [said("One.")])
    agent.messages[0] = {"role": "system", "content": "It is 10:01."}
    with gateway(provider, store) as url:
        agent.send(url, [said("Two.")])
    assert "toolu_1" in json.dumps(agent.last)
    assert len(agent.arrived[-1]["tools"]) == 1 + len(OWN)


def test_two_gateways_over_one_store_send_the_same_bytes(provider, store):
    agent = Agent(provider)
    with ExitStack() as stack:
        urls = [stack.enter_context(gateway(provider, store)) for _ in range(2)]
        for turn in range(4):
            agent.send(urls[turn % 2], [THINKING, call(10 * turn)], [THINKING, call(10 * turn + 1, "Bash")])
            sent = []
            for url in urls:
                left = [[said("Same.")]]
                provider.answer = lambda _, left=left: left.pop(0)
                ask(url + PATHS["messages"], agent.body())
                sent.append(provider.requests[-1][2])
            assert sent[0] == sent[1]


def test_what_is_put_back_is_one_small_object_and_a_conversation_without_calls_stores_a_mark_alone(
    provider, store
):
    agent = Agent(provider)
    with gateway(provider, store) as url:
        agent.send(url, [said("One.")])
        agent.send(url, [said("Two.")])
        marks = [found.size for found in open_store(store).keys("c/")]
        agent.send(url, [call(1)], [call(2)], [said("Three.")])
        kept = [found.size for found in open_store(store).keys("c/")]
    assert marks == [0]
    assert len(kept) == 2
    assert max(kept) < 2000


def test_a_turn_without_calls_asks_the_store_for_nothing(provider, tmp_path):
    agent, store = Agent(provider), ActingStore(open_store(str(tmp_path / "store")))
    with gateway(provider, store) as url:
        agent.send(url, [call(1)], [said("One.")])
        agent.send(url, [said("Two.")])
        agent.send(url, [said("Three.")])
    assert [prefix for verb, prefix in store.asked if verb == "keys" and prefix.startswith("c/")] == []


def test_tokens_are_counted_with_the_tools_and_what_is_put_back(provider, store):
    agent = Agent(provider)
    with gateway(provider, store) as url:
        agent.send(url, [THINKING, call(1)], [THINKING, said("One.")])
        agent.send(url, [said("Two.")])
        request = json.loads(agent.body())
        counted = ask(f"{url}/v1/messages/count_tokens", json.dumps(request).encode())
    assert counted.status == 200
    assert "toolu_1" in json.dumps(agent.last)
    assert len(agent.arrived[-1]["tools"]) == 1 + len(OWN)


def test_what_redact_removes_is_neither_stored_nor_sent_and_thinking_holds(provider, store):
    agent = Agent(provider)

    def redact(text: str) -> str:
        return text.replace("SECRET", "[redacted]")

    with gateway(provider, store, redact=redact) as url:
        agent.send(
            url,
            [THINKING, said("My SECRET."), call(1, "context_grep", pattern="SECRET")],
            [THINKING, said("Found."), call(2, "Bash")],
        )
    with gateway(provider, store, redact=redact) as url:
        agent.send(url, [said("Done.")])
    stored = b"".join(open_store(store).get(found.key) for found in open_store(store).keys("c/"))
    assert b"SECRET" not in stored
    assert "toolu_1" in json.dumps(agent.last)
    assert json.dumps(agent.last).count("SECRET") == 1


def test_what_is_stored_is_encrypted_with_the_rest(provider, tmp_path):
    inner = open_store(str(tmp_path / "store"))
    agent = Agent(provider)
    with gateway(provider, EncryptingStore(inner, key=b"k" * 32)) as url:
        agent.send(url, [call(1, "context_grep", pattern="plainword")], [said("One.")])
    assert b"plainword" not in b"".join(inner.get(found.key) for found in inner.keys("c/"))


def test_calls_go_with_their_session_and_come_along_with_a_copy(provider, store, tmp_path):
    agent = Agent(provider)
    with gateway(provider, store) as url:
        agent.send(url, [call(1)], [said("One.")])
    inside = agent.last
    first, second = open_store(store), open_store(str(tmp_path / "second"))
    Offloader(first, session="gateway").touch()
    copy_session(first, second, "gateway")
    delete(first, "gateway")
    assert [*first.keys("c/")] == []
    with gateway(provider, str(tmp_path / "second")) as url:
        agent.send(url, [said("Two.")])
    assert agent.last[: len(inside)] == inside


def test_large_results_still_leave_and_the_model_reads_them_back(provider, store):
    agent = Agent(provider, model="claude-opus-5")
    with gateway(provider, store) as url:
        agent.send(url, [call(1, "Bash")])
        agent.messages[-1]["content"][0]["content"] = LOG
        agent.send(url, [call(2, "Bash")])

        def answer(request: Json) -> list[Json]:
            placeholder = request["messages"][2]["content"][0]["content"]
            ref = placeholder.partition(", id ")[2].partition("]")[0]
            is_first = len(request["messages"]) == 5
            return [call(3, "context_tail", id=ref)] if is_first else [said("Read.")]

        provider.answer = answer
        reply = ask(url + PATHS["messages"], agent.body())
    assert b"Read." in reply.body
    assert "399 checked unit" in agent.last[-1]["content"][0]["content"]


@every_api
def test_an_answer_that_the_client_does_not_see_leaves_after_three_replies_in_any_process(
    provider, store, kind
):
    agent = Agent(provider, kind, model="claude-opus-5")
    answers = Rule(min_tokens=200, after_replies=3, preview_chars=0)
    policy = OffloadPolicy(answers=answers, history="editable", cost_plan="none")
    off = Offloader(store, session="gateway")
    off.offload_text(LOG, tool_name="Bash", tool_use_id="toolu_x")
    ref = off.records()[0].ref
    again = f'Ask again: context_read(id="{ref}", start_line=1, end_line=80)]'
    sent = []
    with gateway(provider, store, policy=policy) as url:
        agent.send(url, [call(1, "context_read", id=ref, start_line=1, end_line=80)], [said("Found.")])
        sent.append(_texts(agent.last))
    for _ in range(4):
        with gateway(provider, store, policy=policy) as url:
            agent.send(url, [said("On.")])
            sent.append(_texts(agent.last))

    assert ["79 checked unit" in text for text in sent] == [True, True, True, False, False]
    assert [again in text for text in sent] == [False, False, False, True, True]
    [answer] = [info for info in off.records() if info.is_answer]
    assert answer.quotes == (ref,)


def _texts(messages: list[Json]) -> str:
    """Return the texts of messages without the escapes of JSON in JSON."""
    return json.dumps(messages, ensure_ascii=False).replace("\\", "")


# The SDKs


@both_ways
def test_the_sdk_of_anthropic_sees_one_message(provider, store, streams):
    left = [[THINKING, said("Look."), call(1)], [THINKING, said("Found."), call(2, "Bash", command="ls")]]
    provider.answer = lambda _: left.pop(0)
    given: Any = json.loads(Agent(provider).body())
    del given["stream"]
    given["system"] = [said("Be brief. " * 500) | {"cache_control": {"type": "ephemeral"}}]
    with gateway(provider, store) as url, anthropic.Anthropic(api_key="k", base_url=url) as client:

        def send() -> Any:
            if not streams:
                return client.messages.create(**given)
            with client.messages.stream(**given) as stream:
                return stream.get_final_message()

        reply = send()
        given["messages"] += [{"role": "assistant", "content": reply.content}]
        given["messages"] += results_of("messages", [{"id": "toolu_2"}], "done")
        left.append([said("Done.")])
        last = send()

    assert [block.type for block in reply.content] == ["thinking", "text", "thinking", "text", "tool_use"]
    assert reply.stop_reason == "tool_use"
    assert last.content[0].text == "Done."
    assert last.usage.cache_read_input_tokens > 1024


@both_ways
def test_the_sdk_of_openai_sees_one_message_of_a_chat(provider, store, streams):
    left = [[said("Look."), call(1)], [said("Found."), call(2, "Bash", command="ls")]]
    provider.answer = lambda _: left.pop(0)
    given: Any = json.loads(Agent(provider, "chat").body())
    del given["stream"]
    usage: Any = given.pop("stream_options")
    with gateway(provider, store) as url, openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:

        def send() -> Any:
            if not streams:
                return client.chat.completions.create(**given)
            with client.chat.completions.stream(**given, stream_options=usage) as stream:
                return stream.get_final_completion()

        [choice] = send().choices
        given["messages"] += [choice.message.to_dict()]
        given["messages"] += results_of("chat", [{"id": "toolu_2"}], "done")
        left.append([said("Done.")])
        last = send()

    assert choice.message.content == "Look.\n\nFound."
    assert [one.function.name for one in choice.message.tool_calls] == ["Bash"]
    assert choice.finish_reason == "tool_calls"
    assert last.choices[0].message.content == "Done."
    assert last.usage.prompt_tokens > 100
    assert "toolu_1" in provider.requests[-1][2].decode()


@both_ways
def test_the_sdk_of_openai_sees_one_response(provider, store, streams):
    left = [[THINKING, call(1)], [said("Found."), call(2, "Bash", command="ls")]]
    provider.answer = lambda _: left.pop(0)
    given: Any = json.loads(Agent(provider, "responses").body())
    del given["stream"]
    with gateway(provider, store) as url, openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:

        def send() -> Any:
            if not streams:
                return client.responses.create(**given)
            with client.responses.stream(**given) as stream:
                return stream.get_final_response()

        reply = send()
        given["input"] += [item.to_dict() for item in reply.output]
        given["input"] += results_of("responses", [{"id": "toolu_2"}], "done")
        left.append([said("Done.")])
        last = send()

    assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
    assert last.output_text == "Done."
    assert last.usage.input_tokens > 100
    assert "toolu_1" in provider.requests[-1][2].decode()


class Found(BaseModel):
    found: int


@both_ways
def test_the_sdks_parse_a_document(provider, store, streams):
    left: list[list[Json]] = []
    provider.answer = lambda _: left.pop(0)
    parsed: list[Any] = []
    with (
        gateway(provider, store) as url,
        openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client,
        anthropic.Anthropic(api_key="k", base_url=url) as other,
    ):

        def take(create: Any, stream: Any, end: str, **given: Any) -> Any:
            left[:] = [[said("Look."), call(1)], [said(DOCUMENT)]]
            if not streams:
                return create(**given)
            with stream(**given) as opened:
                return getattr(opened, end)()

        given = json.loads(Agent(provider, "responses").body())
        del given["stream"]
        responses = client.responses
        made = take(responses.parse, responses.stream, "get_final_response", **given, text_format=Found)
        parsed.append(made.output_parsed)
        given = json.loads(Agent(provider, "chat").body())
        del given["stream"], given["stream_options"]
        given["tools"][0]["function"] |= {"strict": True}
        chat = client.chat.completions
        made = take(chat.parse, chat.stream, "get_final_completion", **given, response_format=Found)
        parsed.append(made.choices[0].message.parsed)
        given = json.loads(Agent(provider, "messages").body())
        del given["stream"]
        messages = other.messages
        made = take(messages.parse, messages.stream, "get_final_message", **given, output_format=Found)
        parsed.append(made.parsed_output)
    assert parsed == [Found(found=7)] * 3


@both_ways
def test_the_sdk_of_openai_continues_a_response_by_its_id(provider, store, streams):
    provider.answer = both_calls
    given: Any = json.loads(Agent(provider, "responses").body())
    del given["stream"], given["store"], given["include"]
    with gateway(provider, store) as url, openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:

        def send(**fields: Any) -> Any:
            if not streams:
                return client.responses.create(**given | fields)
            with client.responses.stream(**given | fields) as stream:
                return stream.get_final_response()

        first = send()
        results = results_of("responses", [{"id": item.call_id} for item in first.output], LOG)
        last = send(input=results, previous_response_id=first.id)
    assert last.output_text == "Done."


def test_an_input_that_is_one_text_begins_a_conversation_too(provider, store):
    agent = Agent(provider, "responses")
    with gateway(provider, store) as url:
        left = [[call(1)], [said("One.")]]
        provider.answer = lambda _: left.pop(0)
        body = json.loads(agent.body()) | {"input": "Build it."}
        reply = READERS["responses"](
            ask(url + PATHS["responses"], json.dumps(body).encode()).body, streams=True
        )
        agent.messages += [*reply.messages, {"role": "user", "content": "Go on."}]
        agent.send(url, [said("Two.")])
    assert "toolu_1" in json.dumps(agent.last)
