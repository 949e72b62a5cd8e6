"""Where messages go that leave a conversation: one record, and one notice that stands for them all.

The record holds a message per line, as JSON, with its place in the conversation. The notice is the
placeholder of that record (rule R6): only the whole text that was put there gives the messages back.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offload.engine.hooks import Hooks
from offload.errors import MessageError, NotFoundError, OffloadError
from offload.layout import REF_PATTERN
from offload.messages import adapter_for, scan_of
from offload.offloader import Offloader
from offload.placeholder import PlaceholderFacts, defuse
from offload.policy import OffloadPolicy, Rule
from offload.record import REF_LETTERS, encodable

_FIRST_LINE = re.compile(rf"\[Compacted (\d{{1,9}}): [^\n]{{1,200}} id ({REF_PATTERN})\]\n")
_CONTENT_LABEL = "conversation"
_BYTES = "$bytes"
_RESERVED, _ESCAPED = re.compile(r"\$+bytes"), re.compile(r"\$\$+bytes")
_SOME_REF = "x" * REF_LETTERS
_ALL = OffloadPolicy(types={"user_message": Rule(min_chars=1, preview_chars=0)}, tools={}, min_saving=0)


@dataclass(frozen=True, slots=True)
class Notice:
    """Renders the text that stands for the messages that left.

    Attributes:
        number: which compaction of the conversation it is; the latest is undone first.
        messages: how many messages left.
        summary: what a model said of them; empty where nobody was asked.
    """

    number: int = 1
    messages: int = 0
    summary: str = ""

    def text(self, ref: str = _SOME_REF) -> str:
        """Return the notice for the record `ref`; any other ref takes about as many tokens."""
        noun = "message" if self.messages == 1 else "messages"
        lines = [
            f"[Compacted {self.number}: {self.messages} earlier {noun} left this conversation, id {ref}]"
        ]
        if self.summary:
            lines += ["[What a model said of them, not the words of the user:]", defuse(self.summary)]
        lines.append(f'[They are stored, one a line, as JSON. Read them: context_read(id="{ref}", offset=0)]')
        return "\n".join(lines)

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder of a record."""
        return self.text(facts.ref)

    def find_ref(self, text: str) -> str | None:
        """Return the ref that `text` would stand for if it is a notice, else None."""
        match = _FIRST_LINE.match(text)
        return match[2] if match else None


