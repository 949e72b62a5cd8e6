"""What one offloaded item is: its header, its counts, and the short facts that a listing shows."""

from __future__ import annotations

import builtins
import hashlib
import string
import time
from typing import Literal, NamedTuple, get_args

import msgspec

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

RefStyle = Literal["letters", "short"]


class RefForm(NamedTuple):
    """How refs of one style look; the length of a ref tells its style.

    Attributes:
        alphabet: the characters that a ref is drawn from. Lower case alone: refs that differ in case would be
            one file on a disk that folds case, and a model copies these more surely.
        shortest: characters of the first draw. Each draw after a collision takes one more.
        longest: characters of the last such draw, and of all draws after it.
    """

    alphabet: str
    shortest: int
    longest: int


REF_FORMS: dict[RefStyle, RefForm] = {
    "letters": RefForm(string.ascii_lowercase, REF_LETTERS, 20),
    "short": RefForm(string.digits + string.ascii_lowercase, 5, 6),
}
# How often a ref is drawn for one item before it is given up.
MAX_DRAWS = 20


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of a record's content.

    Attributes:
        bytes: length of the stored content.
        chars: Unicode code points of its text.
        lines: lines of its text; a last line without a newline counts.
        tokens: tokens by the counter of the writer, an estimate by default.
        sha256: digest of the content bytes.
    """

    bytes: int
    chars: int
    lines: int
    tokens: int
    sha256: builtins.bytes  # `bytes` is a field here


class ItemIdentity(NamedTuple):
    """The fields that make two items one: they share one ref and one record.

    Attributes:
        item_type: kind of part of a message.
        tool_use_id: the provider's id of the tool call, or None.
        sha256: digest of the content.
        form: JSON that `restore` needs in addition to the text, or None.
    """

    item_type: str
    tool_use_id: str | None
    sha256: bytes
    form: str | None


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a record is, kept inside the record itself.

    Attributes:
        schema_version: version of this structure; fields are only ever added.
        ref: the id that the model sees, valid in `session`.
        session: name of the session that the record belongs to.
        item_type: what kind of part of a message was taken out.
        tool_name: the tool that produced it, None where no tool did.
        tool_use_id: the provider's id of the tool call.
        created_at: when the record was made, in seconds since the epoch by the writer's clock.
        media_type: type of the content; text is UTF-8, lone surrogates kept in their three-byte form.
        sha256: digest of the content, also in the counts: it ties the two ends of a record together.
        placeholder: the text that stands in the message instead of the item.
        form: what `restore` needs to rebuild the item beside its text, as JSON; None for one string.
        ttl: for how many seconds after it was stored the record is kept at least; None for good.
        summary: what a summarizer said of the content.
        redacted: whether something was cut out of the content before it was stored.
        origin: the session that the ref was drawn in, where the record was copied from another one.
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

    @property
    def identity(self) -> ItemIdentity:
        """The identity of the stored item in its session."""
        return ItemIdentity(self.item_type, self.tool_use_id, self.sha256, self.form)

    def is_same_item(self, other: Header) -> bool:
        """Return whether both headers describe one item with one content, whoever wrote them and when."""
        return self.session == other.session and self.identity == other.identity

    def is_drawn(self) -> bool:
        """Tell whether the ref is one that the item draws; any other was put there by somebody."""
        origin = self.session if self.origin is None else self.origin
        return any(
            self.ref == draw_ref(origin, *self.identity, style=style, draw=draw)
            for style, form in REF_FORMS.items()
            if form.shortest <= len(self.ref) <= form.longest
            for draw in range(MAX_DRAWS)
        )


class RecordInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a session's catalog. What only a read of the record would tell is None.

    Attributes:
        ref: the id that the model sees.
        session: the session it is valid in.
        item_type: what kind of part of a message it was.
        tool_name: the tool that produced it; a name too long for a key ends in an ellipsis.
        tool_use_id: the provider's id of the tool call; None in a listing.
        chars: characters of the content.
        tokens: its tokens by the writer's counter.
        lines: its lines; None in a listing.
        bytes: its bytes; None in a listing.
        stored_bytes: size of the stored object.
        created_at: when it was stored, in seconds since the epoch.
        expires_at: from when on it may be collected; None if it has no time to live.
        key: the key of the stored object.
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

    @property
    def is_expired(self) -> bool:
        """Whether the next collection may take it."""
        return self.expires_at is not None and self.expires_at <= time.time()


def encode_text(text: str) -> bytes:
    """Return the content bytes of `text`: UTF-8, lone surrogates in their three-byte form."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(content: bytes | memoryview) -> str:
    """Return the text of content bytes, the inverse of `encode_text`."""
    return str(content, "utf-8", "surrogatepass")


def escape_surrogates(text: str) -> str:
    """Return `text` with lone surrogates written out as escapes: headers, APIs and terminals take that."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def draw_ref(
    session: str,
    item_type: str,
    tool_use_id: str | None,
    sha256: bytes,
    form: str | None = None,
    *,
    style: RefStyle = "letters",
    draw: int = 0,
) -> str:
    """Return the ref of an item: characters of the alphabet of `style`, drawn from a SHA-256 of what it is.

    The same item gives the same ref on every machine. A longer ref begins with the shorter one. The
    `form` takes part so that one text that stood in messages in two shapes makes two records.

    Args:
        session: the session that the item is of.
        item_type: what kind of part of a message it is.
        tool_use_id: the provider's id of the tool call, or None.
        sha256: digest of the content.
        form: what `restore` needs beside the text, or None.
        style: how the ref looks.
        draw: how many draws for this item met another one.
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
