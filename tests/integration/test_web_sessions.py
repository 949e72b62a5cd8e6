"""The lists of sessions and records: what each row says, filters in the address, how much a page reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pages import Html, path_of, visitor
from retained import clocked, opened, ref_of

from offload import AgentConfig, ContextManager, StoredObject
from offload.maintenance.retention import delete, pin
from offload.storage.store import OneByOne, get_many
from offload.storage.wrappers import WrapperStore
from offload.web import _session_pages, _store_pages, _titles
from offload_backends.memory import MemoryStore

DAY = 86_400


class Counted(OneByOne, WrapperStore):
    """A store that counts its requests; a bulk read is one."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.requests = Counter[str]()

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        self.requests["keys"] += 1
        yield from super().keys(prefix, after=after)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.requests["get"] += 1
        return super().get(key, start=start, end=end)

    def get_many(self, keys: Sequence[str]) -> Any:
        self.requests["get_many"] += 1
        return get_many(self.inner, keys)


def put(store: Any, title: str | None, session: str = "s", tool: str = "Read", text: str = "a line") -> str:
    content = f"{title} {text} of {session}\n" * 50
    return ref_of(opened(store, session).offload_text(content, tool_name=tool, title=title))


def row(page: str, ref: str) -> str:
    """Return the text of the row of a record."""
    return next(Html(f"<tr>{part}").text for part in page.split("<tr>") if f"/r/{ref}" in part)


def refs(page: str) -> list[str]:
    """Return the refs of the rows of a page."""
    rows = page.partition("<tbody>")[2].partition("</tbody>")[0].split("<tr>")[1:]
    return [next(a for a in Html(r).links if "/r/" in a).rpartition("/")[2] for r in rows]


# A session


def test_a_row_shows_title_tool_and_size_and_the_table_precedes_the_plot(store: MemoryStore) -> None:
    ref = put(store, "src/a_file.py")
    put(store, "ls -l", tool="Bash")
    page = visitor(store).get(path_of("s")).text

    [info] = [info for info in opened(store).records() if info.ref == ref]
    said = row(page, ref)
    assert "src/a_file.py" in said
    assert "Read" in said
    assert str(info.tokens) in said
    assert page.index("<table") < page.index("Tokens by tool")


def test_an_older_version_of_a_source_is_marked_and_leads_to_the_newest() -> None:
    store = clocked()
    versions = []
    for text in ("first", "second", "third"):
        versions.append(put(store, "src/a.py", text=text))
        store.now += 1
    other = put(store, "src/a.py", tool="Bash", text="fourth")
    page = visitor(store).get(path_of("s")).text

    assert ["older version" in row(page, ref) for ref in (*versions, other)] == [True, True, False, False]
    assert f'<a href="{path_of("s", versions[-1])}">newest version</a>' in page
    assert path_of("s", versions[-1]) in page.partition(path_of("s", versions[0]))[2].partition("</tr>")[0]


def test_the_tokens_of_each_tool_are_summed_and_its_name_is_a_filter(store: MemoryStore) -> None:
    for n in range(2):
        put(store, f"file {n}", tool="Web <Fetch>")
    for n in range(12):
        put(store, f"other {n}", tool=f"tool{n}")
    page = Html(visitor(store).get(path_of("s")).text)

    sums = Counter[str]()
    for info in opened(store).records():
        sums[info.tool_name or ""] += info.tokens
    said = page.text.partition("Tokens by tool")[2]
    assert f"Web <Fetch>{sums['Web <Fetch>']}" in "".join(said.split("\n"))
    assert said.count("tool") == 7
    assert "other" in said
    [link] = [link for link in page.links if "Web" in link]
    assert len(refs(visitor(store).get(link).text)) == 2


def test_the_words_the_kind_and_the_tool_in_the_address_filter_together(store: MemoryStore) -> None:
    wanted = put(store, "src/user_login.py")
    put(store, "src/user_login.py", tool="Bash", text="another")
    put(store, "docs/other.md")
    client = visitor(store)

    def shown(**query: str) -> list[str]:
        return refs(client.get(path_of("s"), params=query).text)

    assert shown(q="LOGIN user", tool="Read") == [wanted]
    assert len(shown(q="login")) == 2
    assert len(shown(q="  ")) == 3
    assert shown(q="login", kind="user_message") == []
    nothing = Html(client.get(path_of("s"), params={"q": "zebra & co"}).text)
    assert f"{path_of('s')}/search?q=zebra%20%26%20co" in nothing.links
    assert "show all 3 records" in nothing.text
    assert 'value="LOGIN &#34;user"' in client.get(path_of("s"), params={"q": 'LOGIN "user'}).text


def test_a_filter_by_words_is_continued_with_all_of_its_terms(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session_pages, "SHOWN", 2)
    wanted = [put(store, f"file {n}") for n in range(5)]
    put(store, "file", tool="Bash")
    client, path, shown = visitor(store), f"{path_of('s')}?q=file&tool=Read", list[str]()
    for _ in range(4):
        page = client.get(path).text
        shown += refs(page)
        more = [link for link in Html(page).links if "after=" in link]
        if not more:
            break
        path = more[0]
    assert sorted(shown) == sorted(wanted)


