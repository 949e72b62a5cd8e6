"""The pages of a store as a visitor sees them: from the app, or from a separate server process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import prepared
from starlette.testclient import TestClient

from offload import OffloadStore
from offload.storage.layout import encode_part
from offload.web import web_app
from offload.web._render import SCRIPT

PORT = 8765
ORIGIN = f"http://127.0.0.1:{PORT}"


class Html(HTMLParser):
    """A parsed page: its text, its tags with their attributes, its links; all without the pages' own script.

    Attributes:
        text: all text between the tags.
        tags: name and attributes of each.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data == SCRIPT and self.tags[-1][0] == "script":
            self.tags.pop()
        else:
            self.text += data

    @property
    def links(self) -> list[str]:
        return [attrs["href"] or "" for tag, attrs in self.tags if tag == "a" and "href" in attrs]

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


def stranger(store: OffloadStore, *, allows_changes: bool = False) -> tuple[TestClient, str]:
    """Return a browser that was not let in, and the ticket that would."""
    app = web_app(store, PORT, allows_changes=allows_changes)
    return TestClient(app, base_url=ORIGIN), app.ticket


def visitor(store: OffloadStore, *, allows_changes: bool = False) -> TestClient:
    """Return a browser that was let in."""
    client, ticket = stranger(store, allows_changes=allows_changes)
    assert client.get("/", params={"ticket": ticket}).status_code == 200
    return client


def path_of(session: str, ref: str | None = None) -> str:
    """Return the address of a session, or of a record in it."""
    path = "/s/" + encode_part(session)
    return path if ref is None else f"{path}/r/{ref}"


@contextmanager
def serving(store: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Run `offload serve`; yield the address that it prints, and its process id."""
    with prepared.start(prepared.COMMAND, "serve", store, *options) as server:
        said = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\?ticket=\S+", said)
        assert found, said
        yield found[0], server.pid
