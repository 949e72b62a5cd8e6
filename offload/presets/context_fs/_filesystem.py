"""The context file system of one session: what leaves, what is said in its place, and what became of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from offload.engine.hooks import Summarizer
from offload.engine.results import OffloadResult
from offload.errors import ConfigError, OffloadError
from offload.index import session_prefix
from offload.keys import encode_part
from offload.messages import Block, adapter_for
from offload.offloader import Offloader
from offload.policy import Decision, ItemFacts, OffloadPolicy
from offload.presets.context_fs._layout import Document, PathRenderer, folder_of
from offload.presets.context_fs._tree import TreeStore, open_tree
from offload.record import ITEM_TYPES
from offload.retention import Collection
from offload.session import SessionReader, check_name, new_name
from offload.threads import in_thread

DEFAULT_ROOT = "~/.agent/context/{session_id}"

_OFFLOADED_TYPES = ("tool_result", "user_message", "skill_prompt")
_COLLECTION_SECONDS = 3600.0

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class ItemState:
    """One item of the messages that were handed over last, and what became of it.

    It stands beside the messages and not in them: an API refuses a message with fields of others.

    Attributes:
        message: the index of its message.
        block: the index of its block, None where the content is one value.
        item_type: what kind of part of a message it is.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the call, or None.
        tokens: its tokens as it was handed over.
        destroyed: whether it is out of view since its tool keeps the latest outputs alone.
        offloaded: whether a placeholder stands in its message, and its document in the tree.
        item_id: the id of that document, None without one.
        offload_path: the absolute path of that document, the one that the placeholder tells; or None.
    """

    message: int
    block: Block
    item_type: str
    tool_name: str | None
    tool_use_id: str | None
    tokens: int
    destroyed: bool
    offloaded: bool
    item_id: str | None
    offload_path: str | None


class ContextFileSystem:
    """Keeps large and old parts of one session's messages as documents that a Read tool opens.

    Tool results, user messages and skill prompts of more than `offload_token_threshold` tokens leave once
    the model has answered with them in view; assistant messages, summaries and system prompts stay. A
    result that was never seen does not leave: the model would read the document of what it just read,
    and find a placeholder again.

    Args:
        offload_root_path: the folder of the tree; `{session_id}` in it stands for the session's name.
            Without one it is `~/.agent/context/{session_id}`. It must be on a file system with hard links,
            and nobody else may write to it.
        session: name of the session; without one, `session_{YYYYMMDD_HHMMSS}_{6 random}`. The same name
            and root go on with a session.
        offload_enabled: False leaves all messages as they are, also the outputs of ephemeral tools: what
            is kept nowhere is not taken out of view.
        offload_token_threshold: an item of more tokens leaves.
        ephemeral: how many of its latest outputs a tool keeps in view, by its name or a glob of names, in
            any case: `{"Read": 3}`. Older ones leave, whatever their size but for those no longer than
            a placeholder, and the latest stay whatever theirs.
        ephemeral_keep_recent: one number in place of all those in `ephemeral`.
        ttl: how long a document is kept at least: seconds, a `timedelta` or a text like "7d". What is
            older is collected within the next calls of `offload`, cited or not; None keeps all.
        compress: write each content as a zstd stream, `.zst`, in place of a JSON document. Its
            placeholder then names `context_read`, which is among `fs.offloader.tools`.
        summarizer: returns a few sentences on a text, which its placeholder shows.
        **options: `token_counter`, `redact`, `should_offload`, `tools`, `on_error`: see `Offloader`.

    Attributes:
        root: the root of the tree, an absolute path.
        offloader: the engine, for all that is not said here; after a change through it `reindex`.

    Raises:
        ConfigError: an option that cannot be meant, a root that is a URL. Nothing is read or written.
    """

    def __init__(
        self,
        offload_root_path: str | os.PathLike[str] | None = None,
        session: str | None = None,
        *,
        offload_enabled: bool = True,
        offload_token_threshold: int = 2000,
        ephemeral: Mapping[str, int] | None = None,
        ephemeral_keep_recent: int | None = None,
        ttl: float | str | timedelta | None = None,
        compress: bool = False,
        summarizer: Summarizer | None = None,
        **options: Any,
    ) -> None:
        session = new_name() if session is None else check_name(session)
        self.root = _root(DEFAULT_ROOT if offload_root_path is None else offload_root_path, session)
        self._tree: TreeStore = open_tree(self.root)
        self._renderer = PathRenderer(self.root, ".zst" if compress else ".json")
        self._ephemeral = {
            tool: kept if ephemeral_keep_recent is None else ephemeral_keep_recent
            for tool, kept in (ephemeral or {}).items()
        }
        self.offloader = Offloader(
            self._tree,
            session=session,
            policy=_policy(offload_token_threshold, self._ephemeral, is_enabled=offload_enabled, ttl=ttl),
            placeholder=self._renderer,
            codec="zstd" if compress else "json",
            summarizer=summarizer,
            **options,
        )
        self._raises = options.get("on_error") == "raise"
        self._expires = ttl is not None
        self._collects_at = 0.0
        self._last = OffloadResult([], [], [], 0, 0, 0, [])

    def __repr__(self) -> str:
        return f"ContextFileSystem({str(self.root)!r}, session={self.session!r})"

    @property
    def session(self) -> str:
        """The name of the session."""
        return self.offloader.session

    def offload(self, messages: Sequence[Any], *, pinned: Iterable[str] = ()) -> OffloadResult:
        """Replace what leaves by placeholders; call it with the whole conversation before each request.

        Args:
            messages: the conversation, in any format that `Offloader.offload` takes. Never changed.
            pinned: ids of tool calls whose results stay in view.

        Raises:
            MessageError: `messages` is no list.
            OffloadError: with `on_error="raise"`, what failed; else it is among the result's errors.
        """
        result = self.offloader.offload(messages, pinned=pinned)
        self._last = result
        try:
            if self._expires and time.monotonic() >= self._collects_at and self.root.is_dir():
                self._collects_at = time.monotonic() + _COLLECTION_SECONDS
                self.gc()
            self._tree.refresh()
        except OffloadError as error:
            if self._raises:
                raise
            # Every item is where the result says; the next call tries again.
            _log.warning("session %s: the index could not be brought up to date: %s", self.session, error)
            result.errors.append(error)
        return result

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with the content in the place of every placeholder; see `Offloader.restore`."""
        return self.offloader.restore(messages)

    async def aoffload(self, messages: Sequence[Any], *, pinned: Iterable[str] = ()) -> OffloadResult:
        """Do what `offload` does, in a thread."""
        return await in_thread(self.offload, messages, pinned=pinned)

    async def arestore(self, messages: Sequence[Any]) -> list[Any]:
        """Do what `restore` does, in a thread."""
        return await in_thread(self.restore, messages)

    def items(self) -> list[ItemState]:
        """Return every item of the messages that `offload` was given last, in order.

        A placeholder of another process is read once more to tell that it is one. Raises `StoreError`.
        """
        shown = _texts(self._last)
        # An image, which never leaves here, stands elsewhere once one text took the place of several.
        return [self._state(d, shown.get((d.item.message, d.item.block), "")) for d in self._last.decisions]

    def history(self) -> list[Document]:
        """Return what left in this session, in whatever process, and was not collected; oldest first.

        Raises `StoreError`.
        """
        return self._tree.documents(session_prefix(self.session))

    def gc(self, *, dry_run: bool = False) -> Collection:
        """Collect what is over its time to live: its document goes now, its record after an hour.

        Raises `StoreError`.
        """
        report = self.offloader.gc(dry_run=dry_run)
        if not dry_run:
            self._tree.reindex()
        return report

    def reindex(self) -> None:
        """Make the documents and the index anew from the records. Raises `StoreError`."""
        self._tree.reindex()

    def _state(self, decision: Decision, shown: str) -> ItemState:
        item = decision.item
        ref = decision.ref or self._proven_ref(shown)
        return ItemState(
            message=item.message,
            block=item.block,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            tokens=item.tokens,
            destroyed=ref is not None and self._is_ephemeral(item),
            offloaded=ref is not None,
            item_id=ref,
            offload_path=None if ref is None else self._renderer.find_path(shown),
        )

    def _proven_ref(self, text: str) -> str | None:
        """Return the ref of a placeholder that was handed over as one, if its record says so."""
        ref = self._renderer.find_ref(text)
        if ref is None:
            return None
        headers = SessionReader(self._tree, self.session).headers(ref)
        return ref if any(header.placeholder == text for header in headers) else None

    def _is_ephemeral(self, item: ItemFacts) -> bool:
        name = (item.tool_name or "").lower()
        return item.item_type == "tool_result" and any(
            fnmatchcase(name, tool.lower()) for tool in self._ephemeral
        )


