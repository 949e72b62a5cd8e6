"""References in the arguments of a model's call: each is replaced by content of a record of the session.

`{"$ref": id}` is the whole text, with `"lines": "10-40"` these lines, with `"pointer": "/items"` a JSON
value. Only the fields that the host allows may have one. The content itself is never searched for references.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offload.base.text import escape_surrogates
from offload.engine.settings.fields import MAX_REFERENCE_CHARS
from offload.errors import ConfigError, CorruptError, NotFoundError, ReferenceRefusedError
from offload.reading.tools.answers import read_error
from offload.reading.tools.budget import BUDGET, BudgetExceeded
from offload.reading.tools.pointer import PointerReader
from offload.records.codec.base import StoredRecord
from offload.records.codec.content import StoredContent
from offload.records.session.reader import SessionReader
from offload.storage.layout import is_ref

# The most references in one call.
MAX_REFERENCES = 100

_KEY = "$ref"
_PARTS = ("lines", "pointer")
_LINES = re.compile(r"([1-9]\d{0,14})(?:-([1-9]\d{0,14}))?", re.ASCII)
_FIELD_CHARS = 100


class Reference(NamedTuple):
    """A resolved reference: its ref, the field of the arguments that had it, and the characters inserted."""

    ref: str
    field: str
    chars: int


@dataclass(slots=True)
class References:
    """The references in the arguments of one call.

    Attributes:
        allowed: the fields that may have references, each `TOOL.FIELD`.
        chars_left: the most characters of content.
        resolved: the references that were replaced.
    """

    session: SessionReader
    tool: str
    allowed: Sequence[str]
    chars_left: int = MAX_REFERENCE_CHARS
    resolved: list[Reference] = field(default_factory=list)

    def replaced(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with content in place of references. Raises `ReferenceRefusedError`."""
        if is_ref(arguments.get(_KEY)):
            raise ReferenceRefusedError("the arguments must be an object with fields, not a reference")
        try:
            return {name: self._replaced(value, _step(name)) for name, value in arguments.items()}
        except RecursionError:
            raise ReferenceRefusedError("the arguments are nested too deeply for references") from None

    def _replaced(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            is_allowed = f"{self.tool}.{path}" in self.allowed
            # A JSON schema has `$ref` too, with a path.
            if _KEY in value and (is_allowed or is_ref(value[_KEY])):
                return self._content(value, path, is_allowed=is_allowed)
            return {name: self._replaced(part, f"{path}.{_step(name)}") for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._replaced(part, path) for part in value]
        return value

    def _content(self, reference: Mapping[str, Any], path: str, *, is_allowed: bool) -> Any:
        place = escape_surrogates(path.replace("\0", "."))[:_FIELD_CHARS]
        if not is_allowed:
            fields = ", ".join(self.allowed) or "none"
            raise ReferenceRefusedError(
                f"{place} of {self.tool} must not be a reference (allowed: {fields}); write the text itself"
            )
        if len(self.resolved) == MAX_REFERENCES:
            raise ReferenceRefusedError(f"a call may have at most {MAX_REFERENCES} references")
        ref = reference[_KEY]
        try:
            value, chars = self._part(self._open(ref), reference)
        except (ConfigError, CorruptError, NotFoundError) as error:
            reason = str(error) if isinstance(error, ConfigError) else read_error(error, str(ref))
            raise ReferenceRefusedError(f"{place}: {escape_surrogates(reason)}") from error
        self.chars_left -= chars
        self.resolved.append(Reference(ref, place, chars))
        return value

    def _open(self, ref: Any) -> StoredRecord:
        record = self.session.read(ref)
        if record.is_redacted:
            raise ConfigError(
                f"item {ref!r} was redacted before it was stored; a copy would lose what was removed"
            )
        return record

    def _part(self, record: StoredRecord, reference: Mapping[str, Any]) -> tuple[Any, int]:
        """Return the content of a reference, and its characters."""
        unknown = [name for name in reference if name not in (_KEY, *_PARTS)]
        if unknown or all(name in reference for name in _PARTS):
            raise ConfigError(f"a reference may have only {_KEY}, and lines or pointer for a part")
        content = record.content
        if "pointer" in reference:
            return self._value(content, reference["pointer"])
        start, end = _range(content, content.lines, reference.get("lines"))
        return self._text(content, start, end), end - start

    def _text(self, content: StoredContent, start: int, end: int) -> str:
        if end - start > self.chars_left:
            raise ConfigError(
                f"the text has {end - start} characters, and {self.chars_left} are left for references in "
                "this call; refer to a part"
            )
        return content.text(start, end)

    def _value(self, content: StoredContent, pointer: Any) -> tuple[Any, int]:
        if not isinstance(pointer, str):
            raise ConfigError(f'pointer must be a text such as "/items", got {type(pointer).__name__}')
        try:
            value = PointerReader(content).find(pointer)
        except BudgetExceeded:
            raise ConfigError(f"value too large for one call ({BUDGET}); refer to lines") from None
        text = self._text(content, value.start, value.end)
        if value.kind == "JSON lines":
            return text, len(text)
        try:
            return json.loads(text, strict=False), len(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the value is not valid JSON: {error}"[:_FIELD_CHARS]) from None


def _step(name: Any) -> str:
    """Return a key as a step of a path; a dot in a key does not make two steps."""
    return str(name).replace(".", "\0")


def _range(content: StoredContent, count: int, lines: Any) -> tuple[int, int]:
    """Return the offsets of the first character of a range of lines, and of the one after it."""
    if lines is None:
        return 0, content.chars
    match = _LINES.fullmatch(lines) if isinstance(lines, str) else None
    if match is None:
        raise ConfigError('lines must be a text such as "10-40" or "7", from 1')
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ConfigError(f"lines {lines}: the first line must come first: {last}-{first}")
    if last > count:
        raise ConfigError(f"lines {lines} are not in the item, which has {count} (1-{count})")
    return content.line_start(first), content.line_start(last + 1)
