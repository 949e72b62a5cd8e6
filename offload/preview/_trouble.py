"""Words of trouble, and which of them a text holds."""

from __future__ import annotations

from functools import cache
from typing import Any

from offload.record import encode_text

# As tools write them.
TROUBLE = (
    *("Error:", "ERROR", "error:", "error[", "--- FAIL", "FAILED", "FAIL\t", " failed", "failure", "Failure"),
    *("Exception", "Traceback", "FATAL", "fatal", "panic:", "denied", "not found", "✗", "✖", "错误", "失败"),
    *("exit code", "exit status", "exited with", "Exit code", "Warning:", "WARN ", "WARNING ", "warning:"),
)


def error_words(text: str) -> list[str]:
    """Return the words of trouble that stand in `text`, from one pass over it."""
    return [TROUBLE[i] for i in sorted(_words().Match(encode_text(text)) or ())]


@cache
def _words() -> Any:
    import re2  # noqa: PLC0415 # 10 ms that only a preview pays

    words = re2.Set.SearchSet()
    for word in TROUBLE:
        words.Add(re2.escape(word))
    words.Compile()
    return words
