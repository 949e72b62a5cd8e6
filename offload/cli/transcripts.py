"""Recorded agent conversations, read from files as lists of messages.

Supported are sessions of Claude Code and Codex (`.jsonl`, and `.jsonl.zst` for archived Codex sessions), and
chat requests in Anthropic or OpenAI format (`.json`: a list of messages, or an object with `messages` and
optionally `format` and `id`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeGuard

import zstandard

from offload.errors import MessageError
from offload.messages import adapter_for
from offload.messages.anthropic import AnthropicAdapter
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.messages.openai_responses import OpenAIResponsesAdapter

_SESSION_SUFFIXES = (".jsonl", ".jsonl.zst")
_SUFFIXES = (".json", *_SESSION_SUFFIXES)
_SYNTHETIC = "<synthetic>"


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation as a model saw it: its id in the file, or the file's stem and part, and its messages.

    `format` is that in the file or the name of an adapter; `system` is None if the file does not store the
    system prompt separately.
    """

    name: str
    format: str
    system: str | list[dict[str, Any]] | None
    messages: list[dict[str, Any]]


def find(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield each file once: the paths, and a folder's sorted `*.json`, `*.jsonl` and `*.jsonl.zst`."""
    files: dict[Path, Path] = {}
    for path in paths:
        entries = (p for p in path.rglob("*") if p.name.endswith(_SUFFIXES) and p.is_file())
        for file in sorted(entries) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    yield from files.values()


def load(path: Path) -> list[Transcript]:
    """Return the conversations of one file.

    A Claude Code session has several: its main thread, one per subagent, and a new one after each
    compaction, which removes earlier messages from the context. A Codex session has a new one after each
    compaction.

    Raises:
        MessageError: the file cannot be read or has no conversation.
    """
    try:
        return _from_session(path) if path.name.endswith(_SESSION_SUFFIXES) else _from_document(path)
    except OSError as error:
        raise MessageError(f"cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise MessageError("not a transcript: JSON nested too deeply") from error
    except zstandard.ZstdError as error:
        raise MessageError(f"invalid zstd: {error}") from error


# One JSON document


def _from_document(path: Path) -> list[Transcript]:
    with path.open(encoding="utf-8-sig") as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise MessageError(f"not JSON: {error}") from error
    envelope = document if isinstance(document, dict) else {"messages": document}
    messages = envelope.get("messages")
    if not _are_messages(messages):
        raise MessageError("not a transcript: found no list of messages with roles")
    name, kind = envelope.get("id"), envelope.get("format")
    return [
        Transcript(
            name=name if isinstance(name, str) and name else path.stem,
            format=kind if isinstance(kind, str) else _format_of(messages, envelope),
            system=envelope.get("system"),
            messages=messages,
        )
    ]


def _are_messages(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
    )


def _format_of(messages: list[dict[str, Any]], envelope: dict[str, Any]) -> str:
    is_openai = any(map(OpenAIChatAdapter().claims, messages))
    is_anthropic = "system" in envelope or any(map(AnthropicAdapter().claims, messages))
    return AnthropicAdapter.name if is_anthropic and not is_openai else OpenAIChatAdapter.name


# Sessions: one row per line


def _from_session(path: Path) -> list[Transcript]:
    rows = _rows(path)
    first = next(rows, {})
    read = _from_codex if first.get("type") in _CODEX_ROWS else _from_claude_code
    return read(path.name.removesuffix(".zst").removesuffix(".jsonl"), chain([first], rows))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as raw, _decompressed(raw) if path.suffix == ".zst" else raw as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return  # the session is still being written
                raise MessageError(f"line {number} is not JSON: {error}") from error
            if isinstance(row, dict):
                yield row


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))


def _windows(
    name: str, kind: str, system: str | None, windows: Iterable[list[dict[str, Any]]]
) -> Iterator[Transcript]:
    """Yield a transcript of each context window of one thread."""
    for number, messages in enumerate(windows, 1):
        yield Transcript(name if number == 1 else f"{name}-part-{number}", kind, system, messages)


