"""A model's provider on the loopback interface, with the prompt caches of public APIs and scripted answers.

It charges each request by the rules that the providers publish, and answers with the usage, as JSON or as a
stream of events. Tokens are characters of the request's texts, at 3.6 characters each.

Anthropic Messages (https://platform.claude.com/docs/en/build-with-claude/prompt-caching, 2026-10): a prefix
is tools, system, messages. A block with `cache_control` writes one entry: the prefix that ends with it. A
request reads the longest entry that it finds at one of its marks or up to 19 positions before it; a run of
`tool_use` blocks is one position, and so is one of `tool_result` blocks. An entry has 1,024 tokens or more
and lives for 5 minutes or an hour after the start of the last request that wrote or read it.

OpenAI (https://developers.openai.com/api/docs/guides/prompt-caching, 2026-11): models before GPT-5.6 cache
any prefix of 1,024 tokens or more in steps of 128, for 5 minutes. GPT-5.6 and later write one entry at the
end of the last user message or group of tool results, and read one there, at up to 79 earlier such ends or
at the end of the first system messages; it lives for 30 minutes.

Gemini (https://ai.google.dev/gemini-api/docs/caching, 2026-11) is charged like the models before GPT-5.6. The
first call of each answer has a signature, or its text if it has none.

Replies of OpenAI's Responses API are kept unless `store` is false, and continued by `previous_response_id` or
in their `conversation`; ids of items are unique, and the item behind reasoning is repeated with it.

Models that bind or require their thinking refuse some requests, see `_binding.py`; their replies begin with a
signed block of thinking.

Two headers let a client replay what was recorded: `x-provider-time`, the time of the request in seconds, and
`x-provider-forget`, which empties the cache before it.

    python benchmarks/_provider.py [--port N]     prints its URL and answers until it is killed
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from _binding import HEADER, Binding, RefusedError, answer_to

CHARS_PER_TOKEN = 3.6
LEAST_TOKENS = 1024
LOOKBACK = 20
OPENAI_LOOKBACK = 80
MOST_MARKS = 4
STEP = 128
IMAGE_TOKENS = 1500
_REPLIES = itertools.count(1)
_LIFETIMES = {"5m": 300.0, "1h": 3600.0}
_FIRST_ROLES = ("definition", "system")
_AUTOMATIC_LIFETIME, _BREAKPOINT_LIFETIME = 300.0, 1800.0

Json = dict[str, Any]
Answer = Callable[[Json], list[Json]]


class BadRequestError(Exception):
    """A request that the provider refuses with status 400."""


class Charge(NamedTuple):
    """Input tokens of a request by their price.

    Attributes:
        plain: tokens that are neither read from the cache nor written to it.
        read: tokens that are read from it.
        written: tokens that are written to it for the shorter lifetime.
        written_1h: tokens that are written to it for an hour.
        write_price: price of a token of `written`; that of `written_1h` is 2, of `read` 0.1.
    """

    plain: float
    read: float = 0
    written: float = 0
    written_1h: float = 0
    write_price: float = 1.25

    @property
    def tokens(self) -> float:
        """All input tokens."""
        return self.plain + self.read + self.written + self.written_1h

    @property
    def cost(self) -> float:
        """The price in uncached input tokens."""
        return self.plain + 0.1 * self.read + self.write_price * self.written + 2 * self.written_1h


class _Block(NamedTuple):
    """The prompt up to the end of one block.

    Attributes:
        prefix: digest of all that the model reads up to there.
        tokens: tokens of it.
        position: its position in the sense of the lookback.
        lifetime: how long its mark keeps the prefix; None without a mark.
    """

    prefix: bytes
    tokens: float
    position: int
    lifetime: float | None


@dataclass
class _Entries:
    """Cached prefixes, by digest: when each ends, and how long a use keeps it."""

    ends: dict[bytes, tuple[float, float]] = field(default_factory=dict)

    def holds(self, prefix: bytes, now: float) -> bool:
        return prefix in self.ends and self.ends[prefix][0] >= now

    def use(self, prefix: bytes, now: float, lifetime: float) -> None:
        """Write an entry, or start its lifetime again."""
        kept = self.ends[prefix][1] if self.holds(prefix, now) else 0.0
        longest = max(lifetime, kept)
        self.ends[prefix] = (now + longest, longest)


class AnthropicCache:
    """The prompt cache of the Messages API."""

    def __init__(self) -> None:
        self._entries = _Entries()

    def charge(self, request: Json, now: float) -> Charge:
        """Return what a request costs, and cache what it marks. Raises `BadRequestError`."""
        blocks = list(_blocks(request))
        marks = [number for number, block in enumerate(blocks) if block.lifetime is not None]
        if len(marks) > MOST_MARKS:
            raise BadRequestError(f"A maximum of {MOST_MARKS} blocks with cache_control may be provided.")
        total = blocks[-1].tokens if blocks else 0
        cached = [number for number in marks if blocks[number].tokens >= LEAST_TOKENS]
        if not cached:
            return Charge(plain=total)
        found = next((n for mark in reversed(cached) for n in self._found(blocks, mark, now)), None)
        read = 0.0
        if found is not None:
            read = blocks[found].tokens
            self._entries.use(blocks[found].prefix, now, 0.0)
        by_lifetime = dict.fromkeys(_LIFETIMES.values(), 0.0)
        done = read
        for number in cached:
            block = blocks[number]
            assert block.lifetime is not None  # noqa: S101 # a mark has one
            self._entries.use(block.prefix, now, block.lifetime)
            by_lifetime[block.lifetime] += max(0.0, block.tokens - done)
            done = max(done, block.tokens)
        return Charge(total - done, read, by_lifetime[300.0], by_lifetime[3600.0])

    def forget(self) -> None:
        """Empty the cache."""
        self._entries.ends.clear()

    def _found(self, blocks: list[_Block], mark: int, now: float) -> Iterator[int]:
        """Yield the cached prefixes within the lookback of a mark, the longest first."""
        last = blocks[mark].position
        for number in range(mark, -1, -1):
            if last - blocks[number].position >= LOOKBACK:
                return
            if self._entries.holds(blocks[number].prefix, now):
                yield number


class AutomaticCache:
    """The prompt cache of OpenAI models before GPT-5.6."""

    def __init__(self) -> None:
        self._entries = _Entries()

    def charge(self, request: Json, now: float) -> Charge:
        """Return what a request costs, and cache its prompt."""
        texts = [_text(part) for part in _openai_parts(request)]
        prompt = "\x1e".join(texts)
        chars = round(STEP * CHARS_PER_TOKEN)
        digest, prefixes = blake2b(digest_size=16), []
        for start in range(0, len(prompt) - chars + 1, chars):
            digest.update(prompt[start : start + chars].encode(errors="surrogatepass"))
            prefixes.append(digest.digest())
        hits = 0
        while hits < len(prefixes) and self._entries.holds(prefixes[hits], now):
            hits += 1
        for prefix in prefixes:
            self._entries.use(prefix, now, _AUTOMATIC_LIFETIME)
        total = sum(_tokens(part) for part in _openai_parts(request))
        read = min(total, hits * STEP) if hits * STEP >= LEAST_TOKENS else 0
        return Charge(total - read, read)

    def forget(self) -> None:
        """Empty the cache."""
        self._entries.ends.clear()


class BreakpointCache:
    """The prompt cache of OpenAI's GPT-5.6 and later, with implicit breakpoints."""

    def __init__(self) -> None:
        self._entries = _Entries()

    def charge(self, request: Json, now: float) -> Charge:
        """Return what a request costs, and cache its prompt up to the last eligible message."""
        first, ends, total = _message_ends(request)
        looked_up = [end for end in (*first, *ends[-OPENAI_LOOKBACK:]) if end.tokens >= LEAST_TOKENS]
        if not looked_up:
            return Charge(plain=total)
        found = [end for end in looked_up if self._entries.holds(end.prefix, now)]
        for end in (*found[-1:], looked_up[-1]):
            self._entries.use(end.prefix, now, _BREAKPOINT_LIFETIME)
        read, until = found[-1].tokens if found else 0.0, looked_up[-1].tokens
        return Charge(total - until, read, until - read)

    def forget(self) -> None:
        """Empty the cache."""
        self._entries.ends.clear()


