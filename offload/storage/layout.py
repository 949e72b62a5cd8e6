"""Every key of a store: the grammar, the encoding of names, and the families of keys that the library writes.

A name from a model, a tool or a caller is data, never a path. `encode_part` is injective: two different names
never share a part, also on file systems that fold case, and a short lower-case slug is its own part.

Each kind of object has one `Family` of keys, whose form gives both the builder and the parser. In a form
`<session>`, `<receiver>`, `<origin>`, `<tool>`, `<space>`, `<name>`, `<project>` and `<transcript>` are
encoded names, and brackets enclose optional parts. `FORMAT.md` lists the same forms.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import string
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeGuard, get_args

from offload.base.patterns import lazy_pattern
from offload.base.threads.locks import cached
from offload.errors import InvalidKeyError

# The reasons for a deletion.
DeletionReason = Literal["expired", "quota", "deleted"]

MAX_KEY_BYTES = 512
MAX_PART_BYTES = 120
# The descriptor that a backend stores about its medium; no listing contains it.
DESCRIPTOR = "offload.json"
# A ref of any style, as a regular expression.
REF_PATTERN = r"(?:[a-z]{10,20}|[0-9a-z]{5,6})"

_PART = lazy_pattern(r"[a-z0-9_=~-][a-z0-9._=~-]*", re.ASCII)
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
# Each byte in the form that a part has it.
_ESCAPED = [chr(b) if b in _SAFE else f"={b:02x}" for b in range(256)]
_ESCAPE = lazy_pattern(rb"=([0-9a-f]{2})")
_REF = lazy_pattern(REF_PATTERN, re.ASCII)
_CUT_ESCAPE = lazy_pattern(r"=[0-9a-f]?$", re.ASCII)
_DIGEST = lazy_pattern(r"==[a-z2-7]{26}", re.ASCII)
_EMPTY = "=="
_HASH_MARK = "=="
_HEAD_OF_HASHED = 40
# Windows opens these as devices, with or without an extension.
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))])


def check_key(key: str) -> str:
    """Return `key` if it is a valid store key, or raise `InvalidKeyError`.

    A key is 1 to 512 characters: parts of `[a-z0-9._=~-]` joined by single slashes, none of which
    starts with a dot or is longer than 240 characters. The name `offload.json` is reserved for the store.
    """
    if not isinstance(key, str):
        raise InvalidKeyError(f"key must be a str, got {type(key).__name__}")
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidKeyError(f"key must have 1 to {MAX_KEY_BYTES} characters, got {len(key)}")
    if key == DESCRIPTOR:
        raise InvalidKeyError(f"key {key!r} is reserved for the store; use another name")
    for part in key.split("/"):
        if not _PART.fullmatch(part) or len(part) > 2 * MAX_PART_BYTES:
            raise InvalidKeyError(
                f"each part of a key must have 1 to {2 * MAX_PART_BYTES} characters [a-z0-9._=~-] and no "
                f"leading dot, got {part[:80]!r} in {key[:80]!r}; use offload.storage.layout.encode_part"
            )
    return key


def encode_part(name: str) -> str:
    """Return the key part of `name`: at most 120 characters, different for every name.

    Characters `[a-z0-9._-]` are kept; every other byte of the UTF-8 form becomes `=hh`. A longer part is cut
    to a readable beginning, `==` and 130 bits of the name's SHA-256.
    """
    if name == "":
        return _EMPTY
    escaped = _escape(name)
    if len(escaped) <= MAX_PART_BYTES:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    tail = base64.b32encode(digest).decode().lower()[:26]
    return escaped[:_HEAD_OF_HASHED] + _HASH_MARK + tail


def is_hashed(part: str) -> bool:
    """Return whether `part` contains only the beginning and a hash of its name."""
    return _HASH_MARK in part and part != _EMPTY


def is_part(part: str) -> bool:
    """Return whether `part` can be that of a name. Raises `InvalidKeyError` as `decode_part` does."""
    if is_hashed(part):
        return _DIGEST.fullmatch(part[_HEAD_OF_HASHED:]) is not None
    return encode_part(decode_part(part)) == part


@lru_cache(maxsize=1024)
def decode_part(part: str) -> str:
    """Return the name that is encoded as `part`; a hashed name ends in an ellipsis.

    Raises `InvalidKeyError` if `part` encodes no name.
    """
    if part == _EMPTY:
        return ""
    readable, hashed, _ = part.partition(_HASH_MARK)
    raw = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]), readable.encode())
    if hashed:
        # The cut may fall inside an escape or a character.
        return _CUT_ESCAPE.sub("", raw.decode("utf-8", "ignore")) + "…"
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InvalidKeyError(f"part {part[:80]!r} encodes no name") from None


def _escape(name: str) -> str:
    data = name.encode("utf-8", "surrogatepass")
    escaped = "".join([_ESCAPED[b] for b in data])
    # A leading dot hides, a trailing one is dropped by Windows, a device name opens a device.
    if escaped[0] == "." or escaped.split(".")[0] in _DEVICES:
        escaped = f"={ord(escaped[0]):02x}{escaped[1:]}"
    if escaped[-1] == ".":
        escaped = escaped[:-1] + "=2e"
    return escaped


_CREATED = lazy_pattern(r"~at\d+(?=\.)", re.ASCII)
_FIELD = lazy_pattern(r"<(\w+)>")
_OPTIONAL = lazy_pattern(r"\[([^<\]]*)<(\w+)>\]")
# The other fields are encoded names.
_PATTERNS = {
    "ref": REF_PATTERN,
    "generation": r"[2-9]|[1-9]\d{1,5}",
    "item_type": r"[a-z_]+",
    "tool": r"[^/~]*",
    "chars": r"\d{1,15}",
    "tokens": r"\d{1,15}",
    "ttl": r"[1-9]\d{0,9}",
    "quotes": rf"{REF_PATTERN}(?:\.{REF_PATTERN})*",
    "created": r"\d{1,15}",
    "suffix": r"\.(?:zst|json|txt|part)",
    "ending": r"\.[a-z]+",
    "reason": "|".join(get_args(DeletionReason)),
    "receiver": r"[^/~]+",
    "origin": r"[^/~]+",
    "number": r"\d{9}",
    "kind": r"begun|whole|grown",
    "bytes": r"\d{1,9}",
    "letters": r"[a-z]{10}",
    "sent": r"\d{1,15}(?:-\d{1,15}){6}",
    "used": r"\d{1,15}-\d{0,15}-\d{1,15}",
    "model": r"[^/~]+",
    "base": r"\d{9}",
    "parent": r"[^/~]+",
    "began": r"\d{1,15}",
    "took": r"\d{1,15}",
    "root": r"[0-9a-f]{32}",
    "before": r"[0-9a-f]{32}",
    "reply": r"[0-9a-f]{32}",
    "digits": r"[0-9a-f]{16}",
    "folder": r"[cjr]",
}


class Family:
    """One kind of object, and the form of its keys, as `FORMAT.md` shows it."""

    def __init__(self, form: str) -> None:
        self.form = form
        self._top = form.partition("<")[0]
        # The text before each optional part, and the form as a format string.
        self._before = {name: before for before, name in _OPTIONAL.findall(form)}
        self._format = _FIELD.sub(r"{\1}", _OPTIONAL.sub(r"<\2>", form))

    @cached
    def match(self) -> Callable[[str], re.Match[str] | None]:
        """The function that returns the parts of a key, None for a key of another form."""
        escaped = re.escape(self.form).replace(r"\[", "(?:").replace(r"\]", ")?")
        pattern = _FIELD.sub(lambda part: f"(?P<{part[1]}>{_PATTERNS.get(part[1], '[^/]+')})", escaped)
        return re.compile(pattern, re.ASCII).fullmatch

    def prefix(self, part: str = "") -> str:
        """Return the beginning of the keys below one session or space, given by its key part, or of all."""
        return f"{self._top}{part}/" if part else self._top

    def key(self, **parts: object) -> str:
        """Return the key made of `parts`; optional ones may be missing or None. Raises `InvalidKeyError`."""
        texts = dict.fromkeys(self._before, "") | {
            name: "" if part is None else f"{self._before.get(name, '')}{part}"
            for name, part in parts.items()
        }
        key = check_key(self._format.format_map(texts))
        if not self.match(key):
            raise InvalidKeyError(f"{key} does not have the form {self.form}")
        return key


_ITEM = (
    "<session>/<ref>[.<generation>]~<item_type>~<tool>~<chars>~<tokens>[~<ttl>][~of<quotes>][~at<created>]"
)

RECORD = Family(f"r/{_ITEM}<suffix>")
LINK = Family(f"r/{_ITEM}.link")
TOMBSTONE = Family(f"r/{_ITEM}<ending>.<reason>")
BRANCH = Family("r/<session>/from~<parent>~<base>")
FLOOR = Family("r/<session>/floor~<generation>")
FOREIGN = Family("r/<session>/foreign~<origin>")
SIDECAR = Family(f"h/{_ITEM}<suffix>.json")
# Marks have one prefix, so that one listing shows all of a session.
PIN = Family("g/<session>/pinned[~<ref>]")
LAST_USE = Family("g/<session>/used")
GRANT = Family("g/<session>/shared~<ref>~<receiver>")
LAST_READ = Family("g/<session>/read~<ref>")
FORK = Family("g/<session>/forked~<receiver>~<base>")
CLOSED = Family("g/<session>/closed[~<base>]")
DELETED = Family("g/<session>/deleted/<folder>/<object>")
JOURNAL = Family(
    "j/<session>/<number>~<kind>~<bytes>~<letters>[~sent<sent>][~used<used>][~by<model>]"
    "[~after<base>][~from<parent>].zst"
)
CALLS = Family("c/<session>/<root>~<before>[~<reply>]")
SHADOW = Family("c/<session>/shadow~<letters>")
SNAPSHOT = Family("i/<session>/<began>~<took>~<letters>")
PACK = Family("i/<session>/pack~<letters>")
SENT = Family("i/<session>/sent~<root>")
FILE = Family("f/<space>/<name>")
VALUE = Family("k/<space>/<name>")
TRANSCRIPT = Family("s/<project>/<session>/<transcript>/<number>~<letters>.zst")
CLOCK = Family("t/now-<digits>")
CHECK = Family("doctor-<digits>-<name>")
FAMILIES = (
    RECORD, LINK, TOMBSTONE, BRANCH, FLOOR, SIDECAR, PIN, LAST_USE, GRANT, LAST_READ, FORK,
    CLOSED, JOURNAL, CALLS, SNAPSHOT, PACK, FILE, VALUE, CLOCK, CHECK, FOREIGN,
    DELETED, SENT, SHADOW, TRANSCRIPT,
)  # fmt: skip


def tombstone_key(key: str, reason: DeletionReason) -> str:
    """Return the key of the tombstone of the record or link at `key`."""
    return f"{key}.{reason}"


def sidecar_key(key: str) -> str:
    """Return the key of the header of the record at `key`, if its codec stores it as a separate object."""
    return f"{SIDECAR.prefix()}{key.removeprefix(RECORD.prefix())}.json"


def random_letters() -> str:
    """Return the ten letters that make the key of a journal entry or snapshot unique."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(10))


