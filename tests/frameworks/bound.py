"""A long run of an agent whose model binds its thinking to all that was sent before it.

A test lets its framework's own client of Anthropic talk to `serving(long_run(), Binding())`: what is checked
is what the API would get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from frameworks.scenario import QUERY, READER, Call, Script, Turn, end, refs

from offload import Offloader

BOUND = "claude-opus-5-5"
UNBOUND = "claude-opus-5"
TURNS = 14
_CHARS = (300, 4000, 9000, 40_000)


def outputs(made: list[str] | None = None) -> Callable[[], str]:
    """Return a tool's function: another text at each call, of all sizes, which it adds to `made`."""
    made = [] if made is None else made

    def output() -> str:
        number = len(made)
        made.append(text(number, _CHARS[number % len(_CHARS)]))
        return made[-1]

    return output


def text(number: int, chars: int) -> str:
    """Return a text of about `chars` characters that no other number has."""
    return "\n".join(f"{n}: value_{number}_{n} = {n * 7}" for n in range(chars // 20))


def long_run(turns: int = TURNS) -> Script:
    """Return a script that calls two tools by turns, some calls with long arguments, then reads an item."""
    return Script([*map(call, range(turns - 2)), _read, end])


def call(number: int) -> Turn:
    """The model calls a tool."""
    name = (QUERY, READER)[number % 2]
    arguments = {"note": text(-number, 6000)} if number % 3 == 2 else {}  # every third
    return lambda _: Call(name, arguments, f"toolu_{number}")


def _read(texts: Sequence[str]) -> Call:
    return Call("context_read", {"id": refs(texts)[-1], "offset": 0, "limit": 500}, "toolu_read")


def models_told(monkeypatch: Any) -> list[str | None]:
    """Return a list that gets the model of each call of `Offloader.offload`."""
    told: list[str | None] = []
    offload = Offloader.offload

    def note(self: Offloader, messages: Any, **options: Any) -> Any:
        told.append(options.get("model"))
        return offload(self, messages, **options)

    monkeypatch.setattr(Offloader, "offload", note)
    return told
