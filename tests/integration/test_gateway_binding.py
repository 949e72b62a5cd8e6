"""A gateway before a provider that binds thinking to what was sent before it: no request may be refused."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard
from _binding import HEADER
from _provider import Provider, serving
from gateways import HEADERS, LOG, TOOLS, Upstream, ask, providing, running, status
from kit.store import ActingStore, failing, waiting
from recorded import each, needed
from strength import thinned

from offload import Offloader, OffloadPolicy, RecordInfo, StoreError, open_store
from offload.gateway import _threads, _turns
from offload.replay import Transcript, load
from offload.storage.store import OffloadStore
from offload.testing import FaultyStore

BOUND, EDITABLE = "claude-opus-5-5", "claude-opus-5"
PATH = "/v1/messages?beta=true"
THINKING = {"type": "thinking", "thinking": "", "signature": ""}
REFUSED = (
    b'{"type":"error",  "error":{"type":"invalid_request_error", "message":"messages.1.content.0: Invalid '
    b'`signature` in `thinking` block. The block is bound to a different conversation. Remove the block."}}'
)


class Agent:
    """A client that sends its whole conversation each time, with a cache mark on its last block."""

    def __init__(self, provider: Provider, model: str = BOUND, **fields: Any) -> None:
        self.provider = provider
        self.fields = {"model": model, "max_tokens": 9, "tools": TOOLS, "system": "You build."} | fields
        self.messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Build it."}]}]
        self.headers = dict(HEADERS)
        self.calls = 0

    @property
    def body(self) -> bytes:
        *known, last = self.messages
        *blocks, final = last["content"]
        marked = {**last, "content": [*blocks, {**final, "cache_control": {"type": "ephemeral"}}]}
        return json.dumps(self.fields | {"messages": [*known, marked]}).encode()

    def send(self, url: str) -> dict[str, Any]:
        """Send the conversation; return the reply, which must be none that refuses it."""
        reply = ask(url + PATH, self.body, headers=self.headers)
        assert reply.status == 200, reply.body
        got: dict[str, Any] = reply.json
        return got

    def turn(self, url: str, text: str = LOG, *, thinks: bool = True, name: str = "Bash") -> None:
        """Send the conversation, and add the reply, which calls a tool, and the result of that."""
        call = {"type": "tool_use", "id": f"toolu_{self.calls}", "name": name, "input": {"n": self.calls}}
        self.provider.answer = lambda _: [THINKING, call] if thinks else [call]
        content = self.send(url)["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"make {self.calls}\n{text}"}
        self.messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        self.calls += 1

    @property
    def arrived(self) -> list[Any]:
        """The messages that the provider got last."""
        messages: list[Any] = json.loads(self.provider.requests[-1][2])["messages"]
        return messages


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider(keeps=True)) as provider:
        yield provider


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@contextmanager
def gateway(provider: Provider | Upstream, store: str | OffloadStore, **options: Any) -> Iterator[str]:
    with running(provider.url, Offloader(store, session="gateway", **options)) as url:
        yield url


def replaced(messages: list[Any]) -> list[int]:
    """Return the numbers of the calls whose results arrived as placeholders."""
    blocks = [b for m in messages for b in m["content"] if b["type"] == "tool_result"]
    return [n for n, block in enumerate(blocks) if block["content"].startswith("[Offloaded: ")]


def thinking(messages: list[Any]) -> list[int]:
    """Return the indexes of the messages that arrived with thinking."""
    return [n for n, m in enumerate(messages) if any(b["type"] == "thinking" for b in m["content"])]


# Nothing that was sent changes


def test_nothing_is_stored_ahead_where_the_next_reply_may_bind_it(provider: Provider, store: str) -> None:
    agent = Agent(provider)
    with gateway(provider, store) as url:
        for n in range(6):
            agent.turn(url, thinks=n > 3)
        agent.send(url)

    assert provider.refused == 0
    assert thinking(agent.arrived) == [9, 11]
    assert len(replaced(agent.arrived)) == len(records(store))


@pytest.mark.parametrize("model", [BOUND, EDITABLE])
@pytest.mark.parametrize("size", [300, 6_000, 40_000])
def test_the_report_of_a_background_task_is_the_same_in_all_requests_and_after_a_restart(
    provider: Provider, store: str, model: str, size: int
) -> None:
    agent = Agent(provider, model)
    texts = set()
    for start in (0, 3):
        with gateway(provider, store) as url:
            for n in range(start, start + 3):
                agent.turn(url)
                if n == 1:
                    report = (
                        f"<task-notification>\n<result>{LOG * 2}"[:size] + "</result>\n</task-notification>"
                    )
                    agent.messages.append({"role": "system", "content": [{"type": "text", "text": report}]})
                texts |= {b["text"] for m in agent.arrived for b in m["content"] if m["role"] == "system"}

    assert provider.refused == 0
    [text] = texts
    assert ("[Offloaded: Agent result" in text) == (size > 300)


@pytest.mark.parametrize("seed", thinned(range(6), 3))
def test_drawn_conversations_pass_restarts_and_two_replicas(
    provider: Provider, store: str, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 # a test
    agent = Agent(provider)
    bodies = set()
    policy = OffloadPolicy(cost_plan="none" if seed % 2 else "all")
    for _ in range(4):
        with gateway(provider, store, policy=policy) as one, gateway(provider, store, policy=policy) as two:
            for _ in range(draw.randint(2, 6)):
                agent.turn(
                    draw.choice([one, two]),
                    LOG[: draw.choice([200, 3000, 9000])] * draw.choice([1, 1, 4]),
                    thinks=draw.random() < 0.7,
                    name=draw.choice(["Bash", "Read"]),
                )
                if draw.random() < 0.3:
                    agent.send(two)
                    bodies.add(provider.requests[-1][2])
                    agent.send(one)
                    assert provider.requests[-1][2] in bodies, "both replicas send the same bytes"

    assert provider.refused == 0
    assert replaced(agent.arrived)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_conversations_pass_forks_interruptions_and_restarts(
    provider: Provider, store: str, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 # a test
    agent = Agent(provider)
    for _ in range(4):
        with gateway(provider, store) as url:
            for _ in range(draw.randint(2, 8)):
                agent.turn(url, LOG[: draw.choice([200, 3000, 9000])], thinks=draw.random() < 0.7)
                if draw.random() < 0.2:
                    agent.send(url)
                    agent.messages[-1]["content"].append({"type": "text", "text": "Wait."})
                if draw.random() < 0.2 and len(agent.messages) > 5:
                    # The user goes back to an earlier message and writes another one.
                    del agent.messages[-draw.choice([2, 4]) :]
                    agent.messages[-1]["content"].append({"type": "text", "text": "Rather not."})

    assert provider.refused == 0
    assert replaced(agent.arrived)


@needed
@pytest.mark.parametrize("path", each())
def test_recorded_sessions_pass_restarts_and_two_replicas(provider: Provider, store: str, path: Path) -> None:
    for session in load(path):
        if session.format != "anthropic":
            pytest.skip("not in the format of an API that binds thinking")
        replay(session, provider, store)

    assert provider.refused == 0


def replay(session: Transcript, provider: Provider, store: str) -> None:
    """Send the requests of a session, each reply with thinking that the provider signed."""
    provider.answer = lambda _: [THINKING]
    agent = Agent(provider)
    agent.messages = []
    with ExitStack() as stack:
        urls = list[str]()
        for index, message in enumerate(session.messages):
            if index % 60 == 0:
                urls = [stack.enter_context(gateway(provider, store)) for _ in range(2)]
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            kept = [block for block in blocks if not block["type"].endswith("thinking")]
            if message["role"] == "assistant":
                kept = [*agent.send(urls[index // 2 % 2])["content"], *kept]
            agent.messages.append({**message, "content": kept})


# The store


def test_results_that_left_stay_out_while_the_store_fails(provider: Provider, store: str) -> None:
    full = ActingStore(open_store(store))
    agent = Agent(provider)
    with gateway(provider, full) as url:
        for n in range(16):
            full.act = failing(StoreError("the disk is full"), "put") if n % 4 == 3 else None
            agent.turn(url, LOG * 3)

    assert provider.refused == 0
    assert 0 < len(replaced(agent.arrived)) < 15


def slow_store(store: str) -> tuple[OffloadStore, threading.Event]:
    """Return a store whose writes wait while an event is not set."""
    is_free = threading.Event()
    is_free.set()
    return ActingStore(open_store(store), waiting(is_free, "put")), is_free


def records(store: str) -> list[RecordInfo]:
    return Offloader(store, session="gateway").records()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "DEADLINE", 0.1)
    monkeypatch.setattr(_turns, "BOUND_DEADLINE", 0.3)


@pytest.mark.usefixtures("impatient")
def test_a_store_that_hangs_never_changes_what_thinking_was_made_behind(
    provider: Provider, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, is_free = slow_store(store)
    agent = Agent(provider)
    with gateway(provider, slow) as url:
        for n in range(7):
            (is_free.set if n < 5 else is_free.clear)()
            agent.turn(url, LOG * 3)
        stored = len(records(store))
        is_free.set()
        while len(records(store)) == stored:
            time.sleep(0.01)
        # A busy machine would be late in the last request too, which the next gateway cannot know.
        monkeypatch.setattr(_turns, "BOUND_DEADLINE", 20)
        for _ in range(5):
            agent.turn(url, LOG * 3)
        said = status(url)
    with gateway(provider, store) as again:
        agent.turn(again)

    assert provider.refused == 0
    assert said["late"] > 0
    assert said["thinking_removed"] > 0


@pytest.mark.usefixtures("impatient")
def test_a_bound_conversation_waits_longer_for_the_store(
    provider: Provider, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_turns, "BOUND_DEADLINE", 20)
    slow, is_free = slow_store(store)
    agent = Agent(provider)
    with gateway(provider, slow) as url:
        agent.turn(url, LOG * 3)
        is_free.clear()
        threading.Timer(0.5, is_free.set).start()
        agent.turn(url)

    assert replaced(agent.arrived) == [0]


def test_a_request_without_tools_to_read_back_keeps_what_was_replaced_before(
    provider: Provider, store: str
) -> None:
    agent = Agent(provider, "somebody's model")
    with gateway(provider, store) as url:
        for _ in range(4):
            agent.turn(url, LOG * 3)
        before = replaced(agent.arrived)
        agent.fields["tools"] = TOOLS[:1]
        agent.send(url)

    assert replaced(agent.arrived) == before != []


def test_tokens_are_counted_of_what_is_sent(provider: Provider, store: str) -> None:
    agent = Agent(provider)
    with gateway(provider, store) as url:
        for _ in range(4):
            agent.turn(url, LOG * 3)
        counted = ask(f"{url}/v1/messages/count_tokens?beta=true", agent.body)
        said = status(url)

    assert counted.status == 200
    assert replaced(agent.arrived) == [0, 1, 2]
    assert (said["rewritten"], said["passed"]) == (3, {"nothing to replace": 1})


def test_a_result_that_was_stored_ahead_asks_no_store_in_the_path(provider: Provider, store: str) -> None:
    slow, is_free = slow_store(store)
    agent = Agent(provider, EDITABLE)
    with gateway(provider, slow, policy=OffloadPolicy(cost_plan="none")) as url:
        for n in range(4):
            agent.turn(url)
            # The first two requests have nothing that leaves.
            while n > 1 and len(records(store)) < n:
                time.sleep(0.01)
        is_free.clear()
        agent.send(url)
        late = status(url)["late"]
        is_free.set()

    assert late == 0
    assert replaced(agent.arrived) == [0, 1, 2]


# Refusals


def edited(agent: Agent) -> None:
    """Let the client change an early message, and keep the thinking behind it."""
    agent.messages[4]["content"][0]["content"] = "cleared by the client"


def edited_after(turns: int, provider: Provider, store: str) -> Agent:
    """Return a client that changed an early message after some turns, through a gateway that has ended."""
    agent = Agent(provider)
    with gateway(provider, store) as url:
        for _ in range(turns):
            agent.turn(url)
    edited(agent)
    return agent


def test_a_refused_request_is_repaired_once_and_the_client_sees_the_good_answer(
    provider: Provider, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = edited_after(6, provider, store)
    with caplog.at_level(logging.WARNING), gateway(provider, store) as fresh:
        agent.turn(fresh)
        said = status(fresh)
        agent.turn(fresh)
        assert thinking(agent.arrived) == [1, 3, 13]

    assert provider.refused == 1
    assert (said["thinking_refused"], said["thinking_removed"]) == (1, 4)
    assert caplog.text.count("4 blocks are left out from now on") == 1


def shortened(messages: list[Any]) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": "Build"}]}, *messages[1:]]


def without_oldest(messages: list[Any]) -> list[Any]:
    return [messages[0], *messages[5:]]


@pytest.mark.parametrize("tools", [TOOLS, TOOLS[:1]], ids=["client", "gateway"])
@pytest.mark.parametrize("trim", [shortened, without_oldest])
def test_a_client_that_trims_its_first_messages_gets_a_good_answer_and_the_next_one_at_once(
    provider: Provider, store: str, trim: Callable[[list[Any]], list[Any]], tools: Any
) -> None:
    agent = Agent(provider, tools=tools)
    with gateway(provider, store) as url:
        for _ in range(6):
            agent.turn(url, LOG * 3)
        agent.messages = trim(agent.messages)
        agent.turn(url, LOG * 3)
        refused = provider.refused
        agent.turn(url, LOG * 3)
        assert provider.refused == refused <= 1
    with gateway(provider, store) as again:
        agent.turn(again, LOG * 3)


def test_a_repair_is_remembered_after_a_restart_and_by_other_replicas(provider: Provider, store: str) -> None:
    agent = Agent(provider)
    with gateway(provider, store) as one, gateway(provider, store) as two:
        for n in range(6):
            agent.turn((one, two)[n % 2])
    edited(agent)
    with gateway(provider, store) as one, gateway(provider, store) as two:
        for n in range(4):
            agent.turn((one, two)[n % 2])
    with gateway(provider, store) as fresh:
        agent.turn(fresh)

    assert provider.refused == 1


def test_a_client_that_edits_a_conversation_in_memory_is_not_refused_at_all(
    provider: Provider, store: str
) -> None:
    agent = Agent(provider)
    with gateway(provider, store) as url:
        for _ in range(6):
            agent.turn(url)
        edited(agent)
        agent.turn(url)

    assert provider.refused == 0


@pytest.mark.parametrize(
    ("model", "answer", "refusals"),
    [
        # No gateway sees what its client changed while it was away.
        (BOUND, "binds", 1),
        ("claude-opus-6", "binds", 1),
        ("house-model", "binds", 1 + 1),
        ("kimi-k3", "binds", 1 + 1),
        (BOUND, "required", 1),
        ("claude-opus-6", "required", 1),
        ("house-model", "required", 0),
        ("kimi-k3", "required", 0),
    ],
)
def test_a_gateway_learns_the_answer_of_the_provider_from_one_refusal(
    provider: Provider, store: str, model: str, answer: str, refusals: int
) -> None:
    agent = Agent(provider, model)
    provider.binding.answer = answer
    with gateway(provider, store) as url:
        for _ in range(4):
            agent.turn(url)
        edited(agent)
        for _ in range(2):
            agent.turn(url)
    with gateway(provider, store) as one, gateway(provider, store) as two:
        agent.messages[2]["content"][0]["content"] = "cleared by the client too"
        for n in range(4):
            agent.turn((one, two)[n % 2])

    assert provider.refused == refusals
    if answer == "required":
        assert thinking(agent.arrived) == [n for n, m in enumerate(agent.arrived) if m["role"] == "assistant"]


def test_a_refusal_is_repaired_while_the_store_takes_nothing(provider: Provider, store: str) -> None:
    faulty = FaultyStore(open_store(store), verb="put", is_lasting=True, error=StoreError)
    agent = edited_after(6, provider, store)
    with gateway(provider, faulty) as fresh:
        for n in range(4):
            if n == 2:
                faulty.heal()
            agent.turn(fresh)
    with gateway(provider, store) as again:
        agent.turn(again)

    assert provider.refused == 1


def test_a_stream_is_repaired_too(provider: Provider, store: str) -> None:
    agent = edited_after(4, provider, store)
    agent.fields["stream"] = True
    with gateway(provider, store) as fresh:
        reply = ask(fresh + PATH, agent.body)

    assert (reply.status, provider.refused) == (200, 1)
    assert b"message_stop" in reply.body


def test_a_client_that_lets_the_provider_drop_thinking_is_left_alone(provider: Provider, store: str) -> None:
    agent = edited_after(4, provider, store)
    binding = {"prefix_mismatch_behavior": "drop_block"}
    agent.fields["thinking"] = {"type": "adaptive", "block_binding": binding}
    with gateway(provider, store) as fresh:
        refused = ask(fresh + PATH, agent.body)
        agent.headers["Anthropic-Beta"] = HEADER
        dropped = agent.send(fresh)["input_transformations"]

    assert (refused.status, provider.refused) == (400, 1)
    assert [one["path"] for one in dropped] == ["messages.5.content.0", "messages.7.content.0"]


def test_a_refusal_of_a_request_that_lets_thinking_be_dropped_passes(store: str) -> None:
    binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    body = json.dumps(json.loads(signed()) | {"thinking": binding}).encode()
    with refusing(store, says(400, REFUSED)) as (upstream, url):
        assert ask(url + PATH, body).body == REFUSED
        assert len(upstream.seen) == 1


@contextmanager
def refusing(store: str, *answers: Callable[[Any], None]) -> Iterator[tuple[Upstream, str]]:
    """Run a gateway before a provider that gives these answers, the last one for ever."""
    with providing() as upstream, gateway(upstream, store) as url:
        left = list(answers)

        def answer(provider: Any) -> None:
            (left.pop(0) if len(left) > 1 else left[0])(provider)

        upstream.answer = answer
        yield upstream, url


def says(status: int, text: bytes, *headers: tuple[str, str]) -> Callable[[Any], None]:
    return lambda provider: provider.say(status, text, *headers)


def signed() -> bytes:
    """Return a request with three signed replies."""
    agent = Agent(Provider())
    for n in range(3):
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "Bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": "ok"}
        reply = [{**THINKING, "signature": f"s{n}"}, call]
        agent.messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": [result]}]
    return agent.body


def test_if_all_repairs_are_refused_the_first_answer_passes_byte_for_byte(store: str) -> None:
    second = REFUSED.replace(b"messages.1", b"messages.5")
    answers = [says(400, text, ("Request-Id", text[-9:].hex())) for text in (second, REFUSED)]
    with refusing(store, *answers) as (upstream, url):
        body = signed()
        reply = ask(url + PATH, body)

    assert (reply.status, reply.body) == (400, second)
    assert ("Request-Id", second[-9:].hex()) in reply.headers
    sent = [thinking(seen.json["messages"]) for seen in upstream.seen]
    assert sent == [[1, 3, 5], [1, 3], []]
    assert records(store) == []


def test_a_repair_with_another_error_passes_the_refusal_but_a_busy_provider_passes(store: str) -> None:
    busy = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    other = b'{"type":"error","error":{"type":"invalid_request_error","message":"Expected `thinking`"}}'
    for status_code, text, passed in ((529, busy, busy), (400, other, REFUSED)):
        answers = [says(400, REFUSED), says(status_code, text)]
        with refusing(store, *answers) as (upstream, url):
            assert ask(url + PATH, signed()).body == passed
            assert len(upstream.seen) == 2


def test_a_compressed_refusal_is_read_and_any_other_error_passes(store: str) -> None:
    packed = zstandard.compress(REFUSED)
    answers = [says(400, packed, ("Content-Encoding", "zstd")), says(200, b"{}")]
    with refusing(store, *answers) as (upstream, url):
        assert ask(url + PATH, signed()).status == 200
        assert len(upstream.seen) == 2


def test_only_the_removed_blocks_of_a_repaired_request_are_gone(store: str) -> None:
    answers = [says(400, REFUSED.replace(b"messages.1", b"messages.3")), says(200, b"{}")]
    with refusing(store, *answers) as (upstream, url):
        body = signed()
        ask(url + PATH, body)

    first, again = (seen.body for seen in upstream.seen)
    gone = [json.dumps({**THINKING, "signature": f"s{n}"}).encode() + b", " for n in (1, 2)]
    assert first == body
    assert again == body.replace(gone[0], b"").replace(gone[1], b"")


def test_thinking_is_sent_on_though_the_client_spells_a_text_as_a_block_while_it_is_marked(
    provider: Provider, store: str
) -> None:
    agent = Agent(provider)
    text, mark = "# Environment", {"cache_control": {"type": "ephemeral"}}
    agent.messages.append({"role": "system", "content": [{"type": "text", "text": text} | mark]})
    with gateway(provider, store) as url:
        for turn in range(4):
            agent.turn(url)
            if not turn:
                agent.messages[1] = {"role": "system", "content": text}
        agent.send(url)
        assert thinking([m for m in agent.arrived if m["role"] == "assistant"]) == [0, 1, 2, 3]
        assert replaced([m for m in agent.arrived if m["role"] == "user"])
        assert status(url)["thinking_removed"] == 0


def test_what_was_sent_is_repeated_in_the_form_that_it_has_now(
    provider: Provider, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(provider)
    agent.messages.append({"role": "system", "content": [{"type": "text", "text": "# Environment"}]})
    with gateway(provider, store) as url:
        agent.turn(url)
        agent.turn(url)
        agent.messages[1] = {"role": "system", "content": "# Environment"}
        monkeypatch.setattr(_threads.Thread, "_offloaded", raising)
        agent.send(url)
    assert agent.arrived[1] == {"role": "system", "content": "# Environment"}
    assert replaced([m for m in agent.arrived if m["role"] == "user"]) == [0]


def raising(*_: Any) -> None:
    raise StoreError("the bucket is closed")
