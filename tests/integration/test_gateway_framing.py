"""Where messages end and how they are encoded: both connections of the gateway agree on every byte."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import socket
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import brotli
import pytest
import zstandard
from gateways import HEADERS, LOG, REPLY, ask, body_of, opened, providing, running, turns, wired, written

from offload.gateway import _events, _exchange

PATHS = ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/files"]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
OF_CONNECTION = {
    "Connection": "close, X-Named, Content-Length, Host",
    "X-Named": "1",
    "Keep-Alive": "timeout=5",
    "Proxy-Authorization": "Basic x",
    "Proxy-Connection": "keep-alive",
    "TE": "trailers",
    "Trailer": "X-Behind",
    "Upgrade": "h2c",
    "HTTP2-Settings": "x",
    "Expect": "100-continue",
}
NAMES = {name.lower().encode() for name in OF_CONNECTION}
TOOLS = [{"name": "run", "input_schema": {"type": "object"}}]
ASKED = body_of([{"role": "user", "content": "Go."}], tools=TOOLS)


@pytest.fixture
def off(tmp_path):
    return opened(tmp_path / "store", session="gateway")


def request(*headers: str, path: str = "/v1/files", body: bytes = b"", version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: 127.0.0.1", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def names_in(head: bytes) -> list[bytes]:
    return [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-1]]


def failures(url: str) -> int:
    count: int = ask(f"{url}/offload/status", method="GET").json["failures"]
    return count


CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
IN_DOUBT = {
    "both": request("Transfer-Encoding: chunked", "Content-Length: 400", body=CHUNKS),
    "both, the other way round": request("Content-Length: 5", "Transfer-Encoding: chunked", body=CHUNKS),
    "both to an API": request("Transfer-Encoding: chunked", "Content-Length: 4", path=PATHS[0], body=CHUNKS),
    "two sizes": request("Content-Length: 5", "Content-Length: 6", body=b"hello!"),
    "no number": request("Content-Length: +5", body=b"hello"),
    "another coding": request("Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "chunks in 1.0": request("Transfer-Encoding: chunked", body=CHUNKS, version="1.0"),
}


@pytest.mark.parametrize("doubtful", IN_DOUBT.values(), ids=IN_DOUBT)
def test_a_request_whose_end_is_in_doubt_is_refused_and_ends_its_connection(off, doubtful):
    with wired(OK) as wire, running(wire.url, off) as url:
        behind = request("Connection: close", "Content-Length: 3", body=b"abc")
        refused = written(url, doubtful + behind)
        answer = written(url, behind)

    assert refused.startswith(b"HTTP/1.1 400 ")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert [body for _, body in wire.requests] == [b"abc"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_chunked", [True, False])
def test_the_headers_of_framing_are_made_anew_on_both_connections(off, path, is_chunked):
    size = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(ASKED)}"
    body = b"%x\r\n%s\r\n0\r\nX-Behind: 1\r\n\r\n" % (len(ASKED), ASKED) if is_chunked else ASKED
    fields = [f"{name}: {value}" for name, value in OF_CONNECTION.items()]
    answered = OK.replace(b"\r\n\r\n", b"\r\n" + "\r\n".join(fields).encode() + b"\r\n\r\n")
    with wired(answered) as wire, running(wire.url, off) as url:
        answer = written(url, request(*fields, size, path=path, body=body))

    [(head, _)] = wire.requests
    assert not NAMES & {*names_in(head)}
    assert names_in(head).count(b"host") == 1
    framing = [name for name in names_in(head) if name in (b"content-length", b"transfer-encoding")]
    assert framing == [b"transfer-encoding" if is_chunked and path == "/v1/files" else b"content-length"]
    came, _, rest = answer.rpartition(b"\r\n\r\n")
    kept = names_in(came.rpartition(b"HTTP/1.1 ")[2] + b"\r\n")
    assert [name for name in kept if name in NAMES | {b"content-length"}] == [
        b"content-length",
        b"connection",
    ]
    assert rest == b"{}"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", ["Content-Length: 5000", "Transfer-Encoding: chunked"])
def test_a_request_that_ends_before_its_end_reaches_no_later_request(off, path, size):
    with wired(OK) as wire, running(wire.url, off) as url:
        assert written(url, request(size, path=path, body=b"5\r\nhello\r\n"), is_cut=True) == b""
        written(url, request("Connection: close", "Content-Length: 3", body=b"abc"))

    assert [body for _, body in wire.requests][-1:] == [b"abc"]
    assert sum(body == b"abc" for _, body in wire.requests) == 1


@pytest.mark.parametrize("path", ["/v1/files", "/v1/messages"])
def test_an_answer_that_is_longer_than_announced_ends_its_connection(off, path):
    poison = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    with wired(OK + poison, OK) as wire, running(wire.url, off) as url:
        bodies = [ask(url + path, ASKED).body for _ in range(2)]

    assert bodies == [b"{}", b"{}"]
    assert len(wire.connections) == 2


NO_ANSWERS = {
    "status 999": b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\n{}",
    "status 0": b"HTTP/1.1 000 Odd\r\nContent-Length: 2\r\n\r\n{}",
    "status 1000": b"HTTP/1.1 1000 Odd\r\nContent-Length: 2\r\n\r\n{}",
    "status 101": b"HTTP/1.1 101 Odd\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "no status line": b"hello\r\n\r\n",
    "another version": b"HTTP/2 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "no name": OK.replace(b"Type:", b"Type (or so):"),
    "no value": OK.replace(b"json", b"js\x0bon"),
    "two sizes": OK.replace(b": 2", b": 2\r\nContent-Length: 3"),
    "size and chunks": OK.replace(b": 2", b": 2\r\nTransfer-Encoding: chunked"),
    "coding without chunks": OK.replace(b"Content-Length: 2", b"Transfer-Encoding: gzip"),
    "nothing": None,
}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_an_answer_that_is_none_is_an_error_of_the_api_and_a_failure(off, path, answer):
    with wired(answer) as wire, running(wire.url, off) as url:
        reply = ask(url + path, ASKED)
        assert failures(url) == 1

    assert (reply.status, reply.json["error"]["type"]) == (502, "api_error")
    assert f"no answer from {wire.url}: " in reply.json["error"]["message"]


def test_an_interim_answer_is_not_taken_for_the_answer(off):
    with wired(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK) as wire, running(wire.url, off) as url:
        reply = ask(f"{url}/v1/messages", ASKED)
    assert (reply.status, reply.body) == (200, b"{}")


# Headers about a body

PACK = partial(gzip.compress, mtime=0)
DIGEST = hashlib.md5(ASKED, usedforsecurity=False).hexdigest()
OF_BODY = {
    "Content-MD5": DIGEST,
    "Digest": f"md5={DIGEST}",
    "Content-Digest": f"md5=:{DIGEST}:",
    "Repr-Digest": f"md5=:{DIGEST}:",
    "X-Amz-Content-Sha256": DIGEST,
    "X-Amz-Checksum-Crc32": DIGEST,
    "Signature": "sig1=:x:",
    "Signature-Input": 'sig1=("content-digest")',
    "ETag": f'"{DIGEST}"',
}
OF_ONE = {"X-Request-Id": "r", "X-Stainless-Retry-Count": "1", "If-Match": "x", "X-Unknown": "x"}
OF_ALL = {
    "Authorization": "Bearer key",
    "X-Api-Key": "key",
    "Api-Key": "key",
    "Anthropic-Version": "2023-06-01",
    "Anthropic-Beta": "a",
    "OpenAI-Organization": "o",
    "ChatGPT-Account-Id": "a",
    "User-Agent": "client/1",
    "X-Stainless-Lang": "js",
    "Content-Type": "application/json",
    "X-Company-Auth": "token",
    "Helicone-User-Id": "u",
}


def without_framing(seen: Any) -> dict[str, str]:
    dropped = ("host", "content-length", "accept-encoding")
    return {name.lower(): value for name, value in seen.headers if name.lower() not in dropped}


def lowered(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_headers_about_the_body_go_with_a_body_that_is_changed_and_stay_with_one_that_is_not(off):
    sent = {**OF_BODY, **OF_ONE, **OF_ALL, "Idempotency-Key": "once"}
    with providing() as upstream, running(upstream.url, off) as url:
        for body in (
            body_of(turns(1, "short")),
            ASKED,
            ASKED,
            body_of([{"role": "user", "content": "No."}], tools=TOOLS),
        ):
            ask(f"{url}/v1/messages", body, headers=sent)

    same, changed, again, other = map(without_framing, upstream.seen)
    assert same == lowered(sent)
    assert {n: v for n, v in changed.items() if n != "idempotency-key"} == lowered({**OF_ONE, **OF_ALL})
    # One key for one body: a provider that knows it answers as before.
    keys = [each["idempotency-key"] for each in (same, changed, again, other)]
    assert keys[0] == "once"
    assert keys[1] == keys[2]
    assert len({*keys}) == 3


def calls_of(name: str) -> list[Any]:
    return [{"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}]


def test_a_request_that_the_client_did_not_send_has_only_headers_that_may_be_repeated(off):
    def answer(provider: Any) -> None:
        content = [{"type": "text", "text": "Done."}] if len(upstream.seen) > 1 else calls_of("context_list")
        stop = "end_turn" if len(upstream.seen) > 1 else "tool_use"
        provider.say(200, json.dumps({**REPLY, "content": content, "stop_reason": stop}).encode())

    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = answer
        headers = {
            **OF_BODY,
            **OF_ONE,
            **OF_ALL,
            "Idempotency-Key": "once",
            "If-None-Match": "x",
            "Range": "bytes=0-9",
        }
        reply = ask(f"{url}/v1/messages", ASKED, headers=headers)

    assert reply.json["content"] == [{"type": "text", "text": "Done."}]
    _, second = upstream.seen
    assert without_framing(second) == lowered(OF_ALL)
    assert dict(second.headers)["Content-Length"] == str(len(second.body))


def test_a_request_that_is_signed_as_a_whole_passes_unchanged(off):
    headers = {**HEADERS, "Authorization": "AWS4-HMAC-SHA256 Credential=x", "X-Amz-Content-Sha256": DIGEST}
    with providing() as upstream, running(upstream.url, off) as url:
        ask(f"{url}/v1/messages", ASKED, headers=headers)
        passed = ask(f"{url}/offload/status", method="GET").json["passed"]

    assert upstream.seen[0].body == ASKED
    assert without_framing(upstream.seen[0]) == lowered(headers)
    assert passed == {"signed": 1}


def test_an_answer_that_is_changed_loses_the_headers_about_its_body(off):
    def answer(provider: Any) -> None:
        content = [
            {"type": "text", "text": "Done."},
            *([] if len(upstream.seen) > 1 else calls_of("context_list")),
        ]
        stop = "end_turn" if len(upstream.seen) > 1 else "tool_use"
        data = json.dumps({**REPLY, "content": content, "stop_reason": stop}).encode()
        provider.say(200, data, *OF_BODY.items(), ("Retry-After", "1"))

    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = answer
        changed = ask(f"{url}/v1/messages", ASKED)
        same = ask(f"{url}/v1/messages", ASKED)

    names = lowered(OF_BODY).keys()
    assert [sum(name.lower() in names for name, _ in reply.headers) for reply in (changed, same)] == [
        0,
        len(names),
    ]
    assert all(("Retry-After", "1") in reply.headers for reply in (changed, same))


# Codings


def raw_deflate(data: bytes) -> bytes:
    deflating = zlib.compressobj(wbits=-15)
    return deflating.compress(data) + deflating.flush()


def in_members(encode: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: encode(data[:100]) + encode(data[100:200]) + encode(data[200:])


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", PACK),
    "members of gzip": ("gzip", in_members(PACK)),
    "zeros behind gzip": ("x-gzip", lambda data: PACK(data) + bytes(8)),
    "zlib": ("deflate", zlib.compress),
    "deflate alone": ("deflate", raw_deflate),
    "frames of zstd": ("zstd", in_members(zstandard.compress)),
    "another case": (" GZip", PACK),
    "brotli": ("BR", brotli.compress),
    "a list": ("gzip, identity, br", lambda data: brotli.compress(PACK(data))),
    "a list of deflate": ("Deflate,ZSTD", lambda data: zstandard.compress(zlib.compress(data))),
}
every_coding = pytest.mark.parametrize(("name", "encode"), ENCODERS.values(), ids=ENCODERS)
EVENTS: list[Any] = [
    {"type": "message_start", "message": {**REPLY, "id": "msg_1", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done. "}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]
STREAM = b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in EVENTS)
WHOLE = json.dumps(
    {**REPLY, "content": [{"type": "text", "text": LOG[:1000]}], "stop_reason": "end_turn"}
).encode()
STREAMED = ASKED.replace(b'"model"', b'"stream": true, "model"')


@every_coding
@pytest.mark.parametrize("is_stream", [True, False])
def test_an_answer_is_decoded_completely(off, name, encode, is_stream):
    kind, plain = ("text/event-stream", STREAM) if is_stream else ("application/json", WHOLE)
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = lambda provider: provider.say(
            200, encode(plain), ("Content-Encoding", name), kind=kind
        )
        reply = ask(f"{url}/v1/messages", STREAMED if is_stream else ASKED)
        assert failures(url) == 0

    assert reply.status == 200
    assert reply.body == (plain if is_stream else encode(plain))
    assert [value for field, value in reply.headers if field == "Content-Encoding"] == [name.strip()] * (
        not is_stream
    )


@every_coding
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data + b"more"])
def test_an_answer_whose_coding_ends_elsewhere_is_an_error_of_the_api(off, name, encode, is_stream, damage):
    kind, plain = ("text/event-stream", STREAM) if is_stream else ("application/json", WHOLE)
    data = damage(encode(plain).rstrip(b"\0"))
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = lambda provider: provider.say(200, data, ("Content-Encoding", name), kind=kind)
        reply = ask(f"{url}/v1/messages", STREAMED if is_stream else ASKED)
        assert failures(url) == 1

    *_, last = (
        [line[6:] for line in reply.body.splitlines() if line.startswith(b"data: ")]
        if is_stream
        else [reply.body]
    )
    assert "Content-Encoding" in json.loads(last)["error"]["message"]
    assert reply.status == (200 if is_stream else 502)


@pytest.mark.parametrize("coding", ["compress", "gzip, dcb", "gzip, gzip, gzip, gzip, gzip"])
def test_an_answer_in_a_coding_that_nobody_asked_for_is_an_error_of_the_api(off, coding):
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = lambda provider: provider.say(200, WHOLE, ("Content-Encoding", coding))
        reply = ask(f"{url}/v1/messages", ASKED)

    assert (reply.status, reply.json["error"]["type"]) == (502, "api_error")
    assert coding in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate, br, zstd"),
        ("gzip;q=1.0, dcb, *;q=0.5, BR", "gzip;q=1.0, BR"),
        ("dcb, compress", "identity"),
        ("identity;q=1", "identity;q=1"),
        (None, "identity"),
    ],
)
def test_the_provider_is_asked_for_codings_that_can_be_decoded(off, given, asked):
    headers = HEADERS if given is None else {**HEADERS, "Accept-Encoding": given}
    with providing() as upstream, running(upstream.url, off) as url:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        framing = [f"Content-Length: {len(ASKED)}", "Connection: close"]
        written(url, request(*lines, *framing, path="/v1/messages", body=ASKED))
        written(url, request(*lines, *framing, body=ASKED))

    of_api, unknown = (dict(seen.headers) for seen in upstream.seen)
    assert of_api["accept-encoding"] == asked
    assert unknown.get("accept-encoding") == given


@every_coding
def test_an_encoded_request_is_read_and_sent_plain_if_it_is_changed(off, name, encode):
    long, short = body_of(turns(2)), body_of(turns(1, "short"))
    with providing() as upstream, running(upstream.url, off) as url:
        for body in (long, short):
            ask(f"{url}/v1/messages", encode(body), headers={**HEADERS, "Content-Encoding": name})

    rewritten, same = upstream.seen
    assert b"[Offloaded: " in rewritten.body
    assert "content-encoding" not in dict(rewritten.headers)
    assert same.body == encode(short)
    assert dict(same.headers)["content-encoding"] == name.strip()


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [("compress", ASKED, 415), ("gzip", ASKED, 400), ("gzip", PACK(ASKED)[:-3], 400)],
)
def test_an_encoded_request_that_cannot_be_read_is_refused(off, coding, body, status):
    with providing() as upstream, running(upstream.url, off) as url:
        reply = ask(f"{url}/v1/messages", body, headers={**HEADERS, "Content-Encoding": coding})

    assert (reply.status, upstream.seen) == (status, [])
    assert "Content-Encoding" in reply.json["error"]["message"]


def test_an_encoded_request_that_is_too_large_passes_as_it_came(off):
    body = PACK(body_of(turns(3)) + b" " * _exchange.MOST_BYTES)
    with providing() as upstream, running(upstream.url, off) as url:
        ask(f"{url}/v1/messages", body, headers={**HEADERS, "Content-Encoding": "gzip"})

    [seen] = upstream.seen
    assert (seen.body, dict(seen.headers)["content-encoding"]) == (body, "gzip")


# Streams


def events_in(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]


LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


@pytest.mark.parametrize("end", LINE_ENDS.values(), ids=LINE_ENDS)
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_hidden_calls_are_in_no_event_whatever_ends_its_lines(off, end, size):
    called = {"type": "content_block_start", "index": 1, "content_block": calls_of("context_list")[0]}
    own = {**called, "index": 2, "content_block": {**calls_of("run")[0], "id": "toolu_2"}}
    stops = [{"type": "content_block_stop", "index": index} for index in (1, 2)]
    ended = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}
    values = [*EVENTS[:4], called, stops[0], own, stops[1], ended, EVENTS[-1]]
    data = b"".join(b"data: " + json.dumps(value).encode() + end + end for value in values)

    def answer(provider: Any) -> None:
        provider.start_stream()
        for start in range(0, len(data), size):
            provider.send_part(data[start : start + size])
        provider.send_part(b"")

    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = answer
        reply = ask(f"{url}/v1/messages", STREAMED)

    assert b"context_list" not in reply.body
    starts = [event for event in events_in(reply.body) if event["type"] == "content_block_start"]
    assert [(start["index"], start["content_block"]["type"]) for start in starts] == [
        (0, "text"),
        (1, "tool_use"),
    ]


CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Go."}]}
STREAMS: dict[str, tuple[str, Any, bytes]] = {
    "Messages": ("/v1/messages", json.loads(STREAMED), STREAM[: STREAM.index(b"event: message_delta")]),
    "chat": (
        "/v1/chat/completions",
        CHAT,
        b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n',
    ),
    "Responses": (
        "/v1/responses",
        {"model": "m", "stream": True, "input": "Go."},
        b'data: {"type": "response.in_progress", "response": {"id": "r"}, "sequence_number": 0}\n\n',
    ),
    "Gemini": (
        "/v1beta/models/gemini-3:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]},
        b'data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "x"}]}}]}\n\n',
    ),
}
TOOLS_OF = {
    "Messages": TOOLS,
    "chat": [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}],
    "Responses": [{"type": "function", "name": "run", "parameters": {"type": "object"}}],
    "Gemini": [{"functionDeclarations": [{"name": "run"}]}],
}
every_stream = pytest.mark.parametrize("kind", STREAMS)
with_tools_or_without = pytest.mark.parametrize("has_tools", [True, False])


def asked_in(kind: str, *, has_tools: bool) -> tuple[str, bytes, bytes]:
    path, body, events = STREAMS[kind]
    return path, json.dumps(body | {"tools": TOOLS_OF[kind] if has_tools else []}).encode(), events


def error_at_the_end(body: bytes) -> str:
    event = events_in(body)[-1]
    text: str = (event if "message" in event else event["error"])["message"]
    return text


@every_stream
@with_tools_or_without
def test_a_stream_that_breaks_off_ends_with_an_error_of_the_api_and_is_not_taken_for_whole(
    off, kind, has_tools
):
    path, body, events = asked_in(kind, has_tools=has_tools)

    def break_off(provider: Any) -> None:
        provider.start_stream()
        provider.send_part(events + b"data: {")
        provider.connection.shutdown(socket.SHUT_RDWR)
        provider.close_connection = True

    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = break_off
        with pytest.raises(http.client.IncompleteRead) as broken:
            ask(url + path, body)
        assert failures(url) == 1

    assert broken.value.partial.startswith(events)
    assert "no answer from" in error_at_the_end(broken.value.partial)


@every_stream
@with_tools_or_without
def test_an_event_that_is_too_large_is_an_error_of_the_api(off, kind, has_tools, monkeypatch):
    monkeypatch.setattr(_events, "_MOST_BYTES", 100_000)
    path, body, events = asked_in(kind, has_tools=has_tools)
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = lambda provider: provider.say(
            200, events + b'data: {"x": "' + b"x" * 200_000, kind="text/event-stream"
        )
        reply = ask(url + path, body)
        assert failures(url) == 1

    assert reply.body.startswith(events)
    assert "more than 100000 bytes" in error_at_the_end(reply.body)


def test_a_later_answer_that_is_none_ends_the_stream_with_an_error_of_the_api(off):
    called = {"type": "content_block_start", "index": 1, "content_block": calls_of("context_list")[0]}
    ended = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}
    values = [*EVENTS[:4], called, {"type": "content_block_stop", "index": 1}, ended, EVENTS[-1]]
    data = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    first = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (
        len(data),
        data,
    )
    pages = [
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy",
    ]
    for page, said in zip(pages, ("its status is 999", "status 503"), strict=True):
        with wired(first, page) as wire, running(wire.url, off) as url:
            reply = ask(f"{url}/v1/messages", STREAMED)
        assert said in error_at_the_end(reply.body)


@pytest.mark.parametrize("is_hidden", [True, False])
@pytest.mark.parametrize("has_choice", [True, False])
def test_a_usage_behind_the_end_of_a_chat_stays_last_and_counts_all_answers(off, is_hidden, has_choice):
    base = {"id": "gen-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    function = {"name": "context_list", "arguments": "{}"}
    called = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}

    def chunks(delta: Any, end: str) -> bytes:
        empty = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        values = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None},
            {**base, "choices": [{**empty, "finish_reason": end}]},
            {**base, "choices": [empty] if has_choice else [], "usage": usage},
        ]
        return (
            b"".join(b"data: %s\n\n" % json.dumps(value).encode() for value in values) + b"data: [DONE]\n\n"
        )

    done = chunks({"content": "Done."}, "stop")

    def answer(provider: Any) -> None:
        is_first = is_hidden and len(upstream.seen) == 1
        provider.say(200, chunks(called, "tool_calls") if is_first else done, kind="text/event-stream")

    body = CHAT | {"tools": TOOLS_OF["chat"], "stream_options": {"include_usage": True}}
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = answer
        reply = ask(f"{url}/v1/chat/completions", json.dumps(body).encode())

    assert is_hidden or reply.body == done
    sent = events_in(reply.body)
    ends = [choice["finish_reason"] for chunk in sent for choice in chunk["choices"]]
    assert [end for end in ends if end] == ["stop"]
    assert [chunk["usage"]["total_tokens"] for chunk in sent if chunk.get("usage")] == [110 * (1 + is_hidden)]
    assert sent[-1]["usage"]["prompt_tokens"] == 100 * (1 + is_hidden)
    assert reply.body.endswith(b"data: [DONE]\n\n")


def say_next(left: list[bytes], provider: Any) -> None:
    provider.say(200, left.pop(0), kind="text/event-stream")


def test_ends_of_a_message_in_several_events_are_all_passed_and_count_as_one(off):
    called = {"type": "content_block_start", "index": 0, "content_block": calls_of("context_list")[0]}
    ends: list[Any] = [
        {"delta": {"stop_reason": "tool_use"}},
        {"delta": {"stop_sequence": None}, "usage": {"output_tokens": 5}},
    ]
    values = [EVENTS[0], called, EVENTS[3], *({"type": "message_delta", **end} for end in ends), EVENTS[5]]
    first = b"".join(b"data: %s\n\n" % json.dumps(value).encode() for value in values)
    ends[0]["delta"]["stop_reason"] = "end_turn"
    values = [*EVENTS[:4], *({"type": "message_delta", **end} for end in ends), EVENTS[5]]
    second = b"".join(b"data: %s\n\n" % json.dumps(value).encode() for value in values)
    replies = []
    for answers in ([first, second], [second]):
        left = [*answers]
        with providing() as upstream, running(upstream.url, off) as url:
            upstream.answer = partial(say_next, left)
            replies.append(ask(f"{url}/v1/messages", STREAMED).body)

    assert replies[1] == second
    [ended] = [event for event in events_in(replies[0]) if event["type"] == "message_delta"]
    assert ended["delta"]["stop_reason"] == "end_turn"
    assert ended["usage"]["output_tokens"] == 10


def test_a_stream_that_ends_in_a_call_of_the_gateway_is_an_error_of_the_api(off):
    called = {"type": "content_block_start", "index": 1, "content_block": calls_of("context_list")[0]}
    data = b"".join(b"data: %s\n\n" % json.dumps(value).encode() for value in [*EVENTS[:4], called])
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = lambda provider: provider.say(200, data, kind="text/event-stream")
        reply = ask(f"{url}/v1/messages", STREAMED)
        assert failures(url) == 1

    assert "ended in a call" in error_at_the_end(reply.body)
