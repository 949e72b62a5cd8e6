"""Whether a summary or a ledger has exact values that its messages do not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from offload.messages.formats import scan_of
from offload.offloader import Offloader
from offload.reading.evidence.missing import missing_values
from offload.reading.evidence.session import SessionEvidence
from offload.records.session.reader import SessionReader

# "report" names such values to the host, "retry" first asks the model for another summary, once.
Grounding = Literal["off", "report", "retry"]


def ungrounded(text: str, messages: Sequence[Any], offloader: Offloader) -> tuple[str, ...]:
    """Return the different exact values in a text that neither messages nor the session's records have.

    The messages count as they were before their items were offloaded too. The records are read only if these
    lack a value, for 8 seconds at most; if not all can be read, their values are unknown, and none is
    returned.
    """
    pairs = zip(offloader.originals(messages), messages, strict=True)
    changed = [original for original, message in pairs if original not in (None, message)]
    missing = missing_values(text, _texts([*messages, *changed], offloader))
    if not missing:
        return ()
    evidence = SessionEvidence(SessionReader(offloader.store, offloader.session), offloader.options)
    return tuple(dict.fromkeys(value.text for value in evidence.lacking(missing)))


def _texts(messages: Sequence[Any], offloader: Offloader) -> list[str]:
    return [offloader.options.redacted(text) for message in messages for text in scan_of(message).all_texts]
