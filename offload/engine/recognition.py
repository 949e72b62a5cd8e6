"""Which texts are placeholders, and which items are stored: the records decide (rule R6).

A text that looks like a placeholder claims a ref. The header of a record with that ref proves or refutes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Literal, NamedTuple

from offload.errors import OffloadError
from offload.events import failure
from offload.messages import Item
from offload.options import Options
from offload.placeholder import MediaAwareRenderer
from offload.record import Header, RecordInfo, encode_text
from offload.session import Session, SessionReader

# "ours": a record says that the text is its placeholder. "foreign": no record does, and all were read.
# An error: the records could not be read.
Proof = Literal["ours", "foreign"] | OffloadError


class _Claim(NamedTuple):
    """The key of a proof: the same text in another place is another claim."""

    text: str
    item_type: str
    tool_use_id: str | None

    @classmethod
    def of(cls, item: Item) -> _Claim:
        return cls(item.text, item.item_type, item.tool_use_id)


class Recognition:
    """Finds placeholders among look-alikes, and items that the session already holds."""

    def __init__(self, session: Session, options: Options) -> None:
        self._session = session
        self._never_replaced = frozenset(options.policy.never_replaced)
        self._renderer = MediaAwareRenderer(options.placeholder)
        self._hooks = options
        self._proofs: dict[_Claim, Literal["ours", "foreign"]] = {}

    # Placeholders

    def is_plain(self, item: Item) -> bool:
        """Return whether an item never gets a placeholder, so that its text is just text."""
        return item.is_pending or item.item_type in self._never_replaced

    def claim(self, text: str) -> str | None:
        """Return the ref that `text` names if it looks like a placeholder, without asking the store.

        Raises:
            OffloadError: the renderer failed.
        """
        try:
            return self._renderer.find_ref(text)
        except Exception as error:
            raise failure("placeholder: find_ref raised", error) from error

    def note(self, item: Item, placeholder: str) -> None:
        """Remember that `placeholder` replaces `item`."""
        self._proofs[_Claim(placeholder, item.item_type, item.tool_use_id)] = "ours"

    def prove(self, items: Sequence[Item]) -> list[Proof]:
        """Return the proof for each of `items`, which all look like placeholders.

        It costs one listing and the headers of the named records, once per claim. A claim whose records could
        not be read is checked again by the next call.
        """
        unknown = [item for item in items if self._known(item) is None]
        checked = dict(zip(map(_Claim.of, unknown), self._checked(unknown), strict=True))
        self._proofs.update((c, p) for c, p in checked.items() if not isinstance(p, OffloadError))
        return [self._known(item) or checked[_Claim.of(item)] for item in items]

    def _known(self, item: Item) -> Proof | None:
        claim = _Claim.of(item)
        anywhere = claim._replace(tool_use_id=None)
        if item.item_type == "tool_result" and self._proofs.get(anywhere) == "ours":
            return "ours"
        return self._proofs.get(claim)

    def _checked(self, items: Sequence[Item]) -> list[Proof]:
        refs = [self.claim(item.text) or "" for item in items]
        catalog = self._session.catalog
        try:
            catalog.refresh(refs)
        except OffloadError as error:
            return [error] * len(items)
        claimed = candidates(self._session, zip(refs, items, strict=True))
        headers: dict[str, list[Header | OffloadError]] = {}
        for info, record in self._session.open_many(claimed):
            header = record if isinstance(record, OffloadError) else record.header
            headers.setdefault(info.ref, []).append(header)
        return [
            _proof([*headers.get(ref, ()), *self._deleted(ref, item)], item)
            for ref, item in zip(refs, items, strict=True)
        ]

    def _deleted(self, ref: str, item: Item) -> Iterator[Header | OffloadError]:
        """Yield the header of a deleted record, which is readable during the grace period."""
        tombstone = self._session.catalog.tombstone(ref)
        if tombstone is not None and tombstone.item_type == item.item_type:
            yield self._session.deleted_header(tombstone)

    # Stored items

    def load_session(self) -> None:
        """Load the catalog of the session with one listing; if the store fails it remains unknown."""
        with suppress(OffloadError):
            self._session.catalog.load()

    def stored_ref(self, item: Item) -> str | None:
        """Return the ref of the record that the session is known to hold of `item`. Asks no store."""
        if self._session.catalog.is_empty:
            return None
        try:
            text = self._hooks.to_store(item)
        except Exception:  # noqa: BLE001 # the hook's failure is reported when the item is stored
            return None
        return self._session.knows(self._session.identity_of(item, sha256(encode_text(text)).digest()))

    def has_lost(self, infos: Callable[[], Sequence[RecordInfo]]) -> bool:
        """Return whether any record of `infos()` was deleted; asks only if this process deleted some."""
        return self._session.has_new_deletions() and bool(self._session.gone(infos()))


def candidates(session: SessionReader, claims: Iterable[tuple[str, Item]]) -> list[RecordInfo]:
    """Return the known records whose keys match claims by ref and item type, in order of their refs."""
    types: dict[str, set[str]] = {}
    for ref, item in claims:
        types.setdefault(ref, set()).add(item.item_type)
    return [i for ref in sorted(types) for i in session.catalog.known(ref) if i.item_type in types[ref]]


def stands_for(header: Header, item: Item) -> bool:
    """Return whether the text of `item` is the placeholder of the record that `header` describes.

    A result may be stored before its call has an id, as `offload_text` does; its message has one later.
    """
    return (
        header.placeholder == item.text
        and header.item_type == item.item_type
        and (
            header.tool_use_id == item.tool_use_id
            or (header.tool_use_id is None and header.item_type == "tool_result")
        )
    )


def _proof(headers: Sequence[Header | OffloadError], item: Item) -> Proof:
    if any(isinstance(header, Header) and stands_for(header, item) for header in headers):
        return "ours"
    errors = [header for header in headers if isinstance(header, OffloadError)]
    return errors[0] if errors else "foreign"
