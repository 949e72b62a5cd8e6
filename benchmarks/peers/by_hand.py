"""No library: `json.dump` into a folder, a thousand characters left, plain Python to read back."""

from __future__ import annotations

import json
import re
from pathlib import Path

from peers._peer import PREVIEW_CHARS, Peer
from peers._tasks import main


class ByHand(Peer):
    """The solution written by hand in an afternoon."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """See `Peer`."""
        self._folder = Path(store, session)
        self._least_chars = least_chars or 0

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        if len(text) < self._least_chars:
            return text
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{call_id}.json"
        with path.open("w", encoding="utf-8") as file:
            json.dump({"call": call_id, "content": text}, file)
        return f"{text[:PREVIEW_CHARS]}\n[{len(text)} characters, saved to {path}]"

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        return shown.rpartition("saved to ")[2].rstrip("]")

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        return "\n".join(self._load(ref).split("\n")[first - 1 : first - 1 + count])

    def chars(self, ref: str, offset: int, count: int) -> str:
        """See `Peer`."""
        return self._load(ref)[offset : offset + count]

    def tail(self, ref: str, count: int) -> str:
        """See `Peer`."""
        return "\n".join(self._load(ref).splitlines()[-count:])

    def find(self, ref: str, text: str, more: str = "") -> str:  # noqa: ARG002 # all is shown
        """See `Peer`."""
        return "\n".join(line for line in self._load(ref).split("\n") if text in line)

    def grep(self, ref: str, pattern: str) -> str:
        """See `Peer`."""
        return "\n".join(line for line in self._load(ref).split("\n") if re.search(pattern, line))

    def _load(self, ref: str) -> str:
        with Path(ref).open(encoding="utf-8") as file:
            return str(json.load(file)["content"])


if __name__ == "__main__":
    main(ByHand)
