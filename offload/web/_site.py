"""The store behind the pages, with what its readers keep, and what all pages show of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from offload.agent.presets.context_refs._tree import ContextTree
from offload.errors import InvalidKeyError, NotFoundError
from offload.reading.search.index import SessionIndex
from offload.records.index.entries import Tombstone
from offload.records.index.objects import list_session, session_name
from offload.records.journal.format import entry_of
from offload.records.record import RecordInfo
from offload.records.session.encryption import check_session
from offload.records.session.names import check_known
from offload.records.session.reader import SessionReader
from offload.storage.layout import JOURNAL, encode_part, is_hashed, is_link, is_ref
from offload.storage.registry import folder_of
from offload.storage.store import OffloadStore, path_of
from offload.storage.wrappers import ReadOnlyStore
from offload.web._account import Accounts
from offload.web._render import render
from offload.web._timeline import Overview
from offload.web._titles import Titles

Values = dict[str, Any]

# The addresses of a session and of a record.
AT_SESSION = "/s/{part}"
AT_RECORD = f"{AT_SESSION}/r/{{ref}}"

# The rows of a list that has no pages.
SHOWN = 100
# Each holds the catalog of its session.
OPEN_SESSIONS = 16
# Each holds a share of the session's texts.
_OPEN_INDEXES = 4


class Site:
    """A store as the pages show it; read-only unless visitors may change it.

    Read-only also excludes the snapshots that readers usually store.

    Attributes:
        store: the store.
        allows_changes: whether visitors may change it.
        form_key: the secret of every form, unknown to other sites.
        reader: returns the reader of the session with a key part. Raises `NotFoundError`.
        index: returns the index of the texts of the session with a key part.
        titles: the titles of the records.
        accounts: read-backs and cost of the sessions, from their journals.
    """

    def __init__(self, store: OffloadStore, *, allows_changes: bool) -> None:
        # Looking at a page does not count as use of a context file.
        store = store.without_notes() if isinstance(store, ContextTree) else store
        self.allows_changes = allows_changes
        self.form_key = secrets.token_urlsafe(24)
        self.store = store if allows_changes else ReadOnlyStore(store)
        self.reader = lru_cache(OPEN_SESSIONS)(self._open)
        self.index = lru_cache(_OPEN_INDEXES)(lambda part: SessionIndex(self.reader(part)))
        self.titles = Titles(self.store)
        self.accounts = Accounts(self.reader)
        # By key part; the one used last is last.
        self._overviews: dict[str, Overview] = {}

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Return the page rendered from `template` for the store, or for the session in the request."""
        part, done = request.path_params.get("part"), request.query_params.get("done")
        name = None if part is None else self.reader(part).name
        return render(template, status, site=self, part=part, name=name, done=done, **values)

    def record(self, request: Request) -> tuple[SessionReader, RecordInfo]:
        """Return the reader and the current catalog entry of the record in the request.

        Raises `NotFoundError` for an unknown record, `ExpiredError` for a deleted one.
        """
        reader, ref = self.reader(request.path_params["part"]), request.path_params["ref"]
        if is_ref(ref):
            reader.catalog.refresh([ref])
            reader.catalog.refresh({quoted for info in reader.catalog.known(ref) for quoted in info.quotes})
        return reader, reader.find(ref)

    def overview(self, part: str) -> Overview | None:
        """Return the timeline of a session, None if it has no journal. Raises `StoreError`."""
        keys = [found.key for found in self.store.keys(JOURNAL.prefix(part))]
        known = self._overviews.pop(part, None)
        if known is None or known.keys != keys:
            own = [entry for entry in map(entry_of, keys) if entry is not None]
            if not own:
                return None
            known = Overview(self.reader(part), keys, own)
        self._overviews[part] = known
        if len(self._overviews) > OPEN_SESSIONS:
            del self._overviews[next(iter(self._overviews))]
        return known

    def tombstones(self, part: str) -> list[Tombstone]:
        """Return the tombstones of the session with this key part, the newest first."""
        deleted = list_session(self.store, part).deleted
        return sorted((record.last_tombstone for record in deleted), key=lambda t: (-t.at, t.key))

    def _open(self, part: str) -> SessionReader:
        """Return a reader of the session with this key part.

        Raises `NotFoundError` if it does not exist, `EncryptionError` if another key encrypts its long name.
        """
        name = ""
        with suppress(InvalidKeyError):
            name = session_name(self.store, part)
        if name and is_hashed(part) and encode_part(name) != part:
            check_session(self.store, part)
            raise NotFoundError(
                f"session {name!r} has a name that is too long for a key, and {self.store.url} has no record "
                "with all of it; open this session in Python, by its name"
            )
        if not name or encode_part(name) != part:
            raise NotFoundError(f"no session has the address {part[:80]!r} in {self.store.url}")
        return SessionReader(self.store, check_known(self.store, name))


def file_of(store: OffloadStore, key: str) -> str | None:
    """Return the address of the file that agents open, if the store has a layout with such files."""
    path = path_of(store, key)
    return None if path == key or is_link(key) else f"{folder_of(store) or store.url}/{path}"


def file_count(store: OffloadStore, infos: Iterable[RecordInfo]) -> int:
    """Return the number of context files; all records of a session have one, or none has."""
    keys = [info.key for info in infos if not is_link(info.key)]
    return len(keys) if any(file_of(store, key) for key in keys[:1]) else 0
