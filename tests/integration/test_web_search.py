"""The search of a session's texts on its pages."""

from __future__ import annotations

import re

import pytest
from pages import Html, path_of, visitor
from retained import opened, ref_of

from offload.testing import FaultyStore
from offload.web import _texts
from offload_backends.memory import MemoryStore

HOSTILE = '"><script>alert(1)</script>'
LINES = "".join(f"the job of step {n} wrote its row\n" for n in range(3000))


def put(store: MemoryStore, text: str, session: str = "s") -> str:
    return ref_of(opened(store, session).offload_text(text, tool_name="Bash", title=HOSTILE))


def test_the_page_shows_passages_as_text_with_a_link_to_their_line() -> None:
    store = MemoryStore()
    ref = put(store, f"{LINES}zebra {HOSTILE}\n{LINES}")
    client = visitor(store)

    page = Html(client.get(f"{path_of('s')}/search", params={"q": "zebra"}).text)

    assert f"zebra {HOSTILE}" in page.text
    assert page.count("mark") == 1
    assert page.count("script") == 0
    [link] = [link for link in page.links if "?char=" in link]
    assert link.startswith(f"{path_of('s', ref)}?")
    found = client.get(link)
    assert f"zebra {HOSTILE}" in Html(found.text).text
    assert found.url.fragment.startswith("L29")
    assert 'formaction="/s/s/search"' in client.get(path_of("s")).text


def test_a_search_of_texts_keeps_to_the_chosen_tool() -> None:
    store = MemoryStore()
    put(store, LINES)
    other = ref_of(opened(store).offload_text(f"another {LINES}", tool_name="other", title="of another tool"))

    page = Html(visitor(store).get(f"{path_of('s')}/search?q=wrote&tool=other").text)

    assert {link.partition("?")[0] for link in page.links if "?char=" in link} == {path_of("s", other)}


def test_the_page_says_what_was_searched_and_what_was_not() -> None:
    store = MemoryStore()
    put(store, LINES)
    binary = put(store, "\1" * 9000)

    page = Html(visitor(store).get(f"{path_of('s')}/search?q=zebra").text)

    assert "0 passages" in page.text
    assert f"Searched: 1 record, {len(LINES):,} characters" in page.text
    assert f"{binary}: binary content" in page.text


def test_a_record_that_the_store_does_not_return_costs_no_other_in_a_search_of_all_texts() -> None:
    store = MemoryStore()
    for word in ("zebra", "zebras"):
        put(store, f"{LINES}{word}\n")
    page = Html(visitor(FaultyStore(store, verb="get", nth=1)).get("/search?q=zebra").text)

    assert "1 passage." in page.text
    assert "not all texts were searched, " in page.text


def test_a_search_without_a_word_is_refused_and_one_of_an_unknown_session_too() -> None:
    store = MemoryStore()
    put(store, LINES)
    client = visitor(store)

    assert client.get(f"{path_of('s')}/search?q=!").status_code == 400
    assert client.get(f"{path_of('s')}/search").status_code == 200
    assert client.get("/s/nobody/search?q=a").status_code == 404


# All sessions


def test_the_texts_of_all_sessions_are_searched_as_those_of_one_session_are() -> None:
    store = MemoryStore()
    refs = [put(store, f"{LINES}Zebra {HOSTILE} {n}\n{LINES}", f"session {n}") for n in range(2)]
    put(store, LINES, "third")
    client = visitor(store)

    page = Html(client.get("/search", params={"q": "missing words zebra"}).text)

    assert page.count("script") == 0
    assert "2 passages. Searched 3 of 3 sessions" in page.text
    for number, ref in enumerate(refs):
        [link] = [link for link in page.links if f"/r/{ref}?" in link]
        assert f"Zebra {HOSTILE} {number}" in Html(client.get(link.partition("#")[0]).text).text
        [asked] = [link for link in page.links if f"{number}/search?" in link]
        assert "1 passage, the best first" in Html(client.get(asked).text).text
    assert 'formaction="/search"' in client.get("/").text


def test_a_search_of_many_texts_is_continued_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for n in range(5):
        put(store, f"zebra {n}\n{LINES}", f"session {n}")
    client = visitor(store)
    for name, value in {"_FOUND": 2, "_SECONDS": 0.0}.items():
        monkeypatch.setattr(_texts, name, value)
        path, searched = "/search?q=ZEBRA", list[str]()
        while path:
            page = Html(client.get(path).text)
            searched += re.findall(r"Searched (\d) of 5", page.text)
            path = next((link for link in page.links if "after=" in link), "")
        assert searched[-1] == "5"
        assert searched == sorted(searched)
    assert searched == ["1", "2", "3", "4", "5"]


def test_a_damaged_text_costs_only_itself_and_an_unknown_place_is_refused() -> None:
    store = MemoryStore()
    put(store, f"zebra\n{LINES}")
    ref = put(store, f"zebra {LINES}", "damaged")
    [key] = [found.key for found in store.keys("r/damaged/") if ref in found.key]
    store.put(key, store.get(key)[:-9], overwrite=True)
    client = visitor(store)

    page = Html(client.get("/search?q=zebra").text)

    assert "1 passage. Searched 2 of 2 sessions" in page.text
    assert f"not all texts were searched, {ref}: damaged." in page.text
    for query in ("q=zebra&after=nowhere", "q=!"):
        assert client.get(f"/search?{query}").status_code == 400


def test_a_search_that_finds_nothing_offers_the_next_one() -> None:
    store = MemoryStore()
    ref = put(store, LINES)
    client = visitor(store)
    steps = {
        "/find?q=zebra": "/search?q=zebra",
        "/search?q=zebra": "/find?q=zebra",
        f"{path_of('s')}/search?q=zebra": "/search?q=zebra",
        f"{path_of('s', ref)}/search?q=zebra": f"{path_of('s')}/search?q=zebra",
        f"{path_of('s', ref)}/search": path_of("s"),
        f"{path_of('s', ref)}/outline": f"{path_of('s', ref)}/search",
    }
    for path, following in steps.items():
        assert following in Html(client.get(path).text).links, path
