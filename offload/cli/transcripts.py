"""Recorded agent conversations, read from files as lists of messages.

Supported are sessions of Claude Code and Codex (`.jsonl`, and `.jsonl.zst` for archived Codex sessions), and
chat requests in Anthropic or OpenAI format (`.json`: a list of messages, or an object with `messages` and
optionally `format`, `id`, `system`, `model` and `recorded_usage`). A row of `recorded_usage` is the index of
an answer, tokens not cached, written to the cache and read from it, output tokens, and the ISO time.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeGuard

import zstandard

from offload.errors import MessageError
from offload.messages import Usage, adapter_for, usage_of
from offload.messages.anthropic import AnthropicAdapter
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.messages.openai_responses import OpenAIResponsesAdapter

# Items that Codex notes for itself.
_NOT_SENT = ("ghost_snapshot",)

_SESSION_SUFFIXES = (".jsonl", ".jsonl.zst")
_SUFFIXES = (".json", *_SESSION_SUFFIXES)
_SYNTHETIC = "<synthetic>"
_USAGE_COLUMNS = (
    *("message_index", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    *("output_tokens", "timestamp"),
)


class Answer(NamedTuple):
    """The provider's report on one request.

    Attributes:
        time: when the answer was logged, in seconds since 1970.
        usage: the input tokens of the request.
    """

    time: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation as a model saw it.

    Attributes:
        name: its id in the file, or the file's stem and part.
        format: the format in the file, or the name of an adapter.
        system: the system prompt, None if the file does not store it separately.
        messages: its messages.
        usage: the provider's report by index of the answer, of its first message in formats with several;
            empty if the file has none.
        model: the model that answered most requests, None if the file names none.
    """

    name: str
    format: str
    system: str | list[dict[str, Any]] | None
    messages: list[dict[str, Any]]
    usage: Mapping[int, Answer] = field(default_factory=dict)
    model: str | None = None


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
            usage=_recorded_usage(envelope.get("recorded_usage")),
            model=_first_text(envelope.get("model")),
        )
    ]


def _recorded_usage(rows: object) -> dict[int, Answer]:
    """Return the usage in rows of a chat file; rows of another form are ignored."""
    found: dict[int, Answer] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == len(_USAGE_COLUMNS) and isinstance(row[0], int):
            answer = _answer(row[-1], dict(zip(_USAGE_COLUMNS, row, strict=True)))
            found |= {row[0]: answer} if answer else {}
    return found


def _answer(time: object, usage: object) -> Answer | None:
    """Return the report on a request, None without a time or tokens."""
    counted = usage_of(usage)
    with suppress(ValueError):
        moment = datetime.fromisoformat(time) if isinstance(time, str) and counted else None
        if moment and counted:
            return Answer((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), counted)
    return None


def _first_text(value: object) -> str | None:
    """Return a text, or the first of a list of texts."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else None


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


@dataclass(slots=True)
class _Window:
    """One context window, read row by row; the attributes are those of `Transcript`."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[int, Answer] = field(default_factory=dict)
    models: Counter[str] = field(default_factory=Counter)

    def note(self, index: int, answer: Answer | None, model: object) -> None:
        """Note the report on the answer at an index, and its model; the first report counts."""
        if isinstance(model, str):
            self.models[model] += 1
        if answer is not None:
            self.usage.setdefault(index, answer)


def _windows(name: str, kind: str, system: str | None, windows: Iterable[_Window]) -> Iterator[Transcript]:
    """Yield a transcript of each context window of one thread."""
    for number, window in enumerate(windows, 1):
        model = next((model for model, _ in window.models.most_common(1)), None)
        title = name if number == 1 else f"{name}-part-{number}"
        yield Transcript(title, kind, system, window.messages, window.usage, model)


# Codex: items of the Responses API among rows that no model saw

_CODEX_ROWS = {"session_meta", "response_item", "turn_context", "event_msg"}


