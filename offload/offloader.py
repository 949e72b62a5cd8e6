"""Offloader: decide, store, verify, replace; and restore."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, Unpack, cast, get_args

from offload.codec import SpooledContent, get_codec
from offload.engine.conversation import Conversation
from offload.engine.recognition import Recognition
from offload.engine.restorer import Restorer
from offload.engine.results import OffloadOutcome, OffloadResult, Restored, Stats
from offload.engine.sink import Sink
from offload.engine.writer import ItemWriter
from offload.errors import ConfigError, MessageError
from offload.events import EventBus, Observer, observed, one_at_a_time
from offload.hooks import ItemSummarizer, Redact, ShouldOffload
from offload.messages import Item
from offload.options import OnError, OptionArguments, Options
from offload.placeholder import DefaultRenderer, PlaceholderRenderer
from offload.policy import OffloadPolicy, Readers
from offload.record import ITEM_TYPES, ItemType, RecordInfo, RefStyle
from offload.registry import open_store
from offload.retention import GcReport, collect, pin, touch, unpin
from offload.session import Damage, Session, check_name, new_name
from offload.store import OffloadStore
from offload.threads import Gate, in_thread
from offload.tokens import TokenCounter
from offload.tools import MAX_ANSWER_CHARS, TOOL_NAMES, Tools
from offload.transfer import fork, revoke, share

OnMissing = Literal["raise", "keep"]


class Offloader:
    """Takes the large parts of one session's messages out to a store, and brings them back.

    Safe to call from several threads: calls of `offload` run one after the other, all else side by side. The
    functions handed in are called from all of them. Within one, as within a listener, only what reads may be
    used of the offloader that calls it; `offload`, `offload_text`, sinks and `fork` raise `ConfigError`.

    Args:
        store: a path, a URL (`file://`, `memory://`, `s3://bucket/prefix`, any fsspec URL) or a store;
            without one, a folder under the user's data directory.
        session: name of the session; without one, `session_{YYYYMMDD_HHMMSS}_{6 random}`. Give the same
            name to go on with a session, from any process or machine that reaches the store.
        policy: what is offloaded; the default is `OffloadPolicy()`.
        storage_options: passed to the backend: credentials, endpoint, durability.
        placeholder: renders the text left in a message.
        codec: how records are written: "zstd", "json" or "raw".
        refs: how the refs of new records look: "letters", ten or more of a-z, or "short", five or six letters
            a-z and digits, of which one in some thousands meets another's and is drawn again.
        token_counter: counts tokens of a text; the default is an offline estimate.
        should_offload: asked of each item that the policy lets go, with its `ItemFacts`; false keeps it.
            An async one, here and below, fails after 60 seconds; a plain one must end by itself.
        redact: returns a text without what must not be stored, before preview and record are made. What
            was cut out does not come back with `restore`; the record and its placeholder say so.
        summarizer: returns a few sentences on a text; they stand in its placeholder and its record.
        tools: the tools that the model is offered, by name; no others are named or answered. context_read
            is always among them, since every placeholder names it.
        max_answer_chars: the most characters of a tool's answer, at least 2,000.
        on_error: what `offload` does when an item cannot be stored: "keep" leaves the item in its
            message and reports, "raise" raises, "truncate" leaves its preview alone.
        events: told what is stored, read back and fails, see `offload.events`; without one, a bus of its
            own.

    Attributes:
        policy: what is offloaded.
        store: where it goes.
        session: name of the session.
        options: its other arguments; `with_options` opens an offloader that shares them.
        tools: what the model calls to read back.
        events: who is told what happens.

    Raises:
        ConfigError: an argument that cannot work: an unknown scheme, codec or option, a package that is
            not installed. Nothing is read or written before the first call that needs it.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | OffloadStore | None = None,
        *,
        session: str | None = None,
        policy: OffloadPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
        placeholder: PlaceholderRenderer | None = None,
        codec: str = "zstd",
        refs: RefStyle = "letters",
        token_counter: TokenCounter | None = None,
        should_offload: ShouldOffload | None = None,
        redact: Redact | None = None,
        summarizer: ItemSummarizer | None = None,
        tools: Sequence[str] = TOOL_NAMES,
        max_answer_chars: int = MAX_ANSWER_CHARS,
        on_error: OnError = "keep",
        events: EventBus | None = None,
    ) -> None:
        self.options = options = Options(
            policy=OffloadPolicy() if policy is None else policy,
            placeholder=DefaultRenderer() if placeholder is None else placeholder,
            codec=codec,
            refs=refs,
            token_counter=token_counter,
            should_offload=should_offload,
            redact=redact,
            summarizer=summarizer,
            tools=tools,
            max_answer_chars=max_answer_chars,
            on_error=on_error,
            events=EventBus() if events is None else events,
        )
        self.policy, self.events = options.policy, options.events
        self.store = open_store(store, storage_options=storage_options)
        self.session = new_name() if session is None else check_name(session)
        self._observer = Observer(self.session, self.events)
        self._session = Session(self.store, self.session, get_codec(codec), refs)
        recognition = Recognition(self._session, options)
        self._restorer = Restorer(self._session, recognition)
        writer = ItemWriter(self._session, options, recognition, self._observer)
        self._conversation = Conversation(options, writer, recognition, self._observer)
        self._gate = Gate("offloader", self._conversation.start_over)
        self.tools = Tools(
            self._session, names=tools, max_answer_chars=max_answer_chars, observer=self._observer
        )

    @classmethod
    def from_config(
        cls,
        *,
        folder: str | os.PathLike[str] | None = None,
        file: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | OffloadStore | None = None,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> Self:
        """Open an offloader with the settings of files and the environment; see `offload.config`.

        Args:
            folder: the folder to look for files in; the default is the working folder.
            file: the one file to read. It may contain every setting, the store too.
            store: as for `Offloader`; this and the following arguments override all sources.
            session: as for `Offloader`.
            storage_options: as for `Offloader`.
            **options: as for `Offloader`.

        Raises:
            ConfigError: a source cannot be read or has an invalid value; the message names the source.
        """
        from offload.config import Settings, load_config  # noqa: PLC0415 # loaded only when used

        arguments = {"store": store, "session": session, "storage_options": storage_options, **options}
        overrides = {name: arguments[name] for name in Settings.model_fields.keys() & arguments}
        settings = load_config(folder=folder, file=file, arguments=overrides).settings
        return cls(
            settings.store,
            session=settings.session,
            storage_options=settings.storage_options,
            **(options | settings.options()),
        )

    def __repr__(self) -> str:
        return f"Offloader({self.store.url!r}, session={self.session!r})"

    def offload(self, messages: Sequence[Any], *, pinned: Iterable[str] = ()) -> OffloadResult:
        """Replace the large items of `messages` by placeholders, each after its record is durable.

        Call it with the whole conversation before each request to the model. What was replaced once
        is replaced by the same text again; work grows with what is new since the last call.

        Args:
            messages: the conversation, as Anthropic Messages, OpenAI chat or Responses, LangChain, Bedrock
                Converse or Gemini hold it, as dicts or SDK objects. Never changed.
            pinned: ids of tool calls whose results stay in view; what left before stays away.

        Raises:
            ConfigError: `pinned` is no collection of ids, or the call would wait for itself: for a hook that
                waits for it, or an async hook on the event loop of this thread; use `aoffload`.
            MessageError: `messages` is no list; or, with `on_error="raise"`, one of them is malformed.
            OffloadError: with `on_error="raise"`, what the store raised.
        """
        given, pins = _as_list(messages), _as_ids(pinned)
        with one_at_a_time(self._gate):
            return self._conversation.latest.note(self._conversation.offload(given, pins))

    def offload_text(
        self,
        text: str,
        *,
        tool_name: str | None = None,
        tool_use_id: str | None = None,
        item_type: ItemType = "tool_result",
        readers: Readers = "offload",
    ) -> str:
        """Offload one text, as a tool returns it; return its placeholder, or the text unchanged.

        The text stays if a rule of the policy keeps it, or wants it seen first, or if storing fails under
        `on_error="keep"`. `explain` and an event `item_kept` tell why one stays.

        Args:
            text: the text.
            tool_name: the tool that made it, for the policy and the placeholder.
            tool_use_id: the provider's id of the call. `restore` finds the text again only in a result
                of the same call.
            item_type: what kind of part of a message it will be.
            readers: "keep" applies `policy.readers` too, which has a file reader's result seen in full first.
                That is for who calls `offload` with the messages later; else nothing takes it any more.

        Raises:
            ConfigError: an unknown item type, a text that is none, or another word for `readers`; a hook or a
                listener calls it.
            OffloadError: with `on_error="raise"`, what the store raised.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text is a str, not {type(text).__name__}")
        item = _item(text, item_type, tool_name, tool_use_id)
        _check_readers(readers)
        return self._take(item, readers).text

    def open_sink(
        self,
        *,
        tool_name: str | None = None,
        tool_use_id: str | None = None,
        item_type: ItemType = "tool_result",
        readers: Readers = "offload",
    ) -> Sink:
        """Return a sink, which takes a text of any size in parts and gives its placeholder; see `Sink`.

        Args:
            tool_name: the tool that makes the text, for the policy and the placeholder.
            tool_use_id: the provider's id of the call, as in `offload_text`.
            item_type: what kind of part of a message it will be.
            readers: as in `offload_text`.

        Raises:
            ConfigError: an unknown item type, a name that is no text, or another word for `readers`.
        """
        item = _item("", item_type, tool_name, tool_use_id)
        _check_readers(readers)

        def take_text(text: str) -> OffloadOutcome:
            return self._take(replace(item, text=text), readers)

        def take_long(content: SpooledContent) -> OffloadOutcome:
            with self._gate.entered():
                taken = self._conversation.offload_long(item, content)
                self._conversation.latest.note_text(taken.text, taken.decision)
                return taken

        return Sink(take_text, take_long, self._conversation.count)

    def forget(self, message: Any) -> bool:
        """Have `message`, which was edited in place, looked at anew by the next `offload`.

        Without it an edit shows at once in the last 64 messages and in those with an item that may still
        leave, in older ones within some turns: each turn looks at 256 of them.

        Args:
            message: a message as it was handed over.

        Returns:
            Whether it is one of the last list that was offloaded; nothing is to be looked at anew if not.
        """
        with one_at_a_time(self._gate):
            return self._conversation.forget(message)

    def explain(self, text: str | None = None) -> str:
        """Return what became of each item of the last call, and why, as a table of plain text.

        Args:
            text: tell of this text alone, which was given to `offload_text` or a sink lately. `out.decisions`
                says of any result of `offload` what `offload.explain` makes a table of.
        """
        return self._conversation.latest.explain(text)

    def _take(self, item: Item, readers: Readers) -> OffloadOutcome:
        """Offload one text; tell why it stays, which nobody might see otherwise."""
        with self._gate.entered():
            taken = self._conversation.offload_item(item, readers)
            self._conversation.latest.note_text(item.text, taken.decision)
            if taken.decision is not None and taken.info is None and taken.error is None:
                self._observer.kept(taken.decision.item._asdict(), taken.decision.reason)
            return taken

    @observed("restore")
    def restore(self, messages: Sequence[Any], *, on_missing: OnMissing = "raise") -> Restored:
        """Return `messages` with every placeholder of this session replaced by what it stands for.

        `restore(offload(messages).messages) == messages`, also in another process or on another machine
        that has the store's URL and the session's name. What looks like a placeholder in a list that was
        offloaded is one, since `offload` stores a text that only looks like it; a system prompt, where
        none is left, and what is not finished may hold any text.

        Args:
            messages: the messages, or some of them.
            on_missing: what becomes of a placeholder that cannot be resolved: "raise" raises, "keep" leaves
                it and names it in `missing` of the list.

        Raises:
            MessageError: `messages` is no list.
            ConfigError: `on_missing` is another word.
            ExpiredError: what placeholders stand for was collected.
            NotFoundError: the session has no record that stands for one: it is perhaps of another session or
                store. What is to resolve placeholders of another session is given them by `share` or `fork`.
            CorruptError: a record is damaged.
            StoreError: the store could not be read.
                Each of the last four has `messages`, the list as far as it could be restored, and `missing`.
        """
        if on_missing not in get_args(OnMissing):
            raise ConfigError(f"on_missing is one of {get_args(OnMissing)}, not {on_missing!r}")
        return self._restorer.restore(_as_list(messages), keeps_missing=on_missing == "keep")

    async def aoffload(self, messages: Sequence[Any], *, pinned: Iterable[str] = ()) -> OffloadResult:
        """Do what `offload` does, in a thread; when cancelled, it waits for no hook and lets others in."""
        return await in_thread(self.offload, messages, pinned=pinned)

    async def arestore(self, messages: Sequence[Any], *, on_missing: OnMissing = "raise") -> Restored:
        """Do what `restore` does, in a thread."""
        return await in_thread(self.restore, messages, on_missing=on_missing)

    def records(self) -> list[RecordInfo]:
        """Return every record of the session, oldest first, from a fresh listing of the store."""
        return self._session.infos()

    def content(self, ref: str) -> Iterator[bytes]:
        """Yield the whole content of a record in order, each chunk checked, in constant memory.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: the record is damaged. What only the whole can show, its SHA-256 above all, is
                raised after the last chunk.
        """
        return self._session.read(ref).stream()

    def stats(self) -> Stats:
        """Return what the session holds, from a fresh listing of the store, and what was read back."""
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
        """Read every record of the session whole, every checksum compared; return those that are damaged.

        Raises:
            StoreError: the session could not be listed.
        """
        return list(self._session.verify())

    @observed("gc")
    def gc(self, *, dry_run: bool = False) -> GcReport:
        """Collect what is over its time to live or a quota of the session, by `policy.retention`.

        `offload.retention.collect` does it for a whole store, with the quotas of the store.

        Args:
            dry_run: only tell what would go.

        Raises:
            ConfigError: the store tells no times of its objects.
            StoreError: the store failed; the next collection goes on.
        """
        retention = self.policy.retention
        return collect(self.store, retention, session=self.session, dry_run=dry_run, events=self.events)

    def pin(self, ref: str | None = None) -> None:
        """Keep a record, or without `ref` the whole session, from every collection.

        Raises:
            NotFoundError: no such record; `ExpiredError` if it is collected already.
            StoreError: the store failed.
        """
        pin(self.store, self.session, ref, must_exist=False)

    def unpin(self, ref: str | None = None) -> None:
        """Take back what `pin` did; what is not pinned is success. Raises `StoreError`."""
        unpin(self.store, self.session, ref, must_exist=False)

    def touch(self) -> None:
        """Note that the session is used, though nothing new is stored: no quota takes it then.

        Raises `StoreError`.
        """
        touch(self.store, self.session, must_exist=False)

    def fork(self, name: str) -> Offloader:
        """Copy the session to the name `name` on the same store and open it, set up as this one.

        Messages that were offloaded before restore in both; from then on each goes its own way. Forking
        again to the same name copies what is new.

        Raises:
            CorruptError: a record is damaged. What could be copied is there.
            CollisionError: session `name` holds other items under the same refs.
            ConfigError: `name` is this session's, or cannot name a session; a hook or a listener calls it.
            StoreError: the store failed; forking again goes on.
        """
        with one_at_a_time(self._gate):
            fork(self.store, self.session, name, must_exist=False)
        return self.with_options(session=name)

    def with_options(
        self,
        *,
        store: OffloadStore | None = None,
        session: str | None = None,
        **changes: Unpack[OptionArguments],
    ) -> Offloader:
        """Open an offloader with the store, session and options of this one, except for those given.

        Args:
            store: another store.
            session: another session.
            **changes: other options, as for `Offloader`.

        Raises:
            ConfigError: as for `Offloader`.
        """
        options = cast("OptionArguments", {**self.options.arguments(), **changes})
        return Offloader(
            self.store if store is None else store,
            session=self.session if session is None else session,
            **options,
        )

    def share(self, ref: str, to: str) -> None:
        """Let session `to` of the same store list, read, search and restore a record, until `revoke`.

        Raises:
            NotFoundError: no such record in this session; `ExpiredError` if it was collected.
            CollisionError: another session shares a record of this ref with `to`.
            ConfigError: `to` cannot name a session.
            StoreError: the store failed; sharing again goes on.
        """
        share(self.store, self.session, ref, to)

    def revoke(self, ref: str, to: str) -> None:
        """Take back what `share` gave; what was not shared is no error.

        Raises:
            ConfigError: `to` cannot name a session.
            StoreError: the store failed; revoking again goes on.
        """
        revoke(self.store, self.session, ref, to, must_exist=False)

    def prompt(self) -> str:
        """Return up to 15 lines for the system prompt that tell the model how to read items back."""
        return self.tools.prompt()


def _item(text: str, item_type: str, tool_name: str | None, tool_use_id: str | None) -> Item:
    if item_type not in ITEM_TYPES:
        raise ConfigError(f"item_type is one of {ITEM_TYPES}, not {item_type!r}")
    for name in (tool_name, tool_use_id):
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"tool_name and tool_use_id are texts, not {type(name).__name__}")
    return Item(None, item_type, text, tool_name, tool_use_id)


def _check_readers(readers: str) -> None:
    if readers not in get_args(Readers):
        raise ConfigError(f"readers is one of {get_args(Readers)}, not {readers!r}")


def _as_list(messages: Sequence[Any]) -> list[Any]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise MessageError(f"expected a list of messages, got {type(messages).__name__}")
    return messages if type(messages) is list else list(messages)


def _as_ids(pinned: Any) -> frozenset[str]:
    is_collection = isinstance(pinned, Iterable) and not isinstance(pinned, str | bytes)
    ids: frozenset[Any] = frozenset(pinned) if is_collection else frozenset([None])
    if not all(isinstance(each, str) for each in ids):
        raise ConfigError(f'pinned holds ids of tool calls, as {{"toolu_1"}} does, not {pinned!r:.60}')
    return ids
