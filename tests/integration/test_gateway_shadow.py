"""Shadow requests of a gateway: their share, their limits, and that no client waits for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _provider import Provider, serving
from gateways import HEADERS, KEY, LOG, ask, opened, running, wait_for
from talking import FIELDS, KINDS, READERS, Json, path_of, request_of, results_of, user_of

from offload import ConfigError, Offloader
from offload.gateway import ShadowPlan, _shadow
from offload.replay import ShadowPair, ShadowReport, pairs_in
from offload.replay._pairs import put_pair
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

MODEL = "claude-opus-5"
ALL = ShadowPlan(1.0, budget=100.0)


def bash(command: str) -> list[Json]:
    return [{"type": "tool_use", "id": "", "name": "Bash", "input": {"command": command}}]


def is_offloaded(request: Json) -> bool:
    return "[Offloaded: " in json.dumps([request.get(name) for name in {*FIELDS.values(), "messages"}])


class Talk:
    """A conversation of a client, whose model calls Bash each time and gets a large result."""

    def __init__(self, url: str, kind: str = "messages", *, streams: bool = True, model: str = MODEL):
        self.url, self.kind, self.streams, self.model = url, kind, streams, model
        self.messages: list[Json] = [user_of(kind, f"Build {id(self)}.")]
        self.fields: Json = {}

    def send(self, result: str = LOG) -> int:
        body = request_of(self.kind, self.model, self.messages, streams=self.streams, **self.fields)
        reply = ask(self.url + path_of(self.kind, streams=self.streams), body)
        if reply.status == 200:
            answered = READERS[self.kind](reply.body, streams=self.streams)
            self.messages += answered.messages
            calls = [block for block in answered.blocks if block["type"] == "tool_use"]
            self.messages += results_of(self.kind, calls, result) if calls else [user_of(self.kind, "Go on.")]
        return reply.status

    def send_changed(self) -> None:
        """Send the first three requests: something is replaced in the third one."""
        for _ in range(3):
            assert self.send() == 200


def answering(provider: Provider, say: Callable[[Json], str]) -> None:
    """Let a provider call Bash with a command; each call gets an id of its own."""
    numbers = iter(range(10_000))

    def answer(request: Json) -> list[Json]:
        return [block | {"id": f"toolu_{next(numbers)}"} for block in bash(say(request))]

    provider.answer = answer


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(keeps=True, is_strict=True)) as provider:
        answering(provider, lambda _: "make")
        yield provider


@pytest.fixture
def off() -> Offloader:
    return opened(MemoryStore(), session="gateway")


@contextmanager
def gateway(provider: Provider, off: Offloader, plan: ShadowPlan = ALL, **options: Any) -> Iterator[str]:
    with running(provider.url, off, shadow=plan, **options) as url:
        yield url


def facts(url: str) -> Any:
    return ask(f"{url}/offload/status", method="GET").json["shadow"]


def found(off: Offloader, count: int = 1) -> list[ShadowPair]:
    """Wait for some pairs in the store."""
    wait_for(lambda: len([*pairs_in(off.store)]) >= count)
    return [*pairs_in(off.store)]


def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes its time, as a slow store lets it."""

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return function(*arguments)

    return slow


def shadows(provider: Provider, talk: Talk) -> list[Json]:
    """Return the requests of a conversation that no client sent: without tools of the gateway."""
    field = FIELDS.get(talk.kind, "messages")
    all_of = [json.loads(body) for _, _, body in provider.requests]
    return [
        one for one in all_of if one[field][0] == talk.messages[0] and "context_read" not in json.dumps(one)
    ]


# A pair


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streams", [False, True])
def test_the_original_of_a_changed_request_is_sent_twice_after_the_reply(provider, off, kind, streams):
    model = {"messages": MODEL, "chat": "gpt-5.5", "responses": "gpt-5.5"}.get(kind, "gemini-3.1-pro-preview")
    with gateway(provider, off) as url:
        talk = Talk(url, kind, streams=streams, model=model)
        talk.send_changed()
        sent = talk.messages[:-2]
        [pair, *_] = found(off)
    first, second = shadows(provider, talk)
    assert first == second
    assert first[FIELDS.get(kind, "messages")] == sent[: len(first[FIELDS.get(kind, "messages")])]
    assert not is_offloaded(first)
    assert pair.offload == pair.original == pair.again == 'Bash {"command": "make"}'
    assert (pair.lost, pair.model, pair.hidden[0].tool, pair.hidden[0].chars) == ("", model, "Bash", len(LOG))
    assert 0 < pair.dollars < 1


