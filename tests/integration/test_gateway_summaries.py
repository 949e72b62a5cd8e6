"""Requests that shrink a conversation: they have what it was sent with, so that its window holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _provider import Provider, serving
from formats import exchange
from gateways import LOG, ask, providing, running
from kit.store import ActingStore, failing
from talking import FIELDS, KINDS, READERS, Json, path_of, request_of, results_of, user_of

from offload import Offloader, OffloadPolicy, open_store
from offload.errors import StoreUnavailableError
from offload.reading.timeline import Timeline
from offload.storage.store import OffloadStore

ASK = "Summarize the conversation above for a handover."
NAMED = {"session_id": "s1"}
SYSTEM: dict[str, Json] = {
    "messages": {"system": "Summarize."},
    "responses": {"instructions": "Summarize."},
    "gemini": {"systemInstruction": {"parts": [{"text": "Summarize."}]}},
}
CALL: Json = {"type": "tool_use", "name": "Bash", "input": {"command": "make"}}
HIDDEN: Json = {"type": "tool_use", "id": "toolu_own", "name": "context_list", "input": {}}
SAID: Json = {"type": "text", "text": "Ready."}
THINKING: Json = {"type": "thinking", "thinking": "hm", "signature": ""}


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(keeps=True)) as provider:
        yield provider


@contextmanager
def gateway(provider: Provider, store: str | OffloadStore) -> Iterator[str]:
    policy = OffloadPolicy(cost_plan="none")
    off = Offloader(store, session="gateway", journal=True, policy=policy)
    with running(provider.url, off, max_wait=1.0) as url:
        yield url


def in_turn(*answers: list[Json]) -> Callable[[Json], list[Json]]:
    """Return what answers one request after another."""
    left = [*answers]
    return lambda _: left.pop(0)


class Client:
    """A client of one API that calls a tool again and again, and then asks for a summary."""

    def __init__(self, provider: Provider, kind: str, model: str = "gpt-5") -> None:
        self.provider, self.kind, self.model = provider, kind, model
        self.messages: list[Json] = [user_of(kind, "Build it.")]
        self.headers: dict[str, str] = {}

    def send(self, url: str, body: bytes, path: str = "", status: int = 200) -> Any:
        path = path or path_of(self.kind, streams=False)
        reply = ask(url + path, body, headers=self.headers)
        assert reply.status == status, reply.body
        return reply

    def work(self, url: str, *before: Json, results: int = 4) -> None:
        """Get so many results, with thinking before each call or with a hidden call first."""
        for number in range(results):
            named = {**CALL, "id": f"toolu_{len(self.messages)}_{number}"}
            is_hidden = before == (HIDDEN,) and not number
            thinking = [THINKING] if THINKING in before else []
            self.provider.answer = in_turn(*[[HIDDEN]] * is_hidden, [*thinking, named])
            reply = self.send(url, request_of(self.kind, self.model, self.messages, streams=False))
            answered = READERS[self.kind](reply.body, streams=False)
            calls = [block for block in answered.blocks if block["type"] == "tool_use"]
            self.messages += [*answered.messages, *results_of(self.kind, calls, f"make {named['id']}\n{LOG}")]
        self.provider.answer = lambda _: [SAID]
        reply = self.send(url, request_of(self.kind, self.model, self.messages, streams=False))
        self.messages += READERS[self.kind](reply.body, streams=False).messages

    def summarize(self, url: str, *, path: str = "", status: int = 200, **fields: Any) -> list[Json]:
        """Ask for a summary without tools; return the messages that the provider got."""
        messages = [*self.messages, user_of(self.kind, ASK)]
        request = json.loads(request_of(self.kind, self.model, messages, streams=False, **fields))
        del request["tools"]
        self.send(url, json.dumps(request).encode(), path, status)
        return self.last if status == 200 else []

    @property
    def last(self) -> list[Json]:
        """The messages that the provider got last."""
        request = json.loads(self.provider.requests[-1][2])
        messages: list[Json] = request[FIELDS.get(self.kind, "messages")]
        return messages


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_request_has_each_message_as_it_was_sent(provider, tmp_path, kind, is_named, is_restarted):
    client, store = Client(provider, kind), str(tmp_path)
    client.headers = NAMED if is_named else {}
    with gateway(provider, store) as url:
        client.work(url, HIDDEN)
        sent = client.last
        summary = [] if is_restarted else client.summarize(url, **SYSTEM.get(kind, {}))
    if is_restarted:
        with gateway(provider, store) as url:
            summary = client.summarize(url, **SYSTEM.get(kind, {}))

    assert "[Offloaded:" in json.dumps(sent)
    assert "context_list" in json.dumps(summary)
    # What the last request showed first is stored by now, and a new process sends it as the next one has it.
    size = len(sent) - is_restarted
    assert summary[:size] == sent[:size]
    assert summary[-1] == user_of(kind, ASK)
    assert "tools" not in json.loads(provider.requests[-1][2])


@pytest.mark.parametrize("has_tools", [False, True])
def test_a_compaction_at_openai_has_what_was_sent_and_no_more_tools(provider, tmp_path, has_tools):
    client = Client(provider, "responses")
    tools = {"tools": [{"type": "function", "name": "Bash", "parameters": {}}]} if has_tools else {}
    with gateway(provider, str(tmp_path)) as url:
        client.work(url, HIDDEN)
        sent = client.last
        body = json.dumps({"model": "gpt-5", "input": client.messages, **tools}).encode()
        client.send(url, body, "/v1/responses/compact")

    request = json.loads(provider.requests[-1][2])
    assert request["input"][: len(sent)] == sent
    assert request.get("tools", []) == tools.get("tools", [])


def test_the_conversation_goes_on_after_a_summary_as_without_it(provider, tmp_path):
    sent = []
    for name in ("with", "without"):
        client = Client(provider, "messages")
        with gateway(provider, str(tmp_path / name)) as url:
            client.work(url, results=3)
            if name == "with":
                client.summarize(url, system="Summarize.")
            client.messages.append(user_of("messages", "Go on."))
            client.work(url, results=1)
        sent.append(client.last)
    assert sent[0] == sent[1]


def test_a_summary_request_is_in_the_timeline_of_its_conversation(provider, tmp_path):
    client, store = Client(provider, "chat"), open_store(tmp_path)
    with gateway(provider, store) as url:
        client.work(url)
        summary = client.summarize(url)
    [name] = {stored.key.split("/")[1] for stored in store.keys("j/")}
    found = Timeline(store, name)
    assert found.at(len(found)) == summary
    assert found[len(found) - 1].tokens_offloaded > 0


def test_another_replica_knows_what_was_sent_since_it_saw_the_conversation(provider, tmp_path):
    client, store = Client(provider, "messages"), str(tmp_path)
    with gateway(provider, store) as first, gateway(provider, store) as second:
        client.work(first, results=2)
        client.messages.append(user_of("messages", "Go on."))
        client.work(second)
        sent = client.last
        summary = client.summarize(first)
    assert json.dumps(summary).count("[Offloaded:") >= json.dumps(sent).count("[Offloaded:") > 3


def test_a_new_result_above_the_ceiling_is_replaced_and_others_are_not(provider, tmp_path):
    client = Client(provider, "messages")
    with gateway(provider, str(tmp_path)) as url:
        client.work(url, results=2)
        calls = [{**CALL, "id": "toolu_large"}, {**CALL, "id": "toolu_small"}]
        client.messages += [{"role": "assistant", "content": calls}]
        texts = {"toolu_large": LOG * 60, "toolu_small": f"new\n{LOG}"}
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": t} for name, t in texts.items()]
        client.messages.append({"role": "user", "content": blocks})
        large, small = client.summarize(url)[-2]["content"]
    assert large["content"].startswith("[Offloaded:")
    assert small["content"] == texts["toolu_small"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_store_that_is_down_changes_nothing_that_was_sent(provider, tmp_path, is_restarted):
    client, store = Client(provider, "messages"), ActingStore(open_store(tmp_path))
    with gateway(provider, store) as url:
        client.work(url, HIDDEN)
        sent, store.act = client.last, failing(StoreUnavailableError("down"), "keys", "get")
        summary = [] if is_restarted else client.summarize(url)
    if is_restarted:
        with gateway(provider, store) as url:
            client.summarize(url, status=503)
    else:
        assert summary[: len(sent)] == sent


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-haiku-4-5"])
def test_a_summary_by_another_model_has_the_placeholders_of_the_conversation(provider, tmp_path, model):
    client = Client(provider, "messages", model)
    with gateway(provider, str(tmp_path)) as url:
        client.work(url, THINKING)
        sent = client.last
        client.model = "claude-haiku-4-5"
        first = client.summarize(url)
    with gateway(provider, str(tmp_path)) as url:
        assert client.summarize(url)[: len(sent) - 1] == sent[:-1] == first[: len(sent) - 1]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_thinking_that_only_a_summary_request_must_lack_holds_in_the_conversation(
    provider, tmp_path, is_restarted
):
    client = Client(provider, "messages", "claude-opus-5-5")
    with gateway(provider, str(tmp_path)) as url, gateway(provider, str(tmp_path)) as other:
        client.work(url, THINKING)
        summary = client.summarize(other if is_restarted else url, system="Summarize.")
        assert (provider.refused, "signature" in json.dumps(summary)) == (1, False)
        client.messages.append(user_of("messages", "Go on."))
        client.work(other if is_restarted else url, THINKING, results=1)
    assert (provider.refused, json.dumps(client.last).count("signature")) == (1, 5)


@pytest.mark.parametrize("messages", [[], [{"role": "assistant", "content": "Hello."}]])
def test_a_request_without_tools_and_results_passes_as_it_is_and_asks_no_store(provider, tmp_path, messages):
    client, store = Client(provider, "messages"), ActingStore(open_store(tmp_path))
    client.messages += messages
    provider.answer = lambda _: [SAID]
    with gateway(provider, store) as url:
        client.summarize(url)
    assert client.last == [*client.messages, user_of("messages", ASK)]
    assert [key for verb, key in store.asked if verb == "keys"] == []


def test_interactions_of_gemini_are_rewritten_with_tools_of_the_client_and_repeated_in_a_summary(tmp_path):
    named = [{"type": "function", "name": name} for name in ("Bash", "context_read")]
    tools = {"tools": named, "store": False}
    steps: list[Json] = [{"type": "user_input", "content": [{"type": "text", "text": "Build it."}]}]
    off = Offloader(tmp_path, session="gateway", policy=OffloadPolicy(cost_plan="none"))
    with providing() as upstream, running(upstream.url, off) as url:
        reply = json.dumps({"id": "i", "usage": {"total_input_tokens": 9, "total_cached_tokens": 4}}).encode()
        upstream.answer = lambda provider: provider.say(200, reply)

        def send(**fields: Any) -> list[Json]:
            ask(f"{url}/v1beta/interactions", json.dumps({"model": "gemini-3.6-pro", **fields}).encode())
            sent: list[Json] = upstream.seen[-1].json["input"]
            return sent

        for number in range(4):
            steps += exchange("gemini-interactions", "Bash", {}, f"{number}\n{LOG}", f"c{number}")
            sent = send(input=steps, **tools)
        more = [{"type": "model_output", "content": [{"type": "text", "text": "Ready."}]}, *steps[:1]]
        summary = send(input=[*steps, *more])
        kept = send(input=steps, previous_interaction_id="i", **tools)
        read = ask(f"{url}/offload/status", method="GET").json["cache_read_tokens"]

    assert json.dumps(sent).count("[Offloaded:") == 3
    assert (summary, kept, read) == ([*sent, *more], steps, 24)


def test_interactions_of_gemini_pass_without_retrieval_tools_of_the_client_and_the_log_says_so_once(
    tmp_path, caplog
):
    steps: list[Json] = [{"type": "user_input", "content": [{"type": "text", "text": "Build it."}]}]
    off = Offloader(tmp_path, session="gateway", policy=OffloadPolicy(cost_plan="none"))
    with providing() as upstream, running(upstream.url, off) as url:
        upstream.answer = lambda provider: provider.say(200, b"{}")
        for number in range(4):
            steps += exchange("gemini-interactions", "Bash", {}, f"{number}\n{LOG}", f"c{number}")
            body = {
                "model": "gemini-4-argon",
                "input": steps,
                "tools": [{"type": "function", "name": "Bash"}],
            }
            ask(f"{url}/v1beta/interactions", json.dumps(body).encode())

    assert upstream.seen[-1].json == body
    assert caplog.text.count("get no tools of the gateway") == 1