def is_ref(text: object) -> TypeGuard[str]:
    """Return whether `text` has the form of a ref; no other text is looked up in a store."""
    return isinstance(text, str) and _REF.fullmatch(text) is not None


def is_link(key: str) -> bool:
    """Return whether the key is that of a record that another session shares."""
    return key.endswith(".link")


def session_part(key: str) -> str:
    """Return the session's key part of any key below a session."""
    return key.split("/", 2)[1]


def generation_of(key: str) -> int:
    """Return the generation in the key of a record, link or tombstone; 1 in any other key."""
    match = RECORD.match(key) or LINK.match(key) or TOMBSTONE.match(key)
    return int(match["generation"] or 1) if match else 1


def as_created(key: str) -> str:
    """Return the key that the record at `key` had before it was copied; see `FORMAT.md`."""
    return _CREATED.sub("", key)


def name_of(key: str) -> str:
    """Return the key of a record, link or tombstone without its session."""
    return key.rpartition("/")[2]


def ref_of(name: str) -> str:
    """Return the ref that a name returned by `name_of` begins with."""
    return name.partition("~")[0].partition(".")[0]


def item_type_of(name: str) -> str:
    """Return the item type in the key of a record, link or tombstone, or in its name."""
    return name.split("~", 2)[1]


def tool_part(name: str) -> str:
    """Return the tool's key part in the key of a record, link or tombstone, or in its name."""
    return name.split("~", 3)[2]


def family_of(key: str) -> Family | None:
    """Return the family of `key`; None if the library writes no such key."""
    return next((family for family in FAMILIES if family.match(key)), None)
