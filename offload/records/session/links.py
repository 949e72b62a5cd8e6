"""Links: the objects in a session that lead to records of other sessions, which share them."""

from __future__ import annotations

import msgspec

from offload.errors import CorruptError
from offload.storage.store import check_plain

# Enough for any session name, also if JSON escapes all of it.
LINK_BYTES = 16 * 1024


class Link(msgspec.Struct, frozen=True):
    """The content of an object whose key ends in `.link`: the session that shares its record of this ref."""

    session: str


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_LINKS = msgspec.json.Decoder(Link)


def owner_in(data: bytes, key: str) -> str:
    """Return the session that the link `data` leads to.

    Raises `CorruptError` if it names none, and `EncryptionError` if it is encrypted.
    """
    try:
        return _LINKS.decode(data).session
    except (msgspec.MsgspecError, RecursionError) as error:
        check_plain(data, key)
        raise CorruptError(f"{key} contains no session name: {error}") from error
