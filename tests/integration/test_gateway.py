"""A gateway between real clients and servers on the loopback interface: what passes, what leaves."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import brotli
import prepared
import pytest
import zstandard
from command import runner
from formats import exchange
from gateways import (
    HEADERS,
    KEY,
    LOG,
    REPLY,
    TOOLS,
    USAGE,
    ask,
    body_of,
    connection,
    opened,
    providing,
    running,
    status,
    turns,
    wait_for,
)
from kit.conversation import answer_to, from_model, from_user, tool_use
from kit.store import ActingStore, waiting

from offload import (
    OffloadError,
    OffloadPolicy,
    Retention,
    StoreError,
    StoreUnavailableError,
    open_store,
)
from offload.base import json_reader
from offload.gateway import _app, _exchange, _provider, _spans, _threads, _turns, serve
from offload.maintenance.retention import collect, delete
from offload.storage.wrappers import EncryptingStore
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

START = b'data: {"type":"message_start","message":{"usage":%s}}\n\n' % json.dumps(USAGE).encode()
PATH = "/base/v1/messages?beta=true"


@pytest.fixture(scope="module")
def provider():
    with providing() as provider:
        yield provider


@pytest.fixture
def upstream(provider):
    provider.seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provider, "answer", provider.answer)
        yield provider


@pytest.fixture
def off(tmp_path):
    return opened(tmp_path / "store", session="gateway")


@pytest.fixture(scope="module")
def gateway(provider, tmp_path_factory):
    """A gateway for tests that do not care for what others stored."""
    with running(provider.url, opened(tmp_path_factory.mktemp("store"), session="gateway")) as url:
        yield url


@pytest.fixture
def alone(upstream, off):
    with running(upstream.url, off) as url:
        yield url


def results(request):
    """Return the texts of the tool results of a request."""
    return [m["content"][0]["content"] for m in request["messages"] if m["content"][0].get("content")]


# What passes


def test_a_request_with_nothing_to_take_out_arrives_as_the_very_bytes_with_its_headers_in_order(
    gateway, upstream
):
    body = body_of(turns(1, "short"))
    sent = {
        "Accept-Encoding": "gzip, deflate, br, zstd",
        "X-Stainless-Lang": "js",
        "anthropic-beta": "a-1,b-2",
        "Authorization": "Bearer token",
        "Cookie": "a=b; c=d",
        "Connection": "keep-alive, X-Only-Here",
        "X-Only-Here": "1",
        "User-Agent": "claude-cli/2",
    }

    reply = ask(gateway + PATH, body, headers=sent)

    [seen] = upstream.seen
    assert seen.body == body
    assert (seen.method, seen.path) == ("POST", PATH)
    kept = [(name.lower(), value) for name, value in sent.items() if "nly" not in name + value]
    got = [(name.lower(), value) for name, value in seen.headers]
    assert [pair for pair in got if pair[0] not in ("host", "content-length")] == kept
    assert dict(got)["content-length"] == str(len(body))
    assert dict(got)["host"] == upstream.url.removeprefix("http://")
    assert reply.json == REPLY


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models?limit=2", None),
        ("HEAD", "/", None),
        ("POST", "/v1/messages/count_tokens?beta=true", body_of(turns(3))),
        ("POST", "/v1/files/%2e%2e%2Fx", b"\x00\xff\x01"),
        ("POST", "/v1/messages", b"{no json"),
        ("POST", "/v1/messages", b"\xff\xfe"),
        ("POST", "/v1/messages", b""),
        ("POST", "/v1/messages", body_of(turns(3), tools=[])),
        ("POST", "/v1/messages", body_of(turns(3), tools=[{"name": "Bash"}])),
        ("POST", "/v1/messages", body_of("a text")),
        ("POST", "/v1/messages", body_of(turns(3)).replace(b'"model"', b'"messages": [], "model"')),
        ("DELETE", "/v1/files/1", None),
    ],
)
def test_what_the_gateway_does_not_know_passes_byte_for_byte(gateway, upstream, method, path, body):
    assert ask(gateway + path, body, method=method).status == 200

    [seen] = upstream.seen
    assert (seen.method, seen.path, seen.body) == (method, path, body or b"")


@pytest.mark.parametrize(
    ("end", "path", "seen"),
    [
        ("/api/v1", "/v1/messages?beta=true", "/api/v1/messages?beta=true"),
        ("/api/v1/", "/messages", "/api/v1/messages"),
        ("/v1beta/openai", "/v1beta/openai/chat/completions", "/v1beta/openai/chat/completions"),
        ("/v1", "/v1beta/models", "/v1/v1beta/models"),
        ("/proxy", "/v1/messages", "/proxy/v1/messages"),
    ],
)
def test_a_version_that_the_url_and_the_path_have_is_sent_once(upstream, off, end, path, seen):
    with running(upstream.url + end, off) as gateway:
        ask(gateway + path, body_of(turns(1)))
    assert upstream.seen[0].path == seen


def test_a_request_of_more_than_16_mb_passes_unread_with_its_length(gateway, upstream):
    body = body_of(turns(3)) + b" " * _exchange.MOST_BYTES

    ask(gateway + PATH, body)

    [seen] = upstream.seen
    assert seen.body == body
    assert dict(seen.headers)["Content-Length"] == str(len(body))


def test_a_request_in_chunks_is_rewritten_too(gateway, upstream):
    body = body_of(turns(3))
    with closing(connection(gateway)) as sent:
        sent.request("POST", PATH, iter([body[:70_000], body[70_000:]]), HEADERS, encode_chunked=True)
        assert sent.getresponse().status == 200

    assert len(upstream.seen[0].body) < len(body) / 2


@pytest.mark.parametrize("status_code", [400, 429, 529, 302])
def test_an_error_passes_with_its_body_and_headers(gateway, upstream, status_code):
    body = b'{"type": "error",  "error": {"type": "overloaded_error"}}'
    named = [("retry-after", "7"), ("Request-Id", "req_1"), ("Location", "http://127.0.0.1:9/")]
    upstream.answer = lambda provider: provider.say(status_code, body, *named)

    reply = ask(gateway + PATH, body_of(turns(1, "short")))

    assert (reply.status, reply.body) == (status_code, body)
    assert [pair for pair in reply.headers if pair in named] == named
    assert len(upstream.seen) == 1


def test_an_encoded_answer_arrives_as_it_is_and_its_usage_is_read(alone, upstream):
    data = gzip.compress(json.dumps(REPLY).encode())
    upstream.answer = lambda provider: provider.say(200, data, ("Content-Encoding", "gzip"))

    reply = ask(alone + PATH, body_of(turns(1, "short")))

    assert reply.body == data
    assert ("Content-Encoding", "gzip") in reply.headers
    assert status(alone)["cache_read_tokens"] == 5000


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": partial(brotli.compress, quality=5),
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("encoding", ENCODERS)
def test_an_answer_that_is_far_larger_decoded_passes_in_bounded_memory(alone, upstream, encoding):
    data = ENCODERS[encoding](b" " * 2**26 + json.dumps(REPLY).encode())
    upstream.answer = lambda provider: provider.say(200, data, ("Content-Encoding", encoding))

    tracemalloc.start()
    try:
        reply = ask(alone + PATH, body_of(turns(1, "short")))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (reply.status, reply.body) == (200, data)
    assert status(alone)["cache_read_tokens"] == 0
    assert peak < 2**25


def test_a_stream_arrives_part_by_part_while_the_provider_still_writes(alone, upstream):
    arrived = threading.Event()

    def stream(provider):
        provider.start_stream(("X-Request-Id", "1"))
        provider.send_part(START)
        assert arrived.wait(10)
        provider.send_part(b"event: message_stop\ndata: {}\n\n")
        provider.send_part(b"")

    upstream.answer = stream
    with closing(connection(alone)) as sent:
        sent.request("POST", PATH, body_of(turns(1, "short")), HEADERS)
        reply = sent.getresponse()
        part = reply.read1()
        arrived.set()

        assert part == START
        assert reply.read() == b"event: message_stop\ndata: {}\n\n"

    assert status(alone)["cache_read_tokens"] == 5000
    assert status(alone)["cache_written_tokens"] == 700


def test_a_client_that_goes_away_ends_the_request_to_the_provider(alone, upstream):
    is_closed = threading.Event()

    def endless(provider):
        provider.start_stream()
        provider.send_part(START)
        try:
            while True:
                provider.send_part(b"data: more\n\n")
                time.sleep(0.01)
        except OSError:
            is_closed.set()

    upstream.answer = endless
    with closing(connection(alone)) as sent:
        sent.request("POST", PATH, body_of(turns(1, "short")), HEADERS)
        sent.getresponse().read1()
        sent.close()

    assert is_closed.wait(10)
    said = status(alone)
    assert said["open_requests"] == 1  # this one
    assert said["cache_read_tokens"] == 5000


def test_a_provider_that_is_down_is_a_502_in_the_form_of_the_api(upstream, off):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with running(f"http://127.0.0.1:{port}", off) as gateway:
        reply = ask(gateway + PATH, body_of(turns(1, "short")))

    assert reply.status == 502
    assert reply.json["type"] == "error"
    assert reply.json["error"]["type"] == "api_error"
    assert f"no answer from http://127.0.0.1:{port}" in reply.json["error"]["message"]


def test_a_provider_that_says_nothing_is_a_504(upstream, off, monkeypatch):
    monkeypatch.setattr(_provider, "_SILENCE_SECONDS", 0.2)
    done = threading.Event()
    upstream.answer = lambda _: done.wait(10)
    with running(upstream.url, off) as gateway:
        reply = ask(gateway + PATH, body_of(turns(1, "short")))
        done.set()

    assert (reply.status, reply.json["type"]) == (504, "error")


# What leaves


def test_a_result_leaves_once_the_model_has_seen_it_and_every_other_byte_stays(alone, upstream, off):
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = turns(2)
    messages[2]["content"][0] |= mark
    body = body_of(messages, zzz=[1.50, "\u00e9"], metadata={"user_id": "u"})

    ask(alone + PATH, body)

    [seen] = upstream.seen
    [placeholder, unseen] = results(seen.json)
    assert placeholder.startswith("[Offloaded: Bash result")
    # The other result is stored after the answer, for the next request.
    [record] = [info for info in off.records() if info.ref in placeholder]
    assert unseen == f"make 1\n{LOG}"
    assert seen.body == body.replace(json.dumps(f"make 0\n{LOG}").encode(), json.dumps(placeholder).encode())
    assert b"".join(off.content(record.ref)).decode() == f"make 0\n{LOG}"


def test_a_result_that_the_model_has_not_seen_leaves_only_above_the_ceiling(gateway, upstream):
    new = f"{LOG}not seen before\n"
    ask(gateway + PATH, body_of(turns(1, new)))
    ask(gateway + PATH, body_of(turns(1, LOG * 20)))

    assert results(upstream.seen[0].json) == [f"make 0\n{new}"]
    assert results(upstream.seen[1].json)[0].startswith("[Offloaded: ")


def test_the_same_result_gets_the_same_placeholder_in_all_requests_and_after_a_restart(alone, upstream, off):
    for count in range(1, 6):
        ask(alone + PATH, body_of(turns(count)))
    fresh = opened(off.store.url, session="gateway")
    with running(upstream.url, fresh) as again:
        ask(again + PATH, body_of(turns(6)))
    ask(alone + PATH, body_of(turns(6)))

    sent = [results(seen.json) for seen in upstream.seen]
    assert [text.startswith("[Offloaded: ") for text in sent[4]] == [True] * 4 + [False]
    for texts in sent[:5]:
        assert texts[:-1] == sent[4][: len(texts) - 1]
    assert upstream.seen[5].body == upstream.seen[6].body
    assert sent[5][:4] == sent[4][:4]
    assert 5 <= len(off.records()) <= 6


@pytest.mark.parametrize("tools", [TOOLS, [{"name": "Bash"}]])
def test_conversations_of_a_client_that_names_none_are_read_where_they_are_new(
    gateway, upstream, monkeypatch, tools
):
    decoded: list[int] = []
    scan = json_reader.scan_strictly

    def counted(text, at):
        value, end = scan(text, at)
        decoded.append(end - at)
        return value, end

    for module in (json_reader, _spans):
        monkeypatch.setattr(module, "scan_strictly", counted)
    for count in (0, 20, 21):
        decoded.clear()
        for begin in "Build it.", "Test it.", "Ship it.":
            messages = [{"role": "user", "content": begin}, *turns(count)[1:]]
            body = body_of(messages, tools=tools)
            assert ask(gateway + PATH, body).status == 200

    assert sum(decoded) < 2 * len(body)


def test_what_is_stored_ahead_leaves_no_request_before_the_model_has_replied_to_it(alone, upstream, off):
    interrupted = [*turns(3), {"role": "user", "content": "Wait."}]

    ask(alone + PATH, body_of(turns(3)))
    while len(off.records()) < 3:
        time.sleep(0.01)
    ask(alone + PATH, body_of(turns(3)))
    ask(alone + PATH, body_of(interrupted))
    ask(alone + PATH, body_of(turns(4)))

    first, again, waits, later = (seen.json["messages"] for seen in upstream.seen)
    assert again == first
    assert waits == [*first, interrupted[-1]]
    assert later[:6] == first[:6]
    assert later[6]["content"][0]["content"].startswith("[Offloaded: ")


def test_a_conversation_that_was_dropped_from_memory_goes_on_as_before(upstream, off, monkeypatch):
    monkeypatch.setattr(_threads, "_MOST_BYTES", 1)
    other = {**HEADERS, "X-Claude-Code-Session-Id": "other"}
    with running(upstream.url, off) as gateway:
        for count in (2, 3):
            ask(gateway + PATH, body_of(turns(count)))
            ask(gateway + PATH, body_of(turns(count, start=50)), headers=other)

    first, _, second, _ = (seen.json["messages"] for seen in upstream.seen)
    assert second[:4] == first[:4]
    assert [text.startswith("[Offloaded: ") for text in results({"messages": second})] == [True, True, False]


def test_a_fork_that_cites_a_result_of_its_parent_gets_the_same_placeholder(gateway, upstream):
    ask(gateway + PATH, body_of(turns(3)), headers={**HEADERS, "X-Claude-Code-Session-Id": "parent"})
    fork = [*turns(2), {"role": "assistant", "content": "Well."}, {"role": "user", "content": "Go on."}]

    ask(gateway + PATH, body_of(fork), headers={**HEADERS, "X-Claude-Code-Session-Id": "fork"})

    parent, forked = (seen.json["messages"] for seen in upstream.seen)
    assert forked[:5] == parent[:5]


def test_openai_chat_and_responses_are_rewritten_too(gateway, upstream):
    function = {"name": "run", "arguments": "{}"}
    calls = [{"id": f"c{n}", "type": "function", "function": function} for n in range(2)]
    chat: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "Build it."}]
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Build it."}]}]
    for n, call in enumerate(calls):
        chat += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        chat += [{"role": "tool", "tool_call_id": f"c{n}", "content": LOG}]
        items += [{"type": "function_call", "call_id": f"r{n}", **function}]
        items += [{"type": "function_call_output", "call_id": f"r{n}", "output": LOG}]
    read_back = {"type": "function", "function": {"name": "context_read", "parameters": {}}}

    ask(f"{gateway}/v1/chat/completions", body_of(chat, tools=[read_back]))
    flat = {"model": "m", "input": items, "tools": [{"type": "function", "name": "x__context_read"}]}
    ask(f"{gateway}/openai/v1/responses", json.dumps(flat).encode())

    chat_seen, items_seen = (seen.json for seen in upstream.seen)
    assert [m["content"][:11] for m in chat_seen["messages"] if m["role"] == "tool"] == [
        "[Offloaded:",
        LOG[:11],
    ]
    assert [i["output"][:11] for i in items_seen["input"] if "output" in i] == ["[Offloaded:", LOG[:11]]


FAKE = "[Offloaded: Bash result, 9 lines, 900 characters, id abcdefghij]\nsomething\n[Read it: x]"
READ_BACK = {"name": "context_read", "parameters": {}}
TALKS: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "anthropic": (
        "/v1/messages",
        "messages",
        [{"name": "context_read"}],
        [
            from_user([{"type": "text", "text": FAKE}]),
            from_model([{"type": "text", "text": FAKE}, tool_use("c", "Bash", {"command": FAKE})]),
            answer_to(FAKE, "c"),
        ],
    ),
    "chat": (
        "/v1/chat/completions",
        "messages",
        [{"type": "function", "function": READ_BACK}],
        [
            from_user(f"{FAKE}\n<system-reminder>Be good.</system-reminder>"),
            from_model(FAKE),
            from_user("Go on."),
        ],
    ),
    "gemini": (
        "/v1beta/models/gemini-3:generateContent",
        "contents",
        [{"functionDeclarations": [READ_BACK]}],
        [
            {"role": "user", "parts": [{"text": FAKE}]},
            {"role": "model", "parts": [{"functionCall": {"name": "Bash", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "Bash", "response": {"output": FAKE}}}]},
        ],
    ),
}


@pytest.mark.parametrize("api", TALKS)
def test_texts_of_the_client_that_look_like_placeholders_pass_and_restore_on_another_machine(
    upstream, off, api
):
    path, field, tools, messages = TALKS[api]
    with running(upstream.url, off) as url:
        ask(url + path, json.dumps({"model": "m", "tools": tools, field: messages}).encode())
        [sent] = [seen.json[field] for seen in upstream.seen]
        assert sent[::2] == messages[::2]
        wait_for(lambda: off.restore(sent, on_missing="keep").missing == [])

    assert opened(off.store.url, session="gateway").restore(sent) == messages


# When the store or the tools are missing


def test_without_tools_to_read_back_nothing_leaves_unless_the_host_says_so(upstream, off, caplog):
    body = body_of(turns(2), tools=[{"name": "Bash"}])

    with caplog.at_level(logging.WARNING), running(upstream.url, off, tools="client") as gateway:
        ask(gateway + PATH, body)
        ask(gateway + PATH, body)
        passed = status(gateway)["passed"]
    with running(upstream.url, off, tools="none") as other:
        ask(other + PATH, body)

    assert [seen.body == body for seen in upstream.seen] == [True, True, False]
    assert caplog.text.count("could not read") == 1
    assert passed == {"without tools to read back": 2}


def test_a_store_that_fails_lets_every_request_pass(upstream, off, tmp_path):
    with running(
        upstream.url, opened(FaultyStore(off.store, verb="put", is_lasting=True), session="s")
    ) as gateway:
        body = body_of(turns(2))
        ask(gateway + PATH, body)
        said = status(gateway)

    assert upstream.seen[0].body == body
    assert said["failures"] == 1
    assert said["passed"] == {"the store failed": 1}
    assert "the store failed" in said["warnings"][0]


def test_a_store_that_hangs_delays_a_request_by_the_deadline_and_the_next_not_at_all(
    upstream, off, monkeypatch
):
    monkeypatch.setattr(_turns, "DEADLINE", 0.2)
    monkeypatch.setattr(_turns, "BOUND_DEADLINE", 0.2)
    released = threading.Event()
    slow = opened(ActingStore(off.store, waiting(released, "put")), session="s")
    body = body_of(turns(2))
    with running(upstream.url, slow) as gateway:
        ask(gateway + PATH, body)
        ask(gateway + PATH, body)
        said = status(gateway)
        released.set()
        monkeypatch.undo()
        while upstream.seen[-1].body == body:
            ask(gateway + PATH, body)

    assert [seen.body == body for seen in upstream.seen[:2]] == [True, True]
    assert said["late"] == 1
    assert said["passed"] == {"the store is slow": 2}


class HeldStore(ActingStore):
    """A store whose operations of some verbs wait while it is held, or fail."""

    def __init__(self, inner):
        super().__init__(inner, self._wait)
        self.verbs, self.error = (), None
        self.is_free, self.is_asked = threading.Event(), threading.Event()

    def hold(self, *verbs, error=None):
        self.verbs, self.error = verbs, error
        self.is_free.clear()
        self.is_asked.clear()

    def release(self):
        self.verbs, self.error = (), None
        self.is_free.set()

    def _wait(self, verb, _key):
        if verb in self.verbs:
            self.is_asked.set()
            if self.error is not None:
                raise self.error("the store is held")
            self.is_free.wait(20)


ALL_VERBS = ("put", "get", "keys")


@pytest.mark.parametrize("is_edited", [False, True], ids=["grown", "edited"])
@pytest.mark.parametrize(
    ("verbs", "error"), [*product([("put",), ("get",), ("keys",), ALL_VERBS], [None, StoreError])]
)
def test_what_was_sent_stays_while_the_store_is_held_and_the_new_leaves_once_it_is_stored(
    upstream, monkeypatch, verbs, error, is_edited
):
    store = HeldStore(MemoryStore())
    with running(upstream.url, opened(store, session="s")) as gateway:
        for count in range(1, 6):
            ask(gateway + PATH, body_of(turns(count)))
        before = results(upstream.seen[-1].json)
        messages = turns(6)
        if is_edited:
            messages[1]["content"][0]["input"]["command"] = "make all"
        store.hold(*verbs, error=error)
        monkeypatch.setattr(_turns, "DEADLINE", 0.2)
        for _ in range(2):
            ask(gateway + PATH, body_of(messages))
        monkeypatch.undo()
        store.release()
        wait_for(lambda: left(repeated(upstream, gateway, messages)) == 5)

    held = [results(seen.json)[:4] for seen in upstream.seen[5:7]]
    assert left(upstream.seen[4]) == 4
    assert held == [before[:4]] * 2
    assert results(upstream.seen[-1].json)[:4] == before[:4]


def repeated(upstream, gateway, messages):
    """Send a request again; return how it arrived."""
    ask(gateway + PATH, body_of(messages))
    return upstream.seen[-1]


def left(seen):
    """Return how many results of a request are placeholders."""
    return sum(text.startswith("[Offloaded: ") for text in results(seen.json))


@pytest.mark.parametrize("verb", ["get", "keys"])
def test_a_request_after_a_restart_waits_for_the_store_to_say_what_was_sent(upstream, off, monkeypatch, verb):
    before = sent_by(upstream, off, 5)
    store = HeldStore(off.store)
    monkeypatch.setattr(_turns, "DEADLINE", 0.01)
    with running(upstream.url, opened(store, session="s")) as gateway:
        store.hold(verb)
        client = threading.Thread(target=ask, args=(gateway + PATH, body_of(turns(6))))
        client.start()
        assert store.is_asked.wait(20)
        assert upstream.seen == []
        store.release()
        client.join()

    assert results(upstream.seen[0].json)[:4] == before


def sent_by(upstream, off, count):
    """Let a gateway pass the requests of a conversation; return the placeholders in the last one."""
    with running(upstream.url, opened(off.store, session="s")) as gateway:
        for number in range(1, count + 1):
            ask(gateway + PATH, body_of(turns(number)))
    before = results(upstream.seen[-1].json)[:-1]
    assert left(upstream.seen[-1]) == len(before)
    upstream.seen.clear()
    return before


@pytest.mark.parametrize("error", [None, StoreUnavailableError])
@pytest.mark.parametrize("verb", ["get", "keys"])
def test_a_store_that_does_not_say_in_time_what_was_sent_makes_the_client_retry(
    upstream, off, monkeypatch, verb, error
):
    before = sent_by(upstream, off, 5)
    store = HeldStore(off.store)
    monkeypatch.setattr(_turns, "DEADLINE", 0.01)
    with running(upstream.url, opened(store, session="s"), max_wait=0.2) as gateway:
        store.hold(verb, error=error)
        refused = ask(gateway + PATH, body_of(turns(6)))
        fresh = ask(gateway + PATH, body_of(turns(0)))
        said = status(gateway)
        store.release()
        monkeypatch.setattr(_turns, "DEADLINE", 60)
        wait_for(lambda: ask(gateway + PATH, body_of(turns(6))).status == 200)

    assert refused.status == 503
    assert dict(refused.headers)["retry-after"] == "5"
    assert "what was sent before" in refused.json["error"]["message"]
    assert fresh.status == 200
    assert said["passed"]["the store did not say in time what was sent before"] == 1
    assert results(upstream.seen[-1].json)[:4] == before


def test_a_new_result_that_hangs_after_a_restart_costs_its_own_offload_alone(upstream, monkeypatch):
    off = opened(MemoryStore())
    before = sent_by(upstream, off, 5)
    store = HeldStore(off.store)
    monkeypatch.setattr(_turns, "BOUND_DEADLINE", 0.2)
    with running(upstream.url, opened(store, session="s")) as gateway:
        store.hold("put")
        ask(gateway + PATH, body_of(turns(7)))
        store.release()

    assert results(upstream.seen[0].json)[:4] == before
    assert left(upstream.seen[0]) == 5


def agent_of(upstream, model, *, is_hiding):
    """Return the messages of a client that grow with each reply to `turn`, and `turn` itself.

    The model calls a tool of the gateway before each call of the client's, if it `is_hiding`.
    """
    messages, fields = turns(0), {"model": model, "tools": TOOLS if not is_hiding else TOOLS[:1]}
    answers: list[Any] = []

    def answer(provider):
        provider.say(200, json.dumps(answers.pop(0)).encode())

    def reply(name, **given):
        use = {"type": "tool_use", "id": f"{name}_{len(messages)}", "name": name, "input": given}
        thinking = {"type": "thinking", "thinking": "", "signature": f"{name}{len(messages)}"}
        return REPLY | {"id": "m", "model": model, "content": [thinking, use], "stop_reason": "tool_use"}

    def turn(gateway):
        own = [reply("context_list")] if is_hiding else []
        answers.extend([*own, reply("Bash", command="make")])
        got = ask(gateway + PATH, body_of(messages, **fields)).json
        use = got["content"][-1]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"{len(messages)}\n{LOG}"}
        messages.append({"role": "assistant", "content": got["content"]})
        messages.append({"role": "user", "content": [result]})

    upstream.answer = answer
    return turn


@pytest.mark.parametrize(
    "row",
    [
        (5, "claude-opus-5", True, False),
        (7, "claude-opus-5-5", True, True),
        (30, "claude-opus-5-5", True, False),
        (31, "claude-opus-5", True, True),
        (50, "claude-opus-5", False, False),
        (50, "claude-opus-5-5", False, True),
    ],
)
def test_the_first_request_after_a_restart_takes_six_operations_beside_the_listing_at_any_length(
    upstream, tmp_path, row
):
    count, model, is_hiding, journal = row

    def fresh():
        return opened(store, session="s", journal=journal)

    store = ActingStore(open_store(tmp_path / "store"))
    turn = agent_of(upstream, model, is_hiding=is_hiding)
    with running(upstream.url, fresh()) as gateway:
        for _ in range(count):
            turn(gateway)
    seen: list[list[str]] = []
    answer = upstream.answer

    def note(provider):
        seen.append([" ".join(asked) for asked in store.asked])
        answer(provider)

    upstream.answer = note
    upstream.seen.clear()
    store.asked.clear()
    with running(upstream.url, fresh()) as gateway:
        turn(gateway)

    asked = seen[0]
    assert len(asked) - asked.count("keys r/s/") <= 6
    assert asked.count("keys r/s/") == 1
    body = upstream.seen[0].body
    assert body.count(b"[Offloaded: ") >= count - 1
    assert body.count(b'"context_list_') == (2 * count if is_hiding else 0)


def test_a_write_that_hangs_on_a_local_disk_after_a_restart_takes_nothing_back(
    upstream, tmp_path, monkeypatch
):
    off = opened(tmp_path / "store")
    before = sent_by(upstream, off, 3)
    store = HeldStore(off.store)
    monkeypatch.setattr(_turns, "BOUND_DEADLINE", 0.2)
    with running(upstream.url, opened(store, session="s"), max_wait=1) as gateway:
        store.hold("put")
        got = ask(gateway + PATH, body_of(turns(4)))
        store.release()

    assert got.status == 200
    assert results(upstream.seen[0].json)[:2] == before


@pytest.mark.parametrize("road", ["a record", "the session"])
def test_no_content_of_records_that_gc_deletes_is_left_in_what_was_sent(upstream, tmp_path, road):
    off = opened(tmp_path / "store", session="s", journal=False)
    turn = agent_of(upstream, "claude-opus-5", is_hiding=False)
    with running(upstream.url, off) as gateway:
        for _ in range(6):
            turn(gateway)
    objects = {found.key: off.store.get(found.key) for found in off.store.keys("i/s/sent~")}
    (held,) = (zstandard.ZstdDecompressor().decompress(data) for data in objects.values())
    gone = off.records()[0]
    preview = LOG.splitlines()[0].encode()
    assert gone.ref.encode() in held
    assert preview in held

    delete(off.store, "s", refs=[gone.ref] if road == "a record" else None)
    collect(off.store, Retention(grace=0))

    assert [*off.store.keys("i/s/sent~")] == []


@pytest.mark.parametrize("damage", [b"", b"text", "cut", "flipped", "of another version"])
def test_a_damaged_object_of_what_was_sent_is_as_if_it_were_not_there(upstream, tmp_path, damage):
    off = opened(tmp_path / "store", session="s")
    before = sent_by(upstream, off, 5)
    [stored] = off.store.keys("i/s/sent~")
    data = off.store.get(stored.key)
    other = zstandard.compress(zstandard.decompress(data).replace(b"\xa7version\x01", b"\xa7version\x02"))
    made = {
        "cut": data[:-9],
        "flipped": data[:40] + bytes([data[40] ^ 1]) + data[41:],
        "of another version": other,
    }
    off.store.put(stored.key, made.get(damage, damage), overwrite=True)

    with running(upstream.url, opened(off.store, session="s")) as gateway:
        ask(gateway + PATH, body_of(turns(6)))

    assert results(upstream.seen[0].json)[:4] == before


@pytest.mark.parametrize("is_sealed", [False, True])
def test_answered_calls_are_found_though_the_object_of_what_was_sent_is_damaged(upstream, is_sealed):
    medium = MemoryStore()
    store = EncryptingStore(medium, key=bytes(32)) if is_sealed else medium
    turn = agent_of(upstream, "claude-opus-5", is_hiding=True)
    with running(upstream.url, opened(store, session="s")) as gateway:
        for _ in range(5):
            turn(gateway)
    [key] = [stored.key for stored in medium.keys("i/") if "sent" in stored.key]
    data = medium.get(key)
    medium.put(key, data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], overwrite=True)
    with running(upstream.url, opened(store, session="s")) as gateway:
        turn(gateway)

    assert upstream.seen[-1].body.count(b'"context_list_') == 2 * 6
    assert upstream.seen[-1].body.count(b"[Offloaded: ") >= 4


class Talk(NamedTuple):
    """Requests of one conversation of an API whose provider keeps nothing, or whose replies are single."""

    path: str
    field: str
    tool: Any
    fields: dict[str, Any]

    def reply(self, name):
        """Return a reply of the provider that calls a tool."""
        call = {"name": name, "arguments": "{}"}
        if self.field == "input":
            told = [{"type": "function_call", "id": f"fc_{name}", "call_id": name, **call}]
            return {"id": "resp_1", "object": "response", "status": "completed", "output": told}
        told = [{"id": name, "type": "function", "function": call}]
        message = {"role": "assistant", "content": "ok", "tool_calls": told}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    def turn(self, reply, text):
        """Return what the client repeats of a reply, and its result."""
        if self.field == "input":
            return [*reply["output"], {"type": "function_call_output", "call_id": "Bash", "output": text}]
        told = reply["choices"][0]["message"]
        return [told, {"role": "tool", "tool_call_id": "Bash", "content": text}]

    def ask(self, gateway, messages, **fields):
        given = {"model": "gpt-5", "tools": [self.tool], self.field: messages, **self.fields, **fields}
        if fields.get("store", 0) is None:
            del given["store"]
        return ask(gateway + self.path, json.dumps(given).encode()).json


RESPONSES = Talk("/v1/responses", "input", {"type": "function", "name": "Bash"}, {"store": False})
CHAT = Talk("/v1/chat/completions", "messages", {"type": "function", "function": {"name": "Bash"}}, {})


@pytest.mark.parametrize("restarts", [False, True], ids=["in one process", "after a restart"])
@pytest.mark.parametrize(
    ("talk", "other"), [(RESPONSES, {"store": None}), (RESPONSES, {"store": True}), (CHAT, {"n": 2})]
)
def test_a_request_that_cannot_get_the_tools_of_its_conversation_has_what_was_sent(
    upstream, restarts, talk, other
):
    answers = [talk.reply("context_list"), *[talk.reply("Bash")] * 9]
    upstream.answer = lambda provider: provider.say(200, json.dumps(answers.pop(0)).encode())
    messages, store = [{"role": "user", "content": "go"}], MemoryStore()

    def grow(gateway, **fields):
        messages.extend(talk.turn(talk.ask(gateway, messages, **fields), f"{len(messages)}\n{LOG}"))

    with running(upstream.url, opened(store, session="s")) as gateway:
        for fields in [{}] * 5 + [other] * (not restarts):
            grow(gateway, **fields)
    with running(upstream.url, opened(store, session="s")) as gateway:
        for fields in [other] * restarts + [{}]:
            grow(gateway, **fields)

    sent = [[*map(json.dumps, seen.json[talk.field])] for seen in upstream.seen]
    before, without, after = sent[-3:]
    assert sum("[Offloaded: " in text for text in before) == 3
    assert any("context_list" in text for text in before)
    assert without[: len(before) - 1] == after[: len(before) - 1] == before[:-1]
    assert ["context_read" in json.dumps(seen.json["tools"]) for seen in upstream.seen[-2:]] == [False, True]


# Records that another process deletes


def unlink(store):
    """Delete the files of all records."""
    for path in Path(store).rglob("*.zst"):
        path.unlink()


def remove(store):
    """Delete all records by a command, which leaves tombstones."""
    arguments = ["--session", "gateway", "--store", store, "--yes"]
    assert prepared.run(prepared.COMMAND, "rm", *arguments).returncode == 0


@pytest.mark.parametrize(
    ("delete", "model"),
    [(unlink, "claude-opus-5"), (unlink, "claude-opus-5-5"), (remove, "claude-opus-5-5")],
)
def test_records_that_are_deleted_beneath_a_live_gateway_are_there_again_with_the_next_answer(
    upstream, tmp_path, delete, model
):
    store = str(tmp_path / "store")
    off = opened(store, session="gateway")
    messages = turns(4, LOG * 12)
    for n, message in enumerate(messages[1::2]):
        message["content"].insert(0, {"type": "thinking", "thinking": "", "signature": f"s{n}"})
    with running(upstream.url, off) as gateway:
        for end in (3, 5, 7, 9):
            ask(gateway + PATH, body_of(messages[:end], model=model))
        sent = results(upstream.seen[3].json)
        delete(store)
        ask(gateway + PATH, body_of(messages, model=model))
        fresh = opened(store, session="gateway")
        assert fresh.restore(upstream.seen[4].json["messages"]) == messages
        ask(gateway + PATH, body_of(messages, model=model))

    assert [results(seen.json) for seen in upstream.seen[4:]] == [sent, sent]
    assert sum(text.startswith("[Offloaded: ") for text in sent) >= 3


def test_an_answer_passes_while_the_look_for_its_records_hangs_or_fails(upstream, off, monkeypatch):
    monkeypatch.setattr(_turns, "DEADLINE", 0.2)
    released, store = threading.Event(), ActingStore(off.store)

    def hang_and_fail(verb, _key):
        if verb == "keys":
            released.wait(20)
            raise RuntimeError("out of order")

    messages = turns(5)
    with running(upstream.url, opened(store, session="s")) as gateway:
        ask(gateway + PATH, body_of(messages[:9]))
        store.act = hang_and_fail
        answers = [ask(gateway + PATH, body_of(messages[:9])) for _ in range(3)]
        released.set()
        while not status(gateway)["failures"]:
            time.sleep(0.01)
        answers.append(ask(gateway + PATH, body_of(messages)))

    assert [(answer.status, answer.json) for answer in answers] == [(200, REPLY)] * 4


# What is refused, and what is never shown


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_request_for_another_host_is_refused(gateway, upstream, host):
    reply = ask(gateway + PATH, b"{}", headers={"Host": host})

    assert (reply.status, upstream.seen) == (421, [])


FOREIGN = [
    {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", [PATH, "/v1/models", "/offload/status"])
def test_what_a_page_of_another_site_makes_a_browser_send_reaches_no_provider_and_no_store(
    alone, upstream, off, headers, path
):
    reply = ask(alone + path, body_of(turns(3)), headers={**HEADERS, **headers})

    assert (reply.status, upstream.seen, off.records()) == (403, [], [])
    assert "another site" in reply.json["error"]["message"]


def test_a_page_of_the_gateway_itself_and_programs_that_fetch_are_let_in(gateway, upstream):
    own = [{"Origin": gateway, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Mode": "cors"}]
    for headers in own:
        assert ask(gateway + PATH, body_of(turns(1)), headers={**HEADERS, **headers}).status == 200
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    assert ask(f"{gateway}/offload/status", method="GET", headers=typed).status == 200


def test_requests_are_read_by_the_same_parser_whichever_are_installed(upstream, off):
    gateway = _app.Gateway(upstream.url, off)
    opened, server, _ = _app._server(gateway, upstream.url, "127.0.0.1", 0)
    opened.close()

    assert server.config.http == "h11"


@pytest.mark.parametrize("target", ["http://evil.example/v1/messages", "*"])
def test_a_target_that_is_no_path_is_refused(gateway, upstream, target):
    with closing(connection(gateway)) as sent:
        sent.request("POST", target, b"{}", {**HEADERS, "Host": gateway.removeprefix("http://")})
        assert sent.getresponse().status == 400

    assert upstream.seen == []


def test_a_websocket_is_refused_plainly(gateway, upstream):
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}

    reply = ask(f"{gateway}/v1/responses", method="GET", headers={**HEADERS, **headers})

    assert (reply.status, upstream.seen) == (426, [])
    assert "WebSockets are not supported" in reply.json["error"]["message"]


def test_no_key_is_stored_logged_or_shown(upstream, off, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with running(upstream.url, off) as gateway:
        ask(f"{gateway}{PATH}&key={KEY}", body_of(turns(2)))
        upstream.answer = lambda provider: provider.connection.shutdown(socket.SHUT_RDWR)
        failed = ask(f"{gateway}{PATH}&key={KEY}", body_of(turns(2)))
        upstream.answer = lambda provider: provider.say(200, b"", ("Content-Length", "x"))
        odd = ask(f"{gateway}{PATH}&key={KEY}", body_of(turns(2)))
        said = json.dumps(status(gateway))

    assert dict(upstream.seen[0].headers)["x-api-key"] == KEY
    stored = b"".join(path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file())
    assert b"gateway" in stored or list(off.records())
    for text in (stored.decode("latin-1"), caplog.text, failed.body.decode(), odd.body.decode(), said):
        assert KEY not in text


def test_the_log_has_a_line_for_each_request(alone, upstream, caplog):
    with caplog.at_level(logging.INFO, "offload.gateway"):
        ask(alone + PATH, body_of(turns(2)))
        ask(alone + PATH, body_of(turns(0), tools=[]))
        ask(f"{alone}/v1/models?key={KEY}", method="GET")
        # A client has the answer before the line is written.
        while len(caplog.records) < 3:
            time.sleep(0.01)

    lines = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        r"POST /v1/messages 200; \d,\d+ tokens removed in \d+ ms; cache read 5,000, written 700",
        lines[0],
    )
    assert lines[1].startswith("POST /v1/messages 200; unchanged, without tools or messages in ")
    assert lines[2] == "GET request 200"


def test_items_of_no_known_form_pass_and_are_said_once(upstream, off):
    items = [{"role": "user", "content": "go"}]
    tools = [{"type": "function", "name": "context_read"}]
    with running(upstream.url, off) as url:
        for number in range(4):
            items += exchange("openai-responses", "Bash", {}, f"{number}\n{LOG}", f"c{number}")
            items.append({"type": f"note_of_tomorrow_{number}", "text": "n"})
            request = {"model": "gpt-5", "input": items, "tools": tools}
            ask(f"{url}/v1/responses", json.dumps(request).encode())
        said = ask(f"{url}/offload/status", method="GET").json["warnings"]
    sent = upstream.seen[-1].json["input"]
    assert sent[3::3] == items[3::3]
    assert json.dumps(sent).count("[Offloaded:") == 3
    assert [text for text in said if "known form" in text or "malformed" in text] == [_threads.UNREAD]


PRIVATE = "Tr0ub4dor"


def odd_requests() -> list[tuple[str, bytes]]:
    """Return requests that name a secret where a client may put anything, most of them malformed."""
    use = {"type": "tool_use", "id": "t", "name": f"tool_{PRIVATE}", "input": {}}
    too_large = [*turns(1), {"role": "user", "content": PRIVATE + LOG * 40}]
    odd = [{"role": {PRIVATE: 1}}, {"role": "user", "content": [{"type": [PRIVATE]}]}, PRIVATE, {PRIVATE: 1}]
    called = [{"role": "assistant", "content": [use]}, {"role": "user", "content": []}]
    return [
        *((PATH, body_of([*turns(2), message])) for message in odd),
        (PATH, body_of([*turns(1), *called, *too_large])),
        (PATH, body_of(turns(2), tools=[{"name": PRIVATE}])),
        (PATH, body_of(turns(2)).replace(b'"max_tokens"', f'"{PRIVATE}": 1, "{PRIVATE}"'.encode())),
        (f"/v1/files/{PRIVATE}?{PRIVATE}=1", b"{}"),
        (f"/{PRIVATE}/v1/messages", body_of(turns(2))),
    ]


@pytest.mark.parametrize("is_up", [True, False])
def test_neither_the_log_nor_the_status_quotes_a_request_its_path_or_a_header(upstream, off, caplog, is_up):
    if not is_up:
        upstream.answer = lambda provider: provider.connection.shutdown(socket.SHUT_RDWR)
    strict = off.with_options(policy=OffloadPolicy(exclude_tools=("tool_*",)))
    with caplog.at_level(logging.DEBUG, "offload"), running(upstream.url, strict) as gateway:
        for path, body in odd_requests():
            ask(gateway + path, body, headers={**HEADERS, "X-Note": PRIVATE})
        ask(f"{gateway}/{PRIVATE}", method=PRIVATE, headers={})
        said = json.dumps(status(gateway))

    assert PRIVATE not in said
    assert PRIVATE not in caplog.text
    assert len(caplog.records) > 5


ODD_UPSTREAMS = ["https://x/v1/messages/", "https://x:99999", "https://[x"]


@pytest.mark.parametrize(
    "url", ["api.example", "ftp://x", "https://u:p@x", "https://x/?key=1", "https://", *ODD_UPSTREAMS]
)
def test_an_upstream_that_is_no_server_is_refused(off, url):
    with pytest.raises(OffloadError, match="upstream must"), running(url, off):
        pass


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_gateway_is_not_its_own_upstream(off, host):
    with pytest.raises(OffloadError, match="is this gateway"):
        serve(f"http://{host}:8790", off, port=8790, announce=pytest.fail)


def test_a_store_that_the_tools_of_the_client_cannot_reach_is_refused(capsys, monkeypatch):
    arguments = ["--upstream", "http://127.0.0.1:9", "--store", "memory://x", "--tools", "client"]
    done = runner(capsys, monkeypatch)("gateway", *arguments)

    assert done.returncode == 2
    assert "run in another process, which cannot read memory://x; name a folder" in done.stderr


def test_the_command_serves_until_it_is_killed_and_goes_on_after_a_kill(upstream, tmp_path):
    def start():
        options = ["--upstream", upstream.url, "--port", "0", "--name", "gw.example.com"]
        environ = {**os.environ, "OFFLOAD_STORE": str(tmp_path / "store"), "HTTP_PROXY": "http://127.0.0.1:9"}
        return prepared.start(prepared.COMMAND, "gateway", *options, environ=environ)

    for _ in range(2):
        with start() as process:
            line = process.stdout.readline()
            ask(line.split()[2] + PATH, body_of(turns(3)), headers={**HEADERS, "Host": "gw.example.com"})
            process.kill()

    first, second = upstream.seen
    assert first.body == second.body
    assert len(opened(tmp_path / "store", session="gateway").records()) >= 2
