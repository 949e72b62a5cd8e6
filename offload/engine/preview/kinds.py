"""Kinds of content: how each is recognized, and which of its lines carry its structure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from offload.base.threads.locks import cached
from offload.engine.preview.names import LETTERS, error_words


class _LineStart:
    r"""A pattern of the beginning of a line, in which `[\w]` is a letter of any script and all else is ASCII.

    It is compiled at its first use: all of them take a third of the time to import the library.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    @cached
    def match(self) -> Callable[[str], re.Match[str] | None]:
        """The function that matches it at the beginning of a text."""
        return re.compile(self._pattern.replace(r"\w", LETTERS), re.ASCII).match

    def __call__(self, texts: Sequence[str]) -> int:
        """Return how many of the lines it matches."""
        return len([*filter(self.match, texts)])


class Kind(NamedTuple):
    """A kind of content.

    Attributes:
        evidence: counts of lines, each with the share of all lines that it must exceed.
        marks: beginnings of structural lines, one group per sort.
        worths: worth of a line of each sort; a name is worth 1.
        trouble: worth of a line with an error word.
        tail: share of the characters for its last lines, if more than one is shown.
    """

    name: str
    evidence: tuple[tuple[Callable[[Sequence[str]], int], float], ...] = ()
    marks: _LineStart | None = None
    worths: tuple[float, ...] = ()
    trouble: float = 0.0
    tail: float = 0.0

    def fits(self, texts: Sequence[str]) -> bool:
        """Return whether the lines `texts` look like this kind."""
        return all(count(texts) > share * len(texts) for count, share in self.evidence)

    def worth(self, line: str) -> float:
        """Return the worth of `line` as a part of the structure."""
        return self.worths_of([line]).get(0, 0.0)

    def worths_of(self, texts: Sequence[str]) -> dict[int, float]:
        """Return the worth of each structural line of `texts` by its index."""
        matches = enumerate(map(self.marks.match, texts)) if self.marks else ()
        return {i: self.worths[match.lastindex - 1] for i, match in matches if match and match.lastindex}


# Prefixes of a definition: the line number of `grep -n`, indentation, modifiers.
_BEFORE = (
    r"(?:\d+[:-])?\s*(?:(?:export|default|declare|public|private|protected|internal|static|final|abstract"
    r"|async|override|pub(?:\([\w]+\))?|unsafe|inline|virtual|const)\s+)*"
)
_TYPE = r"(?:class|interface|struct|enum|trait|impl|module|defmodule|namespace|protocol|type|contract)\s+[\w]"
_FUNCTION = (
    r"(?:def|defp|defmacro|function|fn|func|fun|sub|proc)\s+[\w(]"
    r"|(?:let|var|const)?\s*[\w]++\s*+=\s*(?:async\s*)?(?:\(|function)"
    r"|(?:test|it|describe|context|setup)\b\s*[(\"']"
    r"|(?!if|for|while|switch|catch|return|else|do\b)[\w$]++\([^;]{0,120}\{$"
)
# A type, a name and parameters, without a keyword.
_C_FUNCTION = (
    r"(?!(?:else|return|if|for|while|switch|await|yield|raise|throw|assert|new|case|echo)\b)"
    r"[A-Za-z_][\w*&:<>]*+ [\w *&:<>]{1,60}+\([^;]{0,120}+$"
)
_STATEMENT = _LineStart(
    r"(?:\d+[:-])?\s*(?:import|from|use|alias|require|#include|return|if|else|elif|for|while|const|let|var"
    r"|case|export|class|def|defp|function|func|fn|public|private|static|self\.|this\.|[\w]++ = |\} else|end$"
    r"|@[\w]|\}\)?[;,]?$|[\w]++\([\w])"
)
_STATEMENT_ENDS = (*"{};:,()[", " do", "end", "*/", "->", "=>")
_CODE = Kind(
    "code",
    evidence=(
        (lambda texts: len([text for text in texts if text.endswith(_STATEMENT_ENDS)]), 0.3),
        (_STATEMENT, 0.1),
    ),
    marks=_LineStart(f"{_BEFORE}(?:({_TYPE})|({_FUNCTION}))|({_C_FUNCTION})"),
    worths=(1.0, 0.5, 0.4),
)
_DIFF = Kind(
    "diff",
    evidence=((_LineStart(r"diff --git |@@ -\d|\+\+\+ [ab]/|Index: "), 0.01),),
    marks=_LineStart(r"(diff |\+\+\+ |rename |deleted file|new file)|(@@ )|([+-]\s*[\w])"),
    worths=(1.5, 0.5, 0.25),
)

_PLAN = Kind(
    "Terraform plan",
    evidence=((_LineStart(r"\s*# \S+ (?:will|must) be "), 0.01), (_LineStart(r"Plan: \d|Terraform "), 0)),
    marks=_LineStart(r"(\s*# \S+ (?:will be destroyed|must be replaced)|Plan: \d)|(\s*# \S+ will be )"),
    worths=(2.0, 0.75),
    trouble=1.0,
)


def _count_troubled(texts: Sequence[str]) -> int:
    words = error_words("\n".join(texts))
    return len([text for text in texts if any(word in text for word in words)])


