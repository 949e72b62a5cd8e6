"""Record keys: what a listing tells of a record, and of one that was collected.

    r/<session>/<ref>~<item_type>~<tool>~<chars>~<tokens><suffix>     one record
    r/<session>/<the same name>.<reason>                              its tombstone: it is collected
    r/<session>/<the same name with suffix .link>                     a record of another session, shared
    h/<session>/<the same name>.json                                  a record's header, where kept apart
    g/<session>/used                                                  last used, by its time, with nothing new
    j/<session>/<number>~<kind>~<bytes>~<letters>.zst                 a conversation, as it grew: no record

A ref may be followed by `.<generation>`, from 2: the item was stored again after its record was
collected. The tokens may be followed by `~<seconds>`: the record may be collected so long after it was
stored. Tombstones and links lie beside the records, so that one listing tells all of a session.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast

from offload.codec import find_codec
from offload.errors import InvalidKeyError
from offload.keys import check_key, decode_part, encode_part
from offload.record import REF_PATTERN, Counts, Header, RecordInfo
from offload.store import StoredObject

RECORDS, SIDECARS, MARKS, JOURNALS = "r", "h", "g", "j"
LINK_SUFFIX = ".link"

Reason = Literal["expired", "quota", "deleted"]

_KEY = re.compile(
    rf"r/(?P<session>[^/]+)/(?P<ref>{REF_PATTERN})(?:\.(?P<generation>[2-9]|[1-9]\d{{1,5}}))?"
    r"~(?P<item_type>[a-z_]+)~(?P<tool>[^/~]*)~(?P<chars>\d{1,15})~(?P<tokens>\d{1,15})"
    r"(?:~(?P<ttl>[1-9]\d{0,9}))?(?P<suffix>\.[a-z]+)(?:\.(?P<reason>expired|quota|deleted))?",
    re.ASCII,
)


_JOURNAL_KEY = re.compile(r"j/[^/]+/(\d{9})~(begun|whole|grown)~(\d{1,9})~[a-z]{10}\.zst", re.ASCII)


class Tombstone(NamedTuple):
    """The mark of a record that is collected.

    Attributes:
        key: the key of the record.
        ref: its ref.
        reason: why it went.
        at: when, in seconds since the epoch by the store's clock.
    """

    key: str
    ref: str
    reason: Reason
    at: float

    @property
    def item_type(self) -> str:
        """What kind of part of a message the record was of."""
        return self.key.split("~")[1]


def session_prefix(session: str) -> str:
    """Return what the keys of every record of `session` start with."""
    return f"{RECORDS}/{encode_part(session)}/"


def record_key(header: Header, counts: Counts, suffix: str, generation: int = 1) -> str:
    """Return the key of a record: everything that a listing needs to know about it."""
    ref = header.ref if generation == 1 else f"{header.ref}.{generation}"
    tool = "" if header.tool_name is None else encode_part(header.tool_name)
    ttl = "" if header.ttl is None else f"~{header.ttl}"
    name = f"{ref}~{header.item_type}~{tool}~{counts.chars}~{counts.tokens}{ttl}{suffix}"
    key = check_key(session_prefix(header.session) + name)
    if not _KEY.fullmatch(key):
        raise InvalidKeyError(f"{key} would not be found again in a listing")
    return key


def sidecar_key(key: str) -> str:
    """Return the key under which the header of the record at `key` is kept apart."""
    return f"{SIDECARS}{key.removeprefix(RECORDS)}.json"


def tombstone_key(key: str, reason: Reason) -> str:
    """Return the key of the tombstone of the record at `key`."""
    return f"{key}.{reason}"


def marks_prefix(part: str) -> str:
    """Return what the keys of all marks of the session with this key part start with."""
    return f"{MARKS}/{part}/"


def used_key(part: str) -> str:
    """Return the key of the mark that tells when the session with this key part was last used."""
    return f"{marks_prefix(part)}used"


def journal_prefix(session: str) -> str:
    """Return what the keys of all entries of the journal of `session` start with."""
    return f"{JOURNALS}/{encode_part(session)}/"


def journal_key(session: str, number: int, kind: str, size: int, letters: str) -> str:
    """Return the key of an entry of the journal of `session`; what each part means stands at its writer."""
    return check_key(f"{journal_prefix(session)}{number:09}~{kind}~{size}~{letters}.zst")


def parse_journal_key(key: str) -> tuple[int, str, int] | None:
    """Return number, kind and size of the entry of a journal at `key`; None if it is no such key."""
    match = _JOURNAL_KEY.fullmatch(key)
    return None if match is None else (int(match[1]), match[2], int(match[3]))


def generation_of(key: str) -> int:
    """Return which time the item of a record's key was stored, from 1."""
    match = _KEY.fullmatch(key)
    return int(match["generation"] or 1) if match else 1


def parse_key(stored: StoredObject) -> RecordInfo | Tombstone | None:
    """Return what a listed object stands for: a record, a tombstone, or None, which is neither."""
    match = _KEY.fullmatch(stored.key)
    if match is None:
        return None
    if match["reason"]:
        key = stored.key.rpartition(".")[0]
        return Tombstone(key, match["ref"], cast("Reason", match["reason"]), stored.modified)
    if match["suffix"] != LINK_SUFFIX and find_codec(stored.key) is None:
        return None
    try:
        session, tool = decode_part(match["session"]), decode_part(match["tool"])
    except InvalidKeyError:
        return None
    return RecordInfo(
        ref=match["ref"],
        session=session,
        item_type=match["item_type"],
        tool_name=tool if match["tool"] else None,
        chars=int(match["chars"]),
        tokens=int(match["tokens"]),
        stored_bytes=stored.size,
        created_at=stored.modified,
        expires_at=stored.modified + int(match["ttl"]) if match["ttl"] else None,
        key=stored.key,
    )