Cache = AnthropicCache | AutomaticCache | BreakpointCache


# Calls and results


def check_calls(kind: str, request: Json) -> None:
    """Raise `BadRequestError` for calls without results behind them, and for results out of place."""
    if kind == "messages":
        _check_blocks(request["messages"])
    elif kind == "responses":
        _check_items(request["input"])
    elif kind == "gemini":
        _check_contents(request["contents"])
    else:
        _check_messages(request["messages"])


def _check_blocks(messages: list[Json]) -> None:
    """Check the Messages API: the next message begins with the results of all calls, and has no others."""
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        blocks = _as_blocks(message["content"])
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        leading = [b for b in blocks[: len(results)] if b["type"] == "tool_result"]
        if sorted(results) != sorted(open_calls) or len(leading) != len(results):
            raise BadRequestError(f"messages.{at}: results {results} do not answer the calls {open_calls}")
        open_calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
        if open_calls and message["role"] != "assistant":
            raise BadRequestError(f"messages.{at}: tool_use blocks in a message of the user")
    if open_calls:
        raise BadRequestError(f"tool_use ids {open_calls} were found without tool_result blocks after")


def _check_messages(messages: list[Json]) -> None:
    """Check chat completions: messages with the results follow the message with the calls at once."""
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise BadRequestError(f"messages.{at}: a result of no call before it")
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            raise BadRequestError(f"tool_call_ids {open_calls} did not have response messages")
        else:
            open_calls = [call["id"] for call in message.get("tool_calls") or []]
        if message["role"] == "assistant" and not (message.get("content") or message.get("tool_calls")):
            raise BadRequestError(f"messages.{at}: expected a content or calls")
    if open_calls:
        raise BadRequestError(f"tool_call_ids {open_calls} did not have response messages")


