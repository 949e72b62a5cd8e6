"""`offload grep`: the lines of records that match a pattern, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Annotated, Any, NamedTuple

import typer

from offload import ConfigError, Offloader, OffloadError, RecordInfo
from offload.cli.options import JsonOption, SessionOption, StoreOption, ToolOption
from offload.cli.parts import matches_in
from offload.cli.stores import is_of, open_record, place_of, sessions_to_search
from offload.cli.terminal import count, note, one_line, out, page, print_json, progress, visible
from offload.reading.tools.search import PatternMode, compile_pattern, is_expression
from offload.records.session.reader import SessionReader
from offload.records.session.titles import with_titles


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN")],
    ref: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    *,
    is_regex: Annotated[
        bool, typer.Option("--regex", "-E", help="Read PATTERN as a regular expression (RE2).")
    ] = False,
    has_words: Annotated[
        bool, typer.Option("--words", help="Find the lines that have all words of PATTERN.")
    ] = False,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Ignore case.")] = False,
    context: Annotated[
        int,
        typer.Option("--context", "-C", min=0, max=1000, metavar="N", help="Show N lines around each match."),
    ] = 0,
    lists: Annotated[
        bool, typer.Option("--list", "-l", help="Print only the ids of the records that match.")
    ] = False,
    tool: ToolOption = None,
    max_matches: Annotated[
        int, typer.Option("--max-matches", "-m", min=1, metavar="N", help="Maximum matches per session.")
    ] = 20,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a record, the records of a session, or of all sessions.

    In a pipe each match is a line: its number and its text, without ID after the session and the id.

    Example: offload grep 'timed? out' --regex --session research-42
    """
    if is_regex and has_words:
        raise ConfigError("use --regex or --words, not both")
    mode: PatternMode = "regex" if is_regex else "words" if has_words else "literal"
    compiled = compile_pattern(pattern, mode, ignore_case=ignore_case)
    matches, total, unsearched = list[_Match](), _Searched(), dict[str, str]()
    for off, reader, infos in _searched(store, session, ref, tool, unsearched):
        refs, failed = [info.ref for info in infos], len(unsearched)
        found = matches_in(reader, refs, compiled, unsearched, context=context, most=1 if lists else None)
        some = list(islice(found, max_matches + 1))
        searched = len(refs) + failed - len(unsearched)
        total = total.plus(searched, place_of(off.store), is_more=len(some) > max_matches)
        titles = _titles(reader, infos, some) if out.is_terminal else {}
        matches += [_Match(match, titles.get(match["ref"], "")) for match in some[:max_matches]]
    if as_json:
        _print_json(matches, total, unsearched)
        return
    if lists:
        lines = _ids(matches)
    elif out.is_terminal:
        lines = _groups(matches, context)
    else:
        lines = _rows(matches, context, is_of_one=ref is not None)
    page("\n".join(lines))
    for place, why in unsearched.items():
        note(f"{one_line(place)}: not searched: {one_line(why)}")
    hint = "" if matches else _hint(pattern, mode)
    note(f"{count(len(matches), 'match', 'matches')} in {total.text(max_matches)}{hint}")


def _print_json(matches: Sequence[_Match], total: _Searched, unsearched: dict[str, str]) -> None:
    facts = [match.facts for match in matches]
    print_json({"matches": facts, "is_more": total.is_more, "unsearched": unsearched})


def _hint(pattern: str, mode: str) -> str:
    """Return advice after a search without a match, as the tool of the model gives it; "" for none."""
    if is_expression(pattern, mode):
        return "; PATTERN was read as literal text: -E reads it as a regular expression"
    is_phrase = mode == "literal" and len(pattern.split()) > 1
    return "; --words finds lines with all of these words" if is_phrase else ""


