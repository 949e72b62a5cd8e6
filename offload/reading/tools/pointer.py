"""JSON pointers (RFC 6901) into stored content: find a value, and list the members of a large one.

The content is scanned from its beginning, or from the line in JSON lines, to the value, in constant memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

from offload.base.json_reader import BrokenJsonError, JsonReader, member_pointer
from offload.base.text import decode_text
from offload.engine.placeholder.default import safe_for_model
from offload.errors import ConfigError
from offload.reading.tools.budget import Budget
from offload.records.codec.content import StoredContent

MAX_POINTER_CHARS = 500
_INDEX = re.compile(r"0|[1-9]\d{0,14}", re.ASCII)
_TILDE = re.compile(r"~(?![01])")
# The most characters of a key in an outline or an error.
_NAME_CHARS = 100
_NAMES = 20
_OPENING = ("{", "[")
# The kinds of values that have members.
CONTAINERS = ("object", "array", "JSON lines")


class JsonValue(NamedTuple):
    """A value in content: its JSON pointer, its kind, and the character offsets of its beginning and end.

    The kind is one of `JsonReader.kind`, or "JSON lines".
    """

    pointer: str
    kind: str
    start: int
    end: int

    @property
    def description(self) -> str:
        """Its kind and its size."""
        return f"{self.kind}, {self.end - self.start:,} characters"


class PointerReader:
    """Finds values in the content of one record, within the budget of one call."""

    def __init__(self, content: StoredContent) -> None:
        self._content = content
        self._budget = Budget()

    def find(self, pointer: str) -> JsonValue:
        """Return the value at `pointer`; the first of duplicate keys counts. Raises `ConfigError`."""
        steps = parse_pointer(pointer)
        with self._errors():
            if not self._is_lines():
                return self._walk(self._scan(0), pointer, steps)
            if not steps:
                return JsonValue(pointer, "JSON lines", 0, self._content.chars)
            return self._walk(self._scan_line(steps[0]), pointer, steps, depth=1)

    def outline(self, value: JsonValue) -> Iterator[tuple[str, str]]:
        """Yield pointer and description of each member of a container. Raises the errors of `find`."""
        for each in self.members(value):
            yield each.pointer, each.description

    def members(self, value: JsonValue) -> Iterator[JsonValue]:
        """Yield the members of a container, lines as values of a kind of their own; see `outline`."""
        if value.kind == "JSON lines":
            yield from self._line_values()
            return
        reader = self._scan(value.start)
        with self._errors():
            for name in reader.members():
                kind, start = reader.kind(), reader.place
                yield JsonValue(member_pointer(value.pointer, name), kind, start, reader.skip())

    def _line_values(self) -> Iterator[JsonValue]:
        starts = map(self._content.line_start, range(1, self._lines() + 2))
        start = next(starts)
        for line, end in enumerate(starts):
            yield JsonValue(f"/{line}", f"line {line + 1}", start, end)
            start = end

    def count(self, value: JsonValue) -> int:
        """Return how many members a container has, or lines a value of JSON lines."""
        if value.kind == "JSON lines":
            return self._lines()
        with self._errors():
            return sum(1 for _ in self._scan(value.start).members())

    def _walk(self, reader: JsonReader, pointer: str, steps: list[str], depth: int = 0) -> JsonValue:
        for number, step in enumerate(steps[depth:], depth):
            _enter(reader, step, reduce(member_pointer, steps[:number], ""))
        return JsonValue(pointer, reader.kind(), reader.place, reader.skip())

    def _scan(self, start: int, end: int | None = None) -> JsonReader:
        """Return a reader at the character offset `start`, which stops at `end`."""
        byte, chunks = self._content.chunks_from(self._content.byte_at(start) + 1)
        offset, texts = self._content.char_at(byte), map(decode_text, self._budget.metered(chunks))
        return JsonReader(texts if end is None else _first(texts, end - offset), offset, start)

    def _is_lines(self) -> bool:
        """Return whether the first line is one JSON value and the second begins another."""
        if self._lines() == 1 or self._scan(0).peek() not in _OPENING:
            return False
        second = self._content.line_start(2)
        try:
            self._scan(0, second).skip()
        except BrokenJsonError:
            return False
        return self._scan(second).peek() in _OPENING

    def _lines(self) -> int:
        content = self._content
        return content.newlines + (content.line_start(content.newlines + 1) < content.chars)

    def _scan_line(self, step: str) -> JsonReader:
        if not _INDEX.fullmatch(step) or int(step) >= self._lines():
            raise ConfigError(
                f"this item is {self._lines()} JSON lines: "
                f"start the pointer with /0 to /{self._lines() - 1}, got {_quoted(step)}"
            )
        line = int(step) + 1
        return self._scan(self._content.line_start(line), self._content.line_start(line + 1))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise `ConfigError` with the place of malformed JSON."""
        try:
            yield
        except BrokenJsonError as error:
            raise ConfigError(
                f"invalid JSON at character {error.place}: {error}; read by offset or line"
            ) from None


def parse_pointer(pointer: str) -> list[str]:
    """Return the steps of a pointer, unescaped. Raises `ConfigError` for an invalid one."""
    if len(pointer) > MAX_POINTER_CHARS:
        raise ConfigError(f"pointer must have at most {MAX_POINTER_CHARS} characters, got {len(pointer)}")
    if pointer and not pointer.startswith("/"):
        raise ConfigError(f"pointer must be empty or start with /, e.g. /rows/17, got {_quoted(pointer)}")
    if _TILDE.search(pointer):
        raise ConfigError("in pointer keys write ~ as ~0 and / as ~1")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _first(chunks: Iterator[str], size: int) -> Iterator[str]:
    while size > 0 and (chunk := next(chunks, "")):
        yield chunk[:size]
        size -= len(chunk)


def _enter(reader: JsonReader, step: str, path: str) -> None:
    """Move the reader to the member `step` of the container here, whose pointer is `path`."""
    kind = reader.kind()
    if kind not in ("object", "array"):
        raise ConfigError(f"{_place(path)} is a {kind} and has no members")
    names: list[str] = []
    count = 0
    for name in map(str, reader.members()):
        if name == step:
            return
        count += 1
        if len(names) < _NAMES:
            names.append(_quoted(name))
    if kind == "array":
        there = f"an array of {count} (0-{count - 1})" if count else "an empty array"
        raise ConfigError(f"no index {_quoted(step)}: {_place(path)} is {there}")
    keys = f"keys: {', '.join(names)}{', …' * (count > len(names))}" if count else "it is empty"
    raise ConfigError(f"no key {_quoted(step)} in {_place(path)}; {keys}")


def _place(path: str) -> str:
    return _quoted(path) if path else "the document"


def _quoted(text: str) -> str:
    """Return a text in quotes, on one line, cut to 100 characters."""
    cut = text if len(text) <= _NAME_CHARS else text[:_NAME_CHARS] + "…"
    return safe_for_model(json.dumps(cut, ensure_ascii=False))
