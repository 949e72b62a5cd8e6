"""Offloaded content as a tree of JSON documents that an agent opens with its own Read tool.

    fs = ContextFileSystem(ephemeral={"Read": 3})
    sent = fs.offload(messages).messages      # before each request to the model

Each offloaded item is a document under `~/.agent/context/{session_id}`; its placeholder gives the path.
`fs.offloader` is the `offload.Offloader` of the session.

    index.json                              list of the documents
    tool_result/Read/call_kqzmwpxhva.json   one document, named after its item_id
    user_message/msg_enuqpkzrgm.json
    .offload/                               the store; documents are hard links to its records
"""

from offload.presets.context_fs._filesystem import ContextFileSystem, ItemState
from offload.presets.context_fs._layout import Document

__all__ = ["ContextFileSystem", "Document", "ItemState"]
