"""The conversations of a gateway in memory: their names, what was sent in each, and an offloader for each."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from math import inf
from typing import Any, NamedTuple

from offload.engine.binding import Binding
from offload.engine.failures import AboveCeilingError
from offload.engine.policy import CacheModel, OffloadPolicy, Rule
from offload.engine.policy.defaults import NEVER
from offload.engine.policy.policy import with_rules
from offload.engine.results import OffloadResult
from offload.errors import MessageError, OffloadError, StoreError
from offload.gateway._incoming import AGENT_HEADER, SESSION_HEADERS, Api, Incoming
from offload.gateway._journals import ThreadJournal
from offload.gateway._parsed import MOST_ALIKE, Parsed, ProviderThread
from offload.gateway._sent import ThreadId
from offload.gateway._status import Status
from offload.gateway._views import prepared
from offload.messages.access import edits
from offload.messages.formats import role_or_none
from offload.messages.thinking import content_digest, signed_thinking
from offload.offloader import Offloader
from offload.records.observer import error_text
from offload.storage.store import OffloadStore

ABOVE_CEILING = (
    "texts above max_view_tokens were sent in full: they are kept by the policy, or could not be stored"
)
UNREAD = "messages of no known form, such as those of a newer API, pass as they are"
# The model's reply, for a look at what the next request replaces.
_REPLY = {"role": "assistant", "content": ""}
_INSTRUCTIONS = ("instructions", "systemInstruction", "system_instruction")
# More replies than any conversation has.
_NEVER_DUE = 1_000_000
# Coding agents mark the ends of their last two requests.
_MARKS = 2
# Bodies of the conversations that are held in memory, and the least that one counts.
_MOST_BYTES, _LEAST_BYTES = 256 * 1024 * 1024, 64 * 1024


class Sent(NamedTuple):
    """A request that the provider accepted: the views of its messages, and these as they were sent."""

    views: Sequence[Any]
    messages: Sequence[Any]

    def common(self, views: Sequence[Any]) -> int:
        """Return how many messages at the beginning are the same."""
        return next(edits(self.views, views, _is_same), len(views))

    def is_last_before(self, views: Sequence[Any]) -> bool:
        """Return whether a request with some views has all of this one, and at most one more reply."""
        later = map(role_or_none, views[len(self.views) :])
        replies = [role for role, _ in groupby(later) if role == "assistant"]
        return len(replies) <= 1 and self.common(views) == len(self.views)

    def repeated(self, views: Sequence[Any]) -> list[Any]:
        """Return messages with what was replaced in them before, also behind one that the client changed."""
        common = self.common(views)
        sent = zip(self.views, self.messages, views[:common], strict=False)
        repeated = [now if message is view else message for view, message, now in sent]
        if common == len(self.views):
            return [*repeated, *views[common:]]
        moved = {
            content_digest(view): (view, message)
            for view, message in zip(self.views[common:], self.messages[common:], strict=True)
            if message is not view
        }
        pairs = ((view, moved.get(content_digest(view))) for view in views[common:])
        later = (pair[1] if pair is not None and pair[0] == view else view for view, pair in pairs)
        return [*repeated, *later]

    def broken(self, views: Sequence[Any], messages: Sequence[Any]) -> int | None:
        """Return the first message whose thinking followed other messages than these, None without one.

        The last one that can be is the reply to this request.
        """
        common = self.common(views)
        first = next(takewhile(lambda i: i < common, edits(self.messages, messages, _is_same)), None)
        end = min(common + (common == len(self.views)), len(messages))
        later = range(end if first is None else first, end)
        return next((i for i in later if signed_thinking(messages[i])), None)


@dataclass(slots=True, eq=False)
class Thread:
    """One conversation of a client, in memory. What it does with the store runs in the threads of workers.

    Attributes:
        status: gets its failures.
        size: bytes of its latest request.
        latest: that request.
        lock: held by the one request that is being rewritten.
        began: when that began, if it has not ended; others pass while it takes too long.
        sent: the request that the provider accepted last; None if only the store knows what was sent.
        refused: keys of thinking that is left out, and that the store has not taken yet.
        reply_id: the id of the reply that the next request continues, if the provider keeps the conversation.
        journal: keeps its requests; None if the gateway keeps no journals.
        checking: looks whether the records behind its placeholders are there still.
        is_check_late: whether an answer waited for that and passed without it.
        next_check: when that may begin again, by a monotonic clock.
        recalled: gets the messages of a request with all that was replaced before, in a worker's thread.
        aside: the policy of a single request, see `Parsed.is_aside`; None for a conversation.
    """

    id: ThreadId
    offloader: Offloader
    status: Status
    size: int = 0
    latest: Parsed | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = inf
    sent: Sent | None = None
    refused: set[str] = field(default_factory=set)
    checking: asyncio.Task[None] | None = None
    is_check_late: bool = False
    next_check: float = 0.0
    recalled: Callable[[OffloadResult], None] | None = None
    reply_id: str = ""
    journal: ThreadJournal | None = None
    aside: OffloadPolicy | None = None

    def __post_init__(self) -> None:
        self.offloader.on_recalled = self.note_recalled

    def note_recalled(self, result: OffloadResult) -> None:
        """Pass on what was replaced before in the request that is being rewritten."""
        if self.recalled is not None:
            self.recalled(result)

    def binding(self, parsed: Parsed) -> Binding:
        """Return the rules for messages that were sent to the model of a request."""
        return self.offloader.binding(parsed.model)

    def unfounded(self, parsed: Parsed) -> frozenset[str]:
        """Return the keys of thinking in a request that cannot be sent any more."""
        return parsed.left_out if self.binding(parsed).removes else frozenset()

    def is_forgotten(self, parsed: Parsed) -> bool:
        """Return whether only the store knows what was replaced before in a request."""
        return self.sent is None and parsed.last_reply >= 0

    def offload(self, parsed: Parsed) -> OffloadResult:
        """Offload what is due in a request, which is the latest one now."""
        self.latest = parsed if self.aside is None else None
        self.offloader.kept_for = parsed.kept_for
        self.refused |= self.unfounded(parsed)
        if not self.is_forgotten(parsed):
            # Nothing is stored before it is known what was sent.
            self.store_refused(parsed.views)
        result = self._kept_valid(parsed, self._offloaded(parsed))
        self._note_errors(result)
        return result

    def _kept_valid(self, parsed: Parsed, result: OffloadResult) -> OffloadResult:
        """Return a result without the thinking that was made behind other messages than it has.

        They were sent otherwise while the store was slow, or a record was deleted since.
        """
        if self.sent is None or not self.binding(parsed).removes or parsed.first:
            return result
        first = self.sent.broken(parsed.views, result.messages)
        if first is None:
            return result
        self.refused |= keys_in(result.messages[first:])
        self.status.count("thinking_removed", len(self.refused))
        self.store_refused(parsed.views)
        return self._offloaded(parsed)

    def as_sent(self, parsed: Parsed, result: OffloadResult) -> OffloadResult:
        """Return a result with the messages of the last request as they were sent, if it begins with these.

        The store has more for the next request than was replaced in the last one.
        """
        if self.sent is None or not self.sent.is_last_before(parsed.views):
            return result
        count = len(self.sent.views)
        messages = [*self.sent.repeated(parsed.views[:count]), *result.messages[count:]]
        return replace(result, messages=messages)

    def prepare(self, parsed: Parsed) -> None:
        """Store what the next request is going to replace, if there is none yet."""
        if self.latest is parsed:
            self._note_errors(self._offloaded(parsed, [_REPLY]))

    def store_again(self) -> None:
        """Store deleted records again: the requests of the client have the originals."""
        try:
            self.status.count("stored_again", self.offloader.store_again())
        except Exception as error:  # noqa: BLE001 # an answer passes in any case
            self.status.lost("records could not be checked", error)

    def store_refused(self, views: Sequence[Any]) -> None:
        """Store the thinking that was refused, so that it is left out later; the next request tries again."""
        keys = self.refused
        held = [i for i, view in enumerate(views) if not keys.isdisjoint(keys_in([view]))] if keys else []
        if not held or self.aside is not None:
            return
        try:
            self.offloader.remove_thinking(views[: held[-1] + 1], held[0])
            self.refused.clear()
        except OffloadError as error:
            self.status.lost("thinking that was refused is not stored", error)

    def return_thinking(self, views: Sequence[Any]) -> None:
        """Leave no thinking out from now on, since the provider refuses tool calls without it."""
        self.refused.clear()
        try:
            self.offloader.return_thinking(views)
        except OffloadError as error:
            self.status.lost("that thinking is required is not stored", error)

    def keep_look_alikes(self, texts: Sequence[Any]) -> None:
        """Store which texts only look like placeholders; a later request with them tries again."""
        try:
            self.offloader.keep_look_alikes(texts)
        except OffloadError as error:
            self.status.failed(f"texts like placeholders are not stored: {error_text(error)}")

    def _offloaded(self, parsed: Parsed, more: Sequence[Any] = ()) -> OffloadResult:
        return self.offloader.offload([*parsed.views, *more], model=parsed.model, policy=self.aside)

    def _note_errors(self, result: OffloadResult) -> None:
        for error in result.errors:
            if isinstance(error, StoreError):
                self.status.lost("results are not replaced", error)
            elif isinstance(error, AboveCeilingError):
                # The reason in its text may name what the client calls its tools.
                self.status.say_once(ABOVE_CEILING)
            elif isinstance(error, MessageError):
                self.status.say_once(UNREAD)
            else:
                self.status.say_once(error_text(error))


class Threads:
    """The conversations in memory; those that were not used for the longest time are dropped."""

    def __init__(self, offloader: Offloader, store: OffloadStore, status: Status) -> None:
        self._offloader = offloader
        self._status = status
        self._store = store
        self._held: OrderedDict[ThreadId, Thread] = OrderedDict()
        # By what their requests have in common, the last used conversations, the latest one last.
        self._alike: defaultdict[tuple[str | None, ...], list[ThreadId]] = defaultdict(list)
        # Conversations that the provider keeps, by their session and the id of the latest reply.
        self._kept: defaultdict[str, dict[str, ProviderThread]] = defaultdict(dict)
        self._size = 0

    @property
    def policy(self) -> OffloadPolicy:
        """The policy that those of all conversations are made of."""
        return self._offloader.policy

    def get(self, name: ThreadId) -> Thread | None:
        """Return a conversation that is in memory."""
        return self._held.get(name)

    def befores(self, incoming: Incoming) -> list[Parsed]:
        """Return the requests of which one may be that before a request which is not read yet."""
        threads = [self._held[name] for name in self._alike.get(incoming.hint, ())]
        return [thread.latest for thread in threads if thread.latest is not None]

    def kept(self, session: str) -> Mapping[str, ProviderThread] | None:
        """Return the conversations of a session that the provider keeps, by the id of the latest reply."""
        return self._kept.get(session)

    def opened(self, name: ThreadId, parsed: Parsed, incoming: Incoming) -> Thread:
        """Return the conversation of a request, which is its latest one now."""
        others = [other for other in self._alike[incoming.hint] if other != name]
        self._alike[incoming.hint] = [*others[1 - MOST_ALIKE :], name]
        thread = self._held.pop(name, None) or self._new(name, parsed, incoming.api)
        self._held[name] = thread
        size = max(len(incoming.body), _LEAST_BYTES) + (thread.size if parsed.first else 0)
        self._size += size - thread.size
        thread.size = size
        while self._size > _MOST_BYTES and len(self._held) > 1:
            self.drop(next(iter(self._held.values())))
        return thread

    def beside(self, name: ThreadId, parsed: Parsed, incoming: Incoming) -> Thread:
        """Return a thread for one request, which has what was sent before in its conversation.

        The conversation is in memory, or the store knows what was sent. Nothing of the request counts in it.
        """
        main = self._held.get(name) or self._nearest(parsed, incoming)
        thread = self._new(name if main is None else main.id, parsed, incoming.api)
        thread.aside = only_sent(thread.offloader.policy)
        if main is not None:
            thread.sent, thread.refused = main.sent, {*main.refused}
            thread.journal = main.journal
        return thread

    def _nearest(self, parsed: Parsed, incoming: Incoming) -> Thread | None:
        """Return the conversation in memory that has most in common with a request, a reply at least."""
        found, most = None, parsed.first_reply
        for thread in map(self._held.__getitem__, self._alike.get(incoming.hint, ())):
            common = 0 if thread.sent is None else thread.sent.common(parsed.views)
            if common > most:
                found, most = thread, common
        return found

    def _new(self, name: ThreadId, parsed: Parsed, api: Api) -> Thread:
        policy = policy_for(self._offloader.policy, api)
        if parsed.is_threaded:
            policy = policy.model_copy(update={"history": "append_only"})
        own = self._offloader.with_options(
            store=self._store, session=name.session, policy=policy, on_error="keep", journal=False
        )
        thread = Thread(name, own, self._status)
        if self._offloader.options.journal:
            thread.journal = ThreadJournal(self._offloader, *name)
            own.activity = thread.journal.writer.activity
        return thread

    def note_reply(self, thread: Thread, parsed: Parsed, reply: Mapping[str, Any]) -> None:
        """Note the reply to a request, if the next one may continue it."""
        name, content = reply.get("id"), reply.get("content")
        is_held = self._held.get(thread.id) is thread
        if not (parsed.is_threaded and is_held and isinstance(name, str) and isinstance(content, list)):
            return
        if name != thread.reply_id:
            kept = self._kept[thread.id.session]
            kept.pop(thread.reply_id, None)
            kept[name] = parsed.continued(thread.id.name, {"role": "assistant", "content": content})
            thread.reply_id = name

    def drop(self, thread: Thread) -> None:
        """Drop a conversation from memory, if it is there."""
        if self._held.get(thread.id) is not thread:
            return
        del self._held[thread.id]
        self._size -= thread.size
        self._kept[thread.id.session].pop(thread.reply_id, None)
        if not self._kept[thread.id.session]:
            del self._kept[thread.id.session]
        for hint, names in [*self._alike.items()]:
            self._alike[hint] = [name for name in names if name != thread.id]
            if not self._alike[hint]:
                del self._alike[hint]


def keys_in(messages: Sequence[Any]) -> frozenset[str]:
    """Return the keys of all signed thinking in messages."""
    return frozenset(one.key for message in messages for one in signed_thinking(message))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether the model reads the same in two messages."""
    if one == other:
        return True
    # A content may be a text or one block of text.
    forms = {type(message.get("content")) for message in (one, other)}
    return forms == {str, list} and content_digest(one) == content_digest(other)


