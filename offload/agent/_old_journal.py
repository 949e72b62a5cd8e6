"""The journal of release 0.1: records of a session named `<session>.journal`. It is only read."""

from __future__ import annotations

import json
import re

from offload.agent._entries import JournalEntry, JournalMessage, JournalState, latest
from offload.context import ItemType
from offload.messages import from_json
from offload.record import decode_text
from offload.session import SessionReader
from offload.store import OffloadStore

_LABEL = re.compile(r"(begun|whole|grown)-(\d{1,9})", re.ASCII)


def read_old(store: OffloadStore, session: str) -> JournalState:
    """Return the conversation of `session` from the journal of release 0.1; empty if it has none.

    Raises the errors of `Journal.read`.
    """
    reader = SessionReader(store, f"{session}.journal")
    infos = [info for info in reader.infos() if info.item_type == "user_message"]
    labelled = ((_LABEL.fullmatch(info.tool_name or ""), info) for info in infos)
    entries = [JournalEntry(int(label[2]), label[1], info) for label, info in labelled if label]
    state = JournalState()
    for _, content in reader.load_many([entry.at for entry in latest(entries, session)]):
        head, *rows = (json.loads(row, object_hook=from_json) for row in decode_text(content).split("\n"))
        messages = [JournalMessage(ItemType(row["type"]), row["message"]) for row in rows]
        state = JournalState([*state.messages, *messages], head["ratios"])
    return state
