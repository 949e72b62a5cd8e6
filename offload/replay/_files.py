"""Files of recorded conversations: sessions of Claude Code and Codex, and chat requests.

Sessions are `.jsonl`, archived ones of Codex `.jsonl.zst`; chat requests are `.json`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
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
    compaction.

    Raises:
        MessageError: the file cannot be read or has no conversation.
    """
    try:
        return _from_session(path) if path.name.endswith(_SESSION_SUFFIXES) else read_chat(path)
    except OSError as error:
        raise MessageError(f"cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise MessageError("not a transcript: JSON nested too deeply") from error
    except zstandard.ZstdError as error:
        raise MessageError(f"invalid zstd: {error}") from error


def _from_session(path: Path) -> list[Transcript]:
    rows = _rows(path)
    first = next(rows, {})
    read = _codex.read_codex if first.get("type") in _codex.ROW_TYPES else _claude_code.read_claude_code
    return read(path.name.removesuffix(".zst").removesuffix(".jsonl"), chain([first], rows))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as raw, _decompressed(raw) if path.suffix == ".zst" else raw as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return  # the session is still being written
                raise MessageError(f"line {number} is not JSON: {error}") from error
            if isinstance(row, dict):
                yield row


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
