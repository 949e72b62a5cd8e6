"""The offloader: decide, store, verify, replace, and restore."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeGuard, Unpack, get_args

from msgspec.structs import replace

from offload.base.events import EventBus, EventType, exclusive
from offload.base.threads.calls import Gate, as_async
from offload.base.threads.locks import NO_FORK, cached
from offload.engine import policy as policies
from offload.engine.binding import Binding
from offload.engine.cache_state import HostCache
from offload.engine.conversation import Conversation
from offload.engine.placeholder import Notice
from offload.engine.policy.facts import PolicyName, Readers
from offload.engine.restorer import restore
from offload.engine.results import Latest, OffloadOutcome, OffloadResult, Remembered, Restored, Stats
from offload.engine.settings.fields import MAX_REFERENCE_CHARS, check_fields, only_tool, reference_prompt
from offload.engine.settings.options import (
    OptionArguments,
    Options,
    SessionArguments,
    signature,
)
from offload.engine.sink import Sink
from offload.engine.sources import Sources
from offload.engine.turn import Terms
from offload.errors import (
    ConfigError,
    EncryptionError,
    NotFoundError,
    OffloadError,
    ReferenceRefusedError,
    check_choice,
    check_kind,
    check_messages,
    check_texts,
)
from offload.messages import Usage
from offload.messages.base import Item
from offload.messages.thinking import signed_thinking
from offload.records.codec import get_codec
from offload.records.codec.spooled import SpooledContent
from offload.records.observer import Activity, Observer, observed
from offload.records.record import RecordInfo
from offload.records.record.header import ITEM_TYPES, OffloadableType
from offload.records.record.titles import checked_agent
from offload.records.session import Damage, Session
from offload.records.session.names import check_name, new_name
from offload.storage.store import OffloadStore

if TYPE_CHECKING:
    from offload.maintenance.retention import GcReport
    from offload.reading.evidence import Evidence
    from offload.reading.evidence.session import SessionEvidence
    from offload.reading.search import SearchResult
    from offload.reading.timeline import Timeline
    from offload.reading.tools import Tools
    from offload.records.journal.writer import JournalWriter

OnMissing = Literal["raise", "keep"]
# The records that a notebook shows.
_SHOWN = 10


class Offloader:
    """Replaces the large items of one session's messages by placeholders, and restores them.

    It may be used from several threads: calls of `offload` run one after another, other calls concurrently.
    Hooks run in all these threads. A hook or listener may only read from the offloader that calls it;
    `offload`, `offload_text`, sinks and `fork` raise `ConfigError` there.

    Args:
        store: a path, a URL (`file://`, `memory://`, `s3://bucket/prefix`, any fsspec URL) or a store; the
            default is a folder in the user's data directory.
        session: name of the session; the default is `session_{YYYYMMDD_HHMMSS}_{6 random}`. The same name
            resumes a session, from any process or machine that can reach the store.
        policy: which items are offloaded: an `OffloadPolicy`, or the name of one, see `OffloadPolicy.preset`;
            the default is "balanced".
        storage_options: options of the backend, such as credentials, endpoint, durability.
        placeholder: renders the text that replaces an item.
        codec: the format of records: "zstd", "json" or "raw".
        id_style: the form of new ids: "letters" is ten or more of a-z; "short" is five or six of a-z and 0-9,
            drawn again if the id is in use.
        token_counter: counts the tokens of a text; the default is an offline estimate.
        should_offload: called with the `ItemFacts` of each item that the policy offloads; False keeps it.
            An async hook fails after 60 seconds; a plain one has no time limit.
        redact: returns a text without the parts that must not be stored. It runs before the preview and the
            record are made. `restore` returns the redacted text; record and placeholder are marked.
        summarizer: returns a short summary of a text for its placeholder and record.
        tools: names of the retrieval tools that the model gets; calls of others are refused. One must be
            context_read, which every placeholder names.
        max_answer_chars: maximum characters of a retrieval tool's answer, at least 2,000.
        on_error: the reaction of `offload` to an item that cannot be stored: "keep" keeps the item in its
            message and reports the error, "raise" raises it, "truncate" keeps only a preview.
        events: the bus for events of items that are stored, read or fail; the default is a new bus.
        prompt: the lines that `prompt()` returns; the default explains the retrieval tools.
        clock: returns the time in seconds; the default is the system's clock. After a pause between two
            requests that is longer than `policy.cache.ttl`, the provider's prompt cache counts as cold.
        reference_fields: the fields of other tools' arguments, such as "write_file.content", in which the
            model may pass an id instead of a text; see `resolve`. `prompt()` explains this in one more line.
        model: the name of the model that the messages go to, for `policy.history`; None if it is not known.
        journal: keep each list that `offload` returns in a journal next to the records, for `timeline`. It
            takes one small write for each request that changed something.
        agent_name: the name of the agent whose items these are, one line of at most 80 characters. Lists of
            records show it, for a session that several agents share.

    Attributes:
        policy: which items are offloaded.
        store: the store of the records.
        session: name of the session.
        options: the other arguments; `with_options` opens an offloader that shares them.
        tools: the retrieval tools, for calls of the model.
        events: the event bus.
        journal: writes the journal of the session; None without one. A loop that sends other lists than
            `offload` returns, as `ContextManager` does, writes them itself.

    Raises:
        ConfigError: an invalid argument: an unknown scheme, codec or option, or a missing package. The store
            is not accessed before the first call that needs it.
    """

    __signature__: ClassVar = signature(
        Parameter("store", Parameter.POSITIONAL_OR_KEYWORD, default=None),
        Parameter("session", Parameter.KEYWORD_ONLY, default=None),
        Parameter("storage_options", Parameter.KEYWORD_ONLY, default=None),
    )

    def __init__(
        self,
        store: str | os.PathLike[str] | OffloadStore | None = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        with NO_FORK:
            from offload.storage.registry import open_store  # noqa: PLC0415 # a path or a URL is first read here

        options = Options.of(arguments)
        self.options: Options = options
        self.policy: policies.OffloadPolicy = options.policy
        self.events: EventBus = options.events
        self.store: OffloadStore = open_store(store, storage_options=storage_options)
        self.session: str = new_name() if session is None else check_name(session)
        records = Session(
            self.store, self.session, get_codec(options.codec), options.id_style, options.category
        )
        records.facts.is_listed = session is None
        self._start(records)
        self.journal: JournalWriter | None = (
            self._new_journal(is_new=session is None) if options.journal else None
        )

    def _start(self, records: Session) -> None:
        """Begin a conversation of the session with these records."""
        options = self.options
        self._observer = Observer(self.session, self.events, keeps_originals=options.on_error == "keep")
        self._session = records
        self._sources = Sources()
        self._conversation = Conversation(records, options, self._observer, self._sources, _table_line)
        self._gate = Gate("offloader", self._conversation.start_over)
        # Not at the first use: a child that is forked while a thread imports a module can never import it.
        with NO_FORK:
            from offload.reading.tools import Tools  # noqa: PLC0415 # `from offload import Offloader` alone needs none

        self.tools: Tools = Tools(
            records,
            names=options.tools,
            max_answer_chars=options.max_answer_chars,
            observer=self._observer,
            sources=self._sources,
        )

    def _new_journal(self, *, is_new: bool) -> JournalWriter:
        with NO_FORK:
            from offload.records.journal.writer import JournalWriter  # noqa: PLC0415 # loaded only when used

        options = self.options
        journal = JournalWriter(self.store, self.session, options.redacted, options.clock, is_new=is_new)
        self.activity = journal.activity
        return journal

    @classmethod
    def from_config(
        cls,
        *,
        folder: str | os.PathLike[str] | None = None,
        file: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | OffloadStore | None = None,
        **arguments: Unpack[SessionArguments],
    ) -> Self:
        """Open an offloader with settings from files and the environment; see `load_config`.

        If the variable `OFFLOAD_KEY` is set, the store is encrypted with the key in it.

        Args:
            folder: the folder to search for settings files; the default is the working folder.
            file: the only settings file to read. It may contain every setting, including the store.
            store: as for `Offloader`; overrides all sources.
            **arguments: as for `Offloader`; override all sources.

        Raises:
            ConfigError: a source cannot be read or has an invalid value; the message names the source.
        """
        with NO_FORK:
            from offload.engine.settings.loader import Settings, load_config  # noqa: PLC0415 # loaded only when used

        overrides = {"store": store, **arguments}
        # An offloader has no argument `agent`: that setting is a table for `AgentConfig`.
        known = {name: overrides[name] for name in (Settings.model_fields.keys() & overrides) - {"agent"}}
        settings = load_config(folder=folder, file=file, arguments=known).settings
        arguments.pop("storage_options", None)
        return cls(settings.open_store(), **(arguments | settings.arguments()))

    def __repr__(self) -> str:
        return f"Offloader({self.store.url!r}, session={self.session!r})"

    def _repr_html_(self) -> str:
        """Return the records' tokens by tool as a bar and the newest as a table, for a notebook.

        It lists the session, and says so if that fails.
        """
        from html import escape  # noqa: PLC0415 # only a notebook needs these

        with NO_FORK:
            from offload.records.record.display import html_bar  # noqa: PLC0415
            from offload.records.record.header import record_table  # noqa: PLC0415
            from offload.records.session.titles import with_titles  # noqa: PLC0415

        head = f"<p>{escape(repr(self))}</p>"
        try:
            infos = self.records()
            newest = with_titles(self._session, infos[: -_SHOWN - 1 : -1])
        except OffloadError as error:
            return f"{head}<p>{escape(str(error))}</p>"
        tokens = Counter[str]()
        for info in infos:
            tokens[info.tool_name or info.item_type.replace("_", " ")] += info.tokens
        parts = [(name, f"{name}: {count:,} tokens", count) for name, count in tokens.most_common()]
        return head + html_bar(parts) + record_table(newest)

    def offload(
        self,
        messages: Sequence[Any],
        *,
        pinned: Iterable[str] = (),
        cache: HostCache | None = None,
        model: str | None = None,
        agent_name: str | None = None,
        is_sent: bool = True,
        policy: policies.OffloadPolicy | PolicyName | None = None,
    ) -> OffloadResult:
        """Replace the large items of `messages` by placeholders, each after its record is durable.

        Call it with the whole conversation before each request to the model, and send `messages` of the
        result. Later calls replace the same items by the same texts, and process only the new messages.

        Args:
            messages: the conversation in the format of Anthropic Messages, OpenAI chat or Responses,
                LangChain, Bedrock Converse or Gemini, as dicts or SDK objects. Never changed.
            pinned: ids of tool calls whose results are kept, unless they are already offloaded.
            cache: "cold" or "warm": the state of the provider's prompt cache, if you know it; by default it
                is inferred from the clock. If it is cold, replacing older items costs nothing extra.
            model: the name of the model that this request goes to; by default that of the offloader. It
                decides whether messages that were sent may still change, see `OffloadPolicy.history`.
            agent_name: the name of the agent that sends it; by default that of the offloader.
            is_sent: whether the messages are the next request. If they are only stored by the caller, and the
                request follows in another call, pass False: the journal has no request for them then.
            policy: another policy for this call, such as one with a `sweep` when a window is nearly full.
                What it offloads remains so; later calls decide about all else by their own policy. It weighs
                no expected cost, and `explain` shows the last call by the policy of the offloader.

        Raises:
            ConfigError: `pinned` is not a collection of ids, or `cache` or `policy` has another value; or the
                call would wait for itself: a hook calls it, or an async hook needs the event loop of this
                thread. In the last case, use `aoffload`.
            MessageError: `messages` is not a list; with `on_error="raise"`, also a malformed message.
            OffloadError: with `on_error="raise"`, an error of the store.
        """
        conversation, pins = _as_list(messages), _as_ids(pinned)
        if cache is not None:
            check_choice("cache", cache, get_args(HostCache))
        check_texts(model=model)
        by = None if policy is None else policies.policy_of(policy)
        terms = Terms(pins, cache, model, checked_agent(agent_name), by)
        turn = partial(self._conversation.offload, conversation, terms)
        with exclusive(self._gate):
            if self.journal is None:
                return turn()
            if sent := self.journal.follow():
                self._conversation.resume(sent)
            if is_sent:
                return self._recorded(self.journal, turn)
            self.journal.interrupt(self)
            return turn()

    def _recorded(self, journal: JournalWriter, turn: Callable[[], OffloadResult]) -> OffloadResult:
        """Return the result of a turn after it was noted in the journal, which never costs the turn."""
        try:
            result = turn()
        except BaseException:
            journal.interrupt(self)
            raise
        failed = journal.record(
            self,
            *self._conversation.marks(result),
            result.messages.__getitem__,
            tokens=result.tokens_after,
            tokens_before=result.tokens_before,
            model=self._conversation.model,
        )
        for error in failed:
            self._observer.failed(error, EventType.JOURNAL_FAILED)
        result.errors.extend(failed)
        return result

    def timeline(self, *, branch: str | None = None) -> Timeline:
        """Return the requests of the session as its journal has them now, from any process.

        It is empty for a session without a journal. With the id of one of its `branches`, it has the requests
        as they were before that rewind. Raises `NotFoundError` for another id, and `StoreError`.
        """
        with NO_FORK:
            from offload.reading.timeline import Timeline  # noqa: PLC0415 # loaded only when used

        return Timeline(self.store, self.session, branch=branch)

    @property
    def activity(self) -> Activity | None:
        """Records and reads of the session for its journal; None if it has none."""
        return self._observer.activity

    @activity.setter
    def activity(self, activity: Activity | None) -> None:
        self._observer.activity = activity

    @property
    def latest(self) -> Latest:
        """The decisions that `explain` shows.

        A loop that offloads through another offloader, as `ContextManager` does, sets those of that one.
        """
        return self._conversation.latest

    @latest.setter
    def latest(self, latest: Latest) -> None:
        self._conversation.latest = latest

    def store_again(self) -> int:
        """Store the items of the last `offload` call again whose records were deleted since.

        Another process may have deleted them. Their ids and placeholders do not change, so the model can read
        again what was sent. It takes a listing, and returns the number of items that were stored. Raises
        `OffloadError` if the store failed; the next `offload` decides about all items again.
        """
        with exclusive(self._gate):
            stored = self._conversation.store_again()
            if stored and self.journal is not None:
                self.journal.renew()
            return stored

    def remove_thinking(
        self, messages: Sequence[Any], start: int | Sequence[int] = 0, *, cause: str | None = None
    ) -> int:
        """Store the signed thinking of the messages from `start` on, and omit it in later calls of `offload`.

        Call it if a provider refuses thinking that "is bound to a different conversation", or if you changed
        a message before thinking that you keep; then call `offload` again. `restore` restores the thinking.
        `ContextManager` and the gateway do this themselves.

        Args:
            messages: the messages as they were passed to `offload`, or as it returned them. Never changed.
            start: index of the message that changed, or 0; or the indices of those whose thinking is removed,
                in order.
            cause: why you changed a message, for the log and the event. By default the provider refused the
                thinking, which the session remembers as the answer of that model.

        Returns:
            The number of blocks that were removed; 0 for a change before thinking that the model requires.

        Raises:
            ConfigError: `start` is not the index of a message, or a hook or listener calls this method.
            MessageError: `messages` is not a list, or JSON cannot restore a block exactly.
            OffloadError: the store failed; nothing is removed.
        """
        conversation = _as_list(messages)
        end = len(conversation)
        indices = range(start, end) if isinstance(start, int) and start <= end else start
        if not _are_indices(indices, end):
            raise ConfigError(f"start must be an index of the {end} messages, got {start!r:.40}")
        refused = f"it is bound to another conversation from messages[{next(iter(indices), end)}] on"
        with exclusive(self._gate):
            return self._conversation.thinking.remove(
                conversation, indices, cause or refused, self.model, is_refused=cause is None
            )

    def return_thinking(self, messages: Sequence[Any]) -> list[Any] | None:
        """Return messages with the thinking that was removed from them, and omit none from now on.

        Call it if a provider refuses a tool call because its thinking is missing, and pass the result to
        `offload`; it is None if nothing was removed. It applies to requests to the model of the last call,
        from any process. Raises as `remove_thinking`.
        """
        conversation = _as_list(messages)
        with exclusive(self._gate):
            return self._conversation.thinking.returned(conversation, self.model)

    def keep_look_alikes(self, messages: Sequence[Any]) -> None:
        """Store the texts of `messages` that only look like placeholders, so that `restore` returns them.

        `offload` does so itself. Call it for messages that you send without it; compaction and the gateway
        do. The messages remain as they are. It costs nothing without such a text. Raises `OffloadError` if
        one could not be stored; `restore` may report it then.
        """
        conversation = _as_list(messages)
        with exclusive(self._gate):
            self._conversation.look_alikes.keep(conversation)

    def store_removed(
        self, messages: Sequence[Any], removed: Sequence[int], notice: Notice
    ) -> tuple[str, Any]:
        """Store the messages at the indices `removed`; return the record's ref and the notice as a message.

        That message must replace the first of them. Each item of theirs that the session's policy offloads,
        at once or later, gets a record of its own first, and so do texts of all messages that only look like
        placeholders. The messages of `offload` remain as they are. Raises `ConfigError` unless `removed` has
        an index, and all in order; `MessageError` if JSON cannot restore one of the removed messages exactly,
        `ContextFullError` for a notice that is no shorter than they are, and `OffloadError` if the store
        failed.
        """
        with NO_FORK:
            from offload.engine.archive import store_removed  # noqa: PLC0415 # only a compaction needs it

        conversation = _as_list(messages)
        if not _are_indices(removed, len(conversation)) or not removed:
            raise ConfigError(
                f"removed must have indices of the {len(conversation)} messages in order, got {removed!r:.40}"
            )
        check_kind("notice", notice, Notice, is_required=True)
        with exclusive(self._gate):
            return store_removed(self._conversation, self.options, conversation, removed, notice)

    @property
    def model(self) -> str | None:
        """Name of the model of the last `offload` call; at first that of the options."""
        return self._conversation.model

    @property
    def kept_for(self) -> int | None:
        """Seconds that your requests ask the provider to keep a prompt, such as the 3600 of a mark with `1h`.

        None, the default, is as usual; `report_usage` sets it if the usage has it. It decides the price and
        the lifetime of the prompt cache, unless the policy gives a `cache`.
        """
        return self._conversation.watch.kept_for

    @kept_for.setter
    def kept_for(self, seconds: int | None) -> None:
        self._conversation.watch.kept_for = seconds

    def binding(self, model: str | None) -> Binding:
        """Return the rules for messages that were sent to a model, once signed thinking is behind them."""
        check_texts(model=model)
        return self._conversation.thinking.binding(self.policy.history, model)

    def is_bound(self, messages: Sequence[Any]) -> bool:
        """Return whether a change of `messages` may break signed thinking in them.

        The policy and the model of the last `offload` call decide, see `OffloadPolicy.history`.
        """
        return self.binding(self.model).keeps_sent and any(map(signed_thinking, _as_list(messages)))

    def report_usage(self, usage: Any, *, is_changed: bool = False) -> Usage | None:
        """Record the provider's token counts for the last request, and return them.

        If the provider read far fewer tokens from its prompt cache than were sent before, the cache missed:
        `missed` of the result and the next `out.cache` report it. If the usage gives the lifetime of what was
        written to the cache, it replaces `policy.cache.ttl`. This method never waits.

        Args:
            usage: the provider's reply or the usage in it, as a dict or an SDK object: of Anthropic, OpenAI,
                Gemini, Bedrock, LangChain or pydantic-ai; or the number of input tokens.
            is_changed: whether you changed the messages after `offload`. Then nothing counts as missed.

        Returns:
            The input tokens, and how many of them were read from the cache and written to it; None if
            `usage` has no count of input tokens.

        Raises:
            ConfigError: `usage` is a text, a list or a bool.
        """
        counted = self._conversation.watch.report(usage, is_changed=is_changed)
        if self.journal is not None and counted is not None:
            self.journal.used = counted
        return counted

    def remembered(self, infos: Iterable[RecordInfo]) -> Remembered:
        """Return what another process would have to read one by one of some records of this session.

        It has those heads that are known here, and the thinking that was removed. Asks no store.
        """
        check_kind("infos", infos, Iterable, is_required=True)
        infos = list(infos)
        for info in infos:
            check_kind("each of infos", info, RecordInfo, is_required=True)
        return Remembered(self._session.heads.of(infos), dict(self._conversation.thinking.contents))

    def remember(self, remembered: Remembered) -> None:
        """Take what `remembered` returned in another process: `offload` does not read it again.

        It is used for records that a listing shows. Asks no store.
        """
        check_kind("remembered", remembered, Remembered, is_required=True)
        with exclusive(self._gate):
            self._session.learn(remembered.heads)
            self._conversation.thinking.contents.update(remembered.thinking)

    @property
    def on_recalled(self) -> Callable[[OffloadResult], object] | None:
        """Called by each `offload` with the result so far, once what was replaced before is replaced again.

        Only then new items are stored, which a slow store may hold up. It is not called if the store did not
        say what was replaced before. Who sets it calls `store_again` after each request: `offload` does not
        look then whether records that it finds are being deleted.
        """
        return self._conversation.on_recalled

    @on_recalled.setter
    def on_recalled(self, on_recalled: Callable[[OffloadResult], object] | None) -> None:
        self._conversation.on_recalled = on_recalled

    @property
    def last_request(self) -> float | None:
        """Time of the last call of `offload` by the clock, in seconds; None if unknown.

        After a restart, set it to the earlier value, so that a pause is noticed; `ContextManager` does this.
        """
        return self._conversation.watch.last_request

    @last_request.setter
    def last_request(self, seconds: float | None) -> None:
        self._conversation.watch.last_request = seconds

    def offload_text(
        self,
        text: str,
        *,
        tool_name: str | None = None,
        tool_use_id: str | None = None,
        item_type: OffloadableType = "tool_result",
        file_readers: Readers = "offload",
        title: str | None = None,
        agent_name: str | None = None,
    ) -> str:
        """Offload one text, such as a tool's output; return its placeholder, or the text if it is kept.

        A text is kept if the policy keeps it or lets the model see it first, or if storing it fails under
        `on_error="keep"`. `explain` and an `item_kept` event give the reason.

        Args:
            text: the text.
            tool_name: the tool that produced it, for the policy and the placeholder.
            tool_use_id: the provider's id of the call. With it, `restore` restores the text only in a result
                of this call.
            item_type: type of the item.
            file_readers: "keep" also applies `policy.file_readers`, so that the model sees the result
                first. Use it if you call `offload` with the messages later; nothing else would offload it.
            title: the title for lists of records, such as a path or a command. Its first line is used, cut to
                80 characters; `redact` is applied. The default is the text's first line.
            agent_name: the name of its agent; by default that of the offloader.

        Raises:
            ConfigError: an invalid argument, or a hook or listener calls this method.
            OffloadError: with `on_error="raise"`, an error of the store.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text must be a str, got {type(text).__name__}")
        item = _item(text, item_type, tool_name, tool_use_id, file_readers, title=title)
        return self._offload_one(item, file_readers, checked_agent(agent_name)).text

    def open_sink(
        self,
        *,
        tool_name: str | None = None,
        tool_use_id: str | None = None,
        item_type: OffloadableType = "tool_result",
        file_readers: Readers = "offload",
        title: str | None = None,
        agent_name: str | None = None,
    ) -> Sink:
        """Return a sink for a text of any size, written in chunks; `Sink.placeholder` is its placeholder.

        Its arguments are those of `offload_text`. Raises `ConfigError` for an invalid one.
        """
        item = _item("", item_type, tool_name, tool_use_id, file_readers, title=title)
        name = checked_agent(agent_name)

        def take(content: str | SpooledContent) -> OffloadOutcome:
            if isinstance(content, str):
                return self._offload_one(replace(item, text=content), file_readers, name)
            return self._offload_one(item, file_readers, name, content)

        return Sink(take, self._conversation.count)

    def recheck(self, message: Any) -> bool:
        """Make the next `offload` process `message` again after it was edited in place.

        Without this call, `offload` notices edits at once in the last 64 messages and in those with an item
        that may still be offloaded, and within some turns in older ones: it checks 256 of them each turn.
        `message` is one of the last list passed to `offload`, or of the list that it returned; returns
        whether it is.
        """
        with exclusive(self._gate):
            return self._conversation.recheck(message)

    def originals(self, messages: Sequence[Any]) -> list[Any]:
        """Return messages that the last `offload` returned as they were passed to it; None for any other.

        It knows the objects and asks no store. A message that was passed with a placeholder is another one:
        for it there is `restore`.
        """
        conversation = _as_list(messages)
        with exclusive(self._gate):
            return self._conversation.originals(conversation)

    def explain(self, text: str | None = None) -> str:
        """Return the decision on each item of the last call, with its reason, as a plain-text table.

        For an offloader of a `ContextManager` that is the last request, in which messages are counted without
        notices and the system messages at the beginning. Without any call it says so. For an earlier call,
        pass its `out.decisions` to `offload.explain`.

        Args:
            text: show only the decision on this text, which was passed to `offload_text` or a sink recently.

        Raises:
            ConfigError: `text` is not a str.
        """
        check_texts(text=text)
        return self.latest.explain(text)

    def _offload_one(
        self, item: Item, file_readers: Readers, agent: str | None, content: SpooledContent | None = None
    ) -> OffloadOutcome:
        """Offload one text; emit the reason if it is kept, since the caller gets only the text."""
        with self._gate.entered():
            if content is None:
                outcome = self._conversation.offload_item(item, file_readers, agent)
            else:
                outcome = self._conversation.offload_long(item, content, agent)
            self._conversation.note_text(item.text, outcome)
            return outcome

    @observed("restore")
    def restore(self, messages: Sequence[Any], *, on_missing: OnMissing = "raise") -> Restored:
        """Return the original messages, with placeholders and compaction notices replaced by their content.

        `restore(offload(messages).messages) == messages`, also in another process or on another machine with
        the same store and session name, and after any number of compactions: a notice is replaced by the
        messages that it replaced, the latest compaction first. A text in offloaded messages that looks like
        a placeholder or a notice is one, since `offload` also stores texts that only look like it; system
        prompts and unfinished items are exceptions. Placeholders of the library's other renderers are
        restored too if a record proves them. It takes one listing, and one read of each record.

        Args:
            messages: the messages, or some of them.
            on_missing: the reaction to a placeholder or notice that cannot be resolved: "raise" raises,
                "keep" keeps it and lists it in `missing` of the result.

        Raises:
            MessageError: `messages` is not a list.
            ConfigError: an unknown `on_missing`.
            ExpiredError: the records of some placeholders were deleted.
            NotFoundError: the session has no record for a placeholder, which may be from another session or
                store; `share` and `fork` make records available to other sessions.
            CorruptError: a record is damaged.
            StoreError: the store could not be read.
                The last four errors have `messages`, restored where possible, and `missing`.
        """
        check_choice("on_missing", on_missing, get_args(OnMissing))
        conversation, keeps_missing = self._conversation, on_missing == "keep"
        return restore(
            conversation.recognition, conversation.thinking, _as_list(messages), keeps_missing=keeps_missing
        )

    aoffload = as_async(offload)
    """Run `offload` in a thread; if cancelled, stop waiting for hooks and let other calls proceed."""

    arestore = as_async(restore)
    """Run `restore` in a thread."""

    def records(self, *, is_fresh: bool = True) -> list[RecordInfo]:
        """Return every record of the session, oldest first, from a fresh listing of the store.

        With `is_fresh=False` it returns those that this offloader knows, and sends no request.
        """
        return self._session.infos() if is_fresh else self._session.catalog.entries()

    def content(self, ref: str) -> Iterator[bytes]:
        """Yield the content of a record in checked chunks, in constant memory.

        Raises:
            NotFoundError: the session has no such record.
            CorruptError: the record is damaged. Damage that only the whole content shows, such as a wrong
                SHA-256, is raised after the last chunk.
        """
        return self._session.read(ref).stream()

    @observed("search")
    def search(self, text: str, *, limit: int = 10) -> SearchResult:
        """Find the passages of the session's records that have the words of `text`, ranked by BM25.

        `readFile`, `read_file` and `src/a.py` are found by their parts too, and text without spaces between
        words by each two characters. A passage needs only some of the words. A record is read at the first
        search after it was stored, and the index is in memory. Forks, and sessions that records are
        shared with, search only what they may read.

        Args:
            text: words in any order; the first 64 count.
            limit: the most passages.

        Returns:
            The passages, the best first, at most two per record; how much was searched; and which records
            were not searched completely, with the reason: binary content, damage, size.

        Raises:
            ConfigError: no letter or digit in `text`, or a `limit` below 1.
            StoreError: the session could not be listed, or the store failed several times.
        """
        return self.tools.index.search(text, limit=limit)

    asearch = as_async(search)
    """Run `search` in a thread."""

    @observed("evidence")
    def evidence(
        self, text: str, *, at: int | None = None, messages: Sequence[Any] | None = None
    ) -> Evidence:
        """Find the exact values of a text in what the session's model was shown, and in its records.

        Values are numbers of three digits and more, dates, paths, URLs, identifiers and quotes. Messages
        other than the assistant's are sources, and so are records; summaries are none. Forms of a value that
        count as the same are fixed rules. `redact` is applied to the text first, as to all that is stored.

        Args:
            text: the text, such as a reply to the last request; the first 1,000,000 characters and 500
                different values are checked.
            at: the number of the request that the text replies to, in `timeline()`; by default the last.
            messages: the whole conversation as it was sent, for a session without a journal.

        Returns:
            Each value with its place and its state: in view of the model, shown before, never shown, or not
            found; and what could not be searched, with the reason. A first check reads for 8 seconds at most.

        Raises:
            ConfigError: `text` is not a str, `at` is not a number, or both `at` and `messages` are given.
            MessageError: `messages` is not a list.
            NotFoundError: the session has no request `at`.
            OffloadError: `redact` failed.
            StoreError: the session could not be listed.
        """
        return self._evidence.check(text, at=at, messages=messages)

    aevidence = as_async(evidence)
    """Run `evidence` in a thread."""

    @cached
    def _evidence(self) -> SessionEvidence:
        with NO_FORK:
            from offload.reading.evidence.session import SessionEvidence  # noqa: PLC0415 # loaded only when used

        return SessionEvidence(self._session, self.options)

    def resolve(
        self,
        arguments: Mapping[str, Any] | str,
        tool: str | None = None,
        *,
        allow: Sequence[str] | None = None,
        max_chars: int = MAX_REFERENCE_CHARS,
    ) -> dict[str, Any]:
        """Return the arguments of a model's tool call with references replaced by stored content.

        A reference is an object: `{"$ref": id}` is a record's whole text; with `"lines": "10-40"`, these
        lines with their newlines; with `"pointer": "/items"`, the value at a JSON pointer. Content is
        inserted as stored; references in it are plain text. Each one emits a `reference_resolved` event.

        Args:
            arguments: the arguments, or their JSON text. Never changed.
            tool: the tool that they belong to. None means the only tool that the allowed fields name, so
                pass the name if you also call this method with the arguments of other tools.
            allow: the fields that may have references: "write_file.content", or "edit.changes.text" for the
                field `text` of objects in `changes`, one object or a list. The default is the option
                `reference_fields` of this offloader.
            max_chars: maximum characters of all content together.

        Raises:
            ReferenceRefusedError: a reference in another field; an id that is unknown in this session,
                expired or damaged; a redacted record; too much content. Its text is for the model:
                return it as the tool's result, and do not run the tool.
            ConfigError: `allow` is not a list of fields; `arguments` is not an object; or `tool` is None, and
                the allowed fields name several tools or none.
            StoreError: the store failed.
        """
        with NO_FORK:
            from offload.reading.tools.arguments import parse_arguments  # noqa: PLC0415
            from offload.reading.tools.references import References  # noqa: PLC0415 # rarely used, and slow to load

        allowed = check_fields(self.options.reference_fields if allow is None else allow)
        tool = only_tool(allowed) if tool is None else tool
        references = References(self._session, tool, allowed, max_chars)
        try:
            resolved = references.replaced(parse_arguments(arguments))
        except ReferenceRefusedError as error:
            self._observer.reference_refused(tool, error)
            raise
        for reference in references.resolved:
            self._observer.referenced(reference.ref, tool, reference.field, reference.chars)
        return resolved

    aresolve = as_async(resolve)
    """Run `resolve` in a thread."""

    def stats(self) -> Stats:
        """Return counts of the session's records, from a fresh listing, and of this offloader's reads."""
        infos = self.records()
        return Stats(
            session=self.session,
            records=len(infos),
            chars=sum(i.chars for i in infos),
            tokens=sum(i.tokens for i in infos),
            stored_bytes=sum(i.stored_bytes for i in infos),
            by_type=dict(Counter(i.item_type for i in infos)),
            by_tool=dict(Counter(i.tool_name for i in infos if i.tool_name is not None)),
            reads=self._observer.reads,
            chars_read=self._observer.chars_read,
        )

    @observed("verify")
    def verify(self) -> list[Damage]:
        """Read every record of the session and compare all checksums; return the damaged records.

        Raises:
            EncryptionError: a record or an entry of the journal does not fit the key of the store, so that it
                could not be checked; `offload.verify` reports the others.
            StoreError: the session could not be listed.
        """
        with NO_FORK:
            from offload.maintenance.jobs.verify import verify  # noqa: PLC0415 # rarely used, and slow to load

        try:
            report = verify(self.store, session=self.session)
        except NotFoundError:
            return []
        if report.unfit:
            [(_, first), *others] = report.unfit
            raise EncryptionError(f"{first}{f' (and {len(others):,} other objects)' if others else ''}")
        return [damage for _, damage in report.damaged]

    @observed("gc")
    def gc(self, *, dry_run: bool = False) -> GcReport:
        """Delete records of the session past their TTL or over a quota in `policy.retention`.

        `offload.collect` applies the quotas to a whole store.

        With `dry_run` it only reports what would be deleted. Raises `ConfigError` if the store reports no
        modification times, and `StoreError` if it failed; the next `gc` continues.
        """
        with NO_FORK:
            from offload.maintenance import retention  # noqa: PLC0415 # rarely used, and slow to load

        return retention.collect(
            self.store, self.policy.retention, session=self.session, dry_run=dry_run, events=self.events
        )

    def pin(self, ref: str | None = None) -> None:
        """Protect a record from `gc`, or the whole session if `ref` is None.

        Raises:
            NotFoundError: the session has no such record; `ExpiredError` if it was deleted.
            StoreError: the store failed.
        """
        with NO_FORK:
            from offload.maintenance import retention  # noqa: PLC0415 # rarely used, and slow to load

        retention.pin(self.store, self.session, ref, must_exist=False)

    def unpin(self, ref: str | None = None) -> None:
        """Unpin a record or the session, if it is pinned. Raises `StoreError`."""
        with NO_FORK:
            from offload.maintenance import retention  # noqa: PLC0415 # rarely used, and slow to load

        retention.unpin(self.store, self.session, ref, must_exist=False)

    def touch(self) -> None:
        """Mark the session as used now, so that quotas do not evict it. Raises `StoreError`."""
        with NO_FORK:
            from offload.maintenance import retention  # noqa: PLC0415 # rarely used, and slow to load

        retention.touch(self.store, self.session, must_exist=False)

    def fork(self, name: str, *, at: int | None = None, branch: str | None = None) -> Offloader:
        """Let a new session of this store continue from a request; return its offloader, with these options.

        With a journal nothing is copied, and three small objects are written at most. A session without one
        is copied: forking again to the same name copies new records. Placeholders up to the request remain
        as they are and are restored from both sessions; the fork reads no later record of this one.

        Args:
            name: the name of the new session.
            at: the number of the request in `timeline()`; by default the end.
            branch: the branch with the request, one of `timeline().branches`, if a rewind left it.

        Raises:
            NotFoundError: the journal has no such request or branch.
            ConfigError: `name` is invalid or that of a session that exists, or a hook or listener calls this
                method.
            CorruptError: a record is damaged; the others are copied.
            CollisionError: session `name` has other items under the same ids.
            StoreError: the store failed; forking again continues.
        """
        with NO_FORK:
            from offload.maintenance import transfer  # noqa: PLC0415 # rarely used, and slow to load

        with exclusive(self._gate):
            if at is not None or branch is not None or len(self.timeline()):
                transfer.fork(self.store, self.session, name, at=at, branch=branch)
                return self._of_session(name)
            report = transfer.copy_session(self.store, self.store, self.session, name=name, must_exist=False)
        for failure in report.failures:
            # A record that the session itself no longer finds is not a loss for the fork.
            if not isinstance(failure.error, NotFoundError):
                raise failure.error
        return self._of_session(name)

    def _of_session(self, name: str) -> Offloader:
        other = self.with_options(session=name)
        other.last_request = self.last_request
        return other

    def rewind(self, at: int, *, branch: str | None = None) -> None:
        """Let this session continue from an earlier request, given by its number in `timeline()`.

        Pass the messages of that request to the next `offload`, or use `ContextManager.rewind`. The later
        requests are no longer in the timeline, but in its `branches` until a gc; their records remain. With
        one of these branches, the session continues from a request of it.

        Raises:
            NotFoundError: the journal has no such request or branch.
            ConfigError: `at` is not a number, or a hook or listener calls this method.
            StoreError: the store failed.
        """
        with NO_FORK:
            from offload.maintenance import transfer  # noqa: PLC0415 # rarely used, and slow to load

        with exclusive(self._gate):
            transfer.rewind(self.store, self.session, at, branch=branch)
            self._conversation.start_over()
            if self.journal is not None:
                # No later entry follows the request that it is of.
                self.journal.used = None
                self.journal.renew()

    def with_options(
        self,
        *,
        store: OffloadStore | None = None,
        session: str | None = None,
        **changes: Unpack[OptionArguments],
    ) -> Offloader:
        """Open an offloader with the store, session and options of this one, except for those given.

        Raises `ConfigError` as `Offloader` does.
        """
        options = self.options.arguments() | changes
        other = Offloader(
            self.store if store is None else store,
            session=self.session if session is None else session,
            **options,
        )
        if session is None and store is None:
            new = other.options
            other._start(self._session.beside(get_codec(new.codec), new.id_style, new.category))
            # One session has one journal, which notes what all its offloaders create.
            journal = self.journal or other.journal
            other.journal = other.journal and journal
            if journal is not None:
                self.activity = journal.activity
            other.activity = self.activity
            other._conversation.recognition.proven = self._conversation.recognition.proven
        if session is None:
            other.last_request = self.last_request
        return other

    def share(self, ref: str, to: str) -> None:
        """Let session `to` of the same store list, read, search and restore a record, until `revoke`.

        Raises:
            NotFoundError: the session has no such record; `ExpiredError` if it was deleted.
            CollisionError: another session shares a record of this id with `to`.
            ConfigError: `to` is not a valid session name.
            StoreError: the store failed; sharing again continues.
        """
        with NO_FORK:
            from offload.maintenance import transfer  # noqa: PLC0415 # rarely used, and slow to load

        transfer.share(self.store, self.session, ref, to)

    def revoke(self, ref: str, to: str) -> None:
        """Revoke access granted with `share`, if there is any.

        Raises `ConfigError` and `StoreError` as `share` does; revoking again continues.
        """
        with NO_FORK:
            from offload.maintenance import transfer  # noqa: PLC0415 # rarely used, and slow to load

        transfer.revoke(self.store, self.session, ref, to)

    def prompt(self) -> str:
        """Return the few lines for the system prompt that explain to the model how to read stored items."""
        prompt = self.tools.prompt() if self.options.prompt is None else self.options.prompt
        fields = self.options.reference_fields
        return f"{prompt}\n{reference_prompt(fields)}" if fields else prompt


