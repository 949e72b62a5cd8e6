"""The parts of an answer that stored records have already, so that nothing is stored twice.

An answer of a retrieval tool shows parts of records, which its call or its own lines name. The parts are
found by comparing texts, so that no tool is run again to restore an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from offload.base.patterns import lazy_pattern
from offload.messages.base import Item
from offload.records.codec.content import Part, Quote, StoredContent, TextContent
from offload.records.codec.quoting import joined
from offload.records.record.retrieval import REF_FIELDS
from offload.records.session import Session
from offload.storage.layout import REF_PATTERN, encode_part

# A reference to a shorter part takes about as much as the part.
_LEAST_CHARS = 40
# A part of that many characters has a whole block, of those that a content is cut into.
_BLOCK_CHARS = _LEAST_CHARS // 2
# A longer answer is stored whole: the search holds each of its blocks.
_MOST_CHARS = 128 * 1024
# A content of more characters is compared only around the places that the answer names.
_WHOLE_CHARS = 1024 * 1024
_MOST_SOURCES = 8
_MOST_WINDOWS = 16
# Characters of the tool and the refs that a part of a key has room for.
_MOST_KEY_CHARS = 140
# Characters before a named place that an answer may show.
_MARGIN_CHARS = 4000
# A record that quotes depends on others: it must save at least this share of the text.
_LEAST_SHARE = 0.5
_REF = lazy_pattern(rf"(?<![0-9a-z]){REF_PATTERN}(?![0-9a-z])")
_NUMBER = lazy_pattern(r"\d{1,15}", re.ASCII)

# A piece of a source's text: the index of the source, the place of its first character, the text.
_Piece = tuple[int, int, str]


def quoting(session: Session, item: Item, content: TextContent, text: str) -> tuple[TextContent, list[str]]:
    """Return the content of an answer with its parts, and the refs that it quotes.

    Without refs the content is to be stored whole: no record has enough of it, or none can be read.
    """
    whole = content, list[str]()
    if not session.may_quote or len(text) > _MOST_CHARS:
        return whole
    try:
        sources = _sources(session, item, text)
        contents = [*sources.values()]
        pieces = [piece for at, ref in enumerate(sources) for piece in _pieces(at, ref, contents[at], text)]
        parts = _parts(text, pieces)
        saved = sum(part.chars for part in parts if isinstance(part, Quote))
        if saved < _LEAST_SHARE * len(text) or joined(parts, contents) != text:
            return whole
    except Exception:  # noqa: BLE001 # a store may raise anything; the answer is stored whole
        return whole
    named, used = [*sources], sorted({part.source for part in parts if isinstance(part, Quote)})
    refs = [named[at] for at in used]
    if len(encode_part(item.tool_name or "")) + len(".".join(refs)) > _MOST_KEY_CHARS:
        return whole
    renumbered = [p if isinstance(p, str) else p._replace(source=used.index(p.source)) for p in parts]
    return replace(content, parts=tuple(renumbered)), refs


def _sources(session: Session, item: Item, text: str) -> dict[str, StoredContent]:
    """Return the contents of the records that an answer or its call names, or that those quote in turn."""
    fields: Mapping[str, object] = {} if item.call is None else item.call.fields
    asked = dict.fromkeys(_REF.findall(" ".join(str(fields.get(name)) for name in REF_FIELDS)))
    sources: dict[str, StoredContent] = {}
    for ref in dict.fromkeys([*asked, *_REF.findall(text)]):
        infos = session.catalog.find(ref) if ref in asked else session.catalog.known(ref)
        for info in infos[:1]:
            for each in info.quotes or (ref,):
                if len(sources) < _MOST_SOURCES and each not in sources:
                    sources[each] = session.read(each).content
    return sources


def _pieces(at: int, ref: str, content: StoredContent, text: str) -> Iterator[_Piece]:
    """Yield the text of a source, of a long one the parts around the numbers in lines that name it."""
    if content.chars <= _WHOLE_CHARS:
        yield at, 0, content.text(0, content.chars)
        return
    naming = (line for line in text.split("\n") if ref in line)
    numbers = sorted({int(number) for line in naming for number in _NUMBER.findall(line)})
    end = 0
    for number in [number for number in numbers if number <= content.chars][:_MOST_WINDOWS]:
        start = max(end, number - _MARGIN_CHARS)
        end = max(end, min(content.chars, number + len(text) + _MARGIN_CHARS))
        if start < end:
            yield at, start, content.text(start, end)


def _parts(text: str, pieces: list[_Piece]) -> list[Part]:
    """Return `text` in parts; those of at least 40 characters that a piece has are quotes.

    Such a part has a whole block of the piece, wherever it begins.
    """
    parts: list[Part] = []
    blocks = _blocks(text, pieces)
    start = place = 0
    while place + _BLOCK_CHARS <= len(text):
        found = blocks.get(text[place : place + _BLOCK_CHARS])
        if found is None:
            place += 1
            continue
        (at, first, piece), begin = found
        back = _common_before(text, place, piece, begin, most=min(place - start, begin))
        chars = back + _common(text, place, piece, begin)
        if chars < _LEAST_CHARS:
            place += 1
            continue
        if start < place - back:
            parts.append(text[start : place - back])
        parts.append(Quote(at, first + begin - back, chars))
        start = place = place - back + chars
    return [*parts, text[start:]] if start < len(text) else parts


def _blocks(text: str, pieces: list[_Piece]) -> dict[str, tuple[_Piece, int]]:
    """Return the first place of each block of the pieces that `text` has anywhere."""
    wanted = {text[place : place + _BLOCK_CHARS] for place in range(len(text) - _BLOCK_CHARS + 1)}
    blocks: dict[str, tuple[_Piece, int]] = {}
    for piece in pieces:
        source = piece[2]
        for begin in range(0, len(source) - _BLOCK_CHARS + 1, _BLOCK_CHARS):
            block = source[begin : begin + _BLOCK_CHARS]
            if block in wanted:
                blocks.setdefault(block, (piece, begin))
    return blocks


def _common(text: str, place: int, piece: str, begin: int) -> int:
    """Return how many characters from two places on are the same; the first block is."""
    same, step = _BLOCK_CHARS, _BLOCK_CHARS
    while step:
        end = place + same + step
        if end <= len(text) and text[place + same : end] == piece[begin + same : begin + same + step]:
            same, step = same + step, step * 2
        else:
            step //= 2
    return same


def _common_before(text: str, place: int, piece: str, begin: int, *, most: int) -> int:
    """Return how many characters before two places are the same, at most `most`."""
    return next((n for n in range(most) if text[place - 1 - n] != piece[begin - 1 - n]), most)
