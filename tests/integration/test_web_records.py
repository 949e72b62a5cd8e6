"""The pages of one record: its text in pages, what the model saw, outline, search, download."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pages import Html, path_of, serving, visitor
from reading import Reading
from retained import opened, ref_of, text_of

from offload import Offloader, OffloadStore, open_store
from offload.maintenance.retention import delete
from offload.storage.wrappers import WrapperStore
from offload_backends.memory import MemoryStore

MIB = 1024 * 1024
LOG = "".join(
    f"2026-11-22 05:00:00 {'ERROR: lost' if n % 500 == 7 else 'INFO fine'} request {n}\n" for n in range(5000)
)


def put_text(store: Any, text: str, **names: Any) -> str:
    return ref_of(opened(store).offload_text(text, **({"tool_name": "Bash", "tool_use_id": "1"} | names)))


def page(client: Any, ref: str, tab: str = "", **query: Any) -> Html:
    answer = client.get(path_of("s", ref) + tab, params=query)
    assert answer.status_code == 200, answer.text
    return Html(answer.text)


def shown_lines(html: str) -> list[str]:
    """Return the lines of the text on a page, as the browser would copy them."""
    return [
        Html(code).text for code in re.findall(r"<li id=\"L\d+\".*?><code>(.*?)</code></li>", html, re.DOTALL)
    ]


@pytest.mark.parametrize(
    "text",
    [
        LOG,
        "x" * 50_000,
        "é\n" * 12_000,
        "\n" * 20_000,
        "a" * 16_383 + "\n" + "b" * 20_000,
        "one line, no end " * 30,
    ],
    ids=["log", "one long line", "short lines", "empty lines", "border", "small"],
)
def test_the_pages_of_a_record_put_together_are_its_text(store, text):
    ref = put_text(store, text)
    client = visitor(store)
    joined, number = "", 1
    while True:
        html = client.get(path_of("s", ref), params={"page": number}).text
        lines = shown_lines(html)
        first = int(re.search(r'<ol class="text" start="(\d+)"', html)[1])  # type: ignore[index] # it is there
        assert first == joined.count("\n") + 1
        joined += "\n".join(lines)
        number += 1
        if f"?page={number}" not in html:
            break
        joined += "\n" if len(joined) < len(text) and text[len(joined)] == "\n" else ""

    assert joined == text.removesuffix("\n")


def test_a_line_is_found_by_its_number(store):
    ref = put_text(store, LOG)
    client = visitor(store)

    answer = client.get(path_of("s", ref), params={"line": 4321})

    assert answer.url.fragment == "L4321"
    line = Html(re.findall(r'<li id="L4321".*?</li>', answer.text)[0])
    assert (line.text, line.links) == (LOG.splitlines()[4320], ["#L4321"])


@pytest.mark.parametrize("number", ["0", "-5", "999999999", "x", "9" * 400, "²"])
def test_a_page_that_there_is_not_is_the_nearest_that_there_is(store, number):
    ref = put_text(store, LOG)

    assert shown_lines(visitor(store).get(path_of("s", ref), params={"page": number}).text)


def test_the_placeholder_is_shown_next_to_the_original(store):
    off = opened(store)
    placeholder = off.offload_text(LOG, tool_name="Bash", tool_use_id="1")

    html = visitor(store).get(path_of("s", ref_of(placeholder)) + "/model").text

    [seen] = re.findall(r'<pre class="text"><code>(.*?)</code></pre>', html, re.DOTALL)
    assert Html(seen).text == placeholder
    assert shown_lines(html)[:50] == LOG.splitlines()[:50]


def test_a_search_shows_each_match_with_its_line_and_leads_to_it(store):
    ref = put_text(store, LOG)
    client = visitor(store)

    found = page(client, ref, "/search", q="ERROR: lost")

    wanted = [n for n, line in enumerate(LOG.splitlines(), 1) if "ERROR" in line]
    links = [link for link in found.links if "#L" in link]
    assert [int(link.partition("#L")[2]) for link in links] == wanted
    assert found.count("mark") == len(wanted)
    assert f'id="L{wanted[-1]}"' in client.get(links[-1]).text


def test_a_search_with_many_matches_continues(store):
    ref = put_text(store, LOG)
    client = visitor(store)
    path, lines = f"{path_of('s', ref)}/search?q=request+4...%24&mode=regex", []

    while path:
        found = Html(client.get(path).text)
        lines += [int(link.partition("#L")[2]) for link in found.links if "#L" in link]
        path = next((link for link in found.links if "from=" in link), "")

    assert lines == list(range(4001, 5001))


@pytest.mark.parametrize(("pattern", "mode"), [("(", "regex"), ("a*", "regex"), ("x" * 1001, "literal")])
def test_a_pattern_that_cannot_be_searched_for_is_explained(store, pattern, mode):
    found = page(visitor(store), put_text(store, LOG), "/search", q=pattern, mode=mode)

    assert [attrs for _, attrs in found.tags if attrs.get("role") == "alert"]


def test_the_outline_of_json_leads_to_every_value(store):
    value = {"rows": [{"name": f"row {n}", "a/b~c": n} for n in range(400)], "total": 400}
    ref = put_text(store, json.dumps(value))
    client = visitor(store)

    top = page(client, ref, "/outline")
    assert "2 members" in top.text
    assert "350 more" in top.text
    rows = next(link for link in top.links if link.endswith("pointer=/rows"))
    row = next(link for link in Html(client.get(rows).text).links if link.endswith("rows/170"))
    last = [link for link in Html(client.get(row).text).links if "pointer=" in link][-1]

    assert re.findall(r'<pre class="text"><code>(.*?)</code></pre>', client.get(last).text) == ["170"]


def test_the_outline_of_a_log_is_its_errors(store):
    found = page(visitor(store), put_text(store, LOG), "/outline")

    wanted = [n for n, line in enumerate(LOG.splitlines(), 1) if "ERROR" in line]
    assert [int(link.partition("#L")[2]) for link in found.links if "#L" in link] == wanted


def test_the_outline_of_broken_json_names_the_error(store):
    found = page(
        visitor(store),
        put_text(store, '{"a": [1, 2, }' + ' "more",' * 3000 + "}"),
        "/outline",
        pointer="/b/c",
    )

    assert [attrs for _, attrs in found.tags if attrs.get("role") == "alert"]


def test_a_record_is_downloaded_byte_for_byte_and_never_rendered(store):
    printed = b"<html><script>alert(1)</script></html>\x1b\r\n\0\xff" * 500
    ref = put_text(store, printed.decode("utf-8", "surrogateescape"))

    answer = visitor(store).get(path_of("s", ref) + "/download")

    assert answer.content == printed
    assert answer.headers["content-disposition"] == f'attachment; filename="{ref}.txt"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("sandbox")


@pytest.fixture
def damaged(tmp_path) -> tuple[OffloadStore, str, list[str]]:
    """A store with a record of which one byte is another, its ref, and the lines that were stored."""
    store = open_store(str(tmp_path))
    lines = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(10_000)]
    ref = put_text(store, "\n".join(lines))
    [path] = tmp_path.rglob(f"{ref}~*")
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return store, ref, lines


def test_a_damaged_record_shows_its_intact_pages_and_marks_the_others(damaged):
    store, ref, lines = damaged
    client = visitor(store)

    pages = [client.get(path_of("s", ref), params={"page": number}) for number in range(1, 45)]

    sound = [line for answer in pages if answer.status_code == 200 for line in shown_lines(answer.text)]
    broken = [answer.text for answer in pages if answer.status_code == 500]
    assert len(lines) // 2 < len(sound) < len(lines)
    assert set(sound) < set(lines)
    assert broken
    assert all("This record is damaged" in text and not shown_lines(text) for text in broken)


def test_a_record_whose_head_is_damaged_is_still_named(tmp_path):
    store = open_store(str(tmp_path))
    ref = put_text(store, text_of(1))
    [path] = tmp_path.rglob(f"{ref}~*")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-20])

    answer = visitor(store).get(path_of("s", ref))

    assert answer.status_code == 500
    assert "This record is damaged" in answer.text
    assert "Bash" in answer.text


def test_a_download_of_a_damaged_record_breaks_off(damaged, tmp_path):
    _, ref, _ = damaged
    with (
        serving(tmp_path) as (address, _),
        let_in(address) as browser,
        pytest.raises(http.client.IncompleteRead),
    ):
        fetch(*browser, path_of("s", ref) + "/download").read()


class CountingStore(WrapperStore):
    """Counts what is fetched of records."""

    fetched: list[int]

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        data = super().get(key, start=start, end=end)
        self.fetched.append(len(data))
        return data


def put_large(folder: Path, lines: int) -> tuple[str, str]:
    """Store a record of lines of 33 bytes; return its ref, and the SHA-256 of its content."""
    hashed, off = hashlib.sha256(), Offloader(str(folder), session="s")
    with off.open_sink(tool_name="Bash") as sink:
        for start in range(0, lines, 10_000):
            chunk = "".join(
                f"{n:09d} {'needle' if n == 2_700_000 else 'hay'} {n * 7919 % 1_000_003:06d} and so on\n"
                for n in range(start, start + 10_000)
            )
            hashed.update(chunk.encode())
            sink.write(chunk)
    return ref_of(sink.placeholder), hashed.hexdigest()


@pytest.mark.parametrize("lines", [300_000, pytest.param(3_000_000, marks=pytest.mark.slow)])
def test_a_page_of_a_large_record_fetches_a_few_ranges_of_it(tmp_path, lines):
    ref, _ = put_large(tmp_path, lines)
    store = CountingStore(open_store(str(tmp_path)))
    store.fetched = []
    client = visitor(store)
    first = page(client, ref)
    last = int(re.findall(r"1 of ([\d,]+)", first.text)[0].replace(",", ""))
    assert last > lines // 600
    opening = list(store.fetched)

    for number in (2, last // 2, last):
        store.fetched.clear()
        assert shown_lines(client.get(path_of("s", ref), params={"page": number}).text)
        assert len(store.fetched) <= 2
        assert sum(store.fetched) <= MIB
    assert len(opening) <= 4
    assert sum(opening) <= MIB


@contextmanager
def let_in(address: str) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    """Yield a connection to a server that runs, and the cookie that its ticket gave."""
    url = urlsplit(address)
    with closing(http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)) as connection:
        connection.request("GET", f"/?{url.query}")
        answer = connection.getresponse()
        answer.read()
        yield connection, (answer.getheader("set-cookie") or "").partition(";")[0]


def fetch(connection: http.client.HTTPConnection, cookie: str, path: str) -> http.client.HTTPResponse:
    connection.request("GET", path, headers={"cookie": cookie})
    return connection.getresponse()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_record_of_100_mb_is_paged_searched_and_downloaded_in_constant_memory(tmp_path):
    ref, sha256 = put_large(tmp_path, 3_000_000)
    with serving(tmp_path) as (address, process), let_in(address) as browser:
        assert fetch(*browser, "/").read()
        before = peak(process)
        assert fetch(*browser, path_of("s", ref)).read()
        assert fetch(*browser, f"{path_of('s', ref)}?page=4000").read()
        assert b'#L2700001"' in fetch(*browser, f"{path_of('s', ref)}/search?q=needle").read()
        assert fetch(*browser, f"{path_of('s', ref)}/outline").read()
        hashed, answer = hashlib.sha256(), fetch(*browser, f"{path_of('s', ref)}/download")
        while chunk := answer.read(MIB):
            hashed.update(chunk)

        assert hashed.hexdigest() == sha256
        assert peak(process) - before <= 64 * MIB


def peak(process: int) -> int:
    """Return the most memory that a process has held so far, in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/net").exists(), reason="sockets are read from /proc")
