"""Context files with short ids: the first characters of an output and one line with the id replace it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Unpack

from offload.agent.presets.context_refs._citations import Citations, InUse, ids_in
from offload.agent.presets.context_refs._folders import readable_folder
from offload.agent.presets.context_refs._lines import (
    TOOLS,
    TRUNCATED,
    RefLine,
    prompt_for,
    size_of,
    truncated,
    with_exit_code,
)
from offload.agent.presets.context_refs._policy import HISTORY_PREVIEW_CHARS, HistoryPolicy, RefPolicy
from offload.agent.presets.context_refs._tools import ToolGroups, full_name
from offload.agent.presets.context_refs._tree import ContextTree
from offload.base.threads.calls import as_async
from offload.base.threads.locks import Lock
from offload.engine.cache_state import HostCache
from offload.engine.placeholder.default import tool_label
from offload.engine.policy import ItemFacts, OffloadPolicy, ReasonKind, Retention
from offload.engine.policy.facts import PolicyName
from offload.engine.policy.models import HistoryRule
from offload.engine.results import OffloadResult, Restored
from offload.engine.settings.offer import MAX_ANSWER_CHARS
from offload.engine.settings.options import PresetOptions
from offload.engine.sink import Sink
from offload.errors import ConfigError, NotFoundError, OffloadError, StoreError, check_messages, check_number
from offload.maintenance.retention import collect, delete
from offload.maintenance.retention.marks import read_marks
from offload.messages.formats import scan_of
from offload.offloader import Offloader, OnMissing
from offload.reading.tools import Tools
from offload.records.observer import error_text
from offload.records.record import RecordInfo
from offload.storage.layout import encode_part
from offload.storage.registry import default_path, open_backend
from offload.storage.store import OffloadStore

__all__ = ["TRUNCATED", "ContextRefs", "size_of"]

# A page of 8,192 characters with its header and footer.
_ANSWER_CHARS = MAX_ANSWER_CHARS + 320
_GRACE_SECONDS = 3600
_MAX_TRIES = 5

_log = logging.getLogger("offload.context_refs")


class ContextRefs:
    """Context files of one conversation.

    Shell output above 5 KB and other results above 1 KB are offloaded, without counting an exit code. Errors
    and the results of tools that paginate are kept up to 40,000 tokens.

    Args:
        root: a path, a URL or a store with one folder per conversation; the default is a folder in the user
            data directory.
        session: name of the conversation and of its session; the default is a new name. The same name and
            root resume a conversation.
        compress: write files as `<id>.txt.zst`, which `zstdcat` and the tools can read.
        max_inline_chars: when the store fails, keep an output of at most this many characters in full.
        max_bytes: at the end of `offload`, `offload_history`, `tool_output` and `open_sink`, run `clean_up`
            with this limit and the last list of messages; None never does.
        bash_tools: globs of tools whose results are Bash output.
        terminal_tools: globs of tools whose results are Terminal output.
        never_servers: words in the names of servers that paginate: `filesystem` is in `my-filesystem` and
            `myFilesystem`. The results of all their tools are kept.
        never_tools: words in the names of tools without a server, such as `read` in `ReadFile`, whose results
            are kept. An entry with `*`, `?` or `[` is a glob of any tool, a server's too: `github.get_*`.
        policy: a policy that replaces `never_servers`, `never_tools` and the sizes above.
        storage_options: passed to the backend of `root`.
        **options: `token_counter`, `redact`, `on_error` and others, as for `Offloader`. With
            `on_error="truncate"` no output is kept in full when the store fails.

    Attributes:
        offloader: the `Offloader` of the session, for `offload.ContextManager` and others. What it
            stores is in the manifest too.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | OffloadStore | None = None,
        session: str | None = None,
        *,
        compress: bool = False,
        max_inline_chars: int = 65_536,
        max_bytes: int | None = None,
        bash_tools: Sequence[str] = ToolGroups.bash_tools,
        terminal_tools: Sequence[str] = ToolGroups.terminal_tools,
        never_servers: Sequence[str] = ToolGroups.never_servers,
        never_tools: Sequence[str] = ToolGroups.never_tools,
        policy: OffloadPolicy | PolicyName | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[PresetOptions],
    ) -> None:
        location = default_path().with_name("context_refs") if root is None else root
        groups = ToolGroups(
            bash_tools=_as_names("bash_tools", bash_tools),
            terminal_tools=_as_names("terminal_tools", terminal_tools),
            never_servers=_as_names("never_servers", never_servers),
            never_tools=_as_names("never_tools", never_tools),
        )
        unset = replace(groups, bash_tools=ToolGroups.bash_tools, terminal_tools=ToolGroups.terminal_tools)
        if policy is not None and unset != ToolGroups():
            raise ConfigError(
                "never_servers and never_tools have no effect with policy; set exclude_tools in the policy"
            )
        opened = open_backend(location, storage_options=storage_options)
        self._tree = ContextTree(opened.inner if isinstance(opened, ContextTree) else opened, groups)
        self._line = RefLine(groups)
        if max_bytes is not None:
            check_number("max_bytes", max_bytes, 0)
        check_number("max_inline_chars", max_inline_chars, 0)
        self._max_bytes, self._max_inline = max_bytes, max_inline_chars
        if options.get("on_error") == "truncate":
            self._max_inline = 0
        self.offloader: Offloader = Offloader(
            self._tree,
            session=session,
            policy=RefPolicy.of(groups) if policy is None else policy,
            placeholder=self._line,
            codec="zstd" if compress else "raw",
            id_style="short",
            prompt=prompt_for(options.get("tools", TOOLS)),
            **({"tools": TOOLS, "max_answer_chars": _ANSWER_CHARS} | options),
        )
        self._tree.name_session(self.session)
        self._citations = Citations(self._tree.without_notes(), self.session)
        self._in_use = InUse()
        self._cleaning = Lock()

    def __repr__(self) -> str:
        return f"ContextRefs({self._tree.url!r}, session={self.session!r})"

    @property
    def session(self) -> str:
        """Name of the session."""
        return self.offloader.session

    @property
    def folder(self) -> str:
        """Name of the conversation's folder in the root."""
        return readable_folder(encode_part(self.session))

    @property
    def tools(self) -> Tools:
        """The retrieval tools; see `offload.Tools`."""
        return self.offloader.tools

    def prompt(self) -> str:
        """Return the system prompt's lines on context files, at most 15."""
        return self.offloader.prompt()

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> str:
        """Log and answer a model's call of a retrieval tool; see `Tools.call`."""
        if _log.isEnabledFor(logging.INFO):
            label, shown = tool_label(str(name)), self._redacted(f"{arguments!r:.500}")
            _log.info("[AgentLoop] Tool call: %s with params: %s", label, shown)
        return self.tools.call(name, arguments)

    def offload(
        self, messages: Sequence[Any], *, pinned: Iterable[str] = (), cache: HostCache | None = None
    ) -> OffloadResult:
        """Replace the large outputs in `messages`; see `Offloader.offload`.

        If the store fails, an output of up to `max_inline_chars` characters is kept in full. A longer one is
        cut to its first characters and `[Output truncated due to offload error]`; pass the original messages
        again to store it once the store works.
        """
        return self._completed(messages, self.offloader.offload(messages, pinned=pinned, cache=cache))

    aoffload = as_async(offload)
    """Run `offload` in a thread."""

    def tool_output(
        self,
        text: str,
        *,
        tool_name: str,
        server_name: str | None = None,
        tool_use_id: str | None = None,
        exit_code: int | None = None,
        title: str | None = None,
    ) -> str:
        """Return the text that the model sees for an output: the output itself or its placeholder.

        Args:
            text: the output.
            tool_name: the tool that produced it.
            server_name: the server of the tool.
            tool_use_id: the provider's id of the call. `restore` then restores the output in the result of
                this call alone, without an id in any tool result.
            exit_code: the exit code of a command; the output and its file end with it.
            title: what the output is of, such as the command; see `Offloader.offload_text`.

        Raises:
            ConfigError: an invalid argument.
            OffloadError: with `on_error="raise"`, an error of the store.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text must be a str, got {type(text).__name__}")
        if exit_code is not None and not isinstance(exit_code, int):
            raise ConfigError(f"exit_code must be an int or None, got {type(exit_code).__name__}")
        text = with_exit_code(text, exit_code)
        try:
            with self.open_sink(
                tool_name=tool_name, server_name=server_name, tool_use_id=tool_use_id, title=title
            ) as sink:
                sink.write(text)
        except StoreError as error:
            if self.offloader.options.on_error == "raise":
                raise
            # A sink buffers very long output in a temporary file, which may fail too.
            self._log_failure(tool_name, error)
            return self._unstored(text)
        return sink.placeholder if sink.error is None else self._unstored(text)

    @contextmanager
    def open_sink(
        self,
        *,
        tool_name: str,
        server_name: str | None = None,
        tool_use_id: str | None = None,
        title: str | None = None,
    ) -> Iterator[Sink]:
        """Open a sink for an output of any size, written in chunks; see `Sink` and `tool_output`."""
        if server_name is not None and not isinstance(server_name, str):
            raise ConfigError(f"server_name must be a str or None, got {type(server_name).__name__}")
        name = full_name(tool_name, server_name)
        with self.offloader.open_sink(tool_name=name, tool_use_id=tool_use_id, title=title) as sink:
            yield sink
        if sink.error is not None:
            self._log_failure(name, sink.error)
        if sink.info is not None:
            self._in_use.note_output(sink.info.ref)
            self._clean_up()

    def offload_history(self, messages: Sequence[Any], which: Iterable[int] | None = None) -> OffloadResult:
        """Offload chosen messages of any size, if that saves anything.

        Send the returned messages to the model from then on. Signed thinking after the first of them is
        removed and stored, unless the model is known to allow edits. `which` are the indices of the chosen
        messages, by default all. System prompts, tool calls, errors and results of tools that paginate are
        kept.

        Raises:
            ConfigError: `which` has anything else than indices of `messages`.
            OffloadError: as for `offload`.
        """
        chosen = _as_indices(messages, which)
        approve = self.offloader.options.should_offload
        offloader = self.offloader.with_options(
            policy=HistoryPolicy.of(self._line.groups, history=self._rewrites),
            placeholder=replace(self._line, preview_chars=HISTORY_PREVIEW_CHARS),
            should_offload=lambda item: item.message in chosen and (approve is None or approve(item)),
        )
        return self._completed(messages, offloader.offload(messages))

    def restore(self, messages: Sequence[Any], *, on_missing: OnMissing = "raise") -> Restored:
        """Return `messages` with every placeholder replaced by its content; see `Offloader.restore`."""
        return self.offloader.restore(messages, on_missing=on_missing)

    arestore = as_async(restore)
    """Run `restore` in a thread."""

    def clean_up(
        self, max_bytes: int, messages: Sequence[Any], *, grace: int = _GRACE_SECONDS
    ) -> list[RecordInfo]:
        """Delete the least recently used files until the rest take at most `max_bytes`; return the deleted.

        Writing a file and reading any part of it, in any process, count as use; reads are recorded to the
        minute. Pinned files are kept, and files whose id is in a message or in a file that is kept for it.

        A deleted file cannot be read from now on. The first clean-up after `grace` seconds frees its bytes; 0
        is safe only if nobody else reads the conversation. An empty file remains for 30 days, so that a
        stalled writer cannot store the file again by mistake. After a `StoreError` the next one continues.

        Raises:
            ConfigError: an argument is invalid.
            MessageError: `messages` is not a list of messages.
            StoreError: the store failed.
        """
        # The characters of a text or the keys of a single message cite nothing, and every file would go.
        check_messages(messages)
        check_number("max_bytes", max_bytes, 0)
        evicted = self._evict(max_bytes, ids_in(messages))
        collect(self._tree, Retention(grace=grace), session=self.session)
        return evicted

    def _clean_up(self) -> None:
        """Keep the conversation within `max_bytes`; a failure is logged, and the next call tries again."""
        if self._max_bytes is None:
            return
        try:
            if self._evict(self._max_bytes, self._in_use.ids()):
                collect(self._tree, Retention(grace=_GRACE_SECONDS), session=self.session)
        except OffloadError as error:
            _log.warning("[ContextStore] Failed to clean up: %s", error)

    def _evict(self, max_bytes: int, cited: set[str]) -> list[RecordInfo]:
        """Delete files until the others take at most `max_bytes`, but none of `cited`; return the deleted."""
        with self._cleaning:
            for _ in range(_MAX_TRIES):
                evicted = self._least_recently_used(max_bytes, cited)
                if not evicted:
                    break
                # Another process may have deleted some of them.
                with suppress(NotFoundError):
                    delete(self._tree, self.session, [info.ref for info in evicted])
                    self.offloader.records()  # From this listing on the tools know of the deletions.
                    return evicted
            return []

    def _least_recently_used(self, max_bytes: int, cited: set[str]) -> list[RecordInfo]:
        infos = self.offloader.records()
        excess = sum(info.stored_bytes for info in infos) - max_bytes
        if excess <= 0:
            return []
        part = encode_part(self.session)
        kept, marks = self._citations.closure(cited, infos), read_marks(self._tree, part)
        reads = self._tree.last_reads(part)
        evicted = []
        for info in sorted(infos, key=lambda i: (max(i.created_at, reads.get(i.ref, 0.0)), i.key)):
            if excess > 0 and info.ref not in kept and not marks.is_pinned(info.ref):
                evicted.append(info)
                excess -= info.stored_bytes
        return evicted

    def _completed(self, messages: Sequence[Any], result: OffloadResult) -> OffloadResult:
        """Log failed items, cut those that are too long, and clean up."""
        failed = [d.item for d in result.decisions if d.reason.kind is ReasonKind.NOT_STORED]
        for item in failed:
            self._log_failure(item.tool_name, result.errors[0])
        too_long = [item for item in failed if item.chars > self._max_inline]
        if too_long:
            result = replace(result, messages=_cut(result.messages, messages, too_long))
        if self._max_bytes is not None:
            self._in_use.note_list(result.messages)
            self._clean_up()
        return result

    def _unstored(self, text: str) -> str:
        return truncated(text) if len(text) > self._max_inline else text

    @property
    def _rewrites(self) -> HistoryRule:
        return "editable" if self.offloader.policy.history == "editable" else "rewrite"

    def _redacted(self, text: str) -> str:
        try:
            return self.offloader.options.redacted(text)
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            return f"(not shown: {type(error.__cause__ or error).__name__} in redact)"

    def _log_failure(self, tool_name: str | None, error: OffloadError) -> None:
        subject = "[AgentBashHandler] Failed to offload output"
        if self._line.category("tool_result", tool_name) != "Bash":
            label = tool_label(tool_name or "a tool")
            subject = f"[ToolCallProcessor] Failed to offload tool output for {label}"
        _log.warning("%s: %s", subject, error_text(error))


def _as_names(name: str, value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    if not is_list or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{name} must be a list of names, got {value!r:.60}")
    return tuple(value)


def _as_indices(messages: Any, which: Any) -> frozenset[int]:
    # The offloader refuses anything but a list of messages.
    indices = range(len(messages) if isinstance(messages, Sequence) else 0)
    if which is not None and not isinstance(which, Iterable):
        raise ConfigError(f"which must be a collection of indices, got {which!r:.60}")
    chosen = list(indices if which is None else which)
    wrong = [index for index in chosen if index not in indices]
    if wrong:
        raise ConfigError(f"which must be indices of the {len(indices)} messages, got {wrong[0]!r:.60}")
    return frozenset(chosen)


def _cut(out: Sequence[Any], messages: Sequence[Any], items: Iterable[ItemFacts]) -> list[Any]:
    """Return `out` with `items` of the original `messages` cut to their first characters."""
    cut = list(out)
    for facts in items:
        item = next(item for item in scan_of(messages[facts.message]).items if item.block == facts.block)
        cut[facts.message] = item.replace_in(cut[facts.message], truncated(item.text))
    return cut