# Codex: items of the Responses API among rows that no model saw

_CODEX_ROWS = {"session_meta", "response_item", "turn_context", "event_msg"}


def _from_codex(name: str, rows: Iterable[dict[str, Any]]) -> list[Transcript]:
    system: str | None = None
    parts: list[list[dict[str, Any]]] = [[]]
    for row in rows:
        kind, payload = row.get("type"), row.get("payload")
        if not isinstance(payload, dict):
            continue
        if kind == "session_meta" and system is None:
            system = _instructions(payload)
        elif kind == "response_item":
            parts[-1] += filter(_is_item, [payload])
        elif kind == "compacted":
            parts.append(_after_compaction(payload))
    parts = [part for part in parts if part]
    if not parts:
        raise MessageError("not a transcript: this Codex session has no model items")
    return list(_windows(name, OpenAIResponsesAdapter.name, system, parts))


def _instructions(meta: dict[str, Any]) -> str | None:
    base = meta.get("base_instructions")
    text = base.get("text") if isinstance(base, dict) else meta.get("instructions")
    return text if isinstance(text, str) else None


def _after_compaction(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first messages of the new context window."""
    history = payload.get("replacement_history")
    if isinstance(history, list):
        return list(filter(_is_item, history))
    text = {"type": "input_text", "text": str(payload.get("message", ""))}
    return [{"type": "message", "role": "user", "content": [text]}]


def _is_item(value: object) -> bool:
    """Return whether the model saw the item; Codex also logs its own events."""
    return isinstance(value, dict) and adapter_for(value).name == OpenAIResponsesAdapter.name


# Claude Code: one row per block or event, threads interleaved


@dataclass(slots=True)
class _Thread:
    """The messages of one context window, added row by row."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, message: dict[str, Any]) -> None:
        role, content = message["role"], message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if role == "assistant":
            # One answer is logged in several rows, with results of parallel calls in between.
            last = self.answers.get(message.get("id", ""))
        else:
            last = next((m for m in self.messages[-1:] if m["role"] == role), None)
        if last is not None:
            last["content"] += blocks
            return
        self.messages.append({"role": role, "content": blocks})
        if role == "assistant" and "id" in message:
            self.answers[message["id"]] = self.messages[-1]


def _from_claude_code(name: str, rows: Iterable[dict[str, Any]]) -> list[Transcript]:
    threads: dict[str, list[_Thread]] = {}
    for root, row in _threaded(rows):
        parts = threads.setdefault(root, [_Thread()])
        if row.get("isCompactSummary") and parts[-1].messages:
            parts.append(_Thread())
        parts[-1].add(row["message"])
    if not threads:
        raise MessageError("not a transcript: found no rows of Claude Code or Codex")
    transcripts: list[Transcript] = []
    for root, parts in threads.items():
        thread = f"{name}-side-{root[:6]}" if root and len(threads) > 1 else name
        transcripts += _windows(thread, AnthropicAdapter.name, None, [part.messages for part in parts])
    return transcripts


def _threaded(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row that a model saw once, with the root of its thread ("" for the main thread)."""
    roots: dict[str, str] = {}
    for row in rows:
        uuid = row.get("uuid")
        if not isinstance(uuid, str) or uuid in roots:
            continue
        # Rows that no model saw link threads too, and a subagent's first row may follow the main thread.
        parent = roots.get(str(row.get("parentUuid")))
        roots[uuid] = (parent or uuid) if row.get("isSidechain") else ""
        if _was_seen(row):
            yield roots[uuid], row


def _was_seen(row: dict[str, Any]) -> bool:
    message = row.get("message")
    return (
        row.get("type") in {"user", "assistant"}
        and isinstance(message, dict)
        and message.get("role") == row["type"]
        and isinstance(message.get("content"), str | list)
        and isinstance(message.get("id", ""), str)
        and message.get("model") != _SYNTHETIC
        and not row.get("isMeta")
        and not row.get("isApiErrorMessage")
    )
