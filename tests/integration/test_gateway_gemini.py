"""Gemini's API behind a gateway: its SDK as a client, both forms of its stream, signatures, usage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from _provider import Provider, _content_events, _reply, serving, signature_of
from gateways import LOG, ask, opened, providing, running
from google import genai
from google.genai import errors, types
from talking import GEMINI, READERS, Json, events_of, path_of, request_of, results_of, user_of

MODEL = "gemini-3.1-pro-preview"
USAGE = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}


def said(text: str) -> Json:
    return {"type": "text", "text": text}


def call(number: int | None, name: str = "context_list", **given: Any) -> Json:
    named = "" if number is None else f"call_{number}"
    return {"type": "tool_use", "id": named, "name": name, "input": given}


both_ways = pytest.mark.parametrize("streams", [False, True])
both_forms = pytest.mark.parametrize("kind", GEMINI)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(keeps=True, is_strict=True)) as provider:
        yield provider
        assert provider.refused == 0


@pytest.fixture
def url(provider: Provider, tmp_path: Path) -> Iterator[str]:
    with running(provider.url, opened(tmp_path, session="gateway")) as url:
        yield url


def script(provider: Provider, *answers: list[Json]) -> None:
    left = list(answers)
    provider.answer = lambda _: left.pop(0)


def contents(provider: Provider) -> list[Json]:
    """Return the contents that the provider got last."""
    found: list[Json] = json.loads(provider.requests[-1][2])["contents"]
    return found


@contextmanager
def client_of(url: str) -> Iterator[genai.Client]:
    options = types.HttpOptions(base_url=url, retry_options=types.HttpRetryOptions(attempts=1))
    with genai.Client(api_key="key", http_options=options) as client:
        yield client


def bash(result: str) -> Any:
    def Bash(command: str) -> str:  # noqa: N802 # the name that the model sees
        """Run a command."""
        del command
        return result

    return Bash


# The SDK


@both_ways
def test_a_chat_of_the_sdk_sees_one_reply_and_repeats_it(provider, url, streams):
    script(
        provider,
        [{"type": "thinking", "thinking": "Hm, well."}, said("Look."), call(1)],
        [call(2), call(3)],
        [said("Found."), call(4, "Bash", command="ls"), call(5)],
        [said("Done.")],
        [said("Bye.")],
    )
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="Bash")])],
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    with client_of(url) as client:
        chat = client.chats.create(model=MODEL, config=config)

        def send(message: Any) -> list[Any]:
            return [*chat.send_message_stream(message)] if streams else [chat.send_message(message)]

        replies = send("Build it.")
        last = send(
            types.Part(
                function_response=types.FunctionResponse(id="call_4", name="Bash", response={"output": "x"})
            )
        )
        inside = contents(provider)
        send("Thanks.")

    calls = [one for reply in replies for one in reply.function_calls or []]
    assert [one.id for one in calls] == ["call_4"]
    parts = [part for reply in replies for part in reply.candidates[0].content.parts]
    assert "".join(part.text or "" for part in parts if not part.thought) == "Look.\n\nFound."
    assert {reply.response_id for reply in replies} == {replies[0].response_id}
    assert "".join(reply.text or "" for reply in last) == "Done."
    assert [one["role"] for one in inside[:5]] == ["user", "model", "user", "model", "user"]
    assert contents(provider)[: len(inside)] == inside


@both_ways
def test_the_sdk_calls_functions_itself_and_large_results_leave(provider, url, streams):
    script(
        provider,
        [call(1, "Bash", command="make")],
        [call(2, "Bash", command="ls")],
        [call(3, "context_grep", pattern="unit 2500 ")],
        [said("Done.")],
    )
    config = types.GenerateContentConfig(tools=[bash(LOG)])
    with client_of(url) as client:
        if streams:
            replies = [
                *client.models.generate_content_stream(model=MODEL, contents="Build it.", config=config)
            ]
        else:
            replies = [client.models.generate_content(model=MODEL, contents="Build it.", config=config)]

    assert (replies[-1].text or "Done.").endswith("Done.")
    results = [
        p["functionResponse"]["response"]
        for c in contents(provider)
        for p in c["parts"]
        if "functionResponse" in p
    ]
    assert results[0]["result"].startswith("[Offloaded: Bash")
    assert "50 checked unit 2500" in results[2]["output"]


def test_an_error_in_the_middle_of_a_stream_is_one_for_the_sdk(provider, url):
    script(provider, [said("Look."), call(1)])
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    provider.failure = lambda _: (503, error) if len(provider.requests) == 2 else None
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="Bash")])]
    )
    with client_of(url) as client:
        stream = client.models.generate_content_stream(model=MODEL, contents="Build it.", config=config)
        with pytest.raises(errors.APIError, match="overloaded"):
            list(stream)


# Replies


def send(url: str, kind: str, messages: list[Json], *, streams: bool = True) -> Any:
    reply = ask(url + path_of(kind, streams=streams), request_of(kind, MODEL, messages, streams=streams))
    assert reply.status == 200, reply.body
    return READERS[kind](reply.body, streams=streams)


@both_forms
@both_ways
def test_usage_is_summed_with_its_counts_by_modality(provider, url, kind, streams):
    script(provider, [said("Look."), call(1)], [call(2)], [said("Done.")])
    usage = send(url, kind, [user_of(kind, "Build it.")], streams=streams).usage

    total = sum(round(charge.tokens) for charge in provider.charges)
    assert len(provider.charges) == 3
    assert usage == {
        "promptTokenCount": total,
        "cachedContentTokenCount": 0,
        "candidatesTokenCount": 15,
        "totalTokenCount": total + 15,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": total}],
    }


@both_forms
@both_ways
def test_a_call_of_the_client_behind_a_hidden_one_has_its_signature_until_it_is_sent(
    provider, url, kind, streams
):
    """Only the first call of an answer has one, and a first call without one is refused."""
    script(provider, [call(1), call(2, "Bash"), call(3), call(4, "Bash")], [said("Done.")])
    reply = send(url, kind, [user_of(kind, "Build it.")], streams=streams)
    calls = [p for m in reply.messages for p in m["parts"] if "functionCall" in p]
    assert [part.get("thoughtSignature") for part in calls] == [
        signature_of({"name": "x", "id": "call_1"}),
        None,
    ]

    mine = [block for block in reply.blocks if block["type"] == "tool_use"]
    send(
        url,
        kind,
        [user_of(kind, "Build it."), *reply.messages, *results_of(kind, mine, "x")],
        streams=streams,
    )

    *_, repeated, answered = contents(provider)
    asked = [part for part in repeated["parts"] if "functionCall" in part]
    assert [part.get("thoughtSignature") for part in asked] == [
        calls[0]["thoughtSignature"],
        None,
        None,
        None,
    ]
    assert [part["functionResponse"]["id"] for part in answered["parts"]] == [
        f"call_{n}" for n in (1, 2, 3, 4)
    ]


@both_ways
def test_calls_without_ids_are_answered_in_their_order(provider, url, streams):
    """Vertex AI gives no ids."""
    script(
        provider,
        [call(None, path="a"), call(None, "context_tail", id="x")],
        [call(None, "Bash"), call(None)],
        [said("Done.")],
    )
    reply = send(url, "gemini", [user_of("gemini", "Build it.")], streams=streams)
    mine = [block for block in reply.blocks if block["type"] == "tool_use"]
    send(
        url,
        "gemini",
        [user_of("gemini", "Build it."), *reply.messages, *results_of("gemini", mine, "x")],
        streams=streams,
    )

    names = [
        [p["functionResponse"]["name"] for p in c["parts"] if "functionResponse" in p]
        for c in contents(provider)
    ]
    assert [one for one in names if one] == [["context_list", "context_tail"], ["Bash", "context_list"]]


def test_a_changed_reply_passes_as_the_client_has_it(provider, url):
    script(provider, [said("Look."), call(1)], [said("Found.")], [said("Done.")])
    reply = send(url, "gemini array", [user_of("gemini", "Build it.")])
    reply.messages[0]["parts"][0]["text"] = "Edited."
    send(url, "gemini", [user_of("gemini", "Build it."), *reply.messages, user_of("gemini", "Go on.")])
    assert [content["role"] for content in contents(provider)] == ["user", "model", "user"]


@pytest.mark.parametrize(
    "fields",
    [
        {"generationConfig": {"candidateCount": 2}},
        {"cachedContent": "cachedContents/x"},
        {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}}},
    ],
)
def test_requests_whose_replies_have_another_form_get_no_tools(provider, url, fields):
    body = request_of("gemini", MODEL, [user_of("gemini", "Build it.")], streams=False, **fields)
    assert ask(url + path_of("gemini", streams=False), body).status == 200
    assert provider.requests[-1][2] == body


def streamed(kind: str, *reasons: str, content: list[Json]) -> bytes:
    reply = _reply("gemini", {"model": MODEL}, content, USAGE)
    if reasons:
        reply["candidates"][0]["finishReason"] = reasons[0]
    return "".join(_content_events(reply, is_list=kind == "gemini array")).encode()


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Any]:
    """A gateway before a provider that answers with certain bytes, one after another; call it with these."""
    with providing() as upstream, running(upstream.url, opened(tmp_path, session="s")) as url:

        def answered(kind: str, *data: bytes) -> bytes:
            mime, left = "application/json" if kind == "gemini array" else "text/event-stream", [*data]
            upstream.answer = lambda provider: provider.say(200, left.pop(0), kind=mime)
            body = request_of(kind, MODEL, [user_of(kind, "Build it.")], streams=True)
            return ask(url + path_of(kind, streams=True), body).body

        yield answered


@both_forms
def test_a_call_that_is_cut_is_left_out_and_the_reason_stays(answering, kind):
    data = streamed(kind, "MAX_TOKENS", content=[said("Look."), call(1)])
    reply = READERS[kind](answering(kind, data), streams=True)
    assert reply.stop == "max_tokens"
    assert reply.blocks == [said("Look.")]


@both_forms
def test_an_unchanged_stream_is_the_very_bytes_of_the_provider(answering, kind):
    data = streamed(
        kind, content=[said('A "text" with \\ and }] \u00e9.'), call(1, "Bash", command='a"]}[{\\')]
    )
    assert answering(kind, data) == data


def test_a_chunk_with_the_usage_alone_has_the_id_and_the_usage_of_the_whole_reply(answering):
    alone = b'data: {"responseId": "other", "usageMetadata": {"totalTokenCount": 7}}\r\n\r\n'
    first, second = (streamed("gemini", content=[said("Look."), *more]) for more in ([call(1)], []))
    *chunks, last = events_of(answering("gemini", first, second + alone).replace(b"\r\n", b"\n"))
    before = [chunk["usageMetadata"]["totalTokenCount"] for chunk in chunks]
    assert {chunk["responseId"] for chunk in chunks} == {last["responseId"]}
    assert last["usageMetadata"]["totalTokenCount"] == before[0] + 7


@pytest.mark.parametrize(
    "data",
    [
        b'[{"promptFeedback": {"blockReason": "SAFETY"}}\n]',
        b'[{"candidates": [{"content": {"parts": "x"}}]}, 3, {"candidates": 7}, "}", {}]',
        b"[] rest",
        b'[{"error": {"code": 500}}',
        b"no array",
        b"  ",
    ],
)
def test_a_stream_of_another_form_passes_as_it_is(answering, data):
    assert answering("gemini array", data) == data
