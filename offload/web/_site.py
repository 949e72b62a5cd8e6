"""The state that all pages share: the store, open sessions, and whether changes are allowed."""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import lru_cache

from offload.errors import InvalidKeyError, NotFoundError
from offload.index import Tombstone, list_session, session_name
from offload.layout import encode_part
from offload.record import RecordInfo
from offload.session import SessionReader, check_known, is_ref
from offload.store import OffloadStore
from offload.wrappers import ReadOnlyStore

# Each holds the catalog of its session.
_OPEN_SESSIONS = 16


class Site:
    """A store with its open sessions; read-only unless visitors may change it.

    Read-only also excludes the snapshots that readers usually store. `form_key` is the secret of every form,
    unknown to other sites.
    """

    def __init__(self, store: OffloadStore, *, allows_changes: bool) -> None:
        self.store = store if allows_changes else ReadOnlyStore(store)
        self.allows_changes = allows_changes
        self.form_key = secrets.token_urlsafe(24)
        self._reader = lru_cache(_OPEN_SESSIONS)(self._open)

    def reader(self, part: str) -> SessionReader:
        """Return a reader of the session with this key part. Raises `NotFoundError` if it does not exist."""
        return self._reader(part)

    def entry(self, part: str, ref: str) -> RecordInfo:
        """Return the current catalog entry of a record.

        Raises `NotFoundError` for an unknown record, `ExpiredError` for a deleted one.
        """
        reader = self.reader(part)
        if is_ref(ref):
            reader.catalog.refresh([ref])
        return reader.find(ref)

    def tombstones(self, part: str) -> list[Tombstone]:
        """Return the last tombstone of each deleted record of a session, newest first."""
        deleted = list_session(self.store, part).deleted
        return sorted((record.last_tombstone for record in deleted), key=lambda t: (-t.at, t.key))

    def _open(self, part: str) -> SessionReader:
        name = ""
        with suppress(InvalidKeyError):
            name = session_name(self.store, part)
        if not name or encode_part(name) != part:
            raise NotFoundError(f"no session has the address {part[:80]!r} in {self.store.url}")
        return SessionReader(self.store, check_known(self.store, name))


def address(session: str, ref: str | None = None) -> str:
    """Return the path of a session's page, or of a record's page."""
    path = f"/s/{encode_part(session)}"
    return path if ref is None else f"{path}/r/{ref}"
