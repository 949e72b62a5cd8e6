"""Sessions with a journal: a loop of tool calls, for the tests of timelines, forks and pages."""

from __future__ import annotations

import copy
from typing import Any

from offload import Offloader
from offload_backends.memory import MemoryStore


def exchange(n: int, lines: int = 2000) -> list[dict[str, Any]]:
    """Return a call and its large result."""
    call = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"command": f"make {n}"}}
    result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"step {n} is made\n" * lines}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def conversation(turns: int) -> list[Any]:
    return [{"role": "user", "content": "go"}, *(m for n in range(turns) for m in exchange(n))]


def journaled(store: Any, session: str = "a", **options: Any) -> Offloader:
    return Offloader(store, session=session, journal=True, **options)


def run(off: Offloader, turns: int) -> list[list[Any]]:
    """Return the lists that were sent in a loop of some turns."""
    return [copy.deepcopy(off.offload(conversation(n)).messages) for n in range(turns)]


def played(turns: int) -> tuple[MemoryStore, Offloader, list[list[Any]]]:
    """Return a store, the session `a` in it after a loop of some turns, and the lists that were sent."""
    store = MemoryStore()
    off = journaled(store)
    return store, off, run(off, turns)


def keys(store: Any, prefix: str = "") -> set[str]:
    return {found.key for found in store.keys(prefix)}