def _root(given: str | os.PathLike[str], session: str) -> Path:
    text = os.fspath(given)
    if not text or not text.isprintable() or "://" in text:
        raise ConfigError(
            f"{text!r}: offload_root_path is a local folder, in printable characters; for a URL there is "
            "offload.Offloader"
        )
    path = Path(text.replace("{session_id}", folder_of(encode_part(session))))
    # Not resolve(): the names of links are the caller's, and placeholders tell the path as given.
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100


def _policy(
    threshold: int, ephemeral: Mapping[str, int], *, is_enabled: bool, ttl: float | str | timedelta | None
) -> OffloadPolicy:
    """Return the policy of the preset: what leaves does so by size, or by age where the tool says so."""
    if type(threshold) is not int or threshold < 0:
        raise ConfigError(f"offload_token_threshold is a number of tokens, at least 0, not {threshold!r}")
    common: dict[str, Any] = {"enabled": is_enabled, "after_turns": 1, "preview_chars": 0, "ttl": ttl}
    types: dict[str, Any] = {name: {"enabled": False} for name in ITEM_TYPES}
    types |= {name: {**common, "min_tokens": threshold + 1} for name in _OFFLOADED_TYPES}
    tools = {tool: {**common, "min_tokens": 1, "keep_recent": kept} for tool, kept in ephemeral.items()}
    # Whatever frees a token: the threshold has decided already, and age does not ask for size.
    return OffloadPolicy.model_validate({"types": types, "tools": tools, "min_saving": 1})


def _texts(result: OffloadResult) -> dict[tuple[int, Block], str]:
    """Return what stands in the messages of `result` for each item, by message and block."""
    scanned = {d.item.message: result.messages[d.item.message] for d in result.decisions}
    return {
        (index, item.block): item.text
        for index, message in scanned.items()
        for item in adapter_for(message).scan(message, f"messages[{index}]", {}).found
    }
