"""`offload search`: ranked passages of the records of one session, several, or all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from offload.cli.options import JsonOption, StoreOption, is_place
from offload.cli.stores import place_of, sessions_to_search
from offload.cli.terminal import count, note, one_line, page, print_json, progress, visible
from offload.errors import ConfigError, OffloadError
from offload.reading.search import Passage
from offload.storage.registry import is_root


def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS")],
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum passages.")] = 5,
    store: StoreOption = None,
    sessions: Annotated[
        list[str] | None,
        typer.Option(
            "--session", "-s", metavar="NAME", help="Session to search; repeat it for several [all]."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the passages that fit the words best, from one session, several, or all.

    A passage needs only some of the words; readFile, read_file and src/a.py are found by their parts too.

    Example: offload search retry timeout settings --session research-42
    """
    words, store = _with_store(words, store)
    passages, records, chars, url = list[Passage](), 0, 0, ""
    unsearched: dict[str, str] = {}
    openers = sessions_to_search(store, sessions or [])
    for name, opened in progress(openers.items(), "sessions"):
        try:
            with opened() as off:
                found = off.search(" ".join(words), limit=limit)
        except OffloadError as error:
            if len(openers) == 1 or isinstance(error, ConfigError):
                raise
            unsearched[name] = str(error)
            continue
        passages += found.passages
        url = off.store.url
        records, chars, place = records + found.records, chars + found.chars, place_of(off.store)
        unsearched |= {f"{name}:{ref}": why for ref, why in found.unsearched.items()}
    best = sorted(passages, key=lambda each: (-each.score, each.session, each.ref, each.start))[:limit]
    if as_json:
        print_json(
            {
                "store": url,
                "passages": [asdict(passage) for passage in best],
                "records": records,
                "chars": chars,
                "unsearched": unsearched,
            }
        )
        return
    page("\n".join(_rows(best)))
    for place, why in unsearched.items():
        note(f"{one_line(place)}: {one_line(why)}")
    in_sessions = f"{count(records, 'record')} of {count(len(openers), 'session')}"
    note(f"{count(len(best), 'passage')}; searched {chars:,} characters in {in_sessions}")


def _with_store(words: list[str], store: str | None) -> tuple[list[str], str | None]:
    """Return the words and the store: the last one of several words if that is a store and none is named."""
    *others, last = words
    is_url = "://" in last and not last.startswith(("http://", "https://"))
    is_named = store is None and bool(others) and (is_url or (is_place(last) and is_root(Path(last))))
    return (others, last) if is_named else (words, store)


def _rows(passages: Sequence[Passage]) -> Iterator[str]:
    """Yield each passage under its place, its title and its session."""
    for passage in passages:
        place = f"{passage.ref}  lines {passage.start_line}-{passage.end_line}"
        yield f"{place}  {one_line(passage.title)}  (session {one_line(passage.session)})"
        yield from (f"  {visible(line)}" for line in passage.text.removesuffix("\n").split("\n"))
        yield ""
