"""Placeholders from a text with fields, which is checked when the renderer is made.

Every field but the preview and the summary is one word, without spaces, quotes or brackets, and the ref lies
between two characters that no word holds. So the number of such characters before the ref, or after it, is
the same in every text that a template renders, and the ref has one place.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence

from offload.base.patterns import lazy_pattern
from offload.base.text import escape_surrogates
from offload.engine.placeholder._facts import PlaceholderFacts
from offload.engine.placeholder.default import safe_for_model
from offload.errors import ConfigError
from offload.storage.layout import REF_PATTERN

_NOT_OF_A_WORD = lazy_pattern(r"[^\w.:/-]+", re.ASCII)
_WORD_CHARS = 40
_WORD = rf"[\w.:/-]{{1,{_WORD_CHARS}}}"
_NUMBER = r"\d{1,20}"


def _word(facts: PlaceholderFacts) -> str:
    name = facts.item_type if facts.tool_name is None else facts.tool_name
    return _NOT_OF_A_WORD.sub("_", name)[:_WORD_CHARS] or "_"


def _call(facts: PlaceholderFacts) -> str:
    return f'context_read(id="{facts.ref}", offset={facts.preview.head_chars})'


_FIELDS: dict[str, Callable[[PlaceholderFacts], str]] = {
    "ref": lambda facts: facts.ref,
    "tool": _word,
    "chars": lambda facts: str(facts.chars),
    "lines": lambda facts: str(facts.lines),
    "call": _call,
    "preview": lambda facts: safe_for_model(facts.preview.text).rstrip("\n"),
    "summary": lambda facts: safe_for_model(facts.summary or ""),
}
# The other fields may be any text.
_PATTERNS = {
    "ref": f"({REF_PATTERN})",
    "tool": _WORD,
    "chars": _NUMBER,
    "lines": _NUMBER,
    "call": rf'context_read\(id="{REF_PATTERN}", offset={_NUMBER}\)',
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
        _check(template)
        self._template = template
        marked = template.format(**{name: f"\0{name}\0" for name in _FIELDS})
        # A literal text, and then in turn a field and the literal text after it.
        parts = re.split(rf"\0({'|'.join(_FIELDS)})\0", marked)
        at = 2 * parts[1::2].index("ref") + 1
        before, after = parts[:at], parts[at + 1 :]
        _check_borders(before, after)
        if not _is_free(before):
            end = re.escape(after[0]) if _is_free(after) else rf"{_pattern(after)}\Z"
            self._pattern = re.compile(_pattern([*before, "ref"]) + end, re.ASCII)
            self._is_at_end = False
        elif not _is_free(after):
            self._pattern = re.compile(_pattern([before[-1], "ref", *after]) + r"\Z", re.ASCII)
            self._is_at_end = True
        else:
            raise _wrong("{preview} and {summary} must be on the same side of {ref}")
        self._start = parts[0]
        self._reach = sum(map(len, parts[::2])) + _MOST_CHARS * len(parts)

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the template with `facts` in its fields."""
        return self._template.format(**{name: show(facts) for name, show in _FIELDS.items()})

    def find_ref(self, text: str) -> str | None:
        """Return the id in `text` if the text around it matches the template."""
        if not text.startswith(self._start):
            return None
        find = self._pattern.search if self._is_at_end else self._pattern.match
        match = find(text[-self._reach :] if self._is_at_end else text)
        return match[1] if match else None


def _check(template: str) -> None:
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
        raise _wrong("it must have {ref} exactly once")


def _check_field(name: str, spec: str, conversion: str | None) -> None:
    if name not in _FIELDS or conversion or spec:
        field = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        raise _wrong(f"a field must be one of {_NAMES}, got {{{field}}}")


def _check_borders(before: Sequence[str], after: Sequence[str]) -> None:
    """Check that the ref lies between two characters that no word holds."""
    is_joined = (len(after) > 1 and not after[0]) or (len(before) > 1 and not before[-1])
    touching = before[-1][-1:] + after[0][:1]
    if is_joined or re.search(_WORD, touching, re.ASCII):
        raise _wrong("{ref} must be between spaces, quotes or brackets")


def _is_free(parts: Sequence[str]) -> bool:
    return any(name not in _PATTERNS for name in parts[1::2])


def _pattern(parts: Sequence[str]) -> str:
    return "".join(_PATTERNS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))


def _wrong(problem: str) -> ConfigError:
    return ConfigError(f"placeholder template: {problem}; for example {_EXAMPLE!r}")