def _check_items(items: list[Json]) -> None:
    """Check the Responses API: calls and outputs are pairs, in this order, and no id is there twice."""
    ids = [item["id"] for item in items if "id" in item]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise BadRequestError(f"Duplicate item found with id {min(twice)}.")
    called: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            called.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in called:
                raise BadRequestError(f"No tool call found for function call output {item['call_id']}.")
            called.remove(item["call_id"])
    if called:
        raise BadRequestError(f"No tool output found for function call {called}.")


def _check_contents(contents: list[Json]) -> None:
    """Check Gemini: the next content answers all calls in order; the last turn has its signatures."""
    asked = max(i for i, content in enumerate(contents) if any("text" in part for part in _of_user(content)))
    called: list[Any] = []
    for at, content in enumerate(contents):
        parts = content["parts"]
        if not parts or any(not part for part in parts):
            raise BadRequestError(f"contents.{at}.parts: must not be empty")
        answered = [part["functionResponse"].get("id") for part in parts if "functionResponse" in part]
        # Gemini CLI repeats results when it resumes.
        answered = [one for i, one in enumerate(answered) if one is None or one not in answered[:i]]
        # The SDK leaves the ids out.
        is_answer = len(answered) == len(called) and all(
            a in (None, b) for a, b in zip(answered, called, strict=True)
        )
        if not is_answer and (content["role"] == "user" or called):
            raise BadRequestError(
                f"contents.{at}: the function response parts {answered} are not those of the calls {called}"
            )
        calls = [part for part in parts if "functionCall" in part]
        called = [part["functionCall"].get("id") for part in calls]
        if calls and content["role"] != "model":
            raise BadRequestError(f"contents.{at}: calls in a content of the user")
        _check_signatures(parts, calls, is_current=at > asked)
    if called:
        raise BadRequestError(f"function calls {called} have no responses")


