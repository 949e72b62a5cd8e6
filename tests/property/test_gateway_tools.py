"""Any reply with calls of the gateway's tools: valid for the client, append-only for the provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from _provider import Provider, serving
from gateways import LOG, ask, running
from hypothesis import given, strategies as st
from strength import examples
from talking import (
    DOCUMENTS,
    GEMINI,
    KINDS,
    READERS,
    Answered,
    path_of,
    request_of,
    results_of,
    tools_in,
    user_of,
)

from offload import Offloader, open_store

OWN = ("context_list", "context_grep", "context_tail")
Json = dict[str, Any]


def call(name: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": "", "name": name, "input": given}


words = st.text("ab \n\u00e9\U0001f600\u2028", min_size=1, max_size=12).filter(str.strip)
thinking = st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": ""}, words)
texts = st.builds(lambda text: {"type": "text", "text": text}, words)
hidden = st.sampled_from(
    [call("context_list"), call("context_grep", pattern="unit"), call("context_tail", id="nothinghere")]
)
own = st.builds(lambda text: call("Bash", command=text), words)


@st.composite
def answers(draw: st.DrawFn, *, last: bool) -> list[Json]:
    """The blocks of one answer: with hidden calls alone unless it is the last one of its reply."""
    blocks: list[Json] = draw(st.lists(thinking, max_size=2)) + draw(st.lists(texts, max_size=2))
    if not last:
        return blocks + draw(st.lists(hidden, min_size=1, max_size=2))
    calls = draw(st.lists(hidden | own, max_size=3))
    if any(one["name"] == "Bash" for one in calls):
        return blocks + calls
    return [*blocks, draw(texts)]


@st.composite
def replies(draw: st.DrawFn) -> list[list[Json]]:
    count = draw(st.integers(0, 3))
    return [*(draw(answers(last=False)) for _ in range(count)), draw(answers(last=True))]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serving(Provider(keeps=True, is_strict=True)) as provider:
        yield provider


@pytest.fixture(scope="module")
def gateways(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two gateways over one store."""
    store = str(tmp_path_factory.mktemp("store"))
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(provider.url, Offloader(open_store(store), session="gateway")))
            for _ in range(2)
        ]


class Script:
    """Answers by a script, numbers the calls, and fails once where it is told to."""

    def __init__(self) -> None:
        self.number = 0
        self.left: list[list[Json]] = []

    def __call__(self, _: Json) -> list[Json]:
        return self.left.pop(0)

    def numbered(self, reply: list[list[Json]]) -> list[list[Json]]:
        self.left = [[self._with_id(block) for block in blocks] for blocks in reply]
        return [*self.left]

    def _with_id(self, block: Json) -> Json:
        if block["type"] != "tool_use":
            return block
        self.number += 1
        return {**block, "id": f"call_{self.number:04}"}


def in_parts(sizes: list[int]) -> Any:
    def cut(data: bytes) -> Iterator[bytes]:
        at = 0
        for size in sizes:
            if at + size < len(data):
                yield data[at : at + size]
                at += size
        yield data[at:]

    return cut


def without_texts(answers: list[list[Json]]) -> list[list[Json]]:
    """Return the answers of a document: only the last one has its text."""
    *before, last = answers
    return [*([b for b in blocks if b["type"] != "text"] for blocks in before), last]


def said(kind: str, blocks: list[Json]) -> Any:
    """Return what a client can see of blocks."""
    seen = [b for b in blocks if b.get("name") not in OWN]
    if kind == "chat" or kind in GEMINI:
        texts = ["".join(b["text"].split()) for b in seen if b["type"] == "text"]
        return "".join(texts), [b for b in seen if b["type"] == "tool_use"]
    shown = [{k: v for k, v in b.items() if k != "signature"} for b in seen if b["type"] != "thinking"]
    return shown, sum(b["type"] == "thinking" for b in seen)


seeds = iter(range(1_000_000))