class _Searched(NamedTuple):
    """The numbers of sessions and records that were searched, and where; and whether matches are left."""

    sessions: int = 0
    records: int = 0
    place: str = ""
    is_more: bool = False

    def plus(self, records: int, place: str, *, is_more: bool) -> _Searched:
        return _Searched(self.sessions + 1, self.records + records, place, self.is_more or is_more)

    def text(self, max_matches: int) -> str:
        more = f"; there are more: --max-matches {max_matches * 10}" if self.is_more else ""
        return f"{count(self.records, 'record')} of {count(self.sessions, 'session')} of {self.place}{more}"


class _Match(NamedTuple):
    """A match as data, and the title of its record; without a terminal, which alone shows it, ""."""

    facts: dict[str, Any]
    title: str

    @property
    def place(self) -> str:
        return f"{self.facts['session']}:{self.facts['ref']}"


def _searched(
    store: str | None, session: str | None, ref: str | None, tool: str | None, unsearched: dict[str, str]
) -> Iterator[tuple[Offloader, SessionReader, list[RecordInfo]]]:
    """Yield each session to search, its reader, and the records to search in it, newest first.

    In `unsearched`, each of several sessions that cannot be listed gets the reason.
    """
    if ref is not None:
        if tool is not None:
            raise ConfigError("--tool selects records: leave out the ID, or --tool")
        with open_record(store, session, ref) as (off, found):
            reader = SessionReader(off.store, off.session)
            yield off, reader, [reader.find(found)]
        return
    openers = sessions_to_search(store, [] if session is None else [session])
    for name, opened in progress(openers.items(), "sessions"):
        with opened() as off:
            reader = SessionReader(off.store, off.session)
            try:
                infos = reader.infos()[::-1]
            except OffloadError as error:
                if len(openers) == 1:
                    raise
                unsearched[name] = str(error)
                continue
            # An answer of a retrieval tool repeats other records.
            searched = (info for info in infos if tool is not None or not info.is_answer)
            yield off, reader, [info for info in searched if is_of(info, tool)]


def _ids(matches: Sequence[_Match]) -> Iterator[str]:
    for match in matches:
        yield f"{match.place}  {match.title}" if out.is_terminal else match.facts["ref"]


def _rows(matches: Sequence[_Match], context: int, *, is_of_one: bool) -> Iterator[str]:
    """Yield `session:id:line:text` for each match, `line:text` if one record is searched."""
    for match in matches:
        for line, text, is_match in _lines(match.facts):
            sign = ":" if is_match else "-"
            place = "" if is_of_one else f"{one_line(match.place)}{sign}"
            yield f"{place}{line}{sign}{visible(text)}"
        if context and match is not matches[-1]:
            yield "--"


def _groups(matches: Sequence[_Match], context: int) -> Iterator[str]:
    """Yield the matches of each record under its id and title."""
    for _, group in groupby(matches, key=lambda match: match.place):
        of_record = list(group)
        first = of_record[0]
        yield f"{first.facts['ref']}  {first.title}  (session {one_line(first.facts['session'])})"
        for match in of_record:
            for line, text, is_match in _lines(match.facts):
                yield f"  {line:>7}{':' if is_match else ' '} {visible(text)}"
            if context and match is not of_record[-1]:
                yield "  --"
        yield ""


def _lines(facts: dict[str, Any]) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of a match and those around it: number, text, and whether it is the match."""
    before, line = facts.get("before", ()), facts["line"]
    yield from ((line - len(before) + n, text, False) for n, text in enumerate(before))
    yield line, facts["text"], True
    yield from ((line + 1 + n, text, False) for n, text in enumerate(facts.get("after", ())))


def _titles(
    reader: SessionReader, infos: Sequence[RecordInfo], matches: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Return the titles of the records with a match, or the names of their tools."""
    refs = {match["ref"] for match in matches}
    titled = with_titles(reader, [info for info in infos if info.ref in refs])
    return {info.ref: one_line(info.title or info.tool_name or "") for info in titled}