def _check_signatures(parts: list[Json], calls: list[Json], *, is_current: bool) -> None:
    if calls and is_current and "thoughtSignature" not in calls[0]:
        raise BadRequestError("Function call is missing a thought_signature in functionCall parts.")
    for part in parts:
        given, call = part.get("thoughtSignature"), part.get("functionCall")
        own = signature_of(call) if call else signature_of(part)
        if given not in (None, _UNCHECKED) and (given != own or part in calls[1:]):
            raise BadRequestError("Corrupted thought signature.")


# In place of a signature, for calls that come from elsewhere.
_UNCHECKED = "skip_thought_signature_validator"


def _of_user(content: Json) -> list[Json]:
    return content["parts"] if content["role"] == "user" else []


def signature_of(said: Json) -> str:
    """Return the signature of a call, or of any text of Gemini."""
    name = said.get("id") or json.dumps(said.get("args")) if "name" in said else "text"
    return base64.b64encode(f"signature of {name}".encode()).decode()


# The prompt in blocks


def _blocks(request: Json) -> Iterator[_Block]:
    digest, tokens, position, run = blake2b(digest_size=16), 0.0, -1, ""
    parts = list(_anthropic_parts(request))
    automatic = request.get("cache_control")
    for number, (level, role, part) in enumerate(parts):
        kind = str(part.get("type", ""))
        position += not (kind == run and kind in ("tool_use", "tool_result"))
        run = kind
        mark = part.get("cache_control") or (automatic if number == len(parts) - 1 else None)
        content = {key: value for key, value in part.items() if key != "cache_control"}
        digest.update(_bytes([level, role, content]))
        tokens += _tokens(content)
        yield _Block(digest.digest(), tokens, position, _lifetime(mark))


