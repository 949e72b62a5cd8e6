"""The header and counts of a record, its entry in a listing, and the ref of an item."""

from __future__ import annotations

import builtins
import hashlib
import string
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args

import msgspec

from offload.base.identity import ItemIdentity
from offload.base.text import encode_text
from offload.records.record.retrieval import is_answer
from offload.storage.layout import name_of

SCHEMA_VERSION = 1
REF_LETTERS = 10
# An id of the usual length, to measure a placeholder before its record has one.
SAMPLE_REF = "x" * REF_LETTERS

OffloadableType = Literal[
    "tool_result",
    "tool_call",
    "user_message",
    "assistant_message",
    "system_prompt",
    "skill_prompt",
    "compaction_summary",
]
ITEM_TYPES: tuple[str, ...] = get_args(OffloadableType)

IdStyle = Literal["letters", "short"]


class RefForm(NamedTuple):
    """The form of refs of one style; the length of a ref determines its style.

    Attributes:
        alphabet: the characters of a ref. Lower case only: some disks ignore case, and models copy it more
            reliably.
        shortest: characters of the first draw; each draw after a collision takes one more.
        longest: characters of the last such draw, and of all later draws.
    """

    alphabet: str
    shortest: int
    longest: int


REF_FORMS: dict[IdStyle, RefForm] = {
    "letters": RefForm(string.ascii_lowercase, REF_LETTERS, 20),
    "short": RefForm(string.digits + string.ascii_lowercase, 5, 6),
}
# The most draws of a ref for one item.
MAX_DRAWS = 20


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of a record's content.

    Attributes:
        bytes: length of the stored content.
        chars: Unicode code points of its text.
        lines: lines of its text, including a last line without a newline.
        tokens: tokens by the writer's counter, an estimate by default.
        sha256: digest of the content bytes.
    """

    bytes: int
    chars: int
    lines: int
    tokens: int
    sha256: builtins.bytes  # `bytes` is a field here


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The description of an item, kept inside its record.

    Attributes:
        schema_version: version of this structure; later versions only add fields.
        ref: the id that the model sees, valid in `session`.
        tool_use_id: the provider's id of the tool call.
        created_at: creation time in seconds since the epoch, by the writer's clock.
        media_type: type of the content; text is UTF-8, with lone surrogates in three bytes.
        sha256: digest of the content, also in the counts, which ties the two ends of a record together.
        placeholder: the text that replaces the item in its message.
        form: JSON that `restore` needs in addition to the text; None if the item is one string.
        order: the same with its fields in their order; empty if `form` restores that, None for one string.
        marked: the same with the marks of the prompt cache that the message had, if these could not be found
            from that of the placeholder alone. It is not part of the item's identity.
        ttl: time to live in seconds; None means that the record does not expire.
        summary: a summarizer's text.
        redacted: whether parts of the content were removed before storage.
        origin: the session in which the ref was drawn, if the record is a copy, or of an inherited item.
        title: one line of at most 80 characters, such as the path that was read or the command that ran;
            None if there is none. It is not part of the item's identity.
        agent: the name of the agent that stored the item first, of at most 80 characters; None if it is not
            known. It is not part of the item's identity.
        quotes: the ids of the records, in the same session, that have parts of the content; this one has only
            the rest. Empty for a content that is stored whole.
        encoding: the encoding to read the content's bytes in, such as "utf-16-le"; None for UTF-8.
    """

    schema_version: int = SCHEMA_VERSION
    ref: str
    session: str
    item_type: str
    tool_name: str | None = None
    tool_use_id: str | None = None
    created_at: float
    media_type: str = "text/plain"
    sha256: bytes
    placeholder: str
    form: str | None = None
    ttl: int | None = None
    summary: str | None = None
    redacted: bool = False
    origin: str | None = None
    title: str | None = None
    order: str | None = None
    marked: str | None = None
    agent: str | None = None
    quotes: tuple[str, ...] = ()
    encoding: str | None = None

    @property
    def identity(self) -> ItemIdentity:
        """The identity of the stored item in its session, without a category."""
        return ItemIdentity(self.item_type, self.tool_use_id, self.sha256, self.form, self.order)

    def is_same_item(self, other: Header) -> bool:
        """Return whether both headers describe the same item with the same content."""
        return self.session == other.session and self.identity == other.identity

    def is_drawn(self) -> bool:
        """Return whether the ref is a draw of the item; any other ref is forged."""
        origin = self.session if self.origin is None else self.origin
        return drawn_by(self.ref, self.identity, [origin]) is not None

    def moved(self, session: str) -> Header:
        """Return the header of the same record in another session; the ref is still drawn where it was."""
        origin = self.session if self.origin is None else self.origin
        return msgspec.structs.replace(self, session=session, origin=None if origin == session else origin)


class RecordInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a session's catalog. Facts that only a read of the record gives are None.

    Attributes:
        ref: the id that the model sees.
        session: the session in which it is valid.
        item_type: the type of the item.
        tool_name: the tool that produced it; a name too long for a key ends in an ellipsis.
        tool_use_id: the provider's id of the tool call; None in a listing.
        chars: characters of the content.
        tokens: its tokens by the writer's counter.
        lines: its lines; None in a listing.
        bytes: its bytes; None in a listing.
        stored_bytes: size of the stored object.
        created_at: time of storage in seconds since the epoch, for a copy that of the original.
        expires_at: expiry time in seconds since the epoch; None if it does not expire.
        key: the key of the stored object.
        title: the title, see `Header`; None also in a listing, if this process has not written or read the
            record and no snapshot has the title.
        agent_name: the agent that stored it, see `Header`; None also if the title is not known.
        quotes: the ids of the records that have parts of its content, see `Header`.
    """

    ref: str
    session: str
    item_type: str
    tool_name: str | None
    tool_use_id: str | None = None
    chars: int
    tokens: int
    lines: int | None = None
    bytes: int | None = None
    stored_bytes: int
    created_at: float
    expires_at: float | None = None
    key: str
    title: str | None = None
    agent_name: str | None = None
    quotes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return the facts as a table, for a notebook."""
        return record_table([self])

    @property
    def is_answer(self) -> bool:
        """Whether it is an answer of a retrieval tool: lists and searches of all records leave it out."""
        return bool(self.quotes) or is_answer(self.item_type, self.tool_name)

    @property
    def is_expired(self) -> bool:
        """Whether the next gc may delete it."""
        return self.expires_at is not None and self.expires_at <= time.time()


def record_table(infos: Sequence[RecordInfo]) -> str:
    """Return a table in HTML of records, with the columns that are known of any."""
    from offload.records.record.display import html_table  # noqa: PLC0415 # only a notebook needs it

    rows = [
        {
            "id": info.ref,
            "title": info.title,
            "tool": info.tool_name or info.item_type.replace("_", " "),
            "agent": info.agent_name,
            "tokens": info.tokens,
            "characters": info.chars,
            "lines": info.lines,
            "stored bytes": info.stored_bytes,
            "stored at": f"{datetime.fromtimestamp(info.created_at, UTC):%Y-%m-%d %H:%M} UTC",
        }
        for info in infos
    ]
    known = {name for row in rows for name, value in row.items() if value is not None}
    return html_table([{name: value for name, value in row.items() if name in known} for row in rows])


def draw_ref(
    session: str,
    item_type: str,
    tool_use_id: str | None,
    sha256: bytes,
    form: str | None = None,
    *,
    style: IdStyle = "letters",
    draw: int = 0,
) -> str:
    """Return the ref of an item, drawn from a SHA-256 of its identity.

    The same item gives the same ref on every machine. A longer ref begins with the shorter one. The `form` is
    hashed too, so one text in two shapes makes two records. The first arguments are fields of `Header`;
    `draw` counts the draws for this item that collided with another item.
    """
    hashed = hashlib.sha256()
    for field in (session, item_type, tool_use_id, form):
        data = b"" if field is None else b"=" + encode_text(field)
        hashed.update(len(data).to_bytes(8, "little") + data)
    hashed.update(sha256)
    alphabet, shortest, longest = REF_FORMS[style]
    digest = hashed.digest()
    redraw = draw - (longest - shortest)
    if redraw > 0:
        digest = hashlib.sha256(digest + redraw.to_bytes(8, "little")).digest()
    number = int.from_bytes(digest, "little")
    drawn = []
    for _ in range(min(shortest + draw, longest)):
        number, place = divmod(number, len(alphabet))
        drawn.append(alphabet[place])
    return "".join(drawn)


def drawn_by(ref: str, item: ItemIdentity, sessions: Iterable[str]) -> str | None:
    """Return the first of some sessions in which an item draws a ref; None if it is none of them."""
    draws = [
        (style, draw)
        for style, form in REF_FORMS.items()
        if form.shortest <= len(ref) <= form.longest
        for draw in range(MAX_DRAWS)
    ]
    return next(
        (
            session
            for session in sessions
            if any(ref == draw_ref(session, *item[:4], style=style, draw=draw) for style, draw in draws)
        ),
        None,
    )


class Head(msgspec.Struct, frozen=True):
    """The header of a record and the counts of its content."""

    header: Header
    counts: Counts


class Heads:
    """Heads of records of one session, by the last part of their keys. A record never changes."""

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}

    def note(self, key: str, header: Header, counts: Counts) -> None:
        """Note the head of the record at a key."""
        self._heads[name_of(key)] = Head(header, counts)

    def learn(self, heads: Mapping[str, Head]) -> None:
        """Take heads that `of` returned, in this process or another."""
        self._heads |= {name: head for name, head in heads.items() if name not in self._heads}

    def get(self, info: RecordInfo) -> Head | None:
        """Return the head of a record if it is known, and of no other one."""
        head = self._heads.get(name_of(info.key))
        return head if head is not None and head.header.ref == info.ref else None

    def of(self, infos: Iterable[RecordInfo]) -> dict[str, Head]:
        """Return the known heads of some records, by the last part of their keys."""
        found = {}
        for info in infos:
            name = name_of(info.key)
            head = self._heads.get(name)
            if head is not None and head.header.ref == info.ref:
                found[name] = head
        return found
