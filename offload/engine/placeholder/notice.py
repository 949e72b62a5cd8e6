"""The notice: the text that replaces messages which a compaction removed.

It is the placeholder of the record of these messages, and has this form with every renderer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offload.base.patterns import lazy_pattern
from offload.engine.placeholder._facts import PlaceholderFacts
from offload.engine.placeholder.default import safe_for_model, unescape_placeholders
from offload.engine.preview import Preview
from offload.records.record.header import SAMPLE_REF, OffloadableType
from offload.storage.layout import REF_PATTERN

# The tool name of the records of removed messages, and their item type.
NOTICE_TOOL = "conversation"
NOTICE_TYPE: OffloadableType = "user_message"

# Matches the notices of every release.
_FIRST_LINE = lazy_pattern(rf"\[Compacted (\d{{1,9}}): [^\n]{{1,200}} id ({REF_PATTERN})\]\n")
_PARTS = {
    "task": "[The task, in the user's words:]",
    "summary": "[Summary by a model, not the user's words:]",
    "ledger": "[Facts from these messages, collected by a program:]",
}
_NAMES = {label: name for name, label in _PARTS.items()}
# A line of a part that would pass for the label of another one.
_ESCAPED = lazy_pattern("|".join(rf"^{re.escape(label)}$" for label in _NAMES), re.MULTILINE)


@runtime_checkable
class NoticeRenderer(Protocol):
    """A placeholder renderer that also words how to read removed messages."""

    def how_to_read(self, facts: PlaceholderFacts) -> str:
        """Return the last lines of a notice.

        Args:
            facts: those of the record of the removed messages, one message per line as JSON.
        """


@dataclass(frozen=True, slots=True)
class Notice:
    """The text that replaces removed messages, as a placeholder renderer.

    Attributes:
        number: the number of the compaction in its conversation; the latest is undone first.
        messages: how many messages were removed.
        summary: a model's summary of them; empty if no model was asked.
        ledger: facts that a program collected from them; empty if there are none.
        task: the first request of the conversation, if it is not in view; else empty.
        wording: words how to read the messages; the default names `context_read`.
    """

    number: int = 1
    messages: int = 0
    summary: str = ""
    ledger: str = ""
    task: str = ""
    wording: NoticeRenderer | None = None

    def text(self, ref: str = SAMPLE_REF) -> str:
        """Return about the notice for the record `ref`: its size in bytes is not known yet."""
        return self.render(_facts(ref, self.messages))

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder of a record."""
        noun = "message" if self.messages == 1 else "messages"
        lines = [
            f"[Compacted {self.number}: {self.messages} earlier {noun} moved to storage, id {facts.ref}]"
        ]
        for name, label in _PARTS.items():
            if text := getattr(self, name):
                lines += [label, _ESCAPED.sub(r"\\\g<0>", safe_for_model(text))]
        return "\n".join([*lines, self._how_to_read(facts)])

    def parts(self, text: str) -> dict[str, str]:
        """Return the task, the summary and the ledger in a notice with the same wording, by these names."""
        parts: dict[str, list[str]] = {}
        lines: list[str] = []
        wording = self._how_to_read(_facts(SAMPLE_REF, self.messages))
        for line in text.split("\n")[1 : -1 - wording.count("\n")]:
            if line in _NAMES:
                lines = parts[_NAMES[line]] = []
            else:
                lines.append(line[1:] if line[1:] in _NAMES else line)
        return {name: unescape_placeholders("\n".join(lines)) for name, lines in parts.items()}

    def _how_to_read(self, facts: PlaceholderFacts) -> str:
        if self.wording is not None:
            return self.wording.how_to_read(facts)
        return f'[Stored as JSON, one message per line. Read: context_read(id="{facts.ref}", offset=0)]'

    def find_ref(self, text: str) -> str | None:
        """Return the ref in `text` if it looks like a notice, else None."""
        match = _FIRST_LINE.match(text)
        return match[2] if match else None


def notice_number(text: str) -> int:
    """Return the number of the compaction in the first line of a notice."""
    match = _FIRST_LINE.match(text)
    return int(match[1]) if match else 0


def _facts(ref: str, messages: int) -> PlaceholderFacts:
    """Return facts of a record, without its size."""
    return PlaceholderFacts(ref, NOTICE_TYPE, NOTICE_TOOL, 0, messages, Preview("", 0))
