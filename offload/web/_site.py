"""What all pages share: the store, the sessions that were opened, what a visitor may do."""

from __future__ import annotations

import secrets
from functools import lru_cache

from offload.index import Tombstone
from offload.layout import encode_part
from offload.record import RecordInfo
from offload.session import SessionReader, check_known, is_ref
from offload.store import OffloadStore
from offload.web._overview import name_of, tombstones
from offload.wrappers import ReadOnlyStore

# Each holds the entries of its session.
_OPEN_SESSIONS = 16


class Site:
    """One store as the pages see it.

    Args:
        store: what is shown.
        allows_changes: whether records can be pinned and deleted. Without it nothing is written, not even
            what a reader would leave for others to save them work.

    Attributes:
        store: the store; one that refuses every write where no changes are allowed.
        allows_changes: as given.
        form_key: what every form sends back, and no other site knows.
    """

    def __init__(self, store: OffloadStore, *, allows_changes: bool) -> None:
        self.store = store if allows_changes else ReadOnlyStore(store)
        self.allows_changes = allows_changes
        self.form_key = secrets.token_urlsafe(24)
        self._reader = lru_cache(_OPEN_SESSIONS)(self._open)

    def reader(self, part: str) -> SessionReader:
        """Return what reads the session with this key part. Raises `NotFoundError` if there is none."""
        return self._reader(part)

    def entry(self, part: str, ref: str) -> RecordInfo:
        """Return the entry of a record as the store has it now.

        Raises `NotFoundError` for one that never was, `ExpiredError` for one that was collected.
        """
        reader = self.reader(part)
        if is_ref(ref):
            reader.catalog.refresh([ref])
        return reader.find(ref)

    def tombstones(self, part: str) -> list[Tombstone]:
        """Return what is left of the collected records of a session, the latest first."""
        return tombstones(self.store, part)

    def _open(self, part: str) -> SessionReader:
        return SessionReader(self.store, check_known(self.store, name_of(self.store, part)))


def address(session: str, ref: str | None = None) -> str:
    """Return the path of a session's page, or of that of one of its records."""
    path = f"/s/{encode_part(session)}"
    return path if ref is None else f"{path}/r/{ref}"
