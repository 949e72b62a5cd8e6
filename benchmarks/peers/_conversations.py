"""The recorded conversations that the comparison runs on, and the large results of tools in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from _content import output
from peers._environments import REPOSITORY

from offload import MessageError
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for
from offload.replay import Transcript, find, load

SHARED = REPOSITORY.parent / "shared"
LEAST_CHARS = 5_000


def folder() -> Path:
    """Return the folder OFFLOAD_TRANSCRIPTS, or `shared/transcripts` next to the repository."""
    return Path(os.environ.get("OFFLOAD_TRANSCRIPTS", SHARED / "transcripts"))


def conversations() -> Iterator[Transcript]:
    """Yield the conversations in the folder; none if it is not there."""
    for path in find([folder()]) if folder().is_dir() else ():
        try:
            yield from load(path)
        except MessageError:
            continue  # The folder also has files that are not conversations.


def large_results() -> list[str]:
    """Return the results of tools that have more than `LEAST_CHARS`, or made-up ones, and say so."""
    messages = (message for conversation in conversations() for message in conversation.messages)
    scans = (adapter_for(message).scan(message, "message", Calls()) for message in messages)
    texts = [item.text for scan in scans for item in scan.items if item.item_type == "tool_result"]
    if not texts:
        print("no transcripts: results of tools are made up; set OFFLOAD_TRANSCRIPTS to a folder of them")
        texts = [output(LEAST_CHARS + 150 * number, number) for number in range(1, 200)]
    return [text for text in texts if len(text) > LEAST_CHARS]
