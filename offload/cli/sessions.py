"""`offload show`, `tail`, `diff`, `grep`, `query`, `cat`, `stats`: a session, as a model reads it."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from offload import ConfigError, Offloader
from offload.cli.parts import last_lines, matches_in, part_of, rows_of
from offload.cli.stores import full_ref, names_to_search, open_record, open_session, place_of
from offload.cli.terminal import (
    IdArgument,
    JsonOption,
    OneSessionOption,
    SessionOption,
    StoreOption,
    count,
    one_line,
    out,
    page,
    print_facts,
    print_json,
    progress,
    say,
)
from offload.record.text import escape_controls
from offload.session.reader import SessionReader
from offload.tools.answers import MAX_ANSWER_CHARS
from offload.tools.search import NO_MATCHES, Mode, Pattern, compile_pattern

_LINES = re.compile(r"([0-9]{0,15})(:([0-9]{0,15}))?", re.ASCII)


def show(
    ref: IdArgument,
    *,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Start at this character, from 0.")] = 0,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show at most N characters.")
    ] = MAX_ANSWER_CHARS,
    lines: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST", help="Show these lines, from 1, in place of --offset and --limit."
        ),
    ] = None,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a part of a record as a model reads it.

    Example: offload show kqzmwpxhva --offset 8192
    """
    span = None if lines is None else _span(lines)
    if span is not None and (offset, limit) != (0, MAX_ANSWER_CHARS):
        raise ConfigError("use --lines, or --offset and --limit, not both")
    with open_record(store, session, ref) as (off, found):
        if as_json:
            print_json(part_of(off, found, *_chars(off, found, span, offset, limit)))
            return
        if span is None:
            answer = off.tools.read(found, offset=offset, limit=limit)
        else:
            answer = off.tools.read(found, start_line=span[0], end_line=span[1])
    _print_answer(off, found, answer)


def _span(text: str) -> tuple[int, int | None]:
    """Return the first and the last line that a text names: "120:160", "120:", ":160" or "120"."""
    match = _LINES.fullmatch(text)
    first = int(match[1] or 1) if match else 0
    last = None if match is None or match[3] == "" else int(match[3] or first)
    if match is None or not text.strip(":") or first < 1 or (last is not None and last < first):
        raise ConfigError(f"--lines must be FIRST:LAST, such as 120:160, got {text!r:.40}")
    return first, last


def _chars(
    off: Offloader, ref: str, span: tuple[int, int | None] | None, offset: int, limit: int
) -> tuple[int, int]:
    """Return the characters of a part of a record, from and to."""
    if span is None:
        return offset, offset + limit
    content, (first, last) = SessionReader(off.store, off.session).read(ref).content, span
    return content.line_start(first), content.chars if last is None else content.line_start(last + 1)