@pytest.mark.parametrize("streams", [False, True])
def test_a_text_after_answers_without_text_may_begin_with_an_empty_line(provider, gateways, streams):
    listing = {"type": "tool_use", "id": "", "name": "context_list", "input": {}}
    thinking = {"type": "thinking", "thinking": "so", "signature": "c2lnbmF0dXJl"}
    first, last = {"type": "text", "text": "a"}, {"type": "text", "text": "\n\nb"}
    script = begin(provider, [])
    messages: list[Json] = [user_of("gemini", f"Build {next(seeds)}.")]
    for _ in range(2):
        expected = script.numbered([[first, listing], [thinking, listing], [last, listing], [first]])
        got = ask(
            gateways[0] + path_of("gemini", streams=streams),
            request_of("gemini", "gpt-5", messages, streams=streams),
        )
        assert (got.status, provider.refused) == (200, 0), got.body
        answered = READERS["gemini"](got.body, streams=streams)
        check_reply("gemini", answered, expected)
        messages += [*answered.messages, user_of("gemini", "Go on.")]


@examples(100)
@given(st.data())
def test_any_reply_reaches_the_client_whole_and_comes_back_to_the_provider_as_it_was_sent(
    provider, gateways, data
):
    kind = data.draw(st.sampled_from(KINDS))
    streams = data.draw(st.booleans())
    model = data.draw(
        st.sampled_from(["claude-opus-5", "claude-opus-5-5"]) if kind == "messages" else st.just("gpt-5")
    )
    script = begin(provider, data.draw(st.lists(st.integers(1, 200), max_size=30)))
    path = path_of(kind, streams=streams)
    messages: list[Json] = [user_of(kind, f"Build {next(seeds)}.")]
    fields = data.draw(st.sampled_from([{}, DOCUMENTS[kind]]))
    for reply in data.draw(st.lists(replies(), min_size=1, max_size=4)):
        url = data.draw(st.sampled_from(gateways)) + path
        body = request_of(kind, model, messages, streams=streams, **fields)
        if (at := data.draw(st.none() | st.integers(0, len(reply) - 1))) is not None:
            script.numbered(reply)
            fail_once(provider, url, body, at)
        expected = script.numbered(reply)
        url = data.draw(st.sampled_from(gateways)) + path
        first = len(provider.charges)

        got = ask(url, body)

        assert (got.status, provider.refused) == (200, 0), got.body
        answered = READERS[kind](got.body, streams=streams)
        calls = check_reply(kind, answered, without_texts(expected) if fields else expected)
        charged = sum(round(charge.tokens) for charge in provider.charges[first:])
        assert counted(answered.usage) == pytest.approx(charged, abs=2 * len(reply))
        messages += answered.messages
        results = results_of(kind, calls, LOG[:500])
        messages += results if calls else [user_of(kind, "Go on.")]
    check_append_only([json.loads(body) for _, _, body in provider.requests])


def begin(provider: Provider, sizes: list[int]) -> Script:
    """Let a provider begin again, with a script; return that."""
    script = Script()
    provider.answer, provider.cut = script, in_parts(sizes)
    provider.requests.clear()
    provider.charges.clear()
    provider.refused = 0
    return script


def check_reply(kind: str, answered: Answered, expected: list[list[Json]]) -> list[Json]:
    """Check that a client got all but the hidden calls; return its own."""
    assert said(kind, answered.blocks) == said(kind, [b for blocks in expected for b in blocks])
    calls = [block for block in answered.blocks if block["type"] == "tool_use"]
    assert answered.stop == ("tool_use" if calls else "end_turn")
    return calls


def fail_once(provider: Provider, url: str, body: bytes, at: int) -> None:
    """Send a request whose answer with a number is an error; the client sends it again later."""
    count, error = len(provider.requests), {"type": "error", "error": {"type": "x", "message": "Overloaded"}}
    provider.failure = lambda _: (529, error) if len(provider.requests) == count + 1 + at else None
    failed = ask(url, body)
    provider.failure = lambda _: None
    assert b"Overloaded" in failed.body
    del provider.requests[count:]


def check_append_only(requests: list[Json]) -> None:
    """Check that each request begins with all messages of the one before, and has the same tools."""
    sent: list[Json] = []
    for request in requests:
        [messages] = (request[name] for name in ("input", "messages", "contents") if name in request)
        now = [*map(bare, messages)]
        assert now[: len(sent)] == sent
        assert tools_in(request) == tools_in(requests[0])
        sent = now


def counted(usage: Json) -> int:
    """Return the input tokens of a usage."""
    names = (
        "input_tokens",
        "prompt_tokens",
        "promptTokenCount",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    )
    return sum(usage.get(name, 0) for name in names)


def bare(message: Json) -> Json:
    """Return a message without what clients may spell in another way."""
    return {name: value for name, value in message.items() if value is not None}
