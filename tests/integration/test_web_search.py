"""The search of a session's texts on its pages."""

from __future__ import annotations

from pages import Html, path_of, visitor
from retained import opened, ref_of

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
    assert page.count("script") == 0
    [link] = [link for link in page.links if "#L" in link]
    assert link.startswith(f"{path_of('s', ref)}?page=")
    assert f"zebra {HOSTILE}" in Html(client.get(link.partition("#")[0]).text).text
    assert 'action="/s/s/search"' in client.get(path_of("s")).text


def test_the_page_says_what_was_searched_and_what_was_not() -> None:
    store = MemoryStore()
    put(store, LINES)
    binary = put(store, f"\0{LINES}")

    page = Html(visitor(store).get(f"{path_of('s')}/search?q=zebra").text)

    assert "0 passages" in page.text
    assert f"Searched: 1 record, {len(LINES):,} characters" in page.text
    assert f"{binary}: binary content" in page.text


def test_the_page_finds_only_the_texts_of_its_session() -> None:
    store = MemoryStore()
    put(store, LINES)
    put(store, f"zebra\n{LINES}", "other")

    assert "0 passages" in Html(visitor(store).get(f"{path_of('s')}/search?q=zebra").text).text


def test_a_search_without_a_word_is_refused_and_one_of_an_unknown_session_too() -> None:
    store = MemoryStore()
    put(store, LINES)
    client = visitor(store)

    assert client.get(f"{path_of('s')}/search?q=!").status_code == 400
    assert client.get(f"{path_of('s')}/search").status_code == 200
    assert client.get("/s/nobody/search?q=a").status_code == 404
