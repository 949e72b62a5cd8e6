"""A machine with any release of the library; `python tests/release.py FOLDER` answers requests in JSON lines.

A request is `[name, arguments…]` of a function below; the answer is its result, or `{"error": kind}`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from offload import Offloader, OffloadError
from offload.policy import Retention
from offload.retention import collect
from offload.retention import delete as delete_records
from offload.retention import pin as pin_record


class Machine:
    """The requests that a machine serves on one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def offload(self, session: str, codec: str, messages: list[Any]) -> list[Any]:
        """Offload messages."""
        return self._open(session, codec).offload(messages).messages

    def restore(self, session: str, messages: list[Any]) -> list[Any]:
        """Restore messages."""
        return self._open(session).restore(messages)

    def records(self, session: str) -> list[list[Any]]:
        """Return the facts of each record that a listing shows."""
        records = self._open(session).records()
        return sorted(
            [r.ref, r.item_type, r.tool_name, r.chars, r.tokens, r.stored_bytes, r.key] for r in records
        )

    def read(self, session: str, ref: str) -> str:
        """Return the content of a record."""
        return b"".join(self._open(session).content(ref)).decode()

    def damage(self, session: str) -> list[str]:
        """Return the keys of damaged records."""
        return [damage.info.key for damage in self._open(session).verify()]

    def gc(self, grace: int) -> None:
        """Run gc on the whole folder."""
        collect(self._open("gc").store, Retention(grace=grace))

    def delete(self, session: str, refs: list[str]) -> None:
        """Mark records for deletion."""
        delete_records(self._open(session).store, session, refs)

    def pin(self, session: str, ref: str) -> None:
        """Pin a record."""
        pin_record(self._open(session).store, session, ref)

    def serve(self, request: list[Any]) -> Any:
        """Return the answer to a request."""
        name, *arguments = request
        try:
            return getattr(self, name)(*arguments)
        except OffloadError as error:
            return {"error": error.kind}

    def _open(self, session: str, codec: str = "zstd") -> Offloader:
        return Offloader(self._folder, session=session, codec=codec)


if __name__ == "__main__":
    machine = Machine(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(machine.serve(json.loads(line))), flush=True)  # noqa: T201 # the answer to a request
