"""Offloaded content as a tree of JSON documents that an agent opens with its own Read tool.

index.json                              list of the documents
tool_result/Read/call_kqzmwpxhva.json   one document, named after its item_id
user_message/msg_enuqpkzrgm.json
.offload/                               the store of the records, from which the documents are made
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack

from offload.agent.presets._files import local_path
from offload.agent.presets.context_fs._layout import JSON, ZST, Document, PathRenderer, folder_of
from offload.agent.presets.context_fs._rules import DocumentRules
from offload.agent.presets.context_fs._tree import TreeStore
from offload.base.threads.calls import as_async
from offload.engine.cache_state import HostCache
from offload.engine.policy import Decision, OffloadPolicy
from offload.engine.policy.facts import PolicyName
from offload.engine.policy.tool_names import matches_any
from offload.engine.results import OffloadResult, Restored
from offload.engine.settings.options import PresetOptions
from offload.errors import ConfigError, OffloadError
from offload.maintenance.retention import GcReport
from offload.messages.base import BlockIndex
from offload.messages.formats import scan_of
from offload.offloader import Offloader, OnMissing
from offload.records.session.names import check_name, new_name
from offload.storage.layout import encode_part
from offload.storage.registry import open_backend
from offload.storage.wrappers import ReadOnlyStore

__all__ = ["ContextFileSystem", "Document", "ItemState"]

_DEFAULT_ROOT = "~/.agent/context/{session_id}"
_COLLECTION_SECONDS = 3600.0
_KEEP_ALL = DocumentRules(offload_enabled=False).policy(instead=None)

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class ItemState:
    """State of one item in a list of messages.

    Attributes:
        message: index of its message.
        block: index of its block, None if the message content is a single value.
        item_type: item type.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the call, or None.
        tokens: tokens of the item as it was passed to `offload`.
        destroyed: whether it was offloaded because its tool keeps only the latest outputs in view.
        offloaded: whether a placeholder replaces it and its document is in the tree.
        item_id: id of the document, or None.
        offload_path: absolute path of the document, as in the placeholder; or None.
    """

    message: int
    block: BlockIndex
    item_type: str
    tool_name: str | None
    tool_use_id: str | None
    tokens: int
    destroyed: bool
    offloaded: bool
    item_id: str | None
    offload_path: str | None


class ContextFileSystem:
    """Stores large and old items of one session's messages as documents for a Read tool.

    Tool results, user messages and skill prompts above `offload_token_threshold` tokens are offloaded after
    the model's next reply. Without that wait, reading a document would give a placeholder again.

    It is a layout: `fs.offloader` writes the same tree from an agent loop (`ContextManager(fs.offloader)`), a
    sink or a compaction.

    Args:
        root: folder of the tree, on this machine; `{session_id}` in it is replaced by the session name. The
            default is `~/.agent/context/{session_id}`. Only this user may have write access.
        session: as for `Offloader`; the same name and root resume a session.
        offload_enabled: False keeps all items, including outputs of ephemeral tools.
        offload_token_threshold: offload items with more tokens than this.
        type_enabled: item type → whether its items are offloaded, as changes to the default:
            `{"assistant_message": True, "user_message": False}`. A compaction summary never is.
        ephemeral: number of latest outputs to keep in view per tool, by tool name or glob, ignoring case:
            `{"Read": 3}`. Older outputs are offloaded if they are longer than a placeholder; the latest are
            kept at any size up to `OffloadPolicy.max_view_tokens`.
        ephemeral_keep_recent: replaces every number in `ephemeral`.
        ttl: minimum lifetime of a document: seconds, a `timedelta` or a text like "7d". Later calls of
            `offload` delete expired documents, even if a message refers to them. None keeps all.
        policy: a policy that replaces `offload_enabled` and the five arguments after it.
        compress: write documents as zstd streams (`.zst`) instead of JSON. Placeholders then name
            `context_read`, one of `fs.offloader.tools`.
        **options: `token_counter`, `redact`, `on_error` and others, as for `Offloader`.

    Attributes:
        root: absolute path of the tree.
        offloader: the `Offloader` of the session.

    Raises:
        ConfigError: an argument is invalid, or the root is a URL. Nothing is read or written.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        session: str | None = None,
        *,
        offload_enabled: bool = True,
        offload_token_threshold: int = 2000,
        type_enabled: Mapping[str, bool] | None = None,
        ephemeral: Mapping[str, int] | None = None,
        ephemeral_keep_recent: int | None = None,
        ttl: float | str | timedelta | None = None,
        policy: OffloadPolicy | PolicyName | None = None,
        compress: bool = False,
        **options: Unpack[PresetOptions],
    ) -> None:
        if not isinstance(compress, bool):
            raise ConfigError(f"compress must be a bool, got {compress!r:.60}")
        session = new_name() if session is None else check_name(session)
        self.root = _root(_DEFAULT_ROOT if root is None else root, session)
        self._tree = TreeStore(open_backend(self.root))
        self._renderer = PathRenderer(self.root, ZST if compress else JSON)
        rules = DocumentRules(
            offload_enabled=offload_enabled,
            offload_token_threshold=offload_token_threshold,
            type_enabled={} if type_enabled is None else type_enabled,
            ephemeral={} if ephemeral is None else ephemeral,
            ephemeral_keep_recent=ephemeral_keep_recent,
            ttl=ttl,
        )
        self._ephemeral = frozenset(rules.ephemeral)
        policy = rules.policy(instead=policy)
        self.offloader: Offloader = Offloader(
            self._tree,
            session=session,
            policy=policy,
            placeholder=self._renderer,
            prompt=self._renderer.prompt(),
            **options,
        )
        self._expires = any(rule.ttl is not None for rule in (*policy.types.values(), *policy.tools.values()))
        self._collects_at = 0.0
        self._last = OffloadResult([], [], ([], 0), 0, 0, 0, [])

    def __repr__(self) -> str:
        return f"ContextFileSystem({str(self.root)!r}, session={self.session!r})"

    @property
    def session(self) -> str:
        """Name of the session."""
        return self.offloader.session

    def offload(
        self, messages: Sequence[Any], *, pinned: Iterable[str] = (), cache: HostCache | None = None
    ) -> OffloadResult:
        """Replace items by placeholders; call it with the whole conversation before each request.

        Arguments and errors are those of `Offloader.offload`. After it, at most once an hour, documents past
        their `ttl` are deleted; a failure is raised with `on_error="raise"`, otherwise it is in the result.
        """
        result = self.offloader.offload(messages, pinned=pinned, cache=cache)
        self._last = result
        try:
            if self._expires and time.monotonic() >= self._collects_at and self.root.is_dir():
                self._collects_at = time.monotonic() + _COLLECTION_SECONDS
                self.gc()
        except OffloadError as error:
            if self.offloader.options.on_error == "raise":
                raise
            _log.warning("session %s: could not delete expired documents: %s", self.session, error)
            result.errors.append(error)
        return result

    def restore(self, messages: Sequence[Any], *, on_missing: OnMissing = "raise") -> Restored:
        """Return `messages` with every placeholder replaced by its content; see `Offloader.restore`."""
        return self.offloader.restore(messages, on_missing=on_missing)

    aoffload = as_async(offload)
    """Run `offload` in a thread."""
    arestore = as_async(restore)
    """Run `restore` in a thread."""

    def items(self, messages: Sequence[Any] | None = None) -> list[ItemState]:
        """Return every item in `messages`, in order; by default in those of the last `offload` call.

        Messages with placeholders, such as `ContextManager.messages`, may be given. Nothing is stored.
        """
        result = self._last if messages is None else self._looked_at(messages)
        texts = {
            (index, item.block): item.text
            for index in {decision.item.message for decision in result.decisions}
            for item in scan_of(result.messages[index]).offloadable
        }
        # An image, which is never offloaded here, moves when one text replaces several blocks before it.
        return [self._state(d, texts.get((d.item.message, d.item.block), "")) for d in result.decisions]

    def history(self) -> list[Document]:
        """Return the session's documents from all processes, oldest first. Raises `StoreError`."""
        return self._tree.documents(encode_part(self.session))

    def gc(self, *, dry_run: bool = False) -> GcReport:
        """Delete expired documents now, and their records after an hour; see `Offloader.gc`.

        With `dry_run` nothing is written. Raises `StoreError`.
        """
        return self.offloader.gc(dry_run=dry_run)

    def reindex(self) -> None:
        """Rebuild the documents and the index from the records. Raises `StoreError`."""
        self._tree.reindex()

    def _looked_at(self, messages: Sequence[Any]) -> OffloadResult:
        """Return a result with the decisions on `messages`, none of which stores an item."""
        reader = self.offloader.with_options(
            store=ReadOnlyStore(self._tree), policy=_KEEP_ALL, on_error="keep", events=None
        )
        return reader.offload(messages)

    def _state(self, decision: Decision, text: str) -> ItemState:
        item = decision.item
        # The placeholder of another process, which its record has proved.
        ref = decision.ref or (self._renderer.find_ref(text) if item.is_stored else None)
        is_ephemeral = item.item_type == "tool_result" and matches_any(item.tool_name, self._ephemeral)
        return ItemState(
            message=item.message,
            block=item.block,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            tokens=item.tokens,
            destroyed=ref is not None and is_ephemeral,
            offloaded=ref is not None,
            item_id=ref,
            offload_path=None if ref is None else self._renderer.find_path(text),
        )


def _root(path: Any, session: str) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not text or not text.isprintable():
        raise ConfigError(f"root must be a local folder in printable characters, got {path!r:.200}")
    return local_path(text.replace("{session_id}", folder_of(encode_part(session))), "root")
