"""Every key that the library writes, one family per kind of object: its form, how it is built and parsed.

In a form `<session>`, `<receiver>`, `<tool>`, `<space>` and `<name>` are key parts made by `encode_part`, and
brackets enclose what may be missing. `FORMAT.md` lists the same forms; a test compares both.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from offload.errors import InvalidKeyError
from offload.layout._encoding import check_key

Reason = Literal["expired", "quota", "deleted"]

# A ref of any style, as a regular expression.
REF_PATTERN = r"(?:[a-z]{10,20}|[0-9a-z]{5,6})"

_PART = re.compile(r"<(\w+)>")
_OPTIONAL = re.compile(r"\[([^<\]]*<(\w+)>)\]")
_PATTERNS = {
    "session": r"[^/]+",
    "ref": REF_PATTERN,
    "generation": r"[2-9]|[1-9]\d{1,5}",
    "item_type": r"[a-z_]+",
    "tool": r"[^/~]*",
    "chars": r"\d{1,15}",
    "tokens": r"\d{1,15}",
    "ttl": r"[1-9]\d{0,9}",
    "suffix": r"\.(?:zst|json|txt)",
    "ending": r"\.[a-z]+",
    "reason": "|".join(get_args(Reason)),
    "receiver": r"[^/~]+",
    "number": r"\d{9}",
    "kind": r"begun|whole|grown",
    "bytes": r"\d{1,9}",
    "letters": r"[a-z]{10}",
    "began": r"\d{1,15}",
    "took": r"\d{1,15}",
    "space": r"[^/]+",
    "name": r"[^/]+",
    "digits": r"[0-9a-f]{16}",
}


class Family:
    """One kind of object, and the form of its keys.

    Args:
        form: the form, as `FORMAT.md` shows it.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        escaped = re.escape(form).replace(r"\[", "(?:").replace(r"\]", ")?")
        pattern = _PART.sub(lambda part: f"(?P<{part[1]}>{_PATTERNS[part[1]]})", escaped)
        self.match = re.compile(pattern, re.ASCII).fullmatch
        self._top = form.partition("<")[0]

    def prefix(self, part: str = "") -> str:
        """Return the beginning of the keys below one session or space, given by its key part, or of all."""
        return f"{self._top}{part}/" if part else self._top

    def key(self, **parts: object) -> str:
        """Return the key made of `parts`; an optional part may be None.

        Raises:
            InvalidKeyError: the store or this family would not accept the key.
        """
        form = _OPTIONAL.sub(lambda group: group[1] if parts[group[2]] is not None else "", self.form)
        key = check_key(_PART.sub(lambda part: str(parts[part[1]]), form))
        if not self.match(key):
            raise InvalidKeyError(f"{key} does not have the form {self.form}")
        return key


_ITEM = "<session>/<ref>[.<generation>]~<item_type>~<tool>~<chars>~<tokens>[~<ttl>]"

RECORD = Family(f"r/{_ITEM}<suffix>")
LINK = Family(f"r/{_ITEM}.link")
TOMBSTONE = Family(f"r/{_ITEM}<ending>.<reason>")
SIDECAR = Family(f"h/{_ITEM}<suffix>.json")
# Marks have one prefix, so that one listing shows all of a session.
PIN = Family("g/<session>/pinned[~<ref>]")
LAST_USE = Family("g/<session>/used")
GRANT = Family("g/<session>/shared~<ref>~<receiver>")
LAST_READ = Family("g/<session>/read~<ref>")
JOURNAL = Family("j/<session>/<number>~<kind>~<bytes>~<letters>.zst")
SNAPSHOT = Family("i/<session>/<began>~<took>~<letters>")
FILE = Family("f/<space>/<name>")
VALUE = Family("k/<space>/<name>")
CLOCK = Family("t/now-<digits>")
CHECK = Family("doctor-<digits>-<name>")
FAMILIES = (
    RECORD, LINK, TOMBSTONE, SIDECAR, PIN, LAST_USE, GRANT, LAST_READ,
    JOURNAL, SNAPSHOT, FILE, VALUE, CLOCK, CHECK,
)  # fmt: skip


def tombstone_key(key: str, reason: Reason) -> str:
    """Return the key of the tombstone of the record or link at `key`."""
    return f"{key}.{reason}"


def sidecar_key(key: str) -> str:
    """Return the key of the header of the record at `key`, if its codec stores it as a separate object."""
    return f"{SIDECAR.prefix()}{key.removeprefix(RECORD.prefix())}.json"


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
