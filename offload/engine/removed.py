"""Signed thinking that was removed from a conversation: stored, left out of requests, and restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from offload.base.text import decode_text
from offload.engine.binding import Binding, binding_of
from offload.engine.items import unweighed
from offload.engine.policy.models import Answer, HistoryRule
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.rows import decode_rows, encode_row
from offload.engine.writer import ItemWriter, Skipped, WriteRequest
from offload.errors import OffloadError, result_or_error
from offload.messages import Removed
from offload.messages.base import Item
from offload.messages.thinking import (
    bare_of,
    content_digest,
    signature_of,
    signed_thinking,
    with_thinking,
    without_thinking,
)
from offload.records.observer import Observer
from offload.records.record.header import OffloadableType
from offload.records.session import Session
from offload.records.session.drafts import OffloadedItem
from offload.storage.layout import name_of

# The tool name of the records of removed thinking, and their item type.
THINKING_TOOL = "thinking"
THINKING_TYPE: OffloadableType = "assistant_message"


# Restores each of some messages, except its thinking: to itself, or to those that its notice replaced.
Undone = Callable[[Sequence[Any]], Sequence[Sequence[Any]]]


class _Stripped(NamedTuple):
    """A message whose thinking was removed.

    Attributes:
        digest: digest of what is left of it; `before` is that of the message before it, empty for the first.
        removed: the blocks.
        keys: digests of their signatures.
        number: how many earlier messages are equal to it and follow an equal one.
    """

    digest: str
    before: str
    removed: list[Removed]
    keys: list[str]
    number: int


class _ShownAnswer(NamedTuple):
    """The answer of a model's provider that a refusal showed, and how many there were with this one."""

    number: int
    model: str
    answer: Answer