def test_the_server_listens_on_this_machine_alone(tmp_path):
    with serving(tmp_path) as (address, process):
        port = urlsplit(address).port
        listening = {
            line.split()[1]
            for name in ("tcp", "tcp6")
            for line in (Path(f"/proc/{process}/net") / name).read_text().splitlines()[1:]
            if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
        }

    assert listening == {f"0100007F:{port:04X}"}


def test_the_page_of_an_answer_shows_the_text_that_other_records_have(store: MemoryStore) -> None:
    reading = Reading(store)
    answer = reading.read(id=reading.ref, offset=0)
    reading.work()
    [info] = [info for info in reading.off.records() if info.is_answer]
    client = visitor(store)
    assert "\n".join(shown_lines(client.get(path_of("s", info.ref)).text)) == answer
    assert client.get(path_of("s", info.ref) + "/download").text == answer
    delete(store, "s", [reading.ref])
    assert client.get(path_of("s", info.ref)).status_code == 410
    assert client.get(path_of("s")).status_code == 200


def test_markdown_is_rendered_on_request_without_its_html_images_and_scripts(store: MemoryStore) -> None:
    text = "# Title\n\n" + "\n".join(
        f"## Part {n}\n\n- **bold** <script>alert({n})</script> ![x](/s/s) [bad](javascript:a) [good](https://a.b)\n"
        for n in range(200)
    )
    ref, other = put_text(store, text), put_text(store, LOG, tool_use_id="2")
    client = visitor(store)
    plain = page(client, ref)
    [link] = [each for each in plain.links if "markdown" in each]
    shown = Html(client.get(link).text)
    assert shown.count("h2") >= 200
    assert shown.count("strong") == 200
    assert [attrs["src"] for tag, attrs in shown.tags if tag == "img"] == ["/icon.svg"]
    assert "<script>alert(7)" in shown.text
    assert not [each for each in shown.links if each.startswith("javascript")]
    assert "https://a.b" in shown.links
    assert [each for each in shown.links if each.endswith("?page=1")]
    assert not [each for each in page(client, other).links if "markdown" in each]
    assert "only Markdown" in page(client, other, markdown=1).text
