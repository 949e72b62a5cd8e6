"""Paths of documents in the tree, and the placeholders that show them.

A document is named after its ref, so two items never share a file, even on a file system that folds case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from offload.errors import InvalidKeyError
from offload.layout import REF_PATTERN, decode_part, encode_part, tool_part
from offload.placeholder import PlaceholderFacts
from offload.record import RecordInfo

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
DOCUMENT = re.compile(rf"(?:call|msg)_{REF_PATTERN}\.[a-z]+")
_PLACEHOLDER = re.compile(
    r"\[Content offloaded\]\n"
    rf"Path: (?P<path>/[^\n]*(?:call|msg)_(?P<ref>{REF_PATTERN})\.[a-z]+)\n"
    r"(?:Redacted: [^\n]+\n)?"
    r"(?:Summary: [^\n]+\n)?"
    r"Use [^\n]{1,60} to view details\."
)


@dataclass(frozen=True, slots=True)
class Document:
    """Index entry of one document.

    Attributes:
        item_id: ref of its record.
        session_id: name of its session.
        item_type: item type.
        tool_name: the tool that produced it, or None.
        path: path relative to the root.
        offloaded_at: time of storage, in whole seconds since the epoch.
        chars: characters of its content.
        tokens: tokens of its content.
    """

    item_id: str
    session_id: str
    item_type: str
    tool_name: str | None
    path: str
    offloaded_at: int
    chars: int
    tokens: int

    @classmethod
    def of(cls, info: RecordInfo) -> Document:
        """Return the index entry of a record."""
        return cls(
            item_id=info.ref,
            session_id=info.session,
            item_type=info.item_type,
            tool_name=info.tool_name,
            path=path_of(info),
            offloaded_at=int(info.created_at),
            chars=info.chars,
            tokens=info.tokens,
        )


@dataclass(frozen=True)
class PathRenderer:
    """Placeholder with the path of the document and the tool that opens it."""

    root: Path
    suffix: str = ".json"

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder: three lines, and one each for a redaction and a summary."""
        part = "" if facts.tool_name is None else encode_part(facts.tool_name)
        path = self.root / _tree_path(facts.item_type, part, facts.ref, self.suffix)
        lines = ["[Content offloaded]", f"Path: {path}"]
        if facts.is_redacted:
            lines.append("Redacted: some content was removed before storage.")
        if facts.summary is not None:
            lines.append(f"Summary: {' '.join(facts.summary.split())}")
        # A Read tool cannot show a compressed file.
        tool = "Read tool" if self.suffix == ".json" else f'context_read with id "{facts.ref}"'
        return "\n".join([*lines, f"Use {tool} to view details."])

    def find_ref(self, text: str) -> str | None:
        """Return the ref in a text that has the form of a placeholder, otherwise None."""
        match = _PLACEHOLDER.fullmatch(text)
        return match["ref"] if match else None

    def find_path(self, text: str) -> str | None:
        """Return the path in a text that has the form of a placeholder, otherwise None."""
        match = _PLACEHOLDER.fullmatch(text)
        return match["path"] if match else None


def path_of(info: RecordInfo) -> str:
    """Return the path of a record's document relative to the root."""
    # The key, not `tool_name`, identifies a tool whose name is too long for a key.
    return _tree_path(info.item_type, tool_part(info.key), info.ref, "." + info.key.rpartition(".")[2])


def folder_of(part: str) -> str:
    """Return the folder name for a key part: the decoded name if it is plain, otherwise the part."""
    try:
        name = decode_part(part)
    except InvalidKeyError:
        return part
    # Injective: the part of a plain name has no escape, and every other part has one.
    is_plain = _PLAIN.fullmatch(name) and encode_part(name.lower()) == name.lower()
    return name if is_plain else part


def _tree_path(item_type: str, tool_part: str, ref: str, suffix: str) -> str:
    kind = "call" if item_type in ("tool_result", "tool_call") else "msg"
    folders = [item_type, folder_of(tool_part)] if tool_part else [item_type]
    return "/".join([*folders, f"{kind}_{ref}{suffix}"])