class Archive:
    """Stores messages of a conversation in its session, and puts them back.

    Args:
        offloader: whose session it is. Its `redact` is applied to each text by itself.
    """

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self._hooks = Hooks(redact=offloader.options.redact)

    def notice(self, messages: Sequence[Any], leaving: Sequence[int], summary: str = "") -> Notice:
        """Return the notice that will stand for the messages at the indices `leaving`.

        Raises `OffloadError` if the store cannot tell which earlier notices are ours.
        """
        latest = max((number for _, number, _ in self._proven(messages, {})), default=0)
        return Notice(latest + 1, len(leaving), encodable(summary).strip())

    def store(self, messages: Sequence[Any], leaving: Sequence[int], notice: Notice) -> str:
        """Store the messages at the indices `leaving`; return the text that stands for them from now on.

        It has to stand where the first of them stood.

        Raises:
            MessageError: one of them has no JSON that gives it back.
            OffloadError: the notice is no shorter than what it stands for, or what the store raised.
        """
        lines = [self._line(index, messages[index]) for index in leaving]
        content = "\n".join(lines)
        text = self._open(notice).offload_text(content, tool_name=_CONTENT_LABEL, item_type="user_message")
        if text == content:
            raise OffloadError(f"what stands for {len(leaving)} messages would be longer than they are")
        return text

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` as they were before any compaction, from the notices among them.

        Raises `OffloadError` if a record is damaged, was collected or cannot be read.
        """
        out = list(messages)
        asked: dict[str, str | None] = {}
        while found := self._proven(out, asked):
            index, _, content = max(found, key=lambda notice: notice[1])
            # Whatever was put before the notice since, as into a header, the distances from it hold.
            out = [*out[:index], *_merged(out[index + 1 :], content)]
        return out

    def _proven(self, messages: Sequence[Any], asked: dict[str, str | None]) -> list[tuple[int, int, str]]:
        """Return index, number and content of each notice among `messages` that its record vouches for.

        Args:
            messages: the conversation.
            asked: text → content or None, of what the store was asked about before.
        """
        found = []
        for index, message in enumerate(messages):
            text = _sole_text(message) or ""
            match = _FIRST_LINE.match(text)
            if match is None:
                continue
            if text not in asked:
                asked[text] = self._content_of(message)
            if (stored := asked[text]) is not None:
                found.append((index, int(match[1]), stored))
        return found

    def _content_of(self, message: Any) -> str | None:
        """Return what the notice `message` stands for; None if no record of the session says so."""
        restored = self._open(Notice()).restore([message], on_missing="keep")
        for missing in restored.missing:
            if type(missing.error) is not NotFoundError:
                raise missing.error
        content = _sole_text(restored[0])
        return None if content == _sole_text(message) else content

    def _open(self, notice: Notice) -> Offloader:
        options = self._offloader.options
        return Offloader(
            self._offloader.store,
            session=self._offloader.session,
            policy=_ALL,
            placeholder=notice,
            codec=options.codec,
            token_counter=options.token_counter,
            on_error="raise",
            events=options.events,
        )

    def _line(self, index: int, message: Any) -> str:
        data = as_data(message)
        row = {"at": index, "message": encoded(data)}
        line = json.dumps(row, ensure_ascii=False)
        if json.loads(line, object_hook=decoded)["message"] != data:
            raise MessageError(f"messages[{index}]: it holds what has no JSON, so it cannot be stored")
        return line if self._hooks.redact is None else json.dumps(self._redacted(row), ensure_ascii=False)

    def _redacted(self, value: Any) -> Any:
        """Return `value` with each text redacted by itself: a pattern must not reach over its quotes."""
        if isinstance(value, str):
            return self._hooks.redacted(value)
        if isinstance(value, list):
            return [self._redacted(part) for part in value]
        if isinstance(value, dict):
            return {name: self._redacted(part) for name, part in value.items()}
        return value


def as_user_message(text: str, like: Any) -> Any:
    """Return `text` as a user's message in the format of the message `like`."""
    name = adapter_for(like).name
    if name == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    if name == "bedrock":
        return {"role": "user", "content": [{"text": text}]}
    return {"role": "user", "content": text}


def _sole_text(message: Any) -> str | None:
    items = scan_of(message).items
    return items[0].text if len(items) == 1 and items[0].item_type == "user_message" else None


def _merged(kept: list[Any], content: str) -> list[Any]:
    """Return the stored messages at their places from the first on, and what was kept at all others."""
    rows = [json.loads(line, object_hook=decoded) for line in content.split("\n")]
    first = rows[0]["at"]
    out: list[Any] = []
    taken = 0
    for row in rows:
        others = kept[taken : taken + max(0, row["at"] - first - len(out))]
        out += [*others, row["message"]]
        taken += len(others)
    return [*out, *kept[taken:]]


def as_data(value: Any) -> Any:
    """Return a message with the objects of an SDK, itself or in its content, as the data they are made of."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        return {name: as_data(part) for name, part in value.items()}
    return [as_data(part) for part in value] if isinstance(value, list) else value


def _refused(value: Any) -> Any:
    raise MessageError(f"a message holds {type(value).__name__}, which has no JSON")


def encoded(value: Any, otherwise: Callable[[Any], Any] = _refused) -> Any:
    """Return what stands in JSON for data that `as_data` gave.

    Args:
        value: the data.
        otherwise: returns what stands for a part of it that has no JSON; by default it raises `MessageError`.
    """
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {_as_name(name): encoded(part, otherwise) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(part, otherwise) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return otherwise(value)


def decoded(fields: dict[str, Any]) -> Any:
    """Return what `encoded` was given, as `object_hook=` of `json.loads`."""
    if fields.keys() == {_BYTES}:
        return base64.b64decode(fields[_BYTES])
    return {name[1:] if _ESCAPED.fullmatch(name) else name: part for name, part in fields.items()}


def _as_name(name: Any) -> Any:
    """Return the name of a field, told apart from the one under which bytes stand."""
    return f"${name}" if isinstance(name, str) and _RESERVED.fullmatch(name) else name
