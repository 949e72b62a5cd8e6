"""Context as a tree of JSON documents that an agent opens with the Read tool it has anyway.

    fs = ContextFileSystem(ephemeral={"Read": 3})
    sent = fs.offload(messages).messages      # before each request to the model

What leaves the messages is a document under `~/.agent/context/{session_id}`, and its placeholder tells
the path. All else is that of `offload.Offloader`, which `fs.offloader` is:

    index.json                              what the tree holds
    tool_result/Read/call_kqzmwpxhva.json   one document, named after its item_id
    user_message/msg_enuqpkzrgm.json
    .offload/                               the records of the engine, which the documents are links to
"""

from offload.presets.context_fs._filesystem import DEFAULT_ROOT, ContextFileSystem, ItemState
from offload.presets.context_fs._layout import Document, PathRenderer
from offload.presets.context_fs._tree import TreeStore, open_tree

__all__ = [
    "DEFAULT_ROOT",
    "ContextFileSystem",
    "Document",
    "ItemState",
    "PathRenderer",
    "TreeStore",
    "open_tree",
]