def test_the_key_of_the_client_is_used_and_kept_nowhere(provider, off):
    with gateway(provider, off) as url:
        Talk(url).send_changed()
        found(off)
        shown = ask(f"{url}/offload/status", method="GET").body
    assert {headers["x-api-key"] for _, headers, _ in provider.requests} == {KEY}
    assert len(provider.requests) == 5
    stored = b"".join(off.store.get(each.key) for each in off.store.keys(""))
    assert KEY.encode() not in stored + shown


def test_harm_is_in_the_report_with_both_actions(provider, off):
    answering(provider, lambda request: "make again" if is_offloaded(request) else "make test")
    with gateway(provider, off) as url:
        for count in range(1, 22):
            Talk(url).send_changed()
            found(off, count)
    report = ShadowReport(found(off, 21))
    assert report.agreement.low > 0.7
    assert {(pair.offload, pair.original) for pair in report.disagreements} == {
        ('Bash {"command": "make again"}', 'Bash {"command": "make test"}')
    }


def test_nothing_is_sent_unless_it_is_asked_for_and_only_a_share_is_drawn(provider, off):
    with running(provider.url, off) as url:
        Talk(url).send_changed()
        assert "shadow" not in ask(f"{url}/offload/status", method="GET").json
    assert len(provider.requests) == 3
    with gateway(provider, off, ShadowPlan(0.4, budget=100)) as url:
        for count in range(2, 42):
            Talk(url).send_changed()
            wait_for(lambda: 2 * facts(url)["pairs"] + 3 * count == len(provider.requests))  # noqa: B023 # called at once
        assert 3 <= facts(url)["pairs"] <= 35
        assert facts(url)["lost"] == {}


# Read-backs


def test_a_read_back_that_the_gateway_answers_counts_by_what_follows(provider, off):
    def answer(request: Json) -> str:
        return "make test" if "context_list" in json.dumps(request["messages"]) else "make"

    answering(provider, answer)
    plain = provider.answer
    with gateway(provider, off) as url:
        talk = Talk(url)
        talk.send()
        talk.send()
        lists = [{"type": "tool_use", "id": "toolu_list", "name": "context_list", "input": {}}]
        is_first = iter([True])
        provider.answer = lambda request: lists if next(is_first, False) else plain(request)
        talk.send()
        [pair] = found(off)
    assert (pair.offload, pair.original) == ('Bash {"command": "make test"}', 'Bash {"command": "make"}')


def test_a_read_back_that_the_client_answers_counts_by_its_next_reply(provider, off):
    with gateway(provider, off) as url:
        talk = Talk(url)
        read = {"name": "mcp__offload__context_list", "description": "", "input_schema": {"type": "object"}}
        talk.fields = {"tools": [{"name": "Bash", "input_schema": {"type": "object"}}, read]}
        talk.send()
        talk.send()
        plain = provider.answer
        lists = [{"type": "tool_use", "id": "toolu_list", "name": read["name"], "input": {}}]
        provider.answer = lambda _: lists
        talk.send("none")
        assert facts(url)["pairs"] == 0
        provider.answer = plain
        answering(provider, lambda request: "make test" if "toolu_list" in json.dumps(request) else "make")
        talk.send()
        [pair] = found(off)
    assert (pair.offload, pair.original) == ('Bash {"command": "make test"}', 'Bash {"command": "make"}')


# Limits


def test_the_budget_ends_them_and_a_new_process_continues_it(provider, off):
    with gateway(provider, off) as url:
        Talk(url).send_changed()
        [pair] = found(off)
    plan = ShadowPlan(1.0, budget=1.5 * pair.dollars)
    before = len(provider.requests)
    with gateway(provider, off, plan) as url:
        for _ in range(3):
            Talk(url).send_changed()
            wait_for(lambda: facts(url)["ended"])
        shown = facts(url)
    assert len(provider.requests) == before + 9
    assert shown["dollars"] == pytest.approx(pair.dollars, abs=1e-6)
    assert "budget" in shown["ended"]


def test_a_model_without_a_price_and_a_reply_without_usage_get_none(provider, off):
    with gateway(provider, off) as url:
        Talk(url, model="house-model").send_changed()
        wait_for(lambda: facts(url)["lost"] == {"the price of the model is not known": 1})
        talk = Talk(url, "chat", model="gpt-5.5")
        talk.send()
        talk.send()
        body = request_of("chat", "gpt-5.5", talk.messages, streams=True, stream_options=None)
        ask(url + path_of("chat", streams=True), body)
        wait_for(lambda: facts(url)["lost"].get("the reply has no usage") == 1)
        status = ask(f"{url}/offload/status", method="GET").json
    assert len(provider.requests) == 6
    assert any("the price of the model is not known" in text for text in status["warnings"])