def name_of(parsed: Parsed, headers: Mapping[str, str]) -> str:
    """Return a name for the conversation of a request: its session if one is named, and its first messages.

    A subagent has the session of its parent and other first messages.
    """
    if parsed.kept is not None:
        return parsed.kept.name
    session = next((value for name in SESSION_HEADERS if (value := headers.get(name))), None)
    session = session or _session_in(parsed.fields)
    first = next((i for i, view in enumerate(parsed.views) if role_or_none(view) == "user"), 0)
    parts = [session, headers.get(AGENT_HEADER), parsed.views[: first + 1]]
    parts += ["thread"] * parsed.is_threaded
    if session is None:
        instructions = (parsed.fields.get(name) for name in _INSTRUCTIONS)
        parts += [parsed.fields.get("system"), next(filter(None, instructions), None)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def name_of_unprepared(parsed: Parsed, headers: Mapping[str, str]) -> str:
    """Return the name of the conversation of a request with views that are the messages of the client."""
    first = next((i for i, view in enumerate(parsed.views) if role_or_none(view) == "user"), 0)
    views = deepcopy(parsed.views[: first + 1])
    for view in views:
        for _ in prepared(view):
            pass
    return name_of(replace(parsed, views=views), headers)


def _session_in(fields: Mapping[str, Any]) -> str | None:
    metadata = fields.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    for value in (fields.get("prompt_cache_key"), user):
        if isinstance(value, str) and value:
            return value
    return None


def policy_for(policy: OffloadPolicy, api: Api) -> OffloadPolicy:
    """Return a policy for requests that a client made: tool results and arguments, once the model saw them.

    All else of the client is text of a user: its instructions, its summaries and what the user wrote. Only
    the ceiling counts for that. Arguments that may be signed are kept.
    """
    is_given = "cache" in policy.model_fields_set
    cache = policy.cache if is_given else CacheModel.preset(api.like)
    cache = cache.model_copy(update={"marks": cache.marks or _MARKS})
    seen = policy.once_seen()
    types = {**seen.types, "tool_call": NEVER} if api.signs_calls else seen.types
    made = seen.model_copy(update={"cache": cache, "types": types})
    if not is_given:
        # Each request has that of its model.
        made.model_fields_set.discard("cache")
    return made


def only_sent(policy: OffloadPolicy) -> OffloadPolicy:
    """Return a policy that replaces what was replaced before, and else only what is above the ceiling."""

    def later(rule: Rule) -> Rule:
        return rule.model_copy(update={"after_replies": _NEVER_DUE}) if rule.after_replies else rule

    return with_rules(policy, later, {"sweep": None})
