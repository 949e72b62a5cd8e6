"""The entries of a journal: their keys, and their content as bytes. `FORMAT.md` has both."""

from __future__ import annotations

from typing import NamedTuple

from offload.base.patterns import lazy_pattern
from offload.base.text import encode_text
from offload.errors import CorruptError, EncryptionError, MessageError
from offload.messages import Usage
from offload.records.codec._frames import decompress
from offload.records.record.digested import check_digest, undigested, with_digest
from offload.storage.layout import JOURNAL, decode_part, name_of, random_letters
from offload.storage.store import OffloadStore

# The maximum size of an entry, checked before memory is allocated.
MOST_BYTES = 256 * 1024 * 1024
# The part of an entry's key that names the parent of a fork.
_PARENT = lazy_pattern(r"~from[^/~]+(?=\.zst$)")


class RequestFigures(NamedTuple):
    """A request, as the key of its entry shows it.

    Attributes:
        at: when it was sent, in milliseconds since the epoch, by the writer's clock.
        messages: how many messages it has.
        tokens: their tokens, by the session's counter.
        tokens_offloaded: tokens that it would have in addition if nothing had been offloaded or compacted.
        records: records that were created since the request before.
        read_backs: how often the model read a record since the request before.
        compactions: how many compactions there were since the conversation began.
    """

    at: int
    messages: int
    tokens: int
    tokens_offloaded: int
    records: int = 0
    read_backs: int = 0
    compactions: int = 0


class JournalEntry(NamedTuple):
    """An entry in a listing, at a key; `size` is its bytes, uncompressed.

    Its kind is `begun` or `whole` for the whole conversation, the first by a writer that read no earlier
    entry; `grown` for the changes since the entry before. If it is that of a request, `sent` describes it and
    `model` names its model. `used` is what the provider counted for the request before: the input tokens, and
    those read from and written to its cache. `base` is the number of the entry that it continues from, if
    that is not the one before, or its own number if there is none; `parent` is the key part of the session
    that has it. The `letters` of its key are random.
    """

    number: int
    kind: str
    at: str
    size: int = 0
    sent: RequestFigures | None = None
    used: Usage | None = None
    model: str | None = None
    base: int | None = None
    parent: str | None = None
    letters: str = ""

    @property
    def is_rewind(self) -> bool:
        """Whether the session continues in it from an entry that is not the one before."""
        return self.base is not None and self.parent is None

    @property
    def is_move(self) -> bool:
        """Whether it changes nothing but what the session continues from: a fork, or a rewind."""
        return self.base is not None and self.kind == "grown"

    def follows(self, before: JournalEntry) -> bool:
        """Return whether it continues an entry: no other one is missing between them."""
        return before.number in (self.number - 1, self.base)


def own_entries(store: OffloadStore, part: str) -> list[JournalEntry]:
    """Return all entries of the journal of the session with a key part, in the order of their numbers."""
    listed = (entry_of(stored.key) for stored in store.keys(JOURNAL.prefix(part)))
    return [entry for entry in listed if entry is not None]


def entry_of(key: str) -> JournalEntry | None:
    """Return the entry at a key; None if it is not the key of one."""
    match = JOURNAL.match(key)
    if match is None:
        return None
    sent = RequestFigures(*map(int, match["sent"].split("-"))) if match["sent"] else None
    used = None
    if match["used"]:
        tokens, read, written = match["used"].split("-")
        used = Usage(int(tokens), int(read) if read else None, int(written))
    return JournalEntry(
        int(match["number"]),
        match["kind"],
        key,
        int(match["bytes"]),
        sent,
        used,
        decode_part(match["model"]) if match["model"] else None,
        int(match["base"]) if match["base"] else None,
        match["parent"],
        match["letters"],
    )


def new_entry(
    part: str, number: int, kind: str, text: str = "{}", *, letters: str | None = None, **more: object
) -> tuple[str, bytes]:
    """Return the key and the content of an entry, which gets its digest; see `FORMAT.md`.

    Args:
        part: the key part of its session.
        number: its number.
        kind: its kind.
        text: its head, a map as JSON, and its messages, each on a line.
        letters: the letters of its key; random by default.
        more: the optional parts of its key.

    Raises:
        MessageError: it has more than `MOST_BYTES`.
    """
    content = undigested(encode_text(text))
    if len(content) > MOST_BYTES:
        raise MessageError(f"a journal entry must have at most {MOST_BYTES} bytes, got {len(content)}")
    key = JOURNAL.key(
        session=part,
        number=f"{number:09}",
        kind=kind,
        bytes=len(content),
        letters=letters or random_letters(),
        **more,
    )
    return key, with_digest(content, name_in_copy(key))


def name_in_copy(key: str) -> str:
    """Return the end of the key of an entry in a copy of its session, which has no parent."""
    return _PARENT.sub("", name_of(key))


def entry_bytes(entry: JournalEntry, data: bytes) -> bytes:
    """Return the content of an entry. Raises `CorruptError` and `EncryptionError`, which name it."""
    if entry.size > MOST_BYTES:
        raise CorruptError(f"{entry.at}: an entry may have {MOST_BYTES} bytes, got {entry.size}")
    try:
        content = decompress(data, entry.size)
        check_digest(content, name_in_copy(entry.at))
    except (CorruptError, EncryptionError) as error:
        raise type(error)(f"{entry.at}: {error}") from error
    return content


def check_entry(key: str, data: bytes) -> None:
    """Raise `CorruptError` or `EncryptionError` if the content of the entry at a key cannot be read."""
    if (entry := entry_of(key)) is not None:
        entry_bytes(entry, data)