class Gate:
    """A provider whose shadow requests wait; it counts those that do at once."""

    def __init__(self, provider: Provider) -> None:
        self.open, self.now, self.most = threading.Event(), 0, 0
        self.lock, plain = threading.Lock(), provider.answer

        def answer(request: Json) -> list[Json]:
            if "context_read" not in json.dumps(request):
                with self.lock:
                    self.now += 1
                    self.most = max(self.most, self.now)
                self.open.wait(30)
                with self.lock:
                    self.now -= 1
            return plain(request)

        provider.answer = answer


def test_clients_wait_for_none_and_few_are_under_way(provider, off):
    gate = Gate(provider)
    with gateway(provider, off) as url:
        talks = [Talk(url) for _ in range(12)]
        for talk in talks:
            talk.send_changed()
        wait_for(lambda: gate.now == 2)
        assert facts(url)["lost"] == {"too many at once": 4}
        gate.open.set()
        wait_for(lambda: facts(url)["pairs"] == 8)
    assert gate.most == _shadow.MOST_AT_ONCE


@pytest.mark.parametrize(("status", "is_paused"), [(500, False), (429, True), (529, True)])
def test_a_provider_that_fails_or_limits_costs_pairs_alone(provider, off, status, is_paused):
    failed = status, {"type": "error", "error": {"type": "api_error", "message": "no"}}
    provider.failure = lambda request: None if "context_read" in json.dumps(request) else failed
    with gateway(provider, off) as url:
        Talk(url).send_changed()
        wait_for(lambda: facts(url)["lost"] == {f"status {status}": 1})
        Talk(url).send_changed()
        assert facts(url)["dollars"] == 0
    # At its end, a gateway waits for what is under way.
    assert len(provider.requests) == 7 + (not is_paused)


def test_a_slow_provider_costs_a_pair(provider, off, monkeypatch):
    monkeypatch.setattr(_shadow, "PAIR_SECONDS", 0.2)
    gate = Gate(provider)
    with gateway(provider, off) as url:
        Talk(url).send_changed()
        [pair] = found(off)
        gate.open.set()
    assert (pair.lost, pair.same) == ("the provider is slow", None)
    assert pair.dollars > 0


def test_a_reply_that_fails_at_the_client_is_no_pair(provider, off):
    with gateway(provider, off) as url:
        talk = Talk(url)
        talk.send()
        talk.send()
        provider.failure = lambda _: (500, {"type": "error", "error": {"type": "api_error", "message": "no"}})
        assert talk.send() == 500
        wait_for(lambda: facts(url)["lost"] == {"status 500": 1})
    assert len(provider.requests) == 3


def test_a_request_that_is_lost_late_leaves_a_later_one_of_its_conversation(provider, off):
    gate = Gate(provider)
    with gateway(provider, off) as url:
        for _ in range(2):
            Talk(url).send_changed()
        wait_for(lambda: gate.now == 2)
        talk = Talk(url, "chat", model="house-model")
        talk.send_changed()
        plain, begun, is_open = provider.answer, threading.Event(), threading.Event()

        def answer(request: Json) -> Any:
            if request["model"] == "house-model":
                begun.set()
                is_open.wait(30)
            return plain(request)

        provider.answer = answer
        later = threading.Thread(target=talk.send)
        later.start()
        begun.wait(30)
        gate.open.set()
        wait_for(lambda: facts(url)["lost"] == {"the price of the model is not known": 1})
        is_open.set()
        later.join()
        wait_for(lambda: facts(url)["lost"] == {"the price of the model is not known": 2})


def test_what_was_paid_for_is_stored_at_the_end_in_a_slow_store_too(provider, off, monkeypatch):
    gate = Gate(provider)
    monkeypatch.setattr(_shadow, "put_pair", slowed(put_pair))
    with gateway(provider, off) as url:
        for _ in range(2):
            Talk(url).send_changed()
        wait_for(lambda: gate.now == 2)
    gate.open.set()
    assert [pair.lost for pair in pairs_in(off.store)] == ["the gateway stopped"] * 2


