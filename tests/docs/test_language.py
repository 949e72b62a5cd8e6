"""The measurable part of plain English: how a docstring begins, and words that a reader has to guess.

A name in backticks or in code is not prose.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [
        *(path for folder in ("offload", "backends", "docs") for path in (ROOT / folder).rglob("*.py")),
        *(
            path
            for folder in ("offload", "docs")
            for ext in ("*.md", "*.html")
            for path in (ROOT / folder).rglob(ext)
        ),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "backends/README.md")),
    ]
)

# A summary is a noun phrase or an imperative.
NO_SUMMARY = re.compile(r"(What|Who|How|Where|Whatever|Tells?|As|Of|From|To|In)\b(?! context|-|:)")
NO_WORD = re.compile(
    r"""\b(
can(not)?\ be\ meant|one\ that\ never\ was|(one\ |none\ )?of\ ours|our\ own|anew|afresh|by\ itself
    |beside|stand(s|ing)?\ (for|in|as|there|at|beside|behind|under|between|on)|stands|stood
    |what\ is\ over|sum(s|med|ming)?\ up|collectors?|given?\ up|gives?\ back|comes?\ back
    |put(s|ting)?\ back|takes?\ back|taken\ back|leaves|stays?|stayed|go(es)?\ on|went\ on|told|tells?
    |whatever|be\ it|middling|in\ vain|grave|buried|taken\ out|took\ out|reads?\ on
    |texts?\ of\ the\ (user|assistant)|results?\ of\ (a|the)\ tools?
    |arguments\ of\ (a|the)\ (tool\ )?calls?|prompts?\ of\ a\ skill|no\ text|is\ held|held\ against
    |is\ spared|not\ sound|as\ it\ came|as\ far\ as|who\ (asks|calls|reads|gives|has|wants|loses)
    |caller's\ own|cut\ out|mend(s|ed)?|(the|a)\ grace(?!\ period)|from\ [\d,]+\ (tokens|characters)\ on
    |large\ enough|rules?\ R\d+
    |(?<!there\ )(is|are)\ no\ (?!longer|more|such|better|shorter|use|part|measure|gain|y\b)\w+
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
# A comment gives its own reason.
NO_COMMENT = re.compile(r"#\s*(noqa: [A-Z0-9, ]+ # )?(the same|as above|alike)\b", re.IGNORECASE)
SUSPICIOUS = NO_WORD, NO_COMMENT, re.compile(rf'"""{NO_SUMMARY.pattern}')
DEFINITIONS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def summaries(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text.splitlines()[0]


def strings_and_comments(source: str) -> Iterator[tuple[int, str]]:
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # A string without a space is a name or a key.
        if token.type in kinds and " " in token.string:
            yield from enumerate(token.string.splitlines(), token.start[0])


def prose(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


def offences(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    is_python = path.suffix == ".py"
    # Most files have none of it anywhere, and reading one by token takes longer than a search.
    if is_python and not any(pattern.search(source) for pattern in SUSPICIOUS):
        return
    for number, line in strings_and_comments(source) if is_python else prose(source):
        for match in NO_WORD.finditer(re.sub(r"`[^`]*`", "``", line)):
            yield f"{path.name}:{number}: {match[0]!r} in {line.strip()!r}"
        if is_python and NO_COMMENT.search(line):
            yield f"{path.name}:{number}: {line.strip()!r}"
    if is_python:
        yield from (f"{path.name}:{n}: {text!r}" for n, text in summaries(source) if NO_SUMMARY.match(text))


def test_the_prose_of_every_file_keeps_the_measurable_rules() -> None:
    assert [offence for path in FILES for offence in offences(path)] == []
