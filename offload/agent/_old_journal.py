"""The journal as release 0.1 kept it: records of a session named `<session>.journal`. It is only read."""

from __future__ import annotations

import json
import re

from offload.agent._entries import Entry, Told, ToldLine, latest
from offload.context import ItemType
from offload.messages import from_json
from offload.record import decode_text
from offload.session import SessionReader
from offload.store import OffloadStore

_LABEL = re.compile(r"(begun|whole|grown)-(\d{1,9})", re.ASCII)


def read_old(store: OffloadStore, session: str) -> Told:
    """Return the conversation of `session` as release 0.1 wrote it down; empty if it did not.

    Raises:
        CollisionError: two agents went on with the conversation at once.
        NotFoundError: an entry was collected.
        OffloadError: an entry is damaged, or cannot be read.
    """
    reader = SessionReader(store, f"{session}.journal")
    infos = [info for info in reader.infos() if info.item_type == "user_message"]
    labelled = ((_LABEL.fullmatch(info.tool_name or ""), info) for info in infos)
    found = [Entry(int(label[2]), label[1], info) for label, info in labelled if label]
    told = Told()
    for _, content in reader.load_many([entry.at for entry in latest(found, session)]):
        head, *rows = (json.loads(row, object_hook=from_json) for row in decode_text(content).split("\n"))
        lines = [ToldLine(ItemType(row["type"]), row["message"]) for row in rows]
        told = Told([*told.lines, *lines], head["ratios"])
    return told