def test_a_client_that_left_behind_a_read_back_makes_room(provider, off, monkeypatch):
    monkeypatch.setattr(_shadow, "MOST_BYTES", 3 * len(LOG))
    read = {"name": "mcp__offload__context_list", "input_schema": {"type": "object"}}
    plain = provider.answer
    with gateway(provider, off) as url:
        talk = Talk(url)
        talk.fields = {"tools": [{"name": "Bash", "input_schema": {"type": "object"}}, read]}
        talk.send()
        talk.send()
        provider.answer = lambda _: [
            {"type": "tool_use", "id": "toolu_list", "name": read["name"], "input": {}}
        ]
        talk.send()
        provider.answer = plain
        Talk(url).send_changed()
        found(off)
        assert facts(url)["lost"] == {"the client sent nothing after a read-back": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"mcp_servers": [{"type": "url", "name": "mail", "url": "https://mail.example"}]},
        {"tools": [{"name": "Bash"}, {"type": "code_execution_20250825", "name": "code_execution"}]},
        {"tools": [{"name": "Bash"}, {"type": "shell", "environment": {"type": "container_auto"}}]},
        {"tools": [{"name": "Bash"}, {"codeExecution": {}}]},
    ],
)
def test_what_the_provider_itself_runs_is_run_once(provider, off, fields):
    with gateway(provider, off) as url:
        talk = Talk(url)
        talk.fields = fields
        talk.send_changed()
    assert len(provider.requests) == 3
    assert [*pairs_in(off.store)] == []


# Harm


def test_harm_above_the_limit_lets_requests_pass_unchanged_also_in_a_new_process(provider, off, monkeypatch):
    answering(provider, lambda request: "make again" if is_offloaded(request) else "make test")
    plan = ShadowPlan(1.0, budget=100, stop=0.05)
    with gateway(provider, off, plan) as url:
        for count in range(1, 21):
            Talk(url).send_changed()
            found(off, count)
        wait_for(lambda: facts(url)["ended"] == "offloading was stopped")
        Talk(url).send_changed()
        status = ask(f"{url}/offload/status", method="GET").json
    monkeypatch.setattr(_shadow, "pairs_in", slowed(pairs_in))
    with gateway(provider, off, plan) as url:
        Talk(url).send_changed()
    last = [body for _, _, body in provider.requests[-6:]]
    assert [is_offloaded(json.loads(body)) for body in last] == [False] * 6
    assert b"context_read" not in b"".join(last)
    assert status["passed"]["shadow requests showed harm"] == 3
    assert any("by 20 pairs of shadow requests" in text for text in status["warnings"])


def test_thinking_that_the_provider_binds_is_left_out_of_the_originals(provider, off):
    plain = provider.answer
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    provider.answer = lambda request: [thinking, *plain(request)]
    with gateway(provider, Offloader(off.store, session="gateway")) as url:
        talk = Talk(url, model="claude-opus-5-5")
        for _ in range(4):
            talk.send(LOG * 3)
        pair = found(off)[-1]
    assert pair.same is not None
    assert pair.is_bare
    assert "thinking" not in json.dumps(shadows(provider, talk)[-1]["messages"])


# Content


def test_a_pair_has_what_redact_leaves_and_is_encrypted(provider):
    inner = MemoryStore()
    store = EncryptingStore(inner, b"k" * 32)
    off = opened(store, session="gateway", redact=lambda text: text.replace("secret", "[gone]"))
    answering(provider, lambda _: 'curl "secret"')
    with gateway(provider, off) as url:
        Talk(url).send_changed()
        [pair] = found(off)
    assert pair.offload == 'Bash {"command": "curl \'[gone]\'"}'
    assert pair.hidden[0].title == 'curl "[gone]"'
    raw = b"".join(inner.get(each.key) for each in inner.keys(""))
    assert b"secret" not in raw
    assert b"curl" not in raw


@pytest.mark.parametrize(
    "values", [("0.1", 5.0), (0.1, "5USD"), (0.1, 5.0, "5%"), (True, 5.0), (float("nan"), 5.0)]
)
def test_a_plan_that_has_no_numbers_is_refused(values):
    with pytest.raises(ConfigError, match="must be"):
        ShadowPlan(*values)


def test_headers_of_one_request_are_not_repeated(provider, off):
    with gateway(provider, off) as url:
        HEADERS["Idempotency-Key"] = "one"
        try:
            Talk(url).send_changed()
        finally:
            del HEADERS["Idempotency-Key"]
        found(off)
    assert ["idempotency-key" in headers for _, headers, _ in provider.requests][-2:] == [False, False]