def _anthropic_parts(request: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield level, role and block of all that the model reads, in the order of the cache."""
    for tool in request.get("tools") or []:
        yield "tools", str(request.get("model")), {"type": "tool", **tool}
    for block in _as_blocks(request.get("system") or []):
        yield "system", str(request.get("model")), block
    settings = json.dumps([request.get(name) for name in ("tool_choice", "thinking", "output_config")])
    for message in request.get("messages") or []:
        for block in _as_blocks(message.get("content")):
            yield f"messages {settings}", str(message.get("role")), block


def _as_blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def _lifetime(mark: Any) -> float | None:
    return _LIFETIMES.get(mark.get("ttl", "5m")) if isinstance(mark, Mapping) else None


class _End(NamedTuple):
    """The prompt up to the end of one message of OpenAI's APIs: its digest and its tokens."""

    prefix: bytes
    tokens: float


def _message_ends(request: Json) -> tuple[list[_End], list[_End], float]:
    """Return the end of the first system messages, those of users and groups of results, and all tokens."""
    parts = list(_openai_parts(request))
    roles = [_openai_role(part) for part in parts]
    began = next((n for n, role in enumerate(roles) if role not in _FIRST_ROLES), len(parts))
    digest, tokens = blake2b(digest_size=16), 0.0
    first, ends = list[_End](), list[_End]()
    for number, (role, following) in enumerate(zip(roles, [*roles[1:], ""], strict=True)):
        digest.update(_bytes(parts[number]))
        tokens += _tokens(parts[number])
        if number == began - 1:
            first.append(_End(digest.digest(), tokens))
        if role == "user" or (role == "tool" and following != "tool"):
            ends.append(_End(digest.digest(), tokens))
    return first, ends, tokens


def _openai_parts(request: Json) -> Iterator[Json]:
    for tool in request.get("tools") or []:
        yield {"role": "definition", **tool}
    if request.get("instructions"):
        yield {"role": "system", "content": request["instructions"]}
    if request.get("systemInstruction"):
        yield {"role": "system", "content": request["systemInstruction"]}
    given = request.get("messages", request.get("input", request.get("contents"))) or []
    yield from [{"role": "user", "content": given}] if isinstance(given, str) else given


def _openai_role(part: Json) -> str:
    if part.get("type") == "function_call_output":
        return "tool"
    role = str(part.get("role", "assistant"))
    return "system" if role == "developer" else role


def _bytes(part: Any) -> bytes:
    """Return what a prefix is compared by: every byte of every block."""
    return json.dumps(part, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _text(part: Any) -> str:
    return json.dumps(part, ensure_ascii=False, separators=(",", ":"))


def _tokens(part: Any) -> float:
    """Return the tokens of the texts of a block; an image counts as `IMAGE_TOKENS`."""
    if isinstance(part, str):
        return len(part) / CHARS_PER_TOKEN
    if isinstance(part, Mapping):
        if part.get("type") in ("base64", "image_url", "input_image"):
            return IMAGE_TOKENS
        return sum(_tokens(value) for key, value in part.items() if key not in ("type", "id", "signature"))
    if isinstance(part, list):
        return sum(map(_tokens, part))
    return 0.0


# Answers


def _usage(charge: Charge, kind: str) -> Json:
    total, read = round(charge.tokens), round(charge.read)
    short, long = round(charge.written), round(charge.written_1h)
    if kind == "messages":
        return {
            "input_tokens": max(0, total - read - short - long),
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": short + long,
            "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
            "output_tokens": 5,
        }
    if kind == "gemini":
        return {
            "promptTokenCount": total,
            "cachedContentTokenCount": read,
            "candidatesTokenCount": 5,
            "totalTokenCount": total + 5,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": total}],
        }
    details = {"cached_tokens": read, "cache_write_tokens": short}
    if kind == "responses":
        return {
            "input_tokens": total,
            "input_tokens_details": details,
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total + 5,
        }
    return {
        "prompt_tokens": total,
        "prompt_tokens_details": details,
        "completion_tokens": 5,
        "total_tokens": total + 5,
    }


def _refusal(text: str) -> Json:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": text}}


def _said(request: Json) -> list[Json]:
    said = [{"type": "text", "text": "Done."}]
    return [{"type": "thinking", "thinking": "", "signature": ""}, *said] if answer_to(request) else said


def _reply(kind: str, request: Json, content: list[Json], usage: Json) -> Json:
    model = request.get("model")
    text = "".join(str(block.get("text", "")) for block in content)
    calls = [block for block in content if block.get("type") == "tool_use"]
    if kind == "messages":
        return {
            "id": f"msg_{next(_REPLIES)}",  # clients merge replies with the same id
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
    if kind == "responses":
        output = [_item(next(_REPLIES), block) for block in content]
        return {
            "id": f"resp_{next(_REPLIES)}",
            "object": "response",
            "created_at": 1,
            "model": model,
            "status": "completed",
            "store": request.get("store") is not False,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }
    if kind == "gemini":
        said = {"role": "model", "parts": _parts(content)}
        candidate = {"content": said, "finishReason": "STOP", "index": 0}
        more = {"modelVersion": model, "responseId": f"response-{next(_REPLIES)}"}
        return {"candidates": [candidate], "usageMetadata": usage, **more}
    message: Json = {"role": "assistant", "content": text or None, "refusal": None}
    if calls:
        message["tool_calls"] = [_chat_call(call) for call in calls]
    reason = "tool_calls" if calls else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": usage,
    }


def _parts(content: list[Json]) -> list[Json]:
    """Return blocks as the parts of a content of Gemini."""
    parts: list[Json] = []
    for block in content:
        if block["type"] == "tool_use":
            named = {"id": block["id"]} if block["id"] else {}
            parts.append({"functionCall": {**named, "name": block["name"], "args": block["input"]}})
        elif block["type"] == "thinking":
            parts.append({"text": block["thinking"], "thought": True})
        else:
            parts.append({"text": block["text"]})
    calls = [part for part in parts if "functionCall" in part]
    texts = [part for part in parts if "thought" not in part]
    for part in (calls or texts[-1:])[:1]:
        part["thoughtSignature"] = signature_of(part.get("functionCall", part))
    return parts


def _content_chunks(reply: Json) -> Iterator[Json]:
    """Yield a reply of Gemini in chunks: a text in two, its signature behind it, a call whole."""
    [candidate] = reply["candidates"]
    pieces: list[Json] = []
    for part in candidate["content"]["parts"]:
        if "text" in part:
            half = len(part["text"]) // 2
            same = {name: value for name, value in part.items() if name == "thought"}
            texts = [part["text"][:half], part["text"][half:]]
            pieces += [{**same, "text": text} for text in texts if text]
            pieces += [{**part, "text": ""}] if "thoughtSignature" in part else []
        else:
            pieces.append(part)
    for number, piece in enumerate(pieces):
        one = {"content": {"role": "model", "parts": [piece]}, "index": 0}
        usage = {"usageMetadata": reply["usageMetadata"]}
        if number == len(pieces) - 1:
            one |= {"finishReason": candidate["finishReason"]}
        yield {**reply, "candidates": [one], **usage}


def _content_events(reply: Json, *, is_list: bool) -> Iterator[str]:
    """Yield a reply of Gemini as events, or as an array as its API writes it."""
    if not is_list:
        yield from (f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in _content_chunks(reply))
        return
    before = "["
    for chunk in _content_chunks(reply):
        yield before + json.dumps(chunk, indent=2)
        before = "\n,\r\n"
    yield "\n]\n"


def _item(number: int, block: Json) -> Json:
    """Return a block as an item of the Responses API; reasoning has a signature of its own."""
    if block["type"] == "thinking":
        encrypted = block.get("signature") or f"encrypted-{block.get('thinking')}"
        return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": encrypted}
    if block["type"] == "tool_use":
        arguments = json.dumps(block["input"])
        call = {"call_id": block["id"], "name": block["name"], "arguments": arguments}
        return {"type": "function_call", "id": f"fc_{block['id']}", **call, "status": "completed"}
    part = {"type": "output_text", "text": block["text"], "annotations": [], "logprobs": []}
    message = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
    return {**message, "status": "completed", "content": [part]}


def _chat_call(call: Json) -> Json:
    function = {"name": call["name"], "arguments": json.dumps(call["input"])}
    return {"id": call["id"], "type": "function", "function": function}


def _events(kind: str, request: Json, reply: Json) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    if kind == "messages":
        yield from map(_named, _message_events(reply))
    elif kind == "responses":
        for number, event in enumerate(_response_events(reply)):
            yield _named({**event, "sequence_number": number})
    else:
        yield from (f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(request, reply))
        yield "data: [DONE]\n\n"


def _named(event: Json) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


# The fields of an item that are empty at first.
_EMPTY: dict[str, Json] = {"message": {"content": []}, "function_call": {"arguments": ""}}


def _response_events(reply: Json) -> Iterator[Json]:
    begun = {**reply, "usage": None, "output": [], "status": "in_progress"}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(reply["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        kind = item["type"]
        empty: Json = _EMPTY.get(kind, {})
        yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **empty}}
        if kind == "message":
            [part] = item["content"]
            place, text = {**at, "content_index": 0}, part["text"]
            yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
            yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        elif kind == "function_call":
            given = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **given}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": reply}


def _message_events(reply: Json) -> Iterator[Json]:
    usage = {**reply["usage"], "output_tokens": 1}
    start = {**reply, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(reply["content"]):
        empty, delta = _streamed(block)
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _streamed(block: Json) -> tuple[Json, Json]:
    """Return the fields of a block that are empty at first, and what fills them."""
    if block["type"] == "tool_use":
        return {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    if block["type"] == "thinking":
        return {"signature": ""}, {"type": "signature_delta", "signature": block["signature"]}
    return {"text": ""}, {"type": "text_delta", "text": block["text"]}


def _chunks(request: Json, reply: Json) -> Iterator[Json]:
    chunk = {key: reply[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    [choice] = reply["choices"]
    message = {key: value for key, value in choice["message"].items() if value is not None}
    calls = message.pop("tool_calls", [])
    deltas: list[Json] = [message]
    for number, call in enumerate(calls):
        function = call["function"]
        began = {**call, "index": number, "function": {**function, "arguments": ""}}
        more = {"index": number, "function": {"arguments": function["arguments"]}}
        deltas += [{"tool_calls": [began]}, {"tool_calls": [more]}]
    for delta in deltas:
        yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**chunk, "choices": [], "usage": reply["usage"]}


# The server


@dataclass
class Provider:
    """Answers and charges requests.

    Attributes:
        answer: returns the content of the answer to a request, as blocks of the Messages API.
        charges: what each request cost, in order.
        keeps: whether `requests` keeps path, headers and body of each request.
        url: where it answers.
        refused: how many requests it refused.
        is_strict: whether it refuses calls without results behind them, and results without calls.
        cut: returns the parts in which a stream of events is sent.
        failure: returns a status and a body in place of an answer, None for an answer.
        kept: the items of replies and conversations of the Responses API, by their ids.
        followers: the id of the item behind each one of a reply there.
    """

    answer: Answer = _said
    charges: list[Charge] = field(default_factory=list)
    keeps: bool = False
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    caches: dict[str, Cache] = field(default_factory=dict)
    binding: Binding = field(default_factory=Binding)
    refused: int = 0
    is_strict: bool = False
    cut: Callable[[bytes], Iterable[bytes]] = lambda data: [data]
    failure: Callable[[Json], tuple[int, Json] | None] = lambda _: None
    kept: dict[str, list[Json]] = field(default_factory=dict)
    followers: dict[str, str] = field(default_factory=dict)

    def whole(self, kind: str, request: Json) -> Json:
        """Return a request of the Responses API with the items before its own that are kept here.

        An item that refers to one of those is that one. Raises `BadRequestError`.
        """
        if kind != "responses":
            return request
        given = request["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        known = {item["id"]: item for kept in self.kept.values() for item in kept if "id" in item}
        items = [known[item["id"]] if item.get("type") == "item_reference" else item for item in items]
        before = request.get("previous_response_id")
        if before and before not in self.kept:
            raise BadRequestError(f"Previous response with id '{before}' not found.")
        kept = self.kept.get(before or request.get("conversation") or "", ())
        return {**request, "input": [*kept, *items]}

    def check_reasoning(self, kind: str, request: Json) -> None:
        """Raise `BadRequestError` for reasoning without the item that it was made with behind it."""
        items = request["input"] if kind == "responses" else []
        for item, following in itertools.pairwise([*items, {}]):
            needed = self.followers.get(item.get("id", "")) if item.get("type") == "reasoning" else None
            is_of_model = following.get("role") == "assistant" or following.keys() & {
                "call_id",
                "output",
            } == {"call_id"}
            if needed and (following.get("id", needed) != needed or not is_of_model):
                name = item["id"]
                raise BadRequestError(
                    f"Item '{name}' of type 'reasoning' was provided without its required following item."
                )

    def keep(self, kind: str, request: Json, reply: Json) -> None:
        """Keep a reply of the Responses API with all before it, unless the request asks for no store."""
        if kind == "responses":
            output = reply["output"]
            self.followers |= {a["id"]: b["id"] for a, b in itertools.pairwise(output)}
        if kind == "responses" and request.get("store") is not False:
            items = [*request["input"], *reply["output"]]
            self.kept |= {name: items for name in (reply["id"], request.get("conversation")) if name}

    def charge(self, kind: str, request: Json, headers: Mapping[str, str]) -> Charge:
        """Return what a request costs. Raises `BadRequestError`."""
        cache = self.caches.setdefault(*_cache_for(kind, str(request.get("model"))))
        if headers.get("x-provider-forget"):
            cache.forget()
        charge = cache.charge(request, float(headers.get("x-provider-time") or time.time()))
        self.charges.append(charge)
        return charge


def _cache_for(kind: str, model: str) -> tuple[str, Cache]:
    if kind == "messages":
        return "anthropic", AnthropicCache()
    if model.startswith("gpt-5.6"):
        return "breakpoints", BreakpointCache()
    return "automatic", AutomaticCache()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    provider: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.provider.keeps:
            self.provider.requests.append((self.path, headers, body))
        kind = self.path.partition("?")[0].rpartition("/")[2]
        try:
            if ":" in kind:
                self._answer_gemini(kind, json.loads(body), headers)
            else:
                self._answer(kind, json.loads(body), headers)
        except (BadRequestError, RefusedError) as error:
            self.provider.refused += 1
            self._send_json(400, _refusal(str(error)))

    def _answer_gemini(self, name: str, request: Json, headers: Mapping[str, str]) -> None:
        model, _, method = name.partition(":")
        if self.provider.is_strict:
            check_calls("gemini", request)
        charge = self.provider.charge("gemini", request, headers)
        is_list = method == "streamGenerateContent" and "alt=sse" not in self.path
        if (failure := self.provider.failure(request)) is not None:
            self._send_json(failure[0], [failure[1]] if is_list else failure[1])
            return
        content, usage = self.provider.answer(request), _usage(charge, "gemini")
        reply = _reply("gemini", {"model": model}, content, usage)
        if method == "generateContent":
            self._send_json(200, reply)
        else:
            kind = "application/json" if is_list else "text/event-stream; charset=utf-8"
            self._send_events(_content_events(reply, is_list=is_list), kind)

    def _answer(self, kind: str, request: Json, headers: Mapping[str, str]) -> None:
        dropped = list[Json]()
        if kind in ("messages", "count_tokens"):
            request, dropped = self.provider.binding.checked(request, headers)
        if kind == "count_tokens":
            tokens = sum(_tokens(part) for *_, part in _anthropic_parts(request))
            self._send_json(200, {"input_tokens": round(tokens)})
            return
        request = self.provider.whole(kind, request)
        if self.provider.is_strict:
            check_calls(kind, request)
            self.provider.check_reasoning(kind, request)
        charge = self.provider.charge(kind, request, headers)
        if (failure := self.provider.failure(request)) is not None:
            self._send_json(*failure)
            return
        content = self.provider.answer(request)
        if kind == "messages":
            content = self.provider.binding.sign(request, content)
        reply = _reply(kind, request, content, _usage(charge, kind))
        self.provider.keep(kind, request, reply)
        if HEADER in headers.get("anthropic-beta", ""):
            reply["input_transformations"] = dropped
        if request.get("stream"):
            self._send_events(_events(kind, request, reply))
        else:
            self._send_json(200, reply)

    def _send_json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_events(self, events: Iterable[str], kind: str = "text/event-stream; charset=utf-8") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for data in self.provider.cut("".join(events).encode()):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Keep the server quiet."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


@contextmanager
def serving(provider: Provider, port: int = 0) -> Iterator[Provider]:
    """Let a provider answer on a port of its own until the block ends."""
    server = _Server(("127.0.0.1", port), type("BoundHandler", (_Handler,), {"provider": provider}))
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    """Answer until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    with serving(Provider(), parser.parse_args().port) as provider:
        print(provider.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