_LOGGED = _LineStart(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:|\[?(?:[A-Z][a-z][a-z] [ \d]\d )?\d\d:\d\d:\d\d"
    r"|\[?(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE)\b|npm (?:error|ERR|warn|WARN)"
    r"|={5,}|-{3} (?:FAIL|PASS)|=== RUN|[^\s:]++::\S++ (?:PASSED|FAILED)"
    r"|(?:PASSED|FAILED|ok|not ok|Running|Compiling|Installing|Collecting)\b"
    r"|\s*File \"[^\"]++\", line \d|\s+at [\w.<>$ ]++\(|[^\s:(]++[:(]\d++[,:]\d++\)?:? (?:error|warning)"
)
_LOG = Kind(
    "log",
    evidence=((_LOGGED, 0.12),),
    marks=_LineStart(
        r"(=+ .*\b(?:passed|failed|error))"
        r"|(\s*(?:\S++\s++)?\d++ (?:passed|failed|tests?|examples|errors?|doctests?)\b|Tests?:|Ran \d"
        r"|FAILED|--- FAIL)"
        r"|(\s*File \"|\s+at \S+[ (]|E {2,}|>{1,2} )"
    ),
    worths=(3.0, 2.0, 0.75),
    trouble=3.0,
    tail=0.2,
)
_TROUBLED = _LOG._replace(evidence=((_count_troubled, 0.05),))
_MARKDOWN = Kind(
    "Markdown",
    evidence=(
        (_LineStart(r"#{1,6} \S"), 0.01),
        # Comments begin as headings of the first level do.
        (_LineStart(r"#{2,6} \S|\s*(?:```|\|[ :]*--)|[^\n]*?(?:\*\*|\]\()"), 0.005),
        (_LineStart(r"#{1,6} \S|\s*(?:[-*] |\d+\. |\||```)"), 0.2),
    ),
    marks=_LineStart(r"(#{1,2} )|(#{3,6} )|(\s*(?:[-*]|\d+\.) +(?:\*\*|`|\[))"),
    worths=(1.5, 0.75, 0.25),
)
_TAGGED = _LineStart(r"\s*<[!?/a-zA-Z]")
_HTML = Kind(
    "HTML",
    evidence=(
        (_TAGGED, 0.4),
        (
            _LineStart(
                r"[^\n]*?<(?:!DOCTYPE html|!doctype html|html|HTML|body|head|div|span|table|ul|li|p|a)\b"
            ),
            0,
        ),
    ),
    marks=_LineStart(r"\s*<(?:(title|TITLE|[hH][1-3])|(a|A|form|input|p|P))\b"),
    worths=(1.5, 0.15),
    trouble=1.0,
)
_XML = Kind("XML", evidence=((_TAGGED, 0.4),), trouble=1.0)
PATHS = Kind("list of paths", evidence=((_LineStart(r"[^\s\\/]*+[\\/]\S++$"), 0.6),))
# Beginnings of sentences and paragraphs.
_TEXT = Kind("text", marks=_LineStart(r"([^a-z\s…].{40})"), worths=(0.15,), trouble=1.0)
_JSON = Kind("JSON", trouble=1.0)
_NDJSON = Kind("JSON lines", trouble=1.0)
_TABLE = Kind("table", trouble=1.0)

# In this order; the first that fits is used.
_KINDS = (_DIFF, _HTML, _XML, PATHS, _PLAN, _MARKDOWN, _LOG, _CODE, _TROUBLED, _TEXT)

_JSON_START = _LineStart(r"\{\s*(?:\"|\}?$)|\[\s*(?:[\[{\"\d-]|\]?$|true|false|null)")
_PAGE_START = _LineStart(r"<!DOCTYPE html|<!doctype html|<html\b|<HTML\b")
_SNIFFED_HEAD = 90
_SNIFFED_TAIL = 30
_DELIMITERS = "\t|,;"
_LEAST_ROWS = 4
_EVEN_SHARE = 0.8


def kind_of(texts: Sequence[str]) -> Kind:
    """Return the kind of content of the lines of a sample, judged by the first and the last of them."""
    texts = [*texts[:_SNIFFED_HEAD], *texts[_SNIFFED_HEAD:][-_SNIFFED_TAIL:]]
    if not texts:
        return _TEXT
    whole = [text for text in texts if not text.startswith("…")]
    if len(whole) > 1 and all(text.startswith('{"') for text in whole):
        return _NDJSON
    if _PAGE_START.match(texts[0]):
        return _HTML
    if texts[0].startswith(("<?xml ", "<svg ")):
        return _XML
    if _JSON_START.match(texts[0]) and texts[-1].endswith(("}", "]")):
        return _JSON
    return _TABLE if _is_table(texts) else next(kind for kind in _KINDS if kind.fits(texts))


def _is_table(texts: Sequence[str]) -> bool:
    """Return whether most lines hold a delimiter equally often, and more than once."""
    if len(texts) < _LEAST_ROWS:
        return False
    firsts = ((delimiter, texts[0].count(delimiter)) for delimiter in _DELIMITERS)
    least = _EVEN_SHARE * len(texts)
    return any(
        n > 1 and [text.count(delimiter) for text in texts].count(n) >= least for delimiter, n in firsts
    )
