"""Files of recorded conversations: sessions of Claude Code and Codex, and chat requests.

Sessions are `.jsonl`, archived ones of Codex `.jsonl.zst`; chat requests are `.json`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import zstandard

from offload.errors import MessageError
from offload.replay import _claude_code, _codex
from offload.replay._chats import read_chat
from offload.replay._transcripts import Transcript

_SESSION_SUFFIXES = (".jsonl", ".jsonl.zst")
_SUFFIXES = (".json", *_SESSION_SUFFIXES)


def find(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield each file once: the paths, and a folder's sorted `*.json`, `*.jsonl` and `*.jsonl.zst`."""
    files: dict[Path, Path] = {}
    for path in paths:
        entries = (p for p in path.rglob("*") if p.name.endswith(_SUFFIXES) and p.is_file())
        for file in sorted(entries) if path.is_dir() else [path]:
            files.setdefault(file.resolve(), file)
    yield from files.values()


def load(path: Path) -> list[Transcript]:
    """Return the conversations of one file.

    A Claude Code session has several: its main thread, one per subagent, and a new one after each
    compaction, which removes earlier messages from the context. A Codex session has a new one after each
    compaction. Malformed parts are skipped; `left_out` of the first conversation names them.

    Raises:
        MessageError: the file cannot be read or has no conversation.
    """
    left_out: list[str] = []
    read = _from_session if path.name.endswith(_SESSION_SUFFIXES) else read_chat
    try:
        first, *others = read(path, left_out)
    except OSError as error:
        raise MessageError(f"cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise MessageError("not a transcript: JSON nested too deeply") from error
    except zstandard.ZstdError as error:
        raise MessageError(f"invalid zstd: {error}") from error
    except MessageError as error:
        raise MessageError(f"{error}; {left_out[0]}") if left_out else error from error
    return [replace(first, left_out=left_out), *others]


def _from_session(path: Path, left_out: list[str]) -> list[Transcript]:
    rows = _rows(path, left_out)
    first: tuple[str, dict[str, Any]] = next(rows, ("", {}))
    is_codex = first[1].get("type") in _codex.ROW_TYPES
    read = _codex.read_codex if is_codex else _claude_code.read_claude_code
    return read(path.name.removesuffix(".zst").removesuffix(".jsonl"), chain([first], rows), left_out)


def _rows(path: Path, left_out: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place; note the lines that are none."""
    with path.open("rb") as raw, _decompressed(raw) if path.suffix == ".zst" else raw as file:
        for number, line in enumerate(file, 1):
            where = f"line {number}"
            try:
                row = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return  # the session is still being written
                left_out.append(f"{where} is not JSON: {error}")
            else:
                if isinstance(row, dict):
                    yield where, row


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
