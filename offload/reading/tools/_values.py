"""context_read by a JSON pointer: one value, or the members of a large one."""

from __future__ import annotations

from offload.base.threads.locks import Recent
from offload.errors import ConfigError
from offload.reading.tools.answers import FRAME_CHARS, Pages
from offload.reading.tools.budget import BUDGET, BudgetExceeded
from offload.reading.tools.pointer import CONTAINERS, JsonValue, PointerReader

_HELD = 16


class Values:
    """Answers with JSON values, of at most `max_chars` characters.

    The last few are cached, since a model reads page after page of one.
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._held: Recent[tuple[str, str], JsonValue] = Recent(_HELD)

    def answer(self, pages: Pages, pointer: str, offset: int | None, limit: int | None) -> str:
        """Return a part of a value, or the members of one that is too large. Raises `ConfigError`."""
        reader, key = PointerReader(pages.content), (pages.record.ref, pointer)
        try:
            value = self._held.get(key) or reader.find(pointer)
            self._held.put(key, value)
            chars = value.end - value.start
            is_whole = offset is None and limit is None
            if is_whole and value.kind in CONTAINERS and chars > self._max_chars - FRAME_CHARS:
                return pages.outline(value, reader.outline(value), reader.count(value))
        except BudgetExceeded:
            raise ConfigError(f"value too large for one call ({BUDGET}); read it by offset") from None
        if (offset or 0) >= chars:
            raise ConfigError(f"past the end: the value has {chars} characters (0-{chars - 1})")
        return pages.value(value, offset or 0, self._max_chars if limit is None else limit)
