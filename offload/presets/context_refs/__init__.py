"""Context files with short ids: the first characters of an output and one line with the id replace it."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from offload.engine.results import OffloadResult
from offload.engine.sink import Sink
from offload.engine.turn import NOT_STORED
from offload.errors import OffloadError, StoreError
from offload.events import error_text
from offload.layout import REF_PATTERN, encode_part
from offload.messages import scan_of
from offload.offloader import Offloader
from offload.placeholder import tool_label
from offload.policy import ItemFacts, OffloadPolicy, Retention, Rule, matches_any
from offload.presets._files import write_until_current
from offload.presets.context_refs._lines import (
    BASH_TOOLS,
    NEVER_TOOLS,
    PREVIEW_CHARS,
    PROMPT,
    TERMINAL_TOOLS,
    TRUNCATED,
    RefLine,
    size_of,
    truncated,
    with_exit_code,
)
from offload.presets.context_refs._tree import MANIFEST, ContextTree, place_of
from offload.record import OffloadableType, RecordInfo
from offload.registry import default_path, open_store
from offload.retention import collect, delete, read_marks
from offload.store import OffloadStore
from offload.tools import MAX_ANSWER_CHARS, Tools

__all__ = ["TRUNCATED", "ContextRefs", "size_of"]

BASH_BYTES = 5 * 1024
TOOL_BYTES = 1024
# A page of 8,192 characters with its header and footer.
_ANSWER_CHARS = MAX_ANSWER_CHARS + 320
_HISTORY_PREVIEW_CHARS = 200
_HISTORY_TYPES: tuple[OffloadableType, ...] = (
    "tool_result",
    "user_message",
    "assistant_message",
    "skill_prompt",
)
_OTHER_TYPES: tuple[OffloadableType, ...] = ("tool_call", "user_message", "skill_prompt")
_WORD = re.compile(rf"(?<![0-9A-Za-z]){REF_PATTERN}(?![0-9A-Za-z])")

_log = logging.getLogger("offload.context_refs")


class ContextRefs:
    """Context files of one conversation.

    Shell output above 5 KB and other results above 1 KB are offloaded.

    Args:
        root: a path, a URL or a store with one folder per conversation; the default is a folder in the user
            data directory.
        conversation: name of the conversation and of its session; the default is a new name.
        compress: write files as `<id>.txt.zst`, which `zstdcat` and the tools can read.
        max_inline_chars: when the store fails, keep an output of at most this many characters in full.
        bash_tools: globs of tools whose results are Bash output.
        terminal_tools: globs of tools whose results are Terminal output.
        never_tools: globs of tools whose results are always kept.
        storage_options: passed to the backend of `root`.

    Attributes:
        offloader: the `Offloader` of the session; `clean_up` replaces it.
        folder: name of the conversation's folder in the root.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | OffloadStore | None = None,
        conversation: str | None = None,
        *,
        compress: bool = False,
        max_inline_chars: int = 65_536,
        bash_tools: Sequence[str] = BASH_TOOLS,
        terminal_tools: Sequence[str] = TERMINAL_TOOLS,
        never_tools: Sequence[str] = NEVER_TOOLS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        location = default_path().with_name("context_refs") if root is None else root
        self._tree = ContextTree(open_store(location, storage_options=storage_options))
        self._never = tuple(never_tools)
        self._codec = "zstd" if compress else "raw"
        self._max_inline = max_inline_chars
        self._line = RefLine(tuple(bash_tools), tuple(terminal_tools))
        self._logged: set[str] = set()
        self.offloader = self._open(conversation)
        self.folder = encode_part(self.offloader.session)

    @property
    def tools(self) -> Tools:
        """The retrieval tools; see `offload.tools.Tools`."""
        return self.offloader.tools

    def prompt(self) -> str:
        """Return the system prompt's lines on context files, at most 15."""
        return PROMPT

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> str:
        """Log and answer a model's call of a retrieval tool; see `offload.tools.Tools.call`."""
        _log.info("[AgentLoop] Tool call: %s with params: %.500r", tool_label(str(name)), arguments)
        return self.tools.call(name, arguments)

    def offload(self, messages: Sequence[Any], *, pinned: Iterable[str] = ()) -> OffloadResult:
        """Replace the large outputs in `messages`; see `Offloader.offload`.

        If the store fails, an output of up to `max_inline_chars` characters is kept in full. A longer one is
        cut to its first characters and `[Output truncated due to offload error]`; pass the original messages
        again to store it once the store works.
        """
        return self._completed(self.offloader.offload(messages, pinned=pinned))

    def tool_output(
        self,
        text: str,
        *,
        tool_name: str,
        server_name: str | None = None,
        tool_use_id: str | None = None,
        exit_code: int | None = None,
    ) -> str:
        """Return the text that the model sees for an output: the output itself or its placeholder.

        `offloader.restore` needs `tool_use_id`, the provider's id of the call. With the `exit_code` of a
        command, the output and its file end with it.
        """
        text = with_exit_code(text, exit_code)
        if matches_any(_full_name(tool_name, server_name), self._never):
            return text
        try:
            with self.open_sink(
                tool_name=tool_name, server_name=server_name, tool_use_id=tool_use_id
            ) as sink:
                sink.write(text)
        except StoreError as error:
            # A sink buffers very long output in a temporary file, which may fail too.
            self._log_failure(tool_name, error)
            return self._unstored(text)
        return sink.placeholder if sink.error is None else self._unstored(text)

    @contextmanager
    def open_sink(
        self, *, tool_name: str, server_name: str | None = None, tool_use_id: str | None = None
    ) -> Iterator[Sink]:
        """Open a sink for an output of any size, written in chunks; see `Sink` and `tool_output`."""
        name = _full_name(tool_name, server_name)
        with self.offloader.open_sink(tool_name=name, tool_use_id=tool_use_id) as sink:
            yield sink
        if sink.info is not None:
            self._log_offload(sink.info)
        if sink.error is not None:
            self._log_failure(name, sink.error)
        self._update_manifest()

    def offload_history(self, messages: Sequence[Any], which: Iterable[int] | None = None) -> OffloadResult:
        """Offload chosen messages of any size, if that saves anything.

        Send the returned messages to the model from then on. `which` are the indices of the chosen messages,
        by default all. System prompts, tool calls, errors and results of `never_tools` are kept.
        """
        chosen = frozenset(range(len(messages)) if which is None else which)
        rule = Rule(min_chars=1, preview_chars=_HISTORY_PREVIEW_CHARS)
        policy = OffloadPolicy(
            types={"tool_call": Rule(enabled=False), **dict.fromkeys(_HISTORY_TYPES, rule)},
            exclude_tools=self._never,
            min_saving=0,
        )
        line = replace(self._line, preview_chars=_HISTORY_PREVIEW_CHARS)
        offloader = self.offloader.with_options(
            policy=policy, placeholder=line, should_offload=lambda item: item.message in chosen
        )
        return self._completed(offloader.offload(messages))

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with every placeholder replaced by its content; see `Offloader.restore`."""
        return self.offloader.restore(messages)

    def clean_up(self, max_bytes: int, messages: Sequence[Any], *, grace: int = 3600) -> list[RecordInfo]:
        """Delete the least recently used files until the rest take at most `max_bytes`; return the deleted.

        Writing a file and reading any part of it, in any process, count as use; reads are recorded to the
        minute. Pinned files and files whose id is in a message are kept.

        A deleted file cannot be read from now on. The first clean-up after `grace` seconds frees its bytes; 0
        is safe only if nobody else reads the conversation. An empty file remains for 30 days, so that a
        stalled writer cannot store the file again by mistake. After a `StoreError` the next one continues.
        """
        session, evicted = self.offloader.session, self._least_recently_used(max_bytes, messages)
        if evicted:
            delete(self._tree, session, [info.ref for info in evicted])
        collect(self._tree, Retention(grace=grace), session=session)
        # The current offloader assumes that records it stored before still exist.
        self.offloader = self._open(session)
        self._tree.is_changed = True
        self._update_manifest()
        return evicted

    def _least_recently_used(self, max_bytes: int, messages: Sequence[Any]) -> list[RecordInfo]:
        """Return the files to delete so that the others take at most `max_bytes`."""
        cited = {ref for message in messages for ref in _WORD.findall(str(message))}
        marks = read_marks(self._tree, self.folder)
        reads = self._tree.last_reads(self.folder)
        infos = self.offloader.records()
        excess = sum(info.stored_bytes for info in infos) - max_bytes
        evicted = []
        for info in sorted(infos, key=lambda i: (max(i.created_at, reads.get(i.ref, 0.0)), i.key)):
            if excess > 0 and info.ref not in cited and not marks.is_pinned(info.ref):
                evicted.append(info)
                excess -= info.stored_bytes
        return evicted

    def _open(self, conversation: str | None) -> Offloader:
        bash = Rule(min_bytes=BASH_BYTES + 1, preview_chars=PREVIEW_CHARS)
        tool = Rule(min_bytes=TOOL_BYTES + 1, preview_chars=PREVIEW_CHARS)
        policy = OffloadPolicy(
            types={"tool_result": tool, **dict.fromkeys(_OTHER_TYPES, Rule(enabled=False))},
            tools=dict.fromkeys(self._line.bash_tools, bash),
            exclude_tools=self._never,
            min_saving=0,
        )
        return Offloader(
            self._tree,
            session=conversation,
            policy=policy,
            placeholder=self._line,
            codec=self._codec,
            refs="short",
            max_answer_chars=_ANSWER_CHARS,
        )

    def _completed(self, result: OffloadResult) -> OffloadResult:
        """Log offloaded and failed items, update the manifest, and cut failed items that are too long."""
        for info in result.records:
            self._log_offload(info)
        failed = [d.item for d in result.decisions if d.reason.startswith(NOT_STORED)]
        for item in failed:
            self._log_failure(item.tool_name, result.errors[0])
        self._update_manifest()
        too_long = [item for item in failed if item.chars > self._max_inline]
        return replace(result, messages=_cut(result.messages, too_long)) if too_long else result

    def _unstored(self, text: str) -> str:
        """Return the text that the model sees for an output that could not be stored."""
        return truncated(text) if len(text) > self._max_inline else text

    def _log_offload(self, info: RecordInfo) -> None:
        """Log a newly offloaded item once."""
        if info.ref in self._logged:
            return
        self._logged.add(info.ref)
        if self._line.category(info.item_type, info.tool_name) == "Bash":
            _log.info("[AgentBashHandler] Offloaded output: %s", info.ref)
        else:
            label = tool_label(info.tool_name or info.item_type)
            _log.info("[ToolCallProcessor] Offloaded tool output: %s (%d chars)", label, info.chars)

    def _log_failure(self, tool_name: str | None, error: OffloadError) -> None:
        subject = "[AgentBashHandler] Failed to offload output"
        if self._line.category("tool_result", tool_name) != "Bash":
            label = tool_label(tool_name or "a tool")
            subject = f"[ToolCallProcessor] Failed to offload tool output for {label}"
        _log.warning("%s: %s", subject, error_text(error))

    def _update_manifest(self) -> None:
        """Update the manifest if files were stored or deleted; the next call catches up on a failure."""
        if not self._tree.is_changed:
            return
        self._tree.is_changed = False
        try:
            write_until_current(
                self._tree.inner,
                f"{self.folder}/{MANIFEST}",
                lambda: self._manifest(self.offloader.records()),
                empty=self._manifest([]),
            )
        except StoreError as error:
            self._tree.is_changed = True
            _log.warning("[ContextStore] Failed to write the manifest: %s", error)

    def _manifest(self, infos: Iterable[RecordInfo]) -> bytes:
        """Return a manifest as JSON, one entry per line, for people and for a quick start."""
        items = [
            {
                "id": info.ref,
                "category": self._line.category(info.item_type, info.tool_name),
                "tool": info.tool_name,
                "chars": info.chars,
                "size": info.stored_bytes,
                "created": datetime.fromtimestamp(info.created_at, UTC).isoformat(timespec="seconds"),
                "path": place.path.removeprefix(f"{self.folder}/"),
                "record": info.key,
            }
            for info in infos
            if (place := place_of(info.key)).is_artifact
        ]
        conversation = json.dumps(self.offloader.session)
        head = f'{{"schema_version": "1.0", "conversation": {conversation}, "items": ['
        return "\n".join([head, ",\n".join(map(json.dumps, items)), "]}", ""]).encode()


def _full_name(tool_name: str, server_name: str | None) -> str:
    return tool_name if server_name is None else f"{server_name}.{tool_name}"


def _cut(messages: Sequence[Any], items: Iterable[ItemFacts]) -> list[Any]:
    """Return `messages` with the texts of `items` cut to their first characters."""
    out = list(messages)
    for facts in items:
        message = out[facts.message]
        item = next(item for item in scan_of(message).items if item.block == facts.block)
        out[facts.message] = item.replace_in(message, truncated(item.text))
    return out
