"""The preview of a placeholder: what kind of content it is, its structure, and the lines that matter."""

from __future__ import annotations

from offload.preview._choose import Chosen, choose
from offload.preview._head_tail import Preview, head_tail
from offload.preview._json import json_shape
from offload.preview._kinds import Kind, kind_of
from offload.preview._names import terms_of
from offload.preview._trouble import error_words
from offload.preview._view import END_CHARS, SampledText

# With less room lines that stand alone say nothing.
_LEAST_CHARS = 200
_MAX_WANTED = 12


def preview_of(text: str, max_chars: int, *, query: str = "", left_out: int = 0) -> Preview:
    """Return what a model needs of `text` in at most `max_chars` characters.

    Shown are the first and the last lines; lines that carry the structure of their kind of content
    (definitions, headings, files of a diff, errors), that match the query, or that hold many
    names which stand nowhere else; and the names that no shown line holds. Each line comes after its
    number, from 1, or after `@` and its offset in characters, as `context_read` takes them.

    Pure and deterministic. Work is bounded: of a long text only samples of its two ends are looked at.

    Args:
        text: the text, or of one that is too long to be held its two ends, each of `END_CHARS`.
        max_chars: the most that is shown.
        query: the text that the lines are ranked against: the tool-call arguments, the last messages.
        left_out: how many characters stand between the two ends.
    """
    if len(text) <= max_chars or max_chars < _LEAST_CHARS:
        return head_tail(text, max_chars, left_out=left_out)
    if len(text) > 2 * END_CHARS:
        left_out += len(text) - 2 * END_CHARS
        text = text[:END_CHARS] + text[-END_CHARS:]
    terms = terms_of(query)
    view = SampledText(text, (*error_words(text), *list(terms)[:_MAX_WANTED]), left_out)
    kind = kind_of(view.lines)
    intro = _intro(kind, view, json_shape(text, max_chars // 4) if kind.name == "JSON" else "")
    chosen = choose(view, kind, terms, max_chars - len(intro) - len(_names_line([""])))
    lines = [f"{view.lines[i].label} {view.lines[i].text}" for i in chosen.lines]
    shown = "\n".join([intro, *lines, *[_names_line(chosen.names)] * bool(chosen.names)])
    if not lines:
        return head_tail(text, max_chars, left_out=left_out)
    return Preview(shown, _head_chars(view, chosen))


def _intro(kind: Kind, view: SampledText, shape: str) -> str:
    numbers = "Line or @character numbers" if _has_offsets(view) else "Line numbers"
    direction = "higher" if view.shift > 0 else "lower"
    own = f"; numbers printed in the text are {abs(view.shift)} {direction}" if view.shift else ""
    return f"[Preview: {kind.name}{shape and ' '}{shape}. {numbers} at left{own}]"


def _has_offsets(view: SampledText) -> bool:
    return any(line.label.startswith("@") for line in view.lines)


def _names_line(names: list[str]) -> str:
    return f"[Names not shown: {', '.join(names)}]"


def _head_chars(view: SampledText, chosen: Chosen) -> int:
    """Return how many characters from the beginning are shown without a gap."""
    end = 0
    for i, taken in enumerate(chosen.lines[: view.unbroken]):
        if i != taken:
            break
        end = view.lines[i].end
    return end
