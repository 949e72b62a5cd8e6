"""Tool results of Claude Code: where the text of each is, and the form of the answer that replaces it.

One table has the results that may be offloaded. All others are kept: failures, edits, images, output of
background commands, and results of an unknown form.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from offload.engine.policy.tool_names import RETRIEVAL_TOOLS

EVENT = "PostToolUse"
# The tool whose results are kept unless the user asks.
READER = "Read"

# Fields of an output that the program keeps whole in a file and shows in part: with them it would show its
# own notice in place of the placeholder.
_OF_FILE = ("persistedOutputPath", "persistedOutputSize", "stdoutHoldsOutputEnd")
_TOO_LARGE = re.compile(
    r"Error: result \([^\n]*\) exceeds maximum allowed tokens\. Output has been saved to ([^\n]+)\.\n"
)
_OUR_TOOL = re.compile(rf"mcp__.+__({'|'.join(RETRIEVAL_TOOLS)})")
_FOLDER = "tool-results"
_CHUNK_BYTES = 1 << 20


class ToolOutput(NamedTuple):
    """A result that may be offloaded.

    Attributes:
        text: its text, which may be cut.
        path: the file with the whole text, which the result names; None if `text` is complete.
        replaced: returns the result with another text, in the form that the program accepts.
    """

    text: str
    path: str | None
    replaced: Callable[[str], Any]


def result_of(tool: str, response: Any) -> ToolOutput | None:
    """Return the response of a tool if it may be offloaded, None if it is kept."""
    if _OUR_TOOL.fullmatch(tool):
        return None
    row = next((find for glob, find in _ROWS.items() if fnmatchcase(tool, glob)), None)
    return None if row is None else row(response)


def answer(result: ToolOutput, text: str, message: str) -> dict[str, Any]:
    """Return the hook's answer that replaces a result by `text`, with a message for the user."""
    output = {"hookEventName": EVENT, "updatedToolOutput": result.replaced(text)}
    return {"systemMessage": message, "hookSpecificOutput": output}


@contextmanager
def chunks_of(result: ToolOutput, transcript: str) -> Iterator[Iterator[str | bytes] | None]:
    """Yield the whole text of a result in chunks, or None if it is in a file that must not be read.

    A tool may have written the name of that file, so it must be one of this conversation, whose
    folder has the name of its `transcript`.
    """
    if result.path is None:
        yield iter([result.text])
        return
    file = _opened(Path(result.path), Path(transcript))
    if file is None:
        yield None
        return
    with file:
        yield iter(lambda: file.read(_CHUNK_BYTES), b"")


def _opened(path: Path, transcript: Path) -> BinaryIO | None:
    # The user may have linked the folder of all conversations; a link further down is refused.
    folder = Path(os.path.realpath(transcript.parent)) / transcript.stem / _FOLDER
    try:
        real = Path(os.path.realpath(path, strict=True))
        if not transcript.is_absolute() or not real.is_relative_to(folder):
            return None
        opened = os.open(real, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(opened, "rb")
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        file.close()
        return None
    return file


def _bash(result: Any) -> ToolOutput | None:
    match result:
        case {"stdout": str(text)} if not any(map(result.get, ("isImage", "backgroundTaskId"))):
            if result.get("structuredContent"):
                return None
            rest = {name: value for name, value in result.items() if name not in _OF_FILE}
            path = result.get("persistedOutputPath")
            return ToolOutput(
                text, path if isinstance(path, str) else None, lambda new: {**rest, "stdout": new}
            )
    return None


def _read(result: Any) -> ToolOutput | None:
    match result:
        case {"type": "text", "file": {"content": str(text), **file}}:
            return ToolOutput(text, None, lambda new: {**result, "file": {**file, "content": new}})
        case {"type": "notebook", "file": {"filePath": str(path), "cells": list(cells)}}:
            lines = "\n".join(json.dumps(cell, ensure_ascii=False) for cell in cells)
            return ToolOutput(lines, None, lambda new: {"type": "text", "file": _file(path, new)})
    return None


def _file(path: str, text: str) -> dict[str, Any]:
    lines = text.count("\n") + 1
    return {"filePath": path, "content": text, "numLines": lines, "startLine": 1, "totalLines": lines}


def _agent(result: Any) -> ToolOutput | None:
    match result:
        case {"status": "completed", "content": list(content)}:
            return _blocks(content, lambda new: {**result, "content": new})
    return None


def _mcp(result: Any) -> ToolOutput | None:
    if isinstance(result, str):
        too_large = _TOO_LARGE.match(result)
        return ToolOutput(result, too_large[1] if too_large else None, str)
    return _blocks(result, list) if isinstance(result, list) else None


def _blocks(content: list[Any], whole: Callable[[list[Any]], Any]) -> ToolOutput | None:
    """Return the texts of a list of blocks as one; other blocks, such as images, are kept."""
    texts = [b["text"] for b in content if _is_text(b)]
    if not texts:
        return None

    def replaced(new: str) -> Any:
        first = next(block for block in content if _is_text(block))
        return whole([{**first, "text": new}, *(block for block in content if not _is_text(block))])

    return ToolOutput("\n".join(texts), None, replaced)


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _web_page(result: Any) -> ToolOutput | None:
    match result:
        case {"result": str(text), "url": str()}:
            return ToolOutput(text, None, lambda new: {**result, "result": new})
    return None


def _web_search(result: Any) -> ToolOutput | None:
    match result:
        case {"query": str(), "results": list(found)}:
            lines = (hit if isinstance(hit, str) else json.dumps(hit, ensure_ascii=False) for hit in found)
            return ToolOutput("\n".join(lines), None, lambda new: {**result, "results": [new]})
    return None


# By glob of a tool's name. `Task` is the earlier name of `Agent`.
_ROWS: dict[str, Callable[[Any], ToolOutput | None]] = {
    "Bash": _bash,
    READER: _read,
    "Agent": _agent,
    "Task": _agent,
    "WebFetch": _web_page,
    "WebSearch": _web_search,
    "mcp__*": _mcp,
}
