"""Which texts are placeholders or notices, and which items are stored: the records decide.

A text that looks like a placeholder or a notice claims refs. The header of a record with such a ref proves or
refutes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from hashlib import sha256
from typing import Literal, NamedTuple

from offload.base.text import encode_text
from offload.engine.placeholder import Notice
from offload.engine.placeholder.default import DefaultRenderer, MediaAwareRenderer
from offload.engine.placeholder.forms import known_refs
from offload.engine.placeholder.notice import NOTICE_TYPE
from offload.engine.settings.hooks import host_call
from offload.engine.settings.options import Options
from offload.errors import OffloadError, failure, result_or_error, unexpected
from offload.messages.base import Item
from offload.messages.calls import plain_name
from offload.records.record import Header, RecordInfo
from offload.records.session import Session
from offload.records.session.reader import SessionReader

# "proven": a record says that the text is its placeholder. "refuted": no record does, and all were read.
# An error: the records could not be read.
Proof = Literal["proven", "refuted"] | OffloadError


_NOTICE = Notice()


class Claim(NamedTuple):
    """The refs in a text that looks like a placeholder or a notice.

    Attributes:
        refs: the refs that it names, one per form that it has; the record of one of them may prove it.
        has_own_form: whether it has the form of the session's own placeholders or of a notice. Unproven,
            `offload` stores it as a look-alike and `restore` reports it; any other form is then just text.
        is_notice: whether it has the form of a notice.
    """

    refs: tuple[str, ...]
    has_own_form: bool
    is_notice: bool


class ProofKey(NamedTuple):
    """The key of a proof: the same text in another place is another claim.

    The place of a result without a call id is its tool.
    """

    text: str
    item_type: str
    tool_use_id: str | None
    tool: str | None = None

    @classmethod
    def of(cls, item: Item) -> ProofKey:
        """Return the place and the text of an item."""
        is_named = item.item_type == "tool_result" and item.tool_use_id is None and item.tool_name
        tool = plain_name(item.tool_name) if is_named and item.tool_name else None
        return cls(item.text, item.item_type, item.tool_use_id, tool)

    @property
    def anywhere(self) -> ProofKey:
        """The key of a result that was stored before its call had an id: it proves the text of any call."""
        return self._replace(tool_use_id=None, tool=None) if self.item_type == "tool_result" else self


class Recognition:
    """Finds placeholders among look-alikes, and items that the session already holds.

    Attributes:
        session: the session of the records.
        proven: the placeholders that a record proved; the offloaders of one session share them.
    """

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self._never_replaced = frozenset(options.policy.never_replaced)
        self._renderer = MediaAwareRenderer(options.placeholder)
        self._has_other_renderer = type(options.placeholder) is not DefaultRenderer
        self._hooks = options
        self.proven: set[ProofKey] = set()
        # Of the forms that this renderer knows, so of no other offloader.
        self._refuted: set[ProofKey] = set()

    # Placeholders

    def is_plain(self, item: Item) -> bool:
        """Return whether an item never gets a placeholder, so that its text is just text."""
        return item.is_pending or item.item_type in self._never_replaced

    def claim(self, item: Item, text: str | None = None) -> Claim | None:
        """Return what the text of an item, or `text` in its place, claims to be; None for plain text.

        Asks no store. Raises `OffloadError` if the renderer failed.
        """
        text = item.text if text is None else text
        try:
            with host_call() if self._has_other_renderer else nullcontext():
                own = self._renderer.find_ref(text)
        except Exception as error:
            raise failure("placeholder: find_ref raised", error, text) from error
        notice = _NOTICE.find_ref(text) if item.item_type == NOTICE_TYPE else None
        refs = dict.fromkeys(ref for ref in (notice, own, *known_refs(text)) if ref)
        if not refs:
            return None
        has_own_form = bool(own or notice) and not self.is_plain(item)
        return Claim(tuple(refs), has_own_form, notice is not None)

    def note(self, item: Item, placeholder: str) -> None:
        """Remember that `placeholder` replaces `item`."""
        key = ProofKey.of(item)._replace(text=placeholder)
        self.proven.add(key)
        if item.tool_use_id is None:
            self.proven.add(key.anywhere)

    def prove(self, claims: Sequence[tuple[Item, Claim]], *, is_listed: bool = False) -> list[Proof]:
        """Return the proof of each claim.

        It costs a listing, unless the session `is_listed` since the claims were made, and the headers of the
        named records, once per claim. A claim whose records could not be read is checked again by the next
        call.
        """
        unknown = [(item, claim) for item, claim in claims if self._known(item) is None]
        proofs = self._checked(unknown, is_listed=is_listed)
        checked = dict(zip((ProofKey.of(item) for item, _ in unknown), proofs, strict=True))
        self.proven.update(key for key, proof in checked.items() if proof == "proven")
        self._refuted.update(key for key, proof in checked.items() if proof == "refuted")
        return [self._known(item) or checked[ProofKey.of(item)] for item, _ in claims]

    def is_proven(self, item: Item) -> bool:
        """Return whether a record is known to say that the text of an item is its placeholder."""
        return self._known(item) == "proven"

    def _known(self, item: Item) -> Proof | None:
        key = ProofKey.of(item)
        if key in self.proven or (key.tool is None and key.anywhere in self.proven):
            return "proven"
        return "refuted" if key in self._refuted else None

    def _checked(self, claims: Sequence[tuple[Item, Claim]], *, is_listed: bool) -> list[Proof]:
        headers: dict[str, list[Header | OffloadError]] = {}
        try:
            if not is_listed:
                self.session.catalog.refresh(ref for _, claim in claims for ref in claim.refs)
            for info, record in self.session.heads_of(named_records(self.session, claims)):
                header = record if isinstance(record, OffloadError) else record.header
                headers.setdefault(info.ref, []).append(header)
        except Exception as error:  # noqa: BLE001 # a store may raise anything
            return [unexpected(error)] * len(claims)
        return [result_or_error(self._proof, item, claim, headers) for item, claim in claims]

    def _proof(
        self, item: Item, claim: Claim, headers: Mapping[str, Sequence[Header | OffloadError]]
    ) -> Proof:
        return _proof(
            [h for ref in claim.refs for h in (*headers.get(ref, ()), *self.deleted(ref, item))], item
        )

    def deleted(self, ref: str, item: Item) -> Iterator[Header | OffloadError]:
        """Yield the header of a deleted record, which is readable during the grace period."""
        tombstone = self.session.catalog.tombstone(ref)
        if tombstone is not None and tombstone.item_type == item.item_type:
            yield self.session.deleted_header(tombstone)

    # Stored items

    def load_session(self) -> None:
        """Load the catalog of the session with one listing. Raises `OffloadError`; it is unknown then."""
        self.session.catalog.load()
        self.session.facts.is_listed = True

    def stored_ref(self, item: Item) -> str | None:
        """Return the ref of the record that the session is known to hold of `item`. Asks no store.

        Raises `OffloadError` if `redact` failed.
        """
        if self.session.catalog.is_empty:
            return None
        text = self._hooks.to_store(item)
        if not self.session.catalog.has_chars(len(text)):
            return None
        return self.session.knows(self.session.identity_of(item, sha256(encode_text(text)).digest()))

    def refs_of(self, items: Sequence[Item]) -> dict[int, str | OffloadError]:
        """Return the refs of items that the loaded session holds under a ref that is not their own.

        An item whose ref collided has a longer one, and a record that another session shares its ref.
        The keys are indices of `items`; an error in place of a ref says why it is not known. Only records of
        the same type and length are opened.
        """
        texts = [result_or_error(self._hooks.to_store, item) for item in items]
        pairs = zip(items, texts, strict=True)
        sizes = {(item.item_type, len(text)) for item, text in pairs if isinstance(text, str)}
        alike = [i for i in self.session.catalog.entries() if (i.item_type, i.chars) in sizes]
        headers: dict[tuple[str, int], list[Header]] = {}
        for info, record in self.session.heads_of(alike):
            if not isinstance(record, OffloadError):
                headers.setdefault((info.item_type, info.chars), []).append(record.header)
        found = (self._ref_among(headers, *pair) for pair in zip(items, texts, strict=True))
        return {index: ref for index, ref in enumerate(found) if ref is not None}

    def _ref_among(
        self, headers: Mapping[tuple[str, int], Sequence[Header]], item: Item, text: str | OffloadError
    ) -> str | OffloadError | None:
        """Return the ref of the record with the text of an item, by types and sizes; or why it is unknown."""
        if isinstance(text, OffloadError):
            return text
        alike = headers.get((item.item_type, len(text)))
        if not alike:
            return None
        identity = self.session.identity_of(item, sha256(encode_text(text)).digest())
        return next((header.ref for header in alike if identity == self.session.identity_in(header)), None)


def named_records(session: SessionReader, claims: Iterable[tuple[Item, Claim]]) -> list[RecordInfo]:
    """Return the known records whose keys match claims by ref and item type, in order of their refs."""
    types: dict[str, set[str]] = {}
    for item, claim in claims:
        for ref in claim.refs:
            types.setdefault(ref, set()).add(item.item_type)
    return [i for ref in sorted(types) for i in session.catalog.known(ref) if i.item_type in types[ref]]


def stands_for(header: Header, item: Item) -> bool:
    """Return whether the text of `item` is the placeholder of the record that `header` describes.

    A result may be stored before its call has an id, as `offload_text` does; its message has one later. Of
    results without ids the tools must agree, if both are known.
    """
    if header.placeholder != item.text or header.item_type != item.item_type:
        return False
    if header.tool_use_id is not None or item.item_type != "tool_result":
        return header.tool_use_id == item.tool_use_id
    tools = {plain_name(tool) for tool in (header.tool_name, item.tool_name) if tool}
    return item.tool_use_id is not None or len(tools) < 2  # noqa: PLR2004 # of two


def _proof(headers: Sequence[Header | OffloadError], item: Item) -> Proof:
    if any(isinstance(header, Header) and stands_for(header, item) for header in headers):
        return "proven"
    errors = [header for header in headers if isinstance(header, OffloadError)]
    return errors[0] if errors else "refuted"
