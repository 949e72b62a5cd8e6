"""Message threads through a gateway: the provider keeps the conversation, the client sends what is new."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest
from anthropic import beta_tool
from gateways import LOG, Upstream, ask, providing, running

from offload import Offloader, OffloadPolicy, Rule

MODEL = "claude-opus-5-5"
READ = "Read the first result back."


class Threads:
    """A provider that keeps threads as the Messages API does; its model calls a tool so many times.

    It reads the first result back if the user asks for that.
    """

    def __init__(self, calls: int) -> None:
        self.calls = calls
        # The numbers of the replies that pause, as those with the API's own tools do.
        self.pauses: set[int] = set()
        self.kept: dict[str, Any] = {}
        self.kinds: list[str] = []
        self.messages: list[Any] = []

    def answer(self, provider: Any) -> None:
        body = provider.upstream.seen[-1].json
        thread = body["thread"]
        self.kinds.append(thread["type"])
        if thread["type"] == "continue":
            assert not {"tools", "system"} & body.keys()
            if thread["previous_message_id"] not in self.kept:
                details = {"error_code": "thread_not_found"}
                error = {"type": "not_found_error", "message": "no such thread", "details": details}
                provider.say(404, json.dumps({"type": "error", "error": error}).encode())
                return
        known = self.kept.pop(thread.get("previous_message_id"), [])
        self.messages = [*known, *body["messages"]]
        reply = self.reply()
        self.kept[reply["id"]] = [*self.messages, {"role": "assistant", "content": reply["content"]}]
        if body.get("stream"):
            self.stream(provider, reply)
        else:
            provider.say(200, json.dumps(reply).encode())

    def reply(self) -> dict[str, Any]:
        made = sum(message["role"] == "assistant" for message in self.messages)
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": f"signed-{made}"}
        shown = results(self.messages)
        if made == self.calls:
            content: list[Any] = [{"type": "text", "text": "Done."}]
        elif made == 1 and READ in str(self.messages[0]):
            given = {"id": re.findall(r"id ([a-z]{10})\]", shown[0])[0]}
            content = [{"type": "tool_use", "id": "toolu_read", "name": "context_read", "input": given}]
        else:
            given = {"command": f"make {made}"}
            content = [{"type": "tool_use", "id": f"toolu_{made}", "name": "bash", "input": given}]
        is_called = content[0]["type"] == "tool_use"
        stop = "tool_use" if is_called else "end_turn"
        if made in self.pauses:
            content, stop = [{"type": "text", "text": "One moment."}], "pause_turn"
        return {
            "id": f"msg_{len(self.kinds)}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [thinking, *content],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    def stream(self, provider: Any, reply: Any) -> None:
        thinking, last = reply["content"]
        empty = {**last, "input": {}} if "input" in last else {**last, "text": ""}
        written = json.dumps(last.get("input"))
        text = {"type": "text_delta", "text": last.get("text")}
        parts = [{"type": "input_json_delta", "partial_json": part} for part in (written[:5], written[5:])]
        deltas = [
            (0, {"type": "thinking_delta", "thinking": "Hm."}),
            (0, {"type": "signature_delta", "signature": thinking["signature"]}),
            *((1, delta) for delta in (parts if "input" in last else [text])),
        ]
        opened = [{**thinking, "thinking": "", "signature": ""}, empty]
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**reply, "content": [], "stop_reason": None}},
            *({"type": "content_block_start", "index": n, "content_block": b} for n, b in enumerate(opened)),
            *({"type": "content_block_delta", "index": n, "delta": delta} for n, delta in deltas),
            *({"type": "content_block_stop", "index": n} for n in (0, 1)),
            {
                "type": "message_delta",
                "delta": {"stop_reason": reply["stop_reason"], "stop_sequence": None},
                "usage": {"output_tokens": 5},
            },
            {"type": "message_stop"},
        ]
        provider.start_stream()
        for event in events:
            provider.send_part(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        provider.send_part(b"")


def results(messages: list[Any]) -> list[str]:
    """Return the texts of the tool results, in order."""
    blocks = (
        b for m in messages if m["role"] == "user" and isinstance(m["content"], list) for b in m["content"]
    )
    texts = [block["content"] for block in blocks if block["type"] == "tool_result"]
    return [text if isinstance(text, str) else text[0]["text"] for text in texts]


@contextmanager
def threaded(calls: int) -> Iterator[tuple[Upstream, Threads]]:
    with providing() as upstream:
        threads = Threads(calls)
        upstream.answer = threads.answer
        yield upstream, threads


def run(url: str, off: Offloader, prompt: str = "Build it.", *, streams: bool = False) -> Any:
    """Run the tool runner of the SDK against a gateway; yield after each reply."""

    @beta_tool
    def bash(command: str) -> str:
        """Run a command."""
        return f"{command}\n{LOG}"

    @beta_tool
    def context_read(id: str) -> str:  # noqa: A002 # the name of the argument
        """Read a stored item."""
        return str(off.tools.read(id))

    with anthropic.Anthropic(api_key="key", base_url=url, max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            max_tokens=99,
            model=MODEL,
            tools=[bash, context_read],
            messages=[{"role": "user", "content": prompt}],
            stream=streams,
        )
        for each in runner:
            if streams:
                each.get_final_message()  # type: ignore[union-attr]
            yield each


@pytest.mark.parametrize("streams", [False, True])
def test_what_the_tool_runner_of_the_sdk_sends_anew_leaves_before_it_is_sent(
    tmp_path: Any, streams: bool
) -> None:
    off = Offloader(tmp_path, session="gateway")
    with threaded(5) as (upstream, threads), running(upstream.url, off) as url:
        [*_] = run(url, Offloader(tmp_path, session="gateway"), streams=streams)

    assert threads.kinds == ["create", *["continue"] * 5]
    assert [text.startswith("[Offloaded: bash result") for text in results(threads.messages)] == [True] * 5
    whole = Offloader(tmp_path, session="gateway").restore(threads.messages)
    assert results(whole) == [f"make {n}\n{LOG}" for n in range(5)]


def test_a_thread_of_the_sdk_with_a_turn_that_pauses_goes_on(tmp_path: Any) -> None:
    off = Offloader(tmp_path, session="gateway", journal=True)
    tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("bash", "context_read")]
    with threaded(3) as (upstream, threads), running(upstream.url, off) as url:
        threads.pauses = {1}
        with anthropic.Anthropic(api_key="key", base_url=url, max_retries=0) as client:
            thread = client.beta.messages.thread(max_tokens=99, model=MODEL, tools=tools)
            reply = thread.send({"role": "user", "content": "Build it."})
            stops = [reply.stop_reason]
            while reply.stop_reason != "end_turn":
                calls = [block for block in reply.content if block.type == "tool_use"]
                result: Any = [{"type": "tool_result", "tool_use_id": c.id, "content": LOG} for c in calls]
                reply = thread.send({"role": "user", "content": result}) if calls else thread.send()
                stops.append(reply.stop_reason)
        status = ask(f"{url}/offload/status", method="GET").json

    assert stops == ["tool_use", "pause_turn", "tool_use", "end_turn"]
    assert upstream.seen[2].json["messages"] == []
    assert threads.kinds == ["create", *["continue"] * 3]
    assert [text.startswith("[Offloaded: bash result") for text in results(threads.messages)] == [True] * 2
    assert status["warnings"] == []


@pytest.mark.parametrize("streams", [False, True])
def test_what_the_model_reads_back_in_a_thread_stays(tmp_path: Any, streams: bool) -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=500)})
    off = Offloader(tmp_path, session="gateway", policy=policy)
    with threaded(3) as (upstream, threads), running(upstream.url, off) as url:
        [*_] = run(url, Offloader(tmp_path, session="gateway"), READ, streams=streams)

    placed, read, other = results(threads.messages)
    assert placed.startswith("[Offloaded: bash result")
    assert len(read) > 4000
    assert other.startswith("[Offloaded: bash result")


def test_a_gateway_that_did_not_see_a_thread_begin_passes_it_and_says_so_and_takes_up_its_replay(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Offloader(tmp_path, session="gateway")
    with threaded(6) as (upstream, threads):
        gateways = (running(upstream.url, Offloader(tmp_path, session="gateway")) for _ in range(2))
        with (
            next(gateways) as one,
            next(gateways) as two,
            caplog.at_level(logging.WARNING, "offload.gateway"),
        ):
            runner = run(one, tools)
            for _ in range(3):
                next(runner)
            before = results(threads.messages)
            lost = {"thread": {"type": "continue", "previous_message_id": next(iter(threads.kept))}}
            message = {"role": "user", "content": [{"type": "text", "text": LOG}]}
            body = json.dumps({"model": MODEL, "max_tokens": 9, "messages": [message], **lost}).encode()
            ask(f"{two}/v1/messages?beta=true", body)
            ask(f"{two}/v1/messages?beta=true", body)
            said = ask(f"{two}/offload/status", method="GET").json
            assert [seen.body for seen in upstream.seen[-2:]] == [body, body]
            # The runner's own thread is gone now: it sends the whole conversation again.
            [*_] = runner

    assert "create" in threads.kinds[4:]
    assert said["passed"] == {"the provider keeps the conversation": 2}
    assert caplog.text.count("continue a conversation which the provider keeps") == 1
    after = results(threads.messages)
    assert after[: len(before)] == before
    assert all(text.startswith("[Offloaded: ") for text in after)
    assert results(tools.restore(threads.messages)) == [f"make {n}\n{LOG}" for n in range(6)]
