"""The process that is killed, stopped and refused: `python -m faults.writer`, driven by `faults.tracing`.

It imports everything once, then forks a child for each folder named on its input. The child waits for
its tracer, offloads the conversation turn by turn, and reports what it holds after each.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import systems
from faults.conversation import MESSAGES, SESSION, TURNS, replaced_in

from offload import Offloader
from offload_backends.local import LocalStore


def main() -> None:
    road, durability, codec = sys.argv[1:]
    _take_away(road)
    # Whatever is imported late is imported now, not between the system calls that are counted.
    Offloader("memory://", session=SESSION, codec=codec).offload(MESSAGES)
    _say("ready")
    while root := _hear():
        child = os.fork()
        if child == 0:
            _hear()
            _offload_turns(root, durability, codec)
            os._exit(0)
        _say(str(child))
        os.waitpid(child, 0)
        _say("ended")


def _offload_turns(root: str, durability: str, codec: str) -> None:
    store = LocalStore(root, storage_options={"durability": durability})
    offloader = Offloader(store, session=SESSION, codec=codec)
    for turn in TURNS:
        result = offloader.offload(MESSAGES[:turn])
        errors = [error.kind for error in result.errors]
        _say(json.dumps({"replaced": replaced_in(result), "errors": errors}))


def _take_away(road: str) -> None:
    """Make the system refuse what some file systems refuse, or offer what other systems offer."""
    if road in systems.FORMS:
        systems.use(road)
    if road in ("named", "renamed"):
        unnamed = getattr(os, "O_TMPFILE", 0)
        os.open = _refusing(os.open, errno.EOPNOTSUPP, lambda _, flags, *__: flags & unnamed == unnamed)
    if road == "renamed":
        os.link = _refusing(os.link, errno.EPERM, lambda *_: True)


def _refusing(call: Callable[..., Any], number: int, when: Callable[..., bool]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise OSError(number, os.strerror(number))
        return call(*args, **kwargs)

    return refuse


def _say(line: str) -> None:
    # A system call of its own, so that what befalls `write` befalls the store alone.
    os.writev(1, [line.encode(), b"\n"])


def _hear() -> str:
    return os.read(0, 4096).decode().strip()


if __name__ == "__main__":
    main()