class RemovedThinking:
    """The thinking that was removed in one session, in this process or another.

    Attributes:
        keys: digests of the signatures of the removed blocks.
        contents: those of its records that this process knows, by the last part of their keys.
    """

    def __init__(
        self,
        session: Session,
        writer: ItemWriter,
        redacted: Callable[[str], str],
        observer: Observer,
        undone: Undone,
    ) -> None:
        self._session = session
        self._undone = undone
        self._observer = observer
        self._writer = writer
        self._redacted = redacted
        self.keys: set[str] = set()
        self._answers: dict[str, _ShownAnswer] = {}
        self.contents: dict[str, str] = {}
        # By digest, in the order in which they were removed.
        self._stripped: dict[str, list[_Stripped]] = {}
        self._read: set[str] = set()

    def load(self) -> None:
        """Read the records of other processes that the session's catalog knows. Raises `OffloadError`."""
        new = [i for i in self._session.catalog.entries() if i.tool_name == THINKING_TOOL]
        new = [info for info in new if info.item_type == THINKING_TYPE and info.ref not in self._read]
        unknown = [info for info in new if name_of(info.key) not in self.contents]
        for info, record in self._session.open_many(unknown):
            if isinstance(record, OffloadError):
                raise record
            _, content = self._session.load(info, record)
            self.contents[name_of(info.key)] = decode_text(content)
        for info in new:
            rows = decode_rows(self.contents[name_of(info.key)], "thinking", _parsed)
            self._add(row for row in rows if isinstance(row, _Stripped))
            for row in rows:
                if isinstance(row, _ShownAnswer) and row > self._refused(row.model):
                    self._answers[row.model] = row
            self._read.add(info.ref)

    def binding(self, history: HistoryRule, model: str | None) -> Binding:
        """Return the rules by those of a policy, the name of the model, and what its provider refused."""
        refused = self._refused(model)
        if refused.number and history != "editable":
            return Binding(refused.answer, refused.answer == "binds" or history == "append_only")
        return binding_of(history, model)

    def _refused(self, model: str | None) -> _ShownAnswer:
        return self._answers.get(model or "", _ShownAnswer(0, model or "", "free"))

    def _note(self, model: str | None, answer: Answer) -> None:
        """Store the answer that a refusal shows, against what was known. Raises `OffloadError`."""
        row = _ShownAnswer(self._refused(model).number + 1, model or "", answer)
        self._write(encode_row(row._asdict()), f"the provider of {model or 'a model'}: thinking {answer}")
        self._answers[row.model] = row

    def left_out(self, message: Any) -> Any:
        """Return `message` without its blocks that were removed; itself if it has none."""
        return bare_of(message, self.keys)

    def originals_of(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Return messages that were sent without their placeholders; themselves if the store fails."""
        found = result_or_error(self._undone, messages)
        return messages if isinstance(found, OffloadError) else [some[-1] for some in found]

    def remove(
        self,
        messages: Sequence[Any],
        indices: Iterable[int],
        cause: str,
        model: str | None,
        *,
        is_refused: bool = False,
    ) -> int:
        """Store and remove all signed thinking of some messages; return how many blocks.

        `cause` says why, for a person, and `is_refused` that the provider of the model refused it: required
        thinking is removed for nothing else. Raises `OffloadError` if it cannot be stored; then none is.
        """
        known = self.binding("auto", model)
        if known.is_required and not is_refused:
            return 0
        thinking = {index: signed_thinking(messages[index]) for index in indices}
        if is_refused and known.answer != "binds" and any(thinking.values()):
            self._note(model, "binds")
        new = [at for at, some in thinking.items() if not self.keys.issuperset(one.key for one in some)]
        some = self._all_stripped(messages, new)
        self._store(some)
        # Thinking that was removed before is sent where it is required.
        blocks = sum(map(len, thinking.values() if known.is_required else (one.keys for one in some)))
        if blocks:
            self._observer.thinking_removed(blocks, cause)
        return blocks

    def renew(self, messages: Sequence[Any], indices: Iterable[int]) -> None:
        """Store the removed thinking of some messages again that were edited since, for `restore`.

        Raises `OffloadError` if it cannot be stored.
        """
        edited = [index for index in indices if not self._is_stored(messages[index])]
        self._store(self._all_stripped(messages, edited))

    def returned(self, messages: Sequence[Any], model: str | None) -> list[Any] | None:
        """Return messages with the thinking that was removed, which requests to a model have from now on.

        None if nothing was removed from them. Raises `OffloadError` if that cannot be stored.
        """
        out = self.restored(messages)
        is_left_out = any(self.left_out(message) is not message for message in out)
        if self._refused(model).answer == "required" or not is_left_out:
            return None
        self._note(model, "required")
        return out

    def _is_stored(self, message: Any) -> bool:
        """Return whether the thinking of a message is stored with it; one without JSON has none."""
        digest, keys = _digest(message), [one.key for one in signed_thinking(message)]
        return not digest or any(one.keys == keys for one in self._stripped.get(digest, ()))

    def _store(self, some: Sequence[_Stripped]) -> None:
        """Store thinking and leave it out from now on. Raises `OffloadError`; then nothing changes."""
        if not some:
            return
        content = "\n".join(self._line(one) for one in some)
        self._write(content, f"thinking of {len(some)} messages")
        self._add(some)

    def _write(self, content: str, title: str) -> None:
        """Store rows. Raises `OffloadError`."""
        item = Item(None, THINKING_TYPE, content, THINKING_TOOL, title=title)
        decision = replace(unweighed(item, 0), action="offload", reason=Reason(ReasonKind.CHANGED_BEFORE))
        [outcome] = self._writer.write([WriteRequest(item, decision, is_forced=True)])
        if not isinstance(outcome, OffloadedItem):
            raise OffloadError(str(outcome.reason)) if isinstance(outcome, Skipped) else outcome
        self._read.add(outcome.info.ref)
        self.contents[name_of(outcome.info.key)] = content

    def restored(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages`, whose other content is restored, with the thinking that was removed."""
        if not self._stripped:
            return list(messages)
        # A list may hold some of it already, such as one that was restored before.
        thinking = [signed_thinking(message) for message in messages]
        there = {one.key for some in thinking for one in some}
        digests = ["", *map(_digest, messages)]
        numbers = _numbers(digests)
        places: dict[str, list[int]] = {}
        for index, digest in enumerate(digests[1:]):
            # All of a message is removed at once: one with thinking is another, equal but for that.
            if digest in self._stripped and not thinking[index]:
                places.setdefault(digest, []).append(index)
        out = list(messages)
        for digest, some in places.items():
            absent = [one for one in self._stripped[digest] if there.isdisjoint(one.keys)]
            for index, one in _matched(some, absent, digests, numbers):
                out[index] = with_thinking(out[index], one.removed)
        return out

    def _all_stripped(self, messages: Sequence[Any], indices: Sequence[int]) -> list[_Stripped]:
        """Return the messages at some indices without their thinking, with a digest of what `restore` gives.

        What is sent may hold placeholders, or follow a notice.
        """
        befores = [messages[index - 1] for index in indices if index]
        whole = self._undone([messages[index] for index in indices])
        latest = iter(self._undone(befores))
        numbers = _numbers(["", *map(_digest, messages)]) if indices else []
        return [
            _stripped(whole[n][-1], next(latest)[-1] if index else None, numbers[index])
            for n, index in enumerate(indices)
        ]

    def _line(self, one: _Stripped) -> str:
        signatures = [signature_of(part.block) for part in one.removed]
        kept = {one.digest, one.before, *one.keys, *(text for text in signatures if isinstance(text, str))}
        blocks = [{"path": list(part.path), "block": part.block} for part in one.removed]
        row = {
            "digest": one.digest,
            "before": one.before,
            "keys": one.keys,
            "number": one.number,
            "blocks": blocks,
        }

        def edit(text: str) -> str:
            # A signature has no words to redact, and is useless with a change.
            return text if text in kept else self._redacted(text)

        return encode_row(row, edit)

    def _add(self, some: Iterable[_Stripped]) -> None:
        for one in some:
            known = self._stripped.setdefault(one.digest, [])
            if not any(other.keys == one.keys for other in known):
                known.append(one)
                self.keys.update(one.keys)


def _stripped(message: Any, before: Any, number: int) -> _Stripped:
    thinking = signed_thinking(message)
    _, removed = without_thinking(message, thinking)
    digest = "" if before is None else content_digest(before)
    return _Stripped(content_digest(message), digest, removed, [one.key for one in thinking], number)


def _digest(message: Any) -> str:
    """Return the digest of a message; empty if it has none, so that no thinking was removed from it."""
    try:
        return content_digest(message)
    except OffloadError:
        return ""


def _numbers(digests: Sequence[str]) -> list[int]:
    """Return of each message how many earlier ones are equal and follow an equal one, by their digests.

    `digests` has that of the message before each, and at the end that of the last.
    """
    seen = Counter[tuple[str, str]]()
    numbers = []
    for pair in pairwise(digests):
        numbers.append(seen[pair])
        seen[pair] += 1
    return numbers


def _matched(
    places: Sequence[int], stripped: Sequence[_Stripped], digests: Sequence[str], numbers: Sequence[int]
) -> Iterator[tuple[int, _Stripped]]:
    """Yield which of the equal messages at `places` lost which thinking.

    Equal ones differ in the message before them, or in their number; if that was edited since, only a single
    one is certain. `digests` has that of the message before each, `numbers` is as of `_numbers`.
    """
    left, waiting = list(places), list(stripped)
    for one in stripped:
        alike = [at for at in left if digests[at] == one.before]
        place = next((at for at in alike if numbers[at] == one.number), next(iter(alike), None))
        if place is not None:
            left.remove(place)
            waiting.remove(one)
            yield place, one
    if len(left) == len(waiting) == 1:
        yield left[0], waiting[0]


def _parsed(row: Any) -> _Stripped | _ShownAnswer:
    if "answer" in row:
        return _ShownAnswer(row["number"], row["model"], row["answer"])
    removed = [Removed(tuple(part["path"]), part["block"]) for part in row["blocks"]]
    return _Stripped(row["digest"], row["before"], removed, [*map(str, row["keys"])], row.get("number", 0))
