"""Which texts are placeholders of a session: a text claims it, the header of a record proves it (rule R6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from offload.errors import OffloadError
from offload.events import failure
from offload.messages import Item
from offload.placeholder import PlaceholderRenderer, WithMedia
from offload.record import Header, RecordInfo
from offload.session import SessionReader

# "ours": a record says that it stands for the text. "foreign": every record that might was read, none does.
# An error: it could not be tried.
Proof = Literal["ours", "foreign"] | OffloadError


class _Claim(NamedTuple):
    """What a proof holds for: the same text elsewhere is another claim."""

    text: str
    item_type: str
    tool_use_id: str | None

    @classmethod
    def of(cls, item: Item) -> _Claim:
        return cls(item.text, item.item_type, item.tool_use_id)


class Recognition:
    """Tells placeholders from texts that look like one; remembers what it found out.

    Args:
        session: the records.
        renderer: finds refs in texts.
        never_replaced: item types in which the library leaves no placeholder.
    """

    def __init__(
        self, session: SessionReader, renderer: PlaceholderRenderer, never_replaced: Iterable[str] = ()
    ) -> None:
        self._session = session
        self._never_replaced = frozenset(never_replaced)
        self._renderer = WithMedia(renderer)
        self._proofs: dict[_Claim, Literal["ours", "foreign"]] = {}

    def is_plain(self, item: Item) -> bool:
        """Tell whether the library leaves no placeholder where an item stands: its text is just text."""
        return item.is_pending or item.item_type in self._never_replaced

    def claim(self, item: Item) -> str | None:
        """Return the ref that the text of `item` names if it looks like a placeholder. Asks no store.

        Raises `OffloadError` if the caller's renderer fails.
        """
        try:
            return self._renderer.find_ref(item.text)
        except Exception as error:
            raise failure("placeholder: find_ref raised", error) from error

    def note(self, item: Item, placeholder: str) -> None:
        """Remember that `placeholder` stands for `item`."""
        self._proofs[_Claim(placeholder, item.item_type, item.tool_use_id)] = "ours"

    def known(self, item: Item) -> Proof | None:
        """Return what is known of an item that claims to be a placeholder, without asking the store."""
        claim = _Claim.of(item)
        anywhere = claim._replace(tool_use_id=None)
        if item.item_type == "tool_result" and self._proofs.get(anywhere) == "ours":
            return "ours"
        return self._proofs.get(claim)

    def prove(self, items: Sequence[Item]) -> list[Proof]:
        """Return what each of `items` is, all of which claim to be placeholders.

        Costs a listing and the headers of the records that they name, once for each claim. What could not be
        tried is tried again by the next call.
        """
        unknown = [item for item in items if self.known(item) is None]
        tried = dict(zip(map(_Claim.of, unknown), self._tried(unknown), strict=True))
        self._proofs.update((c, p) for c, p in tried.items() if not isinstance(p, OffloadError))
        return [self.known(item) or tried[_Claim.of(item)] for item in items]

    def _tried(self, items: Sequence[Item]) -> list[Proof]:
        """Return the proof of each item from the records that its ref names now."""
        refs = [self.claim(item) or "" for item in items]
        catalog = self._session.catalog
        try:
            catalog.refresh(refs)
        except OffloadError as error:
            return [error] * len(items)
        found = opened_by_ref(self._session, zip(refs, items, strict=True))
        return [
            _proof([*found.get(ref, ()), *self._buried(ref, item)], item)
            for ref, item in zip(refs, items, strict=True)
        ]

    def _buried(self, ref: str, item: Item) -> Iterator[Header | OffloadError]:
        """Yield the header of a record that was collected, which is to be read until it is emptied."""
        tombstone = self._session.catalog.tombstone(ref)
        if tombstone is not None and tombstone.item_type == item.item_type:
            yield self._session.buried_header(tombstone)


def opened_by_ref(
    session: SessionReader, claims: Iterable[tuple[str, Item]]
) -> dict[str, list[Header | OffloadError]]:
    """Return by ref the header of each record that might stand for an item, or why it cannot be read."""
    headers: dict[str, list[Header | OffloadError]] = {}
    for info, record in session.open_many(candidates(session, claims)):
        found = record if isinstance(record, OffloadError) else record.header
        headers.setdefault(info.ref, []).append(found)
    return headers


def candidates(session: SessionReader, claims: Iterable[tuple[str, Item]]) -> list[RecordInfo]:
    """Return the known records that might stand for items by what their keys tell, in order of their refs."""
    types: dict[str, set[str]] = {}
    for ref, item in claims:
        types.setdefault(ref, set()).add(item.item_type)
    return [i for ref in sorted(types) for i in session.catalog.known(ref) if i.item_type in types[ref]]


def stands_for(header: Header, item: Item) -> bool:
    """Tell whether the text of `item` is the placeholder of the record that `header` describes.

    A result that was stored before its call had an id, as `offload_text` may, stands in a message that has
    one.
    """
    return (
        header.placeholder == item.text
        and header.item_type == item.item_type
        and (
            header.tool_use_id == item.tool_use_id
            or (header.tool_use_id is None and header.item_type == "tool_result")
        )
    )


def _proof(found: Sequence[Header | OffloadError], item: Item) -> Proof:
    headers = [header for header in found if isinstance(header, Header)]
    if any(stands_for(header, item) for header in headers):
        return "ours"
    errors = [error for error in found if isinstance(error, OffloadError)]
    return errors[0] if errors else "foreign"
