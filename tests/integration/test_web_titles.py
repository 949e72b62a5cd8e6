"""Titles on the pages: in lists, on the page of a record, and found over all sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pages import Html, path_of, visitor
from retained import opened, ref_of

from offload.records.index.objects import list_sessions
from offload.testing import FaultyStore
from offload.web import _store_pages, _titles
from offload_backends.memory import MemoryStore


class Clock:
    """A clock by which each look at it takes a second, and nothing else takes any time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let a search have time for one group of titles, unless its listing takes longer."""
    clock = Clock()
    monkeypatch.setattr(_titles, "time", clock)
    return clock


def put(store: Any, title: str, session: str = "s") -> str:
    text = f"{title} {session} a line of text\n" * 50
    return ref_of(opened(store, session).offload_text(text, tool_name="Bash", title=title))


def found(answer: Any) -> list[str]:
    """Return the refs that a page links to."""
    return [link.rpartition("/")[2] for link in Html(answer.text).links if "/r/" in link]


def test_the_box_on_the_home_finds_records_of_all_sessions(store: MemoryStore) -> None:
    refs = [put(store, f"src/user_{name}.py", name) for name in ("a", "b/../c", "n" * 300)]
    put(store, "docs/other.md", "a")
    client = visitor(store)

    assert ("input", "q") in [(tag, attrs.get("name")) for tag, attrs in Html(client.get("/").text).tags]
    assert sorted(found(client.get("/find", params={"q": "USER src"}))) == sorted(refs)
    assert found(client.get("/find", params={"q": "other"})) != refs
    nothing = client.get("/find", params={"q": "nowhere"})
    assert (found(nothing), "0 records with all words" in nothing.text) == ([], True)
    assert (found(client.get("/find")), client.get("/find").status_code) == ([], 200)


def test_a_search_with_many_results_is_continued_and_shows_each_once(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store_pages, "SHOWN", 3)
    refs = [put(store, f"file {n}", f"s{n % 2}") for n in range(8)]
    client, path, shown = visitor(store), "/find?q=file", list[str]()
    for _ in range(9):
        answer = client.get(path)
        shown += found(answer)
        more = [link for link in Html(answer.text).links if link.startswith("/find?")]
        if not more:
            break
        path = more[0]
    assert sorted(shown) == sorted(refs)
    assert client.get("/find?q=file&after=s0:abcdefghij").status_code == 400


@pytest.mark.usefixtures("clock")
def test_a_search_that_takes_longer_says_how_far_it_is_and_goes_on_by_itself(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_titles, "_GROUP", 2)
    refs = [put(store, f"file {n}") for n in range(5)]
    client = visitor(store)
    for searched in (2, 4):
        page = client.get("/find?q=file")
        assert f"{searched} of 5 searched so far" in page.text
        assert 'http-equiv="refresh"' in page.text
    page = client.get("/find?q=file")
    assert sorted(found(page)) == sorted(refs)
    assert "refresh" not in page.text
    assert "so far" not in client.get("/find?q=nowhere").text


def test_a_search_reads_for_as_long_as_its_listing_took(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(_titles, "_GROUP", 1)
    refs = [put(store, f"file {n}") for n in range(3)]

    def slowly(store: Any) -> Iterable[Any]:
        clock.seconds += 100
        return [*list_sessions(store)]

    monkeypatch.setattr(_titles, "list_sessions", slowly)
    assert sorted(found(visitor(store).get("/find?q=file"))) == sorted(refs)


@pytest.mark.usefixtures("clock")
def test_of_more_titles_than_are_kept_a_search_goes_on_behind_the_last_one(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_GROUP": 2, "_KEPT": 3}.items():
        monkeypatch.setattr(_titles, name, value)
    refs = [put(store, f"file {n}") for n in range(5)]
    client, path, shown = visitor(store), "/find?q=file", list[str]()
    for _ in range(3):
        answer = client.get(path)
        shown += found(answer)
        path = next((link for link in Html(answer.text).links if link.startswith("/find?")), "")
    assert (sorted(shown), path) == (sorted(refs), "")


def test_a_session_whose_records_cannot_be_read_is_listed_and_says_so() -> None:
    store = MemoryStore()
    ref = put(store, "a file")
    page = visitor(FaultyStore(store, verb="get", is_lasting=True)).get(path_of("s"))
    assert found(page) == [ref]
    assert "could not be read" in page.text