def tail(
    ref: IdArgument,
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, metavar="N", help="Show at most N lines.")
    ] = 20,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last lines of a record as a model reads them.

    Example: offload tail kqzmwpxhva -n 50
    """
    with open_record(store, session, ref) as (off, found):
        if as_json:
            print_json(last_lines(off, found, lines))
            return
        answer = off.tools.tail(found, lines=lines)
    _print_answer(off, found, answer)


def diff(
    old: IdArgument,
    new: IdArgument,
    *,
    start_row: Annotated[
        int, typer.Option(min=1, metavar="N", help="Start at this row of the diff, from 1.")
    ] = 1,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the lines in which two records of a session differ.

    Example: offload diff kqzmwpxhva ejwntwgzte
    """
    with open_record(store, session, old) as (off, first):
        second = full_ref(off, new)
        answer = off.tools.diff(first, second, start_row=start_row)
    if as_json:
        place = {"store": off.store.url, "session": off.session}
        print_json({**place, "old": first, "new": second, "rows": answer.split("\n")[1:-1]})
    else:
        _print_answer(off, None, answer)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", show_default=False)],
    ref: Annotated[str | None, typer.Argument(metavar="[ID]", show_default=False)] = None,
    *,
    is_regex: Annotated[
        bool, typer.Option("--regex", help="Read PATTERN as a regular expression (RE2).")
    ] = False,
    has_words: Annotated[
        bool, typer.Option("--words", help="Find the lines that have all words of PATTERN.")
    ] = False,
    max_matches: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Maximum matches per session; at most 100 without --json."),
    ] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue from the cursor of a previous answer.")
    ] = None,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a record, the records of a session, or of all sessions, as a model does.

    Example: offload grep 'timed? out' --regex --session research-42
    """
    if is_regex and has_words:
        raise ConfigError("use --regex or --words, not both")
    mode: Mode = "regex" if is_regex else "words" if has_words else "literal"

    def search(off: Offloader, ref: str | None = None) -> str:
        return off.tools.grep(pattern, ref, mode=mode, max_matches=max_matches, cursor=cursor)

    if as_json:
        if cursor is not None:
            raise ConfigError("a cursor continues an answer in text: with --json, raise --max-matches")
        _print_matches(_searched(store, session, ref), compile_pattern(pattern, mode), max_matches)
    elif ref is not None:
        with open_record(store, session, ref) as (off, found):
            _print_answer(off, found, search(off, found))
    else:
        _grep_sessions(store, names_to_search(store, session), search, cursor)


def _grep_sessions(
    store: str | None, names: list[str], search: Callable[[Offloader], str], cursor: str | None
) -> None:
    """Print the matches in each session that has any, and what was searched."""
    if len(names) == 1:
        with open_session(store, names[0]) as off:
            _print_answer(off, None, search(off))
        say(f"{place_of(off.store, off.session)} has {count(len(off.records()), 'record')}")
        return
    if cursor is not None:
        raise ConfigError("a cursor belongs to one session: name it with --session")
    answers, place = dict[str, str](), ""
    for name in progress(names, "sessions"):
        with open_session(store, name) as off:
            answer, place = search(off), place_of(off.store)
        if not answer.rpartition("\n")[2].startswith(NO_MATCHES):
            answers[name] = answer
    for name, answer in answers.items():
        say(f"session {name}:")
        out.print(escape_controls(answer), end="\n\n", soft_wrap=True)
    say(f"matches in {len(answers)} of {count(len(names), 'session')} of {place}")


def _print_matches(searched: Iterator[tuple[Offloader, list[str]]], pattern: Pattern, most: int) -> None:
    """Print the matches in each session as JSON, `most` of each."""
    matches, is_more = list[dict[str, Any]](), False
    for off, refs in searched:
        found = list(islice(matches_in(off, refs, pattern), most + 1))
        is_more |= len(found) > most
        matches += found[:most]
    print_json({"matches": matches, "is_more": is_more})


def _searched(
    store: str | None, session: str | None, ref: str | None
) -> Iterator[tuple[Offloader, list[str]]]:
    """Yield each session to search with the records to search in it, newest first."""
    if ref is not None:
        with open_record(store, session, ref) as (off, found):
            yield off, [found]
        return
    for name in progress(names_to_search(store, session), "sessions"):
        with open_session(store, name) as off:
            yield off, [info.ref for info in off.records()[::-1]]


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", show_default=False)],
    refs: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    *,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one SQL select over records, as a model does.

    The tables are `t` and `lines`; of several records `t1`, `lines1`, `t2` and so on.

    Example: offload query 'select level, count(*) from t group by 1' kqzmwpxhva
    """
    with open_record(store, session, refs[0]) as (off, _):
        refs = [full_ref(off, ref) for ref in refs]
        if as_json:
            print_json(rows_of(off, refs, sql))
            return
        answer = off.tools.query(refs, sql)
    _print_answer(off, refs[0] if len(refs) == 1 else None, answer)


def _print_answer(off: Offloader, ref: str | None, answer: str) -> None:
    """Print an answer after the title of the record that it is about, if that is one record."""
    title = None if ref is None else SessionReader(off.store, off.session).read(ref).title
    heading = f"{ref} is of: {one_line(title)}\n" if title else ""
    page(heading + escape_controls(answer))


def cat(ref: IdArgument, *, store: StoreOption = None, session: OneSessionOption = None) -> None:
    """Write a record's content to stdout, byte for byte when redirected.

    On a terminal, control characters are escaped.

    Example: offload cat kqzmwpxhva > output.txt
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open_record(store, session, ref) as (off, found):
        for chunk in off.content(found):
            if out.is_terminal:
                sys.stdout.write(escape_controls(decoder.decode(chunk)))
            else:
                sys.stdout.buffer.write(chunk)
    sys.stdout.flush()


def stats(
    *, store: StoreOption = None, session: OneSessionOption = None, as_json: JsonOption = False
) -> None:
    """Count the records of a session by type and by tool.

    Example: offload stats --session research-42 --json
    """
    with open_session(store, session) as off:
        counts = {"store": off.store.url, **to_builtins(off.stats())}
    # Reads are counted in the process that made them.
    del counts["reads"], counts["chars_read"]
    print_facts(counts, as_json=as_json)
