"""No library: the head and the tail of a large result stay in the window."""

from __future__ import annotations

from peers._peer import Peer
from peers._tasks import main

_LARGE, _HEAD, _TAIL = 10_000, 4_000, 1_000


class Cut(Peer):
    """What is cut out is gone."""

    def offload(self, text: str, call_id: str) -> str:  # noqa: ARG002 # nothing is stored
        """See `Peer`."""
        if len(text) <= _LARGE:
            return text
        return f"{text[:_HEAD]}\n[{len(text) - _HEAD - _TAIL} characters cut]\n{text[-_TAIL:]}"


if __name__ == "__main__":
    main(Cut)
