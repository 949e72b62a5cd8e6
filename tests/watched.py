"""A text that notes how much of it is looked at."""

from __future__ import annotations

from typing import Any, Self


class WatchedText(str):  # noqa: SLOT000 # it counts
    """Notes the characters that are looked at, and each block of 1,024 of them once."""

    def __new__(cls, content: str) -> Self:
        text = super().__new__(cls, content)
        text._blocks = bytearray(len(content) // 1024 + 1)
        return text

    _blocks: bytearray
    seen = 0

    @property
    def blocks_seen(self) -> int:
        return sum(self._blocks)

    def _see(self, start: int, end: int | None) -> None:
        end = len(self) if end is None else min(end, len(self))
        self.seen += max(0, end - start)
        for block in range(max(0, start) // 1024, end // 1024 + 1):
            self._blocks[block] = 1

    def __getitem__(self, key: Any) -> str:
        span = range(len(self))[key]
        self._see(*((span.start, span.stop) if isinstance(span, range) else (span, span + 1)))
        return super().__getitem__(key)

    def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        self._see(start or 0, end)
        return super().find(sub, start, end)

    def rfind(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        self._see(start or 0, end)
        return super().rfind(sub, start, end)

    def count(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        self._see(start or 0, end)
        return super().count(sub, start, end)
