"""Replays of recorded conversations as requests to a provider with a prompt cache, through a gateway or not.

Each request is sent at its recorded time, with the cache marks of Claude Code: on two blocks of the system
prompt and on the last block of the last message. The system prompt has the recorded size. If the model needs
an offloaded text again, by the rule of `offload.replay`, it calls a retrieval tool: one more request, and the
call and its answer are part of the conversation from then on.

Where the provider signs thinking, each reply is sent back with the thinking that the provider signed for it,
in place of the recorded one.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from _measure import require
from _provider import CHARS_PER_TOKEN, Charge, Provider

from offload import Offloader
from offload.messages.anthropic import AnthropicAdapter
from offload.replay import Bill, Need, Recording, Request, SentTexts
from offload.replay._bill import reads_of
from offload.replay._recording import texts_of
from offload.replay._senders import Answered, exchange

Json = dict[str, Any]
_OFFLOADER = Offloader("memory://", session="definitions")
ANTHROPIC = AnthropicAdapter.name


@dataclass
class Replay:
    """One conversation on its way to the provider.

    Attributes:
        recording: the conversation.
        provider: it charges the requests; it keeps them.
        url: where they are sent: the provider, or a gateway before it.
        model: the name of the model.
        has_tools: whether the retrieval tools are offered in every request.
        offloader: reads for the model; without it, the model reads nothing back.
        mark: the cache mark.
        charges: what each request cost.
        now: the recorded time of the latest request.
    """

    recording: Recording
    provider: Provider
    url: str
    model: str
    has_tools: bool = False
    offloader: Offloader | None = None
    mark: Json = field(default_factory=lambda: {"type": "ephemeral"})
    charges: list[Charge] = field(default_factory=list)
    now: float = 0.0
    # Index of an answer → messages of the read-backs before it, each with the row of its first text.
    _calls: dict[int, list[tuple[Json, int]]] = field(default_factory=dict)
    _rows: int = 0
    # Index of an answer → the thinking that the provider signed for it; and that of its latest reply.
    _signed: dict[int, list[Json]] = field(default_factory=dict)
    _latest: list[Json] = field(default_factory=list)

    def run(self) -> Bill:
        """Send every request; return which texts were replaced, and what the model needed of them."""
        sent, self._rows = SentTexts(self.recording), len(self.recording.rows)
        bill = Bill(replaced=sent.replaced, seen=sent.seen)
        for request in self.recording.requests:
            sent.send(request.rows, self._send(request))
            needs = sent.needs(request) if self.offloader else []
            bill.quotes += len(request.quotes)
            bill.quotes_gone += sum(need.is_quote for need in needs)
            bill.reads += reads_of(needs)
            for some in _in_requests(needs):
                sent.add(self._read_back(request, some))
                for need in some:
                    if need.row is None:
                        sent.answer(need)
            self._signed[request.answer] = self._latest
        return bill

    @property
    def cost(self) -> float:
        """The price of all requests, in uncached input tokens."""
        return sum(charge.cost for charge in self.charges)

    @property
    def is_anthropic(self) -> bool:
        """Whether the conversation is in the format of the Messages API."""
        return self.recording.transcript.format == ANTHROPIC

    def _send(self, request: Request) -> Mapping[int, str]:
        """Send one request; return the texts that the provider got in place of others, by row."""
        messages, rows = self._messages(request)
        headers = {}
        if request.is_missed and not request.is_cold:
            headers["x-provider-forget"] = "1"
        arrived = self._post(request, messages, headers)
        require(len(arrived) == len(messages), "the provider got another number of messages")
        replaced: dict[int, str] = {}
        for row, sent, got in zip(rows, messages, arrived, strict=True):
            if got != sent:
                replaced |= enumerate(texts_of(got), row)
        return replaced

    def _read_back(self, request: Request, needs: Sequence[Need]) -> list[str]:
        """Let the model call retrieval tools in one reply; return the texts of the calls and answers."""
        calls = [self._answer(need, f"toolu_read_{self._rows}_{n}") for n, need in enumerate(needs)]
        reply, *answers = exchange(self.recording.transcript.format, *calls)
        if self.is_anthropic:
            reply["content"] = [*self._latest, *reply["content"]]
        texts: list[str] = []
        for message in (reply, *answers):
            self._calls.setdefault(request.answer, []).append((message, self._rows + len(texts)))
            texts += texts_of(message)
        self._rows += len(texts)
        messages, _ = self._messages(request)
        self._post(request, messages, {})
        return texts

    def _answer(self, need: Need, call_id: str) -> Answered:
        """Return the call that shows what is needed, answered by the retrieval tools if they know it."""
        if self.offloader is None or need.row is None:
            text = "of the text that was read, " * round(need.tokens * CHARS_PER_TOKEN / 27)
            return Answered(call_id, "read", {}, text)
        ref = self.offloader.options.placeholder.find_ref(need.placeholder)
        require(ref is not None, "a text was replaced by one without an id")
        arguments = {"id": ref, **need.arguments}
        answer = self.offloader.tools.call(need.tool, arguments)
        return Answered(call_id, f"mcp__offload__{need.tool}", arguments, answer)

    def _messages(self, request: Request) -> tuple[list[Json], list[int]]:
        """Return the messages of a request, and the row of the first text of each."""
        messages, rows = list[Json](), list[int]()
        for index, message in enumerate(self.recording.transcript.messages[: request.answer]):
            for read, row in self._calls.get(index, ()):
                messages.append(read)
                rows.append(row)
            messages.append(self._resigned(index, message))
            rows.append(self.recording.starts[index])
        reads = self._calls.get(request.answer, [])
        return [*messages, *(read for read, _ in reads)], [*rows, *(row for _, row in reads)]

    def _resigned(self, index: int, message: Json) -> Json:
        """Return a recorded message with the thinking that this provider signed, if it signs any."""
        if not self._latest or message.get("role") != "assistant":
            return message
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept = [block for block in blocks if block.get("type") not in ("thinking", "redacted_thinking")]
        recorded = [str(b.get("thinking", "")) for b in blocks if b.get("type") == "thinking"]
        signed = [{**block, "thinking": "\n".join(recorded)} for block in self._signed.get(index, [])]
        # A reply that had thinking alone.
        left = kept if signed or kept else [{"type": "text", "text": "(empty)"}]
        return {**message, "content": [*signed, *left]}

    def _post(self, request: Request, messages: list[Json], headers: dict[str, str]) -> list[Json]:
        """Send messages; return those that the provider got, without the mark."""
        self.now = request.time
        body = self._anthropic_body(messages) if self.is_anthropic else self._chat_body(messages)
        path = "/v1/messages?beta=true" if self.is_anthropic else "/v1/chat/completions"
        headers |= {"content-type": "application/json", "x-provider-time": str(self.now)}
        headers["x-claude-code-session-id"] = self.recording.transcript.name
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        connection.request("POST", address.path + path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        require(answer.status == HTTPStatus.OK, f"status {answer.status}: {data[:300]!r}")
        content = json.loads(data).get("content", ())
        self._latest = [block for block in content if block["type"] == "thinking"]
        self.charges.append(self.provider.charges[-1])
        got: list[Json] = json.loads(self.provider.requests[-1][2])["messages"]
        self.provider.requests.clear()
        return self._unmarked(got, messages)

    def _anthropic_body(self, messages: list[Json]) -> Json:
        last = messages[-1]
        content = last["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        marked = {**last, "content": [*blocks[:-1], {**blocks[-1], "cache_control": self.mark}]}
        system = [
            {"type": "text", "text": text, "cache_control": self.mark} for text in self._system() if text
        ]
        body: Json = {"model": self.model, "max_tokens": 32_000, "system": system}
        if self.has_tools:
            body["tools"] = _OFFLOADER.tools.definitions("anthropic")
        return {**body, "messages": [*messages[:-1], marked]}

    def _system(self) -> list[str]:
        """Return two blocks of the system prompt, together of the recorded size."""
        first = next(iter(self.recording.transcript.usage.values()), None)
        request = self.recording.requests[0]
        sent = sum(len(row.text) for row in self.recording.rows[: request.rows]) / CHARS_PER_TOKEN
        tokens = max(0.0, first.usage.tokens - sent) if first else 0.0
        text = "You are an agent. " * round(tokens * CHARS_PER_TOKEN / 18)
        return [text[: len(text) // 2], text[len(text) // 2 :] + self._prompt()]

    def _chat_body(self, messages: list[Json]) -> Json:
        system = str(self.recording.transcript.system or "") + self._prompt()
        body: Json = {"model": self.model}
        if self.has_tools:
            body["tools"] = _OFFLOADER.tools.definitions("openai")
        has_system = messages[0].get("role") in ("system", "developer")
        first = [] if has_system or not system else [{"role": "system", "content": system}]
        return {**body, "messages": [*first, *messages]}

    def _prompt(self) -> str:
        return _OFFLOADER.prompt() if self.has_tools else ""

    def _unmarked(self, got: list[Json], sent: list[Json]) -> list[Json]:
        """Return messages as they would be without the marks and the system prompt of the request."""
        got = got[len(got) - len(sent) :]
        if not self.is_anthropic:
            return got
        last = got[-1]
        blocks = [{key: v for key, v in block.items() if key != "cache_control"} for block in last["content"]]
        is_text = isinstance(sent[-1]["content"], str) and len(blocks) == 1 and blocks[0]["type"] == "text"
        return [*got[:-1], {**last, "content": blocks[0]["text"] if is_text else blocks}]


def _in_requests(needs: Sequence[Need]) -> Iterator[list[Need]]:
    """Yield the needs that one request reads: one with names, all quotes with the last of them."""
    names, quotes = ([need for need in needs if need.is_quote is kind] for kind in (False, True))
    yield from ([need] for need in names[:-1])
    if needs:
        yield [*names[-1:], *quotes]
