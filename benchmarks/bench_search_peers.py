"""The search of other libraries: whether the first five results show a fact, and in how many characters.

Facts, results and queries are those of `bench_search.py`, of which every fifth is asked. Each library stores
the large results of a conversation in its own way, in a separate environment; what counts is the text of its
answer. Each gets the whole query, and its longest words alone: some look for the query as it is, or for all
its words.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

from _measure import Figure, require, run
from bench_peers import Lab
from bench_preview import load_measure
from bench_search import WORD, Question, conversations
from peers._conversations import SHARED, folder
from peers._environments import CANDIDATES, make_environments, versions

# Every how many questions: one library reads and ranks the whole conversation again for each.
_EVERY, _WORDS = 5, 4
_PROGRAMS = {
    "offload": "ours",
    "pydantic-ai-harness": "pydantic_history",
    "agno": "agno_archive",
    "strands": "strands_memory",
}
_BETWEEN_WORDS = {"agno": "|"}
_QUERIES = ("named", "not named", f"named, {_WORDS} words", f"not named, {_WORDS} words")


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the share of the facts that each library's search shows, with the length of its answers."""
    program = Path(os.environ.get("OFFLOAD_MEASURE", SHARED / "measure"), "preview_recall.py")
    if not program.is_file() or not folder().is_dir():
        print(f"not measured: {program} and {folder()} are not both there")
        return
    asked = list(conversations(load_measure(program), folder(), is_quick=is_quick))
    make_environments()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab(Path(scratch), "http://127.0.0.1:9")
        path = lab.folder / "conversations.json"
        for name, module in _PROGRAMS.items():
            between = _BETWEEN_WORDS.get(name, " ")
            tasks = [
                (texts, [_asked(question, between) for question in found[::_EVERY]]) for texts, found in asked
            ]
            path.write_text(json.dumps(tasks), encoding="utf-8")
            candidate = replace(next(c for c in CANDIDATES if c.name == name), program=module)
            answer = lab.ask(candidate, {"task": "searching", "conversations": str(path)})[0]
            require("found" in answer, f"{name}: {answer.get('state')}")
            for query, found in zip(_QUERIES, zip(*answer["found"], strict=True), strict=True):
                hits, chars = zip(*found, strict=True)
                detail = f"{len(hits)} facts, {mean(chars):,.0f} characters"
                yield Figure(f"{name}: fact in the first five, {query}", mean(hits), "", detail=detail)
    print(f"\n{', '.join(f'{name} {version}' for name, version in versions().items())}")


def _asked(question: Question, between: str) -> list[str]:
    queries = [question.named, question.unnamed]
    return [question.fact, *queries, *(between.join(_longest_words(query)) for query in queries)]


def _longest_words(query: str) -> list[str]:
    words = {word.strip("./:-") for word in WORD.findall(query)}
    return sorted(words, key=lambda word: (-len(word), word))[:_WORDS]


if __name__ == "__main__":
    run(__doc__, figures)
