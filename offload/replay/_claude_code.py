"""Sessions of Claude Code: one row per block or event, threads interleaved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from offload.errors import MessageError
from offload.messages.anthropic import AnthropicAdapter
from offload.replay._transcripts import Transcript, Window, answer_of, problem_in, transcripts_of

_SYNTHETIC = "<synthetic>"


@dataclass(slots=True)
class _ClaudeWindow(Window):
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
            answer = answer_of(row.get("timestamp"), message.get("usage"))
            self.note(len(self.messages) - 1, answer, message.get("model"))
            if "id" in message:
                self.answers[message["id"]] = self.messages[-1]


def read_claude_code(
    name: str, rows: Iterable[tuple[str, dict[str, Any]]], left_out: list[str]
) -> list[Transcript]:
    """Return the conversations of a log of Claude Code: the main thread, and those of its subagents.

    Malformed messages are added to `left_out`, each with its place, which its row has, and the reason.
    """
    threads: dict[str, list[_ClaudeWindow]] = {}
    for root, row in _threaded(rows, left_out):
        parts = threads.setdefault(root, [_ClaudeWindow()])
        if row.get("isCompactSummary") and parts[-1].messages:
            parts.append(_ClaudeWindow())
        parts[-1].add(row)
    if not threads:
        raise MessageError("not a transcript: found no rows of Claude Code or Codex")
    transcripts: list[Transcript] = []
    for root, parts in threads.items():
        thread = f"{name}-side-{root[:6]}" if root and len(threads) > 1 else name
        transcripts += transcripts_of(thread, AnthropicAdapter.name, None, parts)
    return transcripts


def _threaded(
    rows: Iterable[tuple[str, dict[str, Any]]], left_out: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row that a model saw once, with the root of its thread ("" for the main thread)."""
    roots: dict[str, str] = {}
    for where, row in rows:
        uuid = row.get("uuid")
        if not isinstance(uuid, str) or uuid in roots:
            continue
        # Rows that no model saw link threads too, and a subagent's first row may follow the main thread.
        parent = roots.get(str(row.get("parentUuid")))
        roots[uuid] = (parent or uuid) if row.get("isSidechain") else ""
        if not _was_seen(row):
            continue
        if problem := _problem_in(row, where):
            left_out.append(problem)
        else:
            yield roots[uuid], row


def _was_seen(row: dict[str, Any]) -> bool:
    message = row.get("message")
    return (
        row.get("type") in ("user", "assistant")
        and not (isinstance(message, dict) and message.get("model") == _SYNTHETIC)
        and not row.get("isMeta")
        and not row.get("isApiErrorMessage")
    )


def _problem_in(row: dict[str, Any], where: str) -> str | None:
    """Return why the message of a row cannot be read, None if it can."""
    message = row.get("message")
    if not isinstance(message, dict) or message.get("role") != row["type"]:
        return f"{where}: the message must have the role {row['type']!r}"
    content = message.get("content")
    if not (isinstance(content, str | list) and isinstance(message.get("id", ""), str)):
        return f"{where}: the message must have text or blocks as its content, and a string as its id, if any"
    return problem_in({"role": message["role"], "content": content}, where)
