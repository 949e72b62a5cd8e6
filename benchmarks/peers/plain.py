"""No library: everything stays in the window."""

from __future__ import annotations

from peers._peer import Peer
from peers._tasks import main


class Everything(Peer):
    """Nothing leaves the messages."""

    def offload(self, text: str, call_id: str) -> str:  # noqa: ARG002 # nothing is stored
        """See `Peer`."""
        return text


if __name__ == "__main__":
    main(Everything)
