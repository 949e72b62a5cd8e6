"""The objects of a check: its store and keys, its result, and the finding."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from offload.storage.layout import CHECK
from offload.storage.store import OffloadStore

CheckOutcome = Literal["ok", "slow", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check, in a word or two.
        outcome: "ok"; "slow": it works, above a stated limit; "warning": it works, with a limitation;
            "failed": it does not work.
        details: the observed behavior.
        fix: the suggested fix; empty if none is needed.
    """

    check: str
    outcome: CheckOutcome
    details: str
    fix: str = ""


class CheckResult(NamedTuple):
    """The outcome of a check, with details and a fix as in `Finding`."""

    details: str
    fix: str = ""
    outcome: CheckOutcome = "ok"


@dataclass(frozen=True, slots=True)
class Trial:
    """A store and the keys that the checks have used; they contain no folder, so none is created."""

    store: OffloadStore
    prefix: str = field(default_factory=lambda: f"{CHECK.prefix()}{secrets.token_hex(8)}-")
    used: set[str] = field(default_factory=set)

    def key(self, name: str) -> str:
        """Return the key of the trial object `name` and note it for deletion."""
        key = self.prefix + name
        self.used.add(key)
        return key


class BrokenError(Exception):
    """The store violated its contract; the message says how."""


def require(is_met: bool, violation: str) -> None:
    """Raise `BrokenError` unless a promise of the contract is kept."""
    if not is_met:
        raise BrokenError(violation)


def seconds(call: Callable[..., object], *arguments: object) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call(*arguments)
    return max(time.perf_counter() - start, 1e-6)