def _item(
    text: str,
    item_type: str,
    tool_name: str | None,
    tool_use_id: str | None,
    file_readers: Readers,
    *,
    title: str | None,
) -> Item:
    check_choice("item_type", item_type, ITEM_TYPES)
    check_choice("file_readers", file_readers, get_args(Readers))
    check_texts(tool_name=tool_name, tool_use_id=tool_use_id, title=title)
    return Item(None, item_type, text, tool_name, tool_use_id, title=title)


def _as_list(messages: Sequence[Any]) -> list[Any]:
    check_messages(messages)
    return messages if type(messages) is list else list(messages)


def _are_indices(value: object, end: int) -> TypeGuard[Sequence[int]]:
    """Return whether a value is a sequence of indices below `end`, in order and each once."""
    if not isinstance(value, Sequence) or not all(type(index) is int for index in value):
        return False
    return all(before < after for before, after in pairwise((-1, *value, end)))


def _as_ids(pinned: Any) -> frozenset[str]:
    is_collection = isinstance(pinned, Iterable) and not isinstance(pinned, str | bytes)
    ids: list[Any] = [*pinned] if is_collection else [None]
    if not all(isinstance(each, str) for each in ids):
        raise ConfigError(
            f'pinned must be a collection of tool call ids such as {{"toolu_1"}}, got {pinned!r:.60}'
        )
    return frozenset(ids)


def _table_line(text: str, is_whole: bool) -> str:
    with NO_FORK:
        from offload.reading.tables import schema_line  # noqa: PLC0415 # 10 ms that only a placeholder pays

    return schema_line(text, is_whole=is_whole)
