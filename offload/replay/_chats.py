"""Chat requests in Anthropic or OpenAI format: a list of messages, or an object that contains one.

The object has `messages` and optionally `format`, `id`, `system`, `model` and `recorded_usage`. A row of
`recorded_usage` is the index of an answer, tokens not cached, written to the cache and read from it, output
tokens, and the ISO time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offload.errors import MessageError
from offload.messages.anthropic import AnthropicAdapter
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.replay._transcripts import Answer, Transcript, answer_of, problem_in

_USAGE_COLUMNS = (
    *("message_index", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    *("output_tokens", "timestamp"),
)


def read_chat(path: Path, left_out: list[str]) -> list[Transcript]:
    """Return the conversation of a JSON file of messages, or of a request to an API.

    Malformed messages are added to `left_out`, each with its place and the reason.
    """
    with path.open(encoding="utf-8-sig") as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise MessageError(f"not JSON: {error}") from error
    envelope = document if isinstance(document, dict) else {"messages": document}
    kept = dict(_readable(envelope.get("messages"), left_out))
    messages = [*kept.values()]
    if not messages:
        raise MessageError("not a transcript: found no list of messages with roles")
    usage = _recorded_usage(envelope.get("recorded_usage"))
    name, kind = envelope.get("id"), envelope.get("format")
    return [
        Transcript(
            name=name if isinstance(name, str) and name else path.stem,
            format=kind if isinstance(kind, str) else _format_of(messages, envelope),
            system=envelope.get("system"),
            messages=messages,
            usage={new: usage[old] for new, old in enumerate(kept) if old in usage},
            model=_first_text(envelope.get("model")),
        )
    ]


def _recorded_usage(rows: object) -> dict[int, Answer]:
    """Return the usage in rows of a chat file; rows of another form are ignored."""
    found: dict[int, Answer] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == len(_USAGE_COLUMNS) and isinstance(row[0], int):
            answer = answer_of(row[-1], dict(zip(_USAGE_COLUMNS, row, strict=True)))
            found |= {row[0]: answer} if answer else {}
    return found


def _first_text(value: object) -> str | None:
    """Return a text, or the first of a list of texts."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else None


def _readable(messages: object, left_out: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each message of a list that can be read, with its index."""
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        where = f"messages[{index}]"
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            left_out.append(f"{where}: a message must be an object with a role")
        elif problem := problem_in(message, where):
            left_out.append(problem)
        else:
            yield index, message


def _format_of(messages: list[dict[str, Any]], envelope: dict[str, Any]) -> str:
    is_openai = any(map(OpenAIChatAdapter().claims, messages))
    is_anthropic = "system" in envelope or any(map(AnthropicAdapter().claims, messages))
    return AnthropicAdapter.name if is_anthropic and not is_openai else OpenAIChatAdapter.name
