"""Placeholders from a text with fields, checked when it is given.

How the ref is found again: every field but the excerpt and the summary is one word, without blanks, quotes
or brackets, and the ref stands between two characters that no word holds. So in what a template renders
there are always as many such characters before the ref, or behind it, whatever the facts are: it stands in
one place only.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from offload.errors import ConfigError
from offload.layout import REF_PATTERN
from offload.placeholder._default import escape_placeholders
from offload.placeholder._facts import PlaceholderFacts
from offload.record import escape_surrogates

_NOT_OF_A_WORD = re.compile(r"[^\w.:/-]+", re.ASCII)
_WORD_CHARS = 40
_WORD = rf"[\w.:/-]{{1,{_WORD_CHARS}}}"
_NUMBER = r"\d{1,20}"


class _Field(NamedTuple):
    """How a field is shown, and what that looks like; None where it may be any text."""

    show: Callable[[PlaceholderFacts], str]
    pattern: str | None = None


class _Part(NamedTuple):
    """A literal text and the field behind it, None at the end."""

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
    "preview": _Field(lambda facts: escape_placeholders(escape_surrogates(facts.preview.text)).rstrip("\n")),
    "summary": _Field(lambda facts: escape_placeholders(escape_surrogates(facts.summary or ""))),
}
_NAMES = ", ".join(f"{{{name}}}" for name in _FIELDS)
# No field that is not free is longer.
_MOST_CHARS = 80
_EXAMPLE = "[{tool} returned {chars} characters. {preview}\nPreview only; continue: {call} id {ref}]"


class TemplateRenderer:
    r"""Makes placeholders from a template, a text with fields in braces; a brace itself is written twice.

        TemplateRenderer("[{tool}, {chars} characters.\n{preview}\nPreview only; continue: {call} id {ref}]")

    | field | what is shown |
    |---|---|
    | `{ref}` | the id; a template has it once, apart from words beside it |
    | `{tool}` | the tool's name, or the type of the item where no tool made it; as one word |
    | `{chars}`, `{lines}` | how large the content is |
    | `{preview}` | the excerpt; it is incomplete, and only the template can say so to the model |
    | `{summary}` | what a summarizer said of the content, else nothing |
    | `{call}` | the call that reads on, as `context_read(id="…", offset=…)` |

    A placeholder that is no shorter than what it would replace is not used, whatever the template.

    Args:
        template: the text. `{preview}` and `{summary}` stand on one side of `{ref}`, both of them.

    Raises:
        ConfigError: the template cannot work; says what is wrong with it and what would be right.
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
            raise _wrong("{preview} and {summary} stand on one side of {ref}, both of them")
        self._reach = sum(len(literal) + _MOST_CHARS for literal, _ in self._parts)

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the template with `facts` in its fields."""
        return "".join(literal + (_FIELDS[name].show(facts) if name else "") for literal, name in self._parts)

    def find_ref(self, text: str) -> str | None:
        """Return the id in `text` if what stands around it is the template's; looks at that alone."""
        if not text.startswith(self._parts[0].literal):
            return None
        find = self._pattern.search if self._is_at_end else self._pattern.match
        match = find(text[-self._reach :] if self._is_at_end else text)
        return match[1] if match else None


def _parsed(template: str) -> list[_Part]:
    """Return the parts of a template. Raises `ConfigError` if they are not what it may have."""
    if not isinstance(template, str):
        raise _wrong(f"it is a text, not {type(template).__name__}")
    if escape_surrogates(template) != template:
        raise _wrong(f"it has no UTF-8 form: {template!r:.60}")
    try:
        found = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _wrong(f"{error}; a brace that is no field's is written twice") from None
    for _, name, spec, conversion in found:
        if name is not None:
            _check_field(name, spec or "", conversion)
    if [name for _, name, _, _ in found].count("ref") != 1:
        raise _wrong("it needs {ref} once, the id by which the item is found again")
    return _merged(found)


def _merged(found: Iterable[tuple[str, str | None, str | None, str | None]]) -> list[_Part]:
    """Return each field with the whole literal before it: one with a doubled brace comes in several."""
    parts, literal = [], ""
    for text, name, _, _ in found:
        literal += text
        if name is not None:
            parts.append(_Part(literal, name))
            literal = ""
    return [*parts, _Part(literal, None)]


def _check_field(name: str, spec: str, conversion: str | None) -> None:
    if conversion or spec:
        raise _wrong(f"a field is a name in braces, without ! and :, as {{{name}}}")
    if not name or name.isdigit():
        raise _wrong(f"{{{name}}} has no name; the fields are {_NAMES}")
    plain = re.split(r"[.\[]", name)[0]
    if plain != name:
        raise _wrong(f"a field has no parts: {{{plain}}}, not {{{name}}}")
    if name not in _FIELDS:
        raise _wrong(f"there is no field {{{name}}}; the fields are {_NAMES}")


def _check_borders(before: Sequence[_Part], after: Sequence[_Part]) -> None:
    """Check that a character that no word holds stands at either side of the ref."""
    ref, behind = before[-1], after[0]
    is_joined = (behind.name and not behind.literal) or (len(before) > 1 and not ref.literal)
    touching = ref.literal[-1:] + behind.literal[:1]
    if is_joined or re.search(_WORD, touching, re.ASCII):
        raise _wrong("{ref} stands apart, between blanks, quotes or brackets")


def _is_free(parts: Sequence[_Part]) -> bool:
    return any(name is not None and _FIELDS[name].pattern is None for _, name in parts)


def _pattern(parts: Sequence[_Part]) -> str:
    return "".join(re.escape(lit) + ((_FIELDS[name].pattern or "") if name else "") for lit, name in parts)


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"placeholder template: {what}; for example {_EXAMPLE!r}")
