"""Records of texts that only look like placeholders: with one, `restore` knows that it is just text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from offload.engine.items import unweighed
from offload.engine.recognition import Claim, ProofKey, Recognition
from offload.engine.writer import ItemWriter, WriteRequest
from offload.errors import MessageError, OffloadError
from offload.messages.base import Item
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for


class LookAlikes:
    """The texts in the messages of a session that have the form of its placeholders, and are none.

    `offload` replaces such a text or stores it; this is for messages that it did not get, or that are sent
    otherwise than it returned them.
    """

    def __init__(self, recognition: Recognition, writer: ItemWriter) -> None:
        self._recognition = recognition
        self._writer = writer
        self._kept = set[ProofKey]()

    def keep(self, messages: Sequence[Any]) -> None:
        """Store each of them in `messages` that is not stored yet, with the text as its own placeholder.

        Raises `OffloadError` if that failed for one; the others are stored.
        """
        claims = list(self._claims(messages))
        if not claims:
            return
        failed, requests = [], []
        for (item, _), proof in zip(claims, self._recognition.prove(claims), strict=True):
            if isinstance(proof, OffloadError):
                failed.append(proof)
            elif proof == "refuted":
                requests.append(WriteRequest(item, unweighed(item, 0), is_forced=True, keeps_text=True))
        for request, outcome in zip(requests, self._writer.write(requests), strict=True):
            if isinstance(outcome, OffloadError):
                failed.append(outcome)
            else:
                self._kept.add(ProofKey.of(request.item))
        for error in failed:
            raise error

    def _claims(self, messages: Sequence[Any]) -> Iterator[tuple[Item, Claim]]:
        for message in messages:
            try:
                scan = adapter_for(message).scan(message, "message", Calls())
            except MessageError:
                continue
            for item in scan.offloadable:
                claim = self._recognition.claim(item)
                if claim is not None and claim.has_own_form and ProofKey.of(item) not in self._kept:
                    yield item, claim
