"""Putting back what placeholders stand for, each only where its record says so (rule R6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offload.errors import MessageError
from offload.messages import Item, Scan, adapter_for
from offload.placeholder import PlaceholderRenderer, WithMedia
from offload.record import Header, RecordInfo, decode_text
from offload.session import Session

_Claims = Mapping[str, Sequence[tuple[Header, bytes]]]


class Restorer:
    """Restores messages from the records of one session."""

    def __init__(self, session: Session, renderer: PlaceholderRenderer) -> None:
        self._session = session
        self._renderer = WithMedia(renderer)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with each placeholder replaced by its item; all others are the same objects."""
        scans = [(message, _scan(message)) for message in messages]
        claims = self._load_claims(item for _, scan in scans for item in scan.found)
        return [self._restored(message, scan.found, claims) for message, scan in scans]

    def _load_claims(self, items: Iterable[Item]) -> _Claims:
        """Return, by ref, the records that texts among `items` claim to stand for."""
        refs = {ref for item in items if (ref := self._renderer.find_ref(item.text)) is not None}
        catalog = self._session.catalog
        if refs:
            # Another writer may have stored an item that is known here under another key as well.
            catalog.load()
        infos = [info for ref in sorted(refs) for info in catalog.known(ref) or self._expect(ref)]
        claims: dict[str, list[tuple[Header, bytes]]] = {}
        for header, content in self._session.load_many(infos):
            claims.setdefault(header.ref, []).append((header, content))
        return claims

    def _expect(self, ref: str) -> list[RecordInfo]:
        """Raise `ExpiredError` for a ref whose record was collected; any other stands for nothing."""
        self._session.check_not_collected(ref)
        return []

    def _restored(self, message: Any, items: Sequence[Item], claims: _Claims) -> Any:
        for item in items:
            ref = self._renderer.find_ref(item.text)
            if ref is None:
                continue
            for header, content in claims.get(ref, ()):
                if stands_for(header, item):
                    text = decode_text(content)
                    message = adapter_for(message).restore(message, item.block, text, header.form)
                    break
            else:
                self._session.check_not_collected(ref)
        return message


def stands_for(header: Header, item: Item) -> bool:
    """Tell whether the text of `item` is the placeholder of the record that `header` describes."""
    return (
        header.placeholder == item.text
        and header.item_type == item.item_type
        and header.tool_use_id == item.tool_use_id
    )


def _scan(message: Any) -> Scan:
    """Return the items of a message; one that is malformed was never replaced and has none."""
    try:
        return adapter_for(message).scan(message, "message", {})
    except MessageError:
        return Scan()
