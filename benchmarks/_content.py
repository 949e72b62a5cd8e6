"""Text that looks like what agents' tools return, made from the standard library's own files.

Listings, numbered sources, grep results, logs and JSON rows in turn, the same for the same arguments.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

_BLOCK_CHARS = 8 * 1024 * 1024
_SECTION_LINES = 60
_LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARNING", "ERROR")
_WIDE_LINE = "✓ geprüft: 3 Dateien, 0 Fehler … 完了\n"
_WIDE_EVERY = 40


def output(chars: int, number: int = 0) -> str:
    """Return `chars` characters of ASCII output, another text for each `number`."""
    head = f"$ make report-{number:06}\n"
    block = _block()
    start = random.Random(number).randrange(len(block))  # noqa: S311 # a place in a text, no secret
    text = head + block[start : start + chars]
    while len(text) < chars:
        text += block[: chars - len(text)]
    return text[:chars]


def wide_output(chars: int, number: int = 0) -> str:
    """Return output as `output` does, with a line that is not ASCII here and there."""
    lines = output(chars, number).splitlines(keepends=True)
    mixed = (_WIDE_LINE + line if i % _WIDE_EVERY == 0 else line for i, line in enumerate(lines))
    return "".join(mixed)[:chars]


def json_line(chars: int, needle: str) -> str:
    """Return one line of JSON of about `chars` characters that holds `needle` at 90 % of its length."""
    rows: list[str] = []
    length = 0
    for number, (path, line) in enumerate(_lines()):
        is_place = length < chars * 0.9 <= length + len(line) + 100
        row = {"id": number, "path": path, "text": line, "note": needle if is_place else None}
        rows.append(json.dumps(row))
        length += len(rows[-1]) + 1
        if length >= chars:
            break
    return '{"rows":[' + ",".join(rows) + "]}"


@cache
def _block() -> str:
    sections, length = [], 0
    makers = cycle((_source, _matches, _log, _rows, _listing))
    lines = _lines()
    while length < _BLOCK_CHARS:
        section = next(makers)([next(lines) for _ in range(_SECTION_LINES)])
        sections.append(section)
        length += len(section)
    return "".join(sections)[:_BLOCK_CHARS]


def _lines() -> Iterator[tuple[str, str]]:
    """Yield path and text of the lines of the standard library's sources, over and over."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(p for p in folder.glob("*/*.py") if "packages" not in p.parts[-2])
    for path in cycle(paths):
        for line in path.read_text("utf-8", "replace").splitlines():
            if line.strip() and line.isascii():
                yield str(path.relative_to(folder)), line


def _source(lines: list[tuple[str, str]]) -> str:
    return "".join(f"{i:6}\t{line}\n" for i, (_, line) in enumerate(lines, 1))


def _matches(lines: list[tuple[str, str]]) -> str:
    return "".join(f"{path}:{len(line) * 7 + i}:{line}\n" for i, (path, line) in enumerate(lines))


def _log(lines: list[tuple[str, str]]) -> str:
    chance = random.Random(lines[0][1])  # noqa: S311 # filler for a log
    return "".join(
        f"2026-03-{chance.randint(1, 28):02}T10:{chance.randint(0, 59):02}:{chance.random() * 60:09.6f}Z "
        f"{chance.choice(_LEVELS):7} {path.replace('/', '.')[:-3]} [{chance.getrandbits(48):012x}] "
        f"{line.strip()}\n"
        for path, line in lines
    )


def _rows(lines: list[tuple[str, str]]) -> str:
    return "".join(
        json.dumps({"file": path, "size": len(line) * 331, "ok": i % 7 != 0, "head": line.strip()[:60]})
        + "\n"
        for i, (path, line) in enumerate(lines)
    )


def _listing(lines: list[tuple[str, str]]) -> str:
    return "".join(
        f"-rw-r--r-- 1 agent agent {len(line) * 977:8} Mar {i % 28 + 1:2} 10:{i % 60:02} {path}\n"
        for i, (path, line) in enumerate(lines)
    )
