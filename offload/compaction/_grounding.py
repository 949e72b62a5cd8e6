"""Whether a summary or a ledger has exact values that its messages do not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from offload.evidence.missing import missing_values
from offload.evidence.session import SessionEvidence
from offload.offloader import Offloader
from offload.session.reader import SessionReader

# "report" names such values to the host, "retry" first asks the model for another summary, once.
Grounding = Literal["off", "report", "retry"]


def ungrounded(text: str, sources: Sequence[str], offloader: Offloader) -> tuple[str, ...]:
    """Return the different exact values in a text that neither its sources nor the session's records have.

    The records are read only if a source lacks a value, for 8
    seconds at most; if not all can be read, their values are unknown, and none is returned.
    """
    texts = [*map(offloader.options.redacted, sources)]
    missing = missing_values(text, texts)
    if not missing:
        return ()
    evidence = SessionEvidence(SessionReader(offloader.store, offloader.session), offloader.options)
    return tuple(dict.fromkeys(value.text for value in evidence.lacking(missing)))