def test_the_number_of_deleted_records_is_shown(store: MemoryStore) -> None:
    delete(store, "s", [put(store, "one")])
    put(store, "two")

    assert "Deleted records (1)" in Html(visitor(store).get(path_of("s")).text).text


# All sessions


def test_a_session_is_listed_with_the_title_of_its_newest_record_and_its_state() -> None:
    store = clocked()
    put(store, "first title", "quiet")
    put(store, "gone", "emptied")
    delete(store, "emptied", [info.ref for info in opened(store, "emptied").records()])
    store.now = 4e9  # later than the clock of this machine
    put(store, "old title", "busy")
    store.now += 1
    put(store, "new title", "busy")
    pin(store, "quiet")
    page = visitor(store).get("/").text

    said = {name: row_of_session(page, name) for name in ("quiet", "busy", "emptied")}
    assert "new title" in said["busy"]
    assert "old title" not in said["busy"]
    assert "pinned" in said["quiet"]
    assert "first title" in said["quiet"]
    assert "all deleted" in said["emptied"]


def row_of_session(page: str, name: str) -> str:
    return next(Html(part).text for part in page.split("<tr>") if f'"{path_of(name)}"' in part)


def talk(store: Any, session: str) -> None:
    """Store a conversation of one message."""
    context = ContextManager(opened(store, session), AgentConfig(window_tokens=50_000))
    context.add({"role": "user", "content": "A question " * 50})
    context.before_model_call()


def test_a_session_of_a_conversation_alone_is_listed_and_its_page_leads_to_it(store: MemoryStore) -> None:
    talk(store, "no records")
    client = visitor(store)

    said = row_of_session(client.get("/").text, "no records")
    assert "conversation" in said
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", said)
    assert f"{path_of('no records')}/conversation" in Html(client.get(path_of("no records")).text).links
    assert client.get(f"{path_of('no records')}/conversation").status_code == 200


def test_a_session_with_the_conversation_of_an_agent_says_so(store: MemoryStore) -> None:
    talk(store, "agent")
    opened(store, "agent").offload_text("a line\n" * 500, tool_name="Bash")
    put(store, "one", "plain")
    page = visitor(store).get("/").text

    assert "conversation" in row_of_session(page, "agent")
    assert "conversation" not in row_of_session(page, "plain")


def test_titles_of_all_sessions_are_searched_newest_first() -> None:
    store = clocked()
    wanted = []
    for n in range(6):
        wanted.append(put(store, f"file {n}", f"session {n % 3}"))
        store.now += DAY

    assert refs(visitor(store).get("/find?q=file").text) == wanted[::-1]


def test_pages_of_many_sessions_cost_as_many_requests_as_those_of_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_store_pages, "_ACCOUNT_SECONDS", -1.0)  # journals are read while there is time
    spent = []
    for count in (2, 40):
        store = MemoryStore()
        for n in range(count):
            put(store, f"file {n}", f"session {n}")
            put(store, f"other {n}", f"session {n}")
            talk(store, f"session {n}")
        counted = Counted(store)
        client = visitor(counted)
        counted.requests.clear()
        client.get("/")
        client.get("/find?q=file")
        client.get("/find?q=nowhere")
        for limits in ("", "?session_records=1&live_for=0s", "?store_records=1&live_for=0s"):
            client.get(f"/retention{limits}")
        spent.append(counted.requests)
    assert spent[0] == spent[1]


def test_a_title_is_read_once(store: MemoryStore) -> None:
    put(store, "a file")
    counted = Counted(store)
    titles = _titles.Titles(counted)

    assert [len(titles.find(["file"], 5, "").infos) for _ in range(3)] == [1, 1, 1]
    assert counted.requests["get_many"] == 1


# Orders


def test_the_columns_of_a_session_sort_its_records_on_all_pages(store: MemoryStore) -> None:
    sizes = {put(store, f"{n:03}", text="x" * (n * 7919 % 1009)): n * 7919 % 1009 for n in range(60)}
    client = visitor(store)
    page = Html(client.get(path_of("s"), params={"kind": "tool_result"}).text)
    [largest] = [link for link in page.links if link.endswith("sort=-tokens")]

    first = client.get(largest)
    [second] = {link for link in Html(first.text).links if link.endswith("page=2")}
    shown = refs(first.text) + refs(client.get(second).text)

    assert [sizes[ref] for ref in shown] == sorted(sizes.values(), reverse=True)
    assert 'aria-sort="descending"' in first.text
    [smallest] = [link for link in Html(first.text).links if link.endswith("sort=tokens")]
    assert refs(client.get(smallest).text) == shown[:-51:-1]
    assert refs(client.get(path_of("s"), params={"sort": "no column"}).text) == refs(
        client.get(path_of("s")).text
    )


def test_the_columns_of_the_home_page_sort_its_sessions(store: MemoryStore) -> None:
    for name, count in (("b", 3), ("a", 1), ("c", 2)):
        for n in range(count):
            put(store, f"{n}", name)
    client = visitor(store)

    def shown(order: str) -> list[str]:
        found = re.findall(r'class="name" href="/s/(\w)"', client.get("/", params={"sort": order}).text)
        return [*dict.fromkeys(found)]

    assert shown("name") == ["a", "b", "c"]
    assert shown("-records") == ["b", "c", "a"]