def _from_codex(name: str, rows: Iterable[dict[str, Any]]) -> list[Transcript]:
    session = _CodexSession()
    for row in rows:
        payload = row.get("payload")
        if isinstance(payload, dict):
            session.add(str(row.get("type")), payload, row.get("timestamp"))
    windows = [window for window in session.windows if window.messages]
    if not windows:
        raise MessageError("not a transcript: this Codex session has no model items")
    return list(_windows(name, OpenAIResponsesAdapter.name, session.system, windows))


@dataclass(slots=True)
class _Rollout(_Window):
    """One context window of Codex; the last answer begins at `answer`."""

    answer: int | None = None
    is_answering: bool = False

    def extend(self, items: Iterable[dict[str, Any]]) -> None:
        for item in filter(_is_item, items):
            was_answering = self.is_answering
            self.is_answering = OpenAIResponsesAdapter().role(item, "item") == "assistant"
            if self.is_answering and not was_answering:
                self.answer = len(self.messages)
            self.messages.append(item)

    def note_tokens(self, time: object, info: object, model: object) -> None:
        """Note the tokens of the last answer; Codex logs them after it, and again when limits change."""
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(last, dict) or self.answer is None:
            return
        # The usage of the Responses API, flattened.
        details = {
            "cached_tokens": last.get("cached_input_tokens"),
            "cache_write_tokens": last.get("cache_write_input_tokens"),
        }
        self.note(self.answer, _answer(time, {**last, "input_tokens_details": details}), model)


@dataclass(slots=True)
class _CodexSession:
    """A session of Codex, read row by row; `model` is that of the current turn."""

    system: str | None = None
    model: object = None
    windows: list[_Rollout] = field(default_factory=lambda: [_Rollout()])

    def add(self, kind: str, payload: dict[str, Any], time: object) -> None:
        if kind == "session_meta" and self.system is None:
            self.system = _instructions(payload)
        elif kind == "turn_context":
            self.model = payload.get("model")
        elif kind == "response_item":
            self.windows[-1].extend([payload])
        elif kind == "compacted":
            self.windows.append(_Rollout())
            self.windows[-1].extend(_after_compaction(payload))
        elif payload.get("type") == "token_count":
            self.windows[-1].note_tokens(time, payload.get("info"), self.model)


def _instructions(meta: dict[str, Any]) -> str | None:
    base = meta.get("base_instructions")
    text = base.get("text") if isinstance(base, dict) else meta.get("instructions")
    return text if isinstance(text, str) else None


def _after_compaction(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first messages of the new context window."""
    history = payload.get("replacement_history")
    if isinstance(history, list):
        return history
    text = {"type": "input_text", "text": str(payload.get("message", ""))}
    return [{"type": "message", "role": "user", "content": [text]}]


def _is_item(value: object) -> bool:
    """Return whether the model saw the item; Codex also logs its own events."""
    if not isinstance(value, dict) or value.get("type") in _NOT_SENT:
        return False
    return adapter_for(value).name == OpenAIResponsesAdapter.name


# Claude Code: one row per block or event, threads interleaved


@dataclass(slots=True)
class _Thread(_Window):
    """One context window of Claude Code; `answers` are its messages by the id of the answer."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        message = row["message"]
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
        if role == "assistant":
            answer = _answer(row.get("timestamp"), message.get("usage"))
            self.note(len(self.messages) - 1, answer, message.get("model"))
            if "id" in message:
                self.answers[message["id"]] = self.messages[-1]


def _from_claude_code(name: str, rows: Iterable[dict[str, Any]]) -> list[Transcript]:
    threads: dict[str, list[_Thread]] = {}
    for root, row in _threaded(rows):
        parts = threads.setdefault(root, [_Thread()])
        if row.get("isCompactSummary") and parts[-1].messages:
            parts.append(_Thread())
        parts[-1].add(row)
    if not threads:
        raise MessageError("not a transcript: found no rows of Claude Code or Codex")
    transcripts: list[Transcript] = []
    for root, parts in threads.items():
        thread = f"{name}-side-{root[:6]}" if root and len(threads) > 1 else name
        transcripts += _windows(thread, AnthropicAdapter.name, None, parts)
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
