"""The next action of a reply in a normal form, so that two replies can be compared, and what a request hides.

Calls are compared by tool and arguments: paths without `./`, commands word by word, quotes and numbers in one
spelling; arguments that only explain a call do not count. A reply without calls is compared by the values in
its text: numbers, names, quotes and code, each once.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offload.messages.calls import COMMAND_FIELDS, PATH_FIELDS, Call
from offload.messages.files import REMARKS, plain_path
from offload.messages.formats import scan_of, scans_of
from offload.reading.evidence._values import values_of
from offload.records.record.retrieval import LIST, is_read_back

_STRAIGHT = str.maketrans("\u201c\u201d\u201e\u2018\u2019\u00a0", '"""\'\' ')
_OPERATORS = ";()<>|&\n"
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)*%?(?!\w)", re.ASCII)
_LIST_NUMBER = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
_CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_TITLE_CHARS = 200


class HiddenItem(NamedTuple):
    """An item that a request has as a placeholder.

    Attributes:
        tool: the tool whose result it is, else its type, such as "user_message".
        title: what its call was about; empty if that is not known.
        chars: its length.
        age: how many replies follow it in the request.
    """

    tool: str
    title: str
    chars: int
    age: int


def action_of(reply: Any) -> str | None:
    """Return the next action of a reply in a normal form; None if it only reads items back.

    Args:
        reply: the text of a reply, its message, or its messages.
    """
    if isinstance(reply, str):
        return _text_action([reply])
    scans = [scan_of(message) for message in (reply if isinstance(reply, list | tuple) else [reply])]
    calls = [call for scan in scans for _, call in scan.calls]
    if calls:
        own = sorted(_normal(call) for call in calls if not reads_back(call))
        return "\n".join(own) or None
    return _text_action(
        item.text for scan in scans for item in scan.items if item.item_type == "assistant_message"
    )


def reads_back(call: Call) -> bool:
    """Return whether a call is one of a retrieval tool."""
    return is_read_back(call.name) or call.name.endswith(LIST)


def hidden_items(
    original: Sequence[Any], sent: Sequence[Any], redact: Callable[[str], str] = str
) -> list[HiddenItem]:
    """Return the items of messages whose texts the messages that are sent instead do not have.

    Of equal texts the last ones are those that are shown.
    """
    shown = Counter(item.text for message in sent for item in scan_of(message).offloadable)
    found, age, was_reply = list[HiddenItem](), 0, False
    for scan in reversed(scans_of(original)):
        for item in reversed(scan.offloadable):
            if shown[item.text]:
                shown[item.text] -= 1
            else:
                title = redact(item.subject.text if item.subject else "")[:_TITLE_CHARS]
                found.append(HiddenItem(item.tool_name or item.item_type, title, len(item.text), age))
        age, was_reply = age + (scan.is_reply and not was_reply), scan.is_reply
    return found[::-1]


def _normal(call: Call) -> str:
    fields = call.fields
    kept = {name: value for name, value in fields.items() if name not in REMARKS} or fields
    return f"{call.name} {json.dumps(_plain('', kept), sort_keys=True, ensure_ascii=False)}"


def _plain(name: str, value: Any) -> Any:
    """Return an argument in its normal form; those of an object, or of a list, each by its name."""
    if name in COMMAND_FIELDS and (subject := Call("", {name: value}).subject):
        return _command(subject.text)
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if isinstance(value, str):
        return _plain_text(name, value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain_text(name: str, text: str) -> str | int:
    if name in PATH_FIELDS:
        return plain_path(text.strip()).rstrip("/") or text
    text = "\n".join(line.rstrip() for line in text.translate(_STRAIGHT).splitlines())
    return int(text) if text.isdecimal() and str(int(text)) == text else text


def _command(text: str) -> str:
    """Return a command with one space between its words, and each word quoted only if it must be."""
    lexer = shlex.shlex(text.translate(_STRAIGHT).strip(), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return " ".join(map(_word, lexer))
    except ValueError:
        # An open quote, as in a text behind `<<`.
        return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _word(word: str) -> str:
    if set(word) <= {*_OPERATORS}:
        return "\n" if set(word) == {"\n"} else word
    return shlex.quote(word if "://" in word else plain_path(word))


def _text_action(texts: Iterable[str]) -> str:
    """Return the values of a reply without calls, a line each."""
    values = {value for text in texts for value in _values(text.translate(_STRAIGHT))}
    return "\n".join(["(no call)", *sorted(values)])


def _values(text: str) -> Iterator[str]:
    for block, inline in _CODE.findall(text):
        yield "\n".join(line.rstrip() for line in (block or inline).strip().splitlines())
    prose = _LIST_NUMBER.sub("", _CODE.sub(" ", text))
    for value in values_of(prose):
        if value.kind != "number":
            yield plain_path(value.text) if value.kind == "path" else value.text
    yield from (number.replace(",", "") for number in _NUMBER.findall(prose))
