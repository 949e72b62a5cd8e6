"""Compactions of a context: a scripted model that summarizes it, its events, and what is stored of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from offload.messages.context import ContextIR, EventBus

SYSTEM = {"role": "system", "content": "You are careful."}
NOTICE = re.compile(r"\[Compacted \d+: (\d+) earlier messages? moved to storage, id ([a-z]+)\]\n")


class Scripted:
    """A model that answers by a script, and keeps what it was asked."""

    def __init__(self, answer: str = "<summary>The user asked for a file.</summary>") -> None:
        self.answer = answer
        self.requests: list[list[Any]] = []

    def __call__(self, messages: list[Any]) -> str:
        self.requests.append(messages)
        return self.answer

    @property
    def prompt(self) -> str:
        [message] = self.requests[-1]
        text: str = message["content"]
        return text

    def check_fence(self, attack: str) -> str:
        """Check that the conversation, with `attack` in it, is fenced data; return the fence."""
        fence: str = re.findall(r"^=== [0-9a-f]{16} ===$", self.prompt, re.MULTILINE)[0]
        _, history, rest = re.split(f"^{fence}$", self.prompt, flags=re.MULTILINE)
        assert rest == ""
        assert attack in history
        return fence


def context_of(messages: Iterable[Any], **options: Any) -> ContextIR:
    """Return a context of `messages`, each by its role."""
    context = ContextIR(**options)
    for message in messages:
        context.add_message(message)
    return context


def heard(bus: EventBus, *kinds: Any) -> list[Any]:
    """Return a list that gets the events of a bus."""
    events: list[Any] = []
    bus.subscribe(events.append, *kinds)
    return events


def kinds_of(events: Iterable[Any]) -> list[str]:
    return [event.event_type for event in events]


def stored(store: Path) -> list[Any]:
    """Return the messages of the session's only record, read as any zstd tool would."""
    [path] = [p for p in (store / "r").rglob("[!.]*") if p.is_file()]
    reader = zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True)
    return [json.loads(line)["message"] for line in reader.read().decode().split("\n")]
