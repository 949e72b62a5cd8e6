"""The rest of a message, besides its items: every other text of it, counted with the block that has it.

Unknown blocks are counted too. Other data than text, such as images and what a provider encrypted, has an
estimate of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from offload.base.patterns import lazy_pattern
from offload.messages._documents import is_textual
from offload.messages.access import Path, get, parts_of
from offload.messages.marks import is_mark
from offload.messages.media import base64_facts, bytes_facts

# The names of fields that a provider encrypts or signs.
_ENCRYPTED = lazy_pattern(r"encrypted|redacted_?content|signature|fingerprint", re.IGNORECASE)
_ENCRYPTED_TYPES = ("redacted_thinking", "reasoning.encrypted")
# Base64 has four characters for three bytes, and a token about four bytes.
_ENCRYPTED_CHARS = 16
_ENCRYPTED_TOKENS = 3
# Fields whose short values say what a block is.
_FRAMING = frozenset([
    "type", "role", "name", "id", "object", "status", "model", "format", "detail", "phase", "index",
    "tool_use_id", "toolUseId", "tool_call_id", "call_id", "item_id", "container_id", "caller_id",
    "file_id", "fileId", "tool_id", "media_type", "mime_type", "mimeType", "stop_reason", "ttl", "namespace",
    "server_name", "server_label", "execution", "encoding", "language",
])  # fmt: skip # a list of words
_SHORT_CHARS = 100
# So many characters of names of fields and of framing are free in a block that has no item.
_FREE_CHARS = 400
# Fields with base64, next to a field that names its type.
_DATA = frozenset(["data", "base64", "bytes", "file_data", "result"])
_MEDIA_TYPES = ("media_type", "mime_type", "mimeType")
_BASE64 = lazy_pattern(r"[A-Za-z0-9+/=_-]*", re.ASCII)
_SAMPLE_CHARS = 256
_DATA_URL = lazy_pattern(r"data:((?:image|audio|video|application)/[\w.+-]{1,80})[\w;.=+-]{0,100};base64,")

_SINGLE = (str, bytes, bytearray, int, float)

# By step, what the items of a message read at a path below: another tree, or a leaf.
Tree = dict[Any, Any]


class Fixed(NamedTuple):
    """A part of a message that is counted, and that the client may not change.

    Attributes:
        where: the place of its block in the message, such as `content[0]`.
        kind: the type of the block, else its field.
        text: its texts.
        encrypted: the estimated tokens of what the provider encrypted in it.
        data: the estimated tokens of images, documents, sound and video in it.
        is_said: whether the model wrote it: thinking, arguments, code. It may be there in encrypted form too.
    """

    where: str
    kind: str
    text: str
    encrypted: int = 0
    data: int = 0
    is_said: bool = False

    def read(self, count: Callable[[str], int]) -> int:
        """Return the tokens of what the model reads as text, by the token counter `count`."""
        tokens = count(self.text) if self.text else 0
        return max(tokens, self.encrypted) if self.is_said else tokens + self.encrypted


class Said(msgspec.Struct, frozen=True):
    """A leaf of a tree: the text of a value that the model wrote."""

    text: str


class _BlockContent(msgspec.Struct):
    """The parts of one block by their kind."""

    said: list[str] = msgspec.field(default_factory=list)
    texts: list[str] = msgspec.field(default_factory=list)
    frame: list[str] = msgspec.field(default_factory=list)
    encrypted: int = 0
    data: int = 0

    def add(self, name: Any, value: Any, holder: Any, *, is_free: bool) -> None:
        """Add a single value of the field `name` of `holder`."""
        if is_free and name in _FRAMING and isinstance(value, str) and len(value) <= _SHORT_CHARS:
            return
        frame = [] if is_free else self.frame
        if isinstance(name, str):
            frame.append(name)
        if isinstance(value, str | bytes | bytearray):
            self._add_text(name, value, holder, frame)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # Python writes no decimal digits of a number that has thousands of them.
            frame.append(hex(value) if isinstance(value, int) else str(value))

    def _add_text(self, name: Any, value: str | bytes | bytearray, holder: Any, frame: list[str]) -> None:
        if name in _FRAMING and len(value) <= _SHORT_CHARS and isinstance(value, str):
            frame.append(value)
        elif _is_encrypted(name, holder):
            self.encrypted += len(value) * _ENCRYPTED_TOKENS // _ENCRYPTED_CHARS
        elif (data := _data_tokens(name, value, holder)) is not None:
            self.data += data
        elif value:
            self.texts.append(value if isinstance(value, str) else bytes(value).decode("utf-8", "replace"))

    def parts(self, where: str, block: Any, name: Any) -> Iterator[Fixed]:
        """Yield the parts of `block`, of the field `name`: what the model wrote, and the rest."""
        texts = self.texts
        if self.frame and sum(map(len, self.frame)) > _FREE_CHARS:
            texts = [*texts, *self.frame]
        encrypted = self.encrypted
        if not (texts or self.said or encrypted or self.data):
            return
        kind = _kind_of(block, name) if where else _kind_of_message(block)
        for text in self.said:
            yield Fixed(where, kind, text, encrypted, is_said=True)
            encrypted = 0
        if texts or encrypted or self.data:
            yield Fixed(where, kind, " ".join(texts), encrypted, self.data)


def tree_of(leaves: Iterable[tuple[Path, Said | None]]) -> Tree:
    """Return a tree with a leaf at each path; a leaf of None is counted elsewhere, or is not sent."""
    tree: Tree = {}
    for path, leaf in leaves:
        node: Any = tree
        for step in path[:-1]:
            node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if isinstance(node, dict) and path:
            node[path[-1]] = leaf
    return tree


def rest_of(message: Any, tree: Tree) -> Iterator[Fixed]:
    """Yield the parts of `message` that are not in `tree`: each block of a list, then all else."""
    loose = _BlockContent()
    for name, value in parts_of(message):
        if type(value) is not str and is_mark(name, value):
            continue
        below = tree.get(name, {})
        if isinstance(value, list | tuple) and isinstance(below, dict):
            for index, block in enumerate(value):
                content = _BlockContent()
                _gather(content, name, block, below.get(index, {}), value)
                yield from content.parts(f"{name}[{index}]", block, name)
        elif isinstance(value, str) or below is None:
            _gather(loose, name, value, below, message)
        else:
            content = _BlockContent()
            _gather(content, name, value, below, message)
            yield from content.parts(str(name), value, name)
    if isinstance(message, str | bytes):
        loose.add(None, message, None, is_free=True)
    yield from loose.parts("", message, None)


def _gather(content: _BlockContent, name: Any, value: Any, leaf: Any, holder: Any) -> None:
    """Add all that is in `value` and not in its tree; a value inside itself is looked at once."""
    if isinstance(value, _SINGLE) and isinstance(leaf, dict):
        content.add(name, value, holder, is_free=True)
        return
    stack: list[tuple[Iterator[tuple[Any, Any]], Tree, Any]] = [(iter([(name, value)]), {name: leaf}, holder)]
    within: list[int] = [0]
    met = {0}
    while stack:
        parts, tree, owner = stack[-1]
        for step, part in parts:
            if type(part) is not str and is_mark(step, part):
                continue
            below = tree.get(step, {}) if tree else {}
            if not isinstance(below, dict):
                content.said += [below.text] if below is not None else []
                continue
            inner = None if type(part) is str or isinstance(part, _SINGLE) or part is None else parts_of(part)
            if not inner:
                content.add(step, part, owner, is_free=bool(tree))
            elif id(part) not in met:
                content.frame += [step] if isinstance(step, str) and not below else []
                stack.append((iter(inner), below, part))
                within.append(id(part))
                met.add(id(part))
                break
        else:
            stack.pop()
            met.discard(within.pop())


def _is_encrypted(name: Any, holder: Any) -> bool:
    if name == "data":
        return get(holder, "type") in _ENCRYPTED_TYPES
    return isinstance(name, str) and _names_encrypted(name)


@lru_cache(1024)
def _names_encrypted(name: str) -> bool:
    return _ENCRYPTED.search(name) is not None


def _data_tokens(name: Any, value: str | bytes | bytearray, holder: Any) -> int | None:
    """Return the tokens of an image, a document, sound or video; None for text."""
    if not isinstance(value, str):
        return _bytes_tokens(bytes(value), _media_type(name, holder))
    if name in _DATA:
        media_type = _media_type(name, holder)
        if media_type and not is_textual(media_type) and _is_base64(value, 0):
            return base64_facts(media_type, value).tokens
    url = _DATA_URL.match(value) if value.startswith("data:") else None
    if url is None or not _is_base64(value, url.end()):
        return None
    return base64_facts(url[1], value, url.end()).tokens


def _bytes_tokens(data: bytes, media_type: str) -> int | None:
    """Return the tokens of bytes, None if they are text."""
    if is_textual(media_type):
        try:
            data.decode()
        except UnicodeDecodeError:
            return bytes_facts(media_type, data).tokens
        return None
    return bytes_facts(media_type, data).tokens


def _media_type(name: Any, holder: Any) -> str:
    """Return the media type of the data in the field `name`, empty if no other field names it."""
    if isinstance(holder, str | list | tuple) or holder is None:
        return ""
    named = (get(holder, field) for field in _MEDIA_TYPES)
    media_type = next((each for each in named if isinstance(each, str)), "")
    if media_type or name not in ("data", "result"):
        return media_type
    if name == "result":
        return "image/" if get(holder, "type") == "image_generation_call" else ""
    return "audio/" if isinstance(get(holder, "format"), str) else ""


def _is_base64(text: str, start: int) -> bool:
    """Return whether a text is base64 from character `start` on, by its ends."""
    ends = text[start : start + _SAMPLE_CHARS], text[max(start, len(text) - _SAMPLE_CHARS) :]
    return all(_BASE64.fullmatch(end) for end in ends)


def _kind_of_message(message: Any) -> str:
    return str(get(message, "type") or get(message, "role") or "message")


def _kind_of(block: Any, name: Any) -> str:
    """Return the type of a block; the name of its first field, in formats without types."""
    kind = get(block, "type") if isinstance(block, Mapping) or not isinstance(block, str | Sequence) else None
    if isinstance(kind, str):
        return kind[:_SHORT_CHARS]
    first = next(iter(block), name) if isinstance(block, Mapping) else name
    return str(first)[:_SHORT_CHARS]
