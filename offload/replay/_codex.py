"""Sessions of Codex: items of the Responses API among rows that no model saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from offload.errors import MessageError
from offload.messages.formats import adapter_for
from offload.messages.openai_responses import OpenAIResponsesAdapter
from offload.replay._transcripts import Transcript, Window, answer_of, problem_in, transcripts_of

# Items that Codex notes for itself.
_NOT_SENT = ("ghost_snapshot",)
ROW_TYPES = ("session_meta", "response_item", "turn_context", "event_msg")


def read_codex(
    name: str, rows: Iterable[tuple[str, dict[str, Any]]], left_out: list[str]
) -> list[Transcript]:
    """Return the conversation of a log of Codex.

    Malformed items are added to `left_out`, each with its place, which its row has, and the reason.
    """
    session = _CodexSession(left_out)
    for where, row in rows:
        payload = row.get("payload")
        if isinstance(payload, dict):
            session.add(str(row.get("type")), payload, row.get("timestamp"), where)
        elif row.get("type") == "response_item":
            left_out.append(f"{where}: a payload must be an object")
    windows = [window for window in session.windows if window.messages]
    if not windows:
        raise MessageError("not a transcript: this Codex session has no model items")
    return list(transcripts_of(name, OpenAIResponsesAdapter.name, session.system, windows))


@dataclass(slots=True)
class _Rollout(Window):
    """One context window of Codex; the last answer begins at `answer`."""

    answer: int | None = None
    is_answering: bool = False

    def extend(self, items: Iterable[dict[str, Any]], where: str, left_out: list[str]) -> None:
        for item in filter(_is_item, items):
            if problem := problem_in(item, where):
                left_out.append(problem)
                continue
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
        self.note(self.answer, answer_of(time, {**last, "input_tokens_details": details}), model)


@dataclass(slots=True)
class _CodexSession:
    """A session of Codex, read row by row; `model` is that of the current turn."""

    left_out: list[str]
    system: str | None = None
    model: object = None
    windows: list[_Rollout] = field(default_factory=lambda: [_Rollout()])

    def add(self, kind: str, payload: dict[str, Any], time: object, where: str) -> None:
        if kind == "session_meta" and self.system is None:
            self.system = _instructions(payload)
        elif kind == "turn_context":
            self.model = payload.get("model")
        elif kind == "response_item":
            self.windows[-1].extend([payload], where, self.left_out)
        elif kind == "compacted":
            self.windows.append(_Rollout())
            self.windows[-1].extend(_after_compaction(payload), where, self.left_out)
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
