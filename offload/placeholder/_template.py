"""Placeholders from a text with fields, which is checked when the renderer is made.

Every field but the preview and the summary is one word, without spaces, quotes or brackets, and the ref lies
between two characters that no word holds. So the number of such characters before the ref, or after it, is
the same in every text that a template renders, and the ref has one place.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from offload.errors import ConfigError
from offload.layout import REF_PATTERN
from offload.placeholder._default import safe_for_model
from offload.placeholder._facts import PlaceholderFacts
from offload.record import escape_surrogates

_NOT_OF_A_WORD = re.compile(r"[^\w.:/-]+", re.ASCII)
_WORD_CHARS = 40
_WORD = rf"[\w.:/-]{{1,{_WORD_CHARS}}}"
_NUMBER = r"\d{1,20}"


class _Field(NamedTuple):
    """The text of a field, and its pattern; the pattern is None if the text may be any."""

    show: Callable[[PlaceholderFacts], str]
    pattern: str | None = None


class _Part(NamedTuple):
    """A literal text and the field after it, None at the end."""

    literal: str
    name: str | None


def _word(facts: PlaceholderFacts) -> str:
    name = facts.item_type if facts.tool_name is None else facts.tool_name
    return _NOT_OF_A_WORD.sub("_", name)[:_WORD_CHARS] or "_"


def _call(facts: PlaceholderFacts) -> str:
    return f'context_read(id="{facts.ref}", offset={facts.preview.head_chars})'


_FIELDS: dict[str, _Field] = {
    "ref": _Field(lambda facts: facts.ref, f"({REF_PATTERN})"),
    "tool": _Field(_word, _WORD),
    "chars": _Field(lambda facts: str(facts.chars), _NUMBER),
    "lines": _Field(lambda facts: str(facts.lines), _NUMBER),
    "call": _Field(_call, rf'context_read\(id="{REF_PATTERN}", offset={_NUMBER}\)'),
    "preview": _Field(lambda facts: safe_for_model(facts.preview.text).rstrip("\n")),
    "summary": _Field(lambda facts: safe_for_model(facts.summary or "")),
}
_NAMES = ", ".join(f"{{{name}}}" for name in _FIELDS)
# The most characters of a field with a pattern.
_MOST_CHARS = 80
_EXAMPLE = "[{tool} returned {chars} characters. {preview}\nPreview only; continue: {call} id {ref}]"


class TemplateRenderer:
    r"""Renders placeholders from a template, a text with fields in braces; double a brace to print it.

        TemplateRenderer("[{tool}, {chars} characters.\n{preview}\nPreview only; continue: {call} id {ref}]")

    | field | text |
    |---|---|
    | `{ref}` | the id; once in a template, not next to a letter or digit |
    | `{tool}` | the tool's name, or the item's type if no tool made it, as one word |
    | `{chars}`, `{lines}` | the size of the content |
    | `{preview}` | the excerpt; the template should warn that it is incomplete |
    | `{summary}` | a summarizer's text, else nothing |
    | `{call}` | the call that reads the rest, `context_read(id="…", offset=…)` |

    A placeholder that is no shorter than its item is not used.

    Args:
        template: the text. `{preview}` and `{summary}` must be on the same side of `{ref}`.

    Raises:
        ConfigError: the template cannot work; the message names the fix.
    """

    def __init__(self, template: str) -> None:
        self._parts = _parsed(template)
        at = [name for _, name in self._parts].index("ref")
        before, after = self._parts[: at + 1], self._parts[at + 1 :]
        _check_borders(before, after)
        if not _is_free(before):
            end = re.escape(after[0].literal) if _is_free(after) else rf"{_pattern(after)}\Z"
            self._pattern = re.compile(_pattern(before) + end, re.ASCII)
            self._is_at_end = False
        elif not _is_free(after):
            self._pattern = re.compile(_pattern(before[-1:]) + rf"{_pattern(after)}\Z", re.ASCII)
            self._is_at_end = True
        else:
            raise _wrong("{preview} and {summary} must be on the same side of {ref}")
        self._reach = sum(len(literal) + _MOST_CHARS for literal, _ in self._parts)

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the template with `facts` in its fields."""
        return "".join(literal + (_FIELDS[name].show(facts) if name else "") for literal, name in self._parts)

    def find_ref(self, text: str) -> str | None:
        """Return the id in `text` if the text around it matches the template."""
        if not text.startswith(self._parts[0].literal):
            return None
        find = self._pattern.search if self._is_at_end else self._pattern.match
        match = find(text[-self._reach :] if self._is_at_end else text)
        return match[1] if match else None


def _parsed(template: str) -> list[_Part]:
    """Return the parts of a template. Raises `ConfigError` for an invalid one."""
    if not isinstance(template, str):
        raise _wrong(f"it must be a string, got {type(template).__name__}")
    if escape_surrogates(template) != template:
        raise _wrong(f"it must be valid Unicode, got {template!r:.60}")
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _wrong(f"{error}; double a brace that is not part of a field") from None
    for _, name, spec, conversion in fields:
        if name is not None:
            _check_field(name, spec or "", conversion)
    if [name for _, name, _, _ in fields].count("ref") != 1:
        raise _wrong("it must have {ref} once")
    return _merged(fields)


def _merged(fields: Iterable[tuple[str, str | None, str | None, str | None]]) -> list[_Part]:
    """Return each field with the whole literal before it, which a doubled brace splits."""
    parts, literal = [], ""
    for text, name, _, _ in fields:
        literal += text
        if name is not None:
            parts.append(_Part(literal, name))
            literal = ""
    return [*parts, _Part(literal, None)]


def _check_field(name: str, spec: str, conversion: str | None) -> None:
    if name not in _FIELDS or conversion or spec:
        field = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        raise _wrong(f"a field must be one of {_NAMES}, got {{{field}}}")


def _check_borders(before: Sequence[_Part], after: Sequence[_Part]) -> None:
    """Check that the ref lies between two characters that no word holds."""
    ref, behind = before[-1], after[0]
    is_joined = (behind.name and not behind.literal) or (len(before) > 1 and not ref.literal)
    touching = ref.literal[-1:] + behind.literal[:1]
    if is_joined or re.search(_WORD, touching, re.ASCII):
        raise _wrong("{ref} must be between spaces, quotes or brackets")


def _is_free(parts: Sequence[_Part]) -> bool:
    return any(name is not None and _FIELDS[name].pattern is None for _, name in parts)


def _pattern(parts: Sequence[_Part]) -> str:
    return "".join(re.escape(lit) + ((_FIELDS[name].pattern or "") if name else "") for lit, name in parts)


def _wrong(problem: str) -> ConfigError:
    return ConfigError(f"placeholder template: {problem}; for example {_EXAMPLE!r}")
