"""Context files with short ids: an output leaves its first characters and one line that names its file.

    [Bash output in context: 7b8k1] (14.1KB)

For an agent with a shell, terminals and tools of many servers. Shell output leaves above 5 KB, any other
result above 1 KB; file systems, browsers and the read-back tools cut their answers themselves and are let be.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from offload.engine.results import OffloadResult
from offload.engine.sink import Sink
from offload.errors import OffloadError, StoreError
from offload.events import said
from offload.keys import encode_part
from offload.messages import adapter_for
from offload.offloader import Offloader
from offload.placeholder import tool_label
from offload.policy import Decision, ItemFacts, OffloadPolicy, Retention, Rule
from offload.presets.context_refs._lines import (
    BASH_TOOLS,
    NEVER_TOOLS,
    PREVIEW_CHARS,
    PROMPT,
    TERMINAL_TOOLS,
    TRUNCATED,
    RefLine,
    matches,
    size_of,
    truncated,
    with_exit_code,
)
from offload.presets.context_refs._manifest import time_of, update
from offload.presets.context_refs._tree import ContextTree
from offload.record import REF_PATTERN, ItemType, RecordInfo
from offload.registry import default_path, open_store
from offload.retention import collect, delete, read_marks
from offload.store import OffloadStore
from offload.tools import Tools

__all__ = [
    "BASH_TOOLS",
    "NEVER_TOOLS",
    "TERMINAL_TOOLS",
    "TRUNCATED",
    "ContextRefs",
    "ContextTree",
    "size_of",
]

BASH_BYTES = 5 * 1024
TOOL_BYTES = 1024
# What a page of 8,192 characters takes with its first and last line.
_ANSWER_CHARS = 8192 + 320
_HISTORY_PREVIEW_CHARS = 200
_HISTORY_TYPES: tuple[ItemType, ...] = ("tool_result", "user_message", "assistant_message", "skill_prompt")
_OTHER_TYPES: tuple[ItemType, ...] = ("tool_call", "user_message", "skill_prompt")
_WORD = re.compile(rf"(?<![0-9A-Za-z]){REF_PATTERN}(?![0-9A-Za-z])")

_log = logging.getLogger("offload.context_refs")


class ContextRefs:
    """The context files of one conversation.

    Args:
        root: a path, a URL or a store, in which every conversation is a folder; without it one under the
            user's data directory.
        conversation: name of the conversation, which is the offloader's session; without it a new one.
        compress: write files as zstd, `<id>.txt.zst`: `zstdcat` and the tools read them all the same, and the
            tools no more of a long one than they need.
        max_inline_chars: when the store fails an output of at most so many characters stays whole.
        bash_tools: globs of the tools whose results are Bash output.
        terminal_tools: globs of those whose results are Terminal output.
        never_tools: globs of those whose results always stay.
        storage_options: passed to the backend of `root`.

    Attributes:
        offloader: the engine, with records, verify, pin and what else it can; a new one after `clean_up`.
        folder: the name of the conversation's folder in the root.

    Raises:
        ConfigError: an argument that cannot work.
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
        where = default_path().with_name("context_refs") if root is None else root
        self._tree = ContextTree(open_store(where, storage_options=storage_options))
        self._tools_of = tuple(bash_tools), tuple(terminal_tools)
        self._never = tuple(never_tools)
        self._codec = "zstd" if compress else "raw"
        self._max_inline = max_inline_chars
        self._line = RefLine(*self._tools_of)
        self._told: set[str] = set()
        self.offloader = self._open(conversation)
        self.folder = encode_part(self.offloader.session)

    @property
    def tools(self) -> Tools:
        """The tools context_list, context_read, context_tail and context_grep; see `offload.tools.Tools`."""
        return self.offloader.tools

    def prompt(self) -> str:
        """Return up to 15 lines for the system prompt: the sorts of lines, the tools, an example of work."""
        return PROMPT

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> str:
        """Answer a model's call of a context tool, and log it; see `offload.tools.Tools.call`."""
        _log.info("[AgentLoop] Tool call: %s with params: %.500r", tool_label(str(name)), arguments)
        return self.tools.call(name, arguments)

    def offload(self, messages: Sequence[Any], *, pinned: Iterable[str] = ()) -> OffloadResult:
        """Replace the large outputs of `messages` by their lines; see `Offloader.offload`.

        An output that could not be stored stays whole if it has at most `max_inline_chars` characters, else
        its first ones stay and `[Output truncated due to offload error]`: give the same messages again, and
        it is stored once the store works.
        """
        result = self.offloader.offload(messages, pinned=pinned)
        return self._settled(result, self.offloader.policy, range(len(messages)))

    def tool_output(
        self,
        text: str,
        *,
        tool_name: str,
        server_name: str | None = None,
        tool_use_id: str | None = None,
        exit_code: int | None = None,
    ) -> str:
        """Return what the model sees of an output: the output, or its first characters and its line.

        Args:
            text: what the tool printed.
            tool_name: the tool.
            server_name: the server that it belongs to.
            tool_use_id: the provider's id of the call; `offloader.restore` needs it.
            exit_code: of a command; the answer ends with it, and so does the file.
        """
        text = with_exit_code(text, exit_code)
        if matches(_full_name(tool_name, server_name), self._never):
            return text
        try:
            with self.open_sink(
                tool_name=tool_name, server_name=server_name, tool_use_id=tool_use_id
            ) as sink:
                sink.write(text)
        except StoreError as error:
            # What is very long is gathered in a temporary file, which may fail too.
            self._warn(tool_name, error)
            return self._unstored(text)
        return sink.placeholder if sink.error is None else self._unstored(text)

    @contextmanager
    def open_sink(
        self, *, tool_name: str, server_name: str | None = None, tool_use_id: str | None = None
    ) -> Iterator[Sink]:
        """Open a sink, which takes an output as it comes, of any size; see `Sink` and `tool_output`.

        with refs.open_sink(tool_name="bash") as sink:
            for chunk in process.stdout:
                sink.write(chunk)
        message = sink.placeholder
        """
        name = _full_name(tool_name, server_name)
        with self.offloader.open_sink(tool_name=name, tool_use_id=tool_use_id) as sink:
            yield sink
        if sink.info is not None:
            self._tell(sink.info)
        if sink.error is not None:
            self._warn(name, sink.error)
        self._update_manifest()

    def offload_history(self, messages: Sequence[Any], which: Iterable[int] | None = None) -> OffloadResult:
        """Offload what a person chose of the conversation: results and texts of whatever size, if it saves.

        Give the messages that come back to the model from then on. System prompts, calls of tools and errors
        stay, and so do the results of tools that never leave.

        Args:
            messages: the conversation.
            which: indices of the chosen messages, from 0; without it all of them.
        """
        chosen = frozenset(range(len(messages)) if which is None else which)

        def is_chosen(item: ItemFacts) -> bool:
            return item.message in chosen

        rule = Rule(min_chars=1, preview_chars=_HISTORY_PREVIEW_CHARS)
        policy = OffloadPolicy(
            types={"tool_call": Rule(enabled=False), **dict.fromkeys(_HISTORY_TYPES, rule)},
            exclude_tools=self._never,
            min_saving=0,
        )
        line = RefLine(*self._tools_of, _HISTORY_PREVIEW_CHARS)
        setup = {**self.offloader.setup, "policy": policy, "placeholder": line, "should_offload": is_chosen}
        offloader = Offloader(self._tree, session=self.offloader.session, **setup)
        return self._settled(offloader.offload(messages), policy, chosen)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with every line replaced by what it stands for; see `Offloader.restore`."""
        return self.offloader.restore(messages)

    def clean_up(self, max_bytes: int, messages: Sequence[Any], *, grace: int = 3600) -> list[RecordInfo]:
        """Remove the least recently used files until the others take at most `max_bytes`; return the removed.

        A file is used when it is written and when it is read, in part or whole and by whomever: reads are
        noted beside the tree, to the minute. A file whose id a message names is kept, as is a pinned one.

        What is removed can no longer be read from now on. Its bytes go with the first clean-up after the
        grace; an empty file stays for 30 days, so that a writer that was held up cannot put it back.

        Args:
            max_bytes: stored bytes that the files may take.
            messages: the live conversation.
            grace: seconds. 0 frees the bytes at once, for a conversation that nobody else is reading.

        Raises:
            StoreError: the store failed; the next clean-up goes on.
        """
        session, going = self.offloader.session, self._coldest(max_bytes, messages)
        if going:
            delete(self._tree, session, [info.ref for info in going])
        collect(self._tree, Retention(grace=grace), session=session)
        # What the engine placed a while ago it takes to be there still.
        self.offloader = self._open(session)
        self._tree.is_changed = True
        self._update_manifest()
        return going

    def _coldest(self, max_bytes: int, messages: Sequence[Any]) -> list[RecordInfo]:
        """Return the least recently used files that must go for the others to take `max_bytes`."""
        cited = {ref for message in messages for ref in _WORD.findall(str(message))}
        marks = read_marks(self._tree, self.folder)
        reads = self._tree.last_reads(self.folder)
        infos = self.offloader.records()
        excess = sum(info.stored_bytes for info in infos) - max_bytes
        going = []
        for info in sorted(infos, key=lambda i: (max(i.created_at, reads.get(i.ref, 0.0)), i.key)):
            if excess > 0 and info.ref not in cited and not marks.is_pinned(info.ref):
                going.append(info)
                excess -= info.stored_bytes
        return going

    def _open(self, conversation: str | None) -> Offloader:
        bash = Rule(min_bytes=BASH_BYTES + 1, preview_chars=PREVIEW_CHARS)
        tool = Rule(min_bytes=TOOL_BYTES + 1, preview_chars=PREVIEW_CHARS)
        policy = OffloadPolicy(
            types={"tool_result": tool, **dict.fromkeys(_OTHER_TYPES, Rule(enabled=False))},
            tools=dict.fromkeys(self._tools_of[0], bash),
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

    def _settled(self, result: OffloadResult, policy: OffloadPolicy, chosen: Container[int]) -> OffloadResult:
        """Log what left and what could not, and cut what could not and is too long to stay.

        Args:
            result: what the engine did.
            policy: by which policy.
            chosen: indices of the messages that something was to leave from.
        """
        for info in result.records:
            self._tell(info)
        decisions = [d for d in result.decisions if d.item.message in chosen] if result.errors else []
        failed = [decision.item for decision in decisions if _was_to_leave(decision, policy)]
        for item in failed:
            self._warn(item.tool_name, result.errors[0])
        self._update_manifest()
        too_long = [item for item in failed if item.chars > self._max_inline]
        return replace(result, messages=_cut(result.messages, too_long)) if too_long else result

    def _unstored(self, text: str) -> str:
        """Return what stands for an output that could not be stored."""
        return truncated(text) if len(text) > self._max_inline else text

    def _tell(self, info: RecordInfo) -> None:
        """Log, once, that an output left."""
        if info.ref in self._told:
            return
        self._told.add(info.ref)
        if self._line.category(info.item_type, info.tool_name) == "Bash":
            _log.info("[AgentBashHandler] Offloaded output: %s", info.ref)
        else:
            label = tool_label(info.tool_name or info.item_type)
            _log.info("[ToolCallProcessor] Offloaded tool output: %s (%d chars)", label, info.chars)

    def _warn(self, tool_name: str | None, error: OffloadError) -> None:
        if self._line.category("tool_result", tool_name) == "Bash":
            _log.warning("[AgentBashHandler] Failed to offload output: %s", said(error))
        else:
            label = tool_label(tool_name or "a tool")
            _log.warning("[ToolCallProcessor] Failed to offload tool output for %s: %s", label, said(error))

    def _update_manifest(self) -> None:
        """Bring the manifest up to date if a file came or went; a failure is made up for by the next call."""
        if not self._tree.is_changed:
            return
        self._tree.is_changed = False
        try:
            update(self._tree.inner, self.folder, self.offloader.session, self._items)
        except StoreError as error:
            self._tree.is_changed = True
            _log.warning("[ContextStore] Failed to write the manifest: %s", error)

    def _items(self) -> list[dict[str, Any]]:
        """Return the entries of the manifest, from a fresh listing of the tree."""
        placed = [(info, self._tree.path_of(info.key)) for info in self.offloader.records()]
        return [
            {
                "id": info.ref,
                "category": self._line.category(info.item_type, info.tool_name),
                "tool": info.tool_name,
                "chars": info.chars,
                "size": info.stored_bytes,
                "created": time_of(info.created_at),
                "path": path.removeprefix(f"{self.folder}/"),
                "record": info.key,
            }
            for info, path in placed
            if path is not None
        ]


def _full_name(tool_name: str, server_name: str | None) -> str:
    return tool_name if server_name is None else f"{server_name}.{tool_name}"


def _was_to_leave(decision: Decision, policy: OffloadPolicy) -> bool:
    return decision.action == "keep" and policy.decide(decision.item).action == "offload"


def _cut(messages: Sequence[Any], items: Iterable[ItemFacts]) -> list[Any]:
    """Return `messages` with the texts of `items` cut to their first characters."""
    out = list(messages)
    for facts in items:
        adapter = adapter_for(out[facts.message])
        found = adapter.scan(out[facts.message], f"messages[{facts.message}]", {}).items
        text = next(item.text for item in found if item.block == facts.block)
        out[facts.message] = adapter.replace(out[facts.message], facts.block, truncated(text))
    return out
