"""A process that is killed in the middle of an offload, again and again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from peers._peer import Peer

_CALL_ID = "call_killed"
_REHEARSALS = ("-rehearsal", "-again")
# Replaces the folder's path in a ref.
_WHERE = "<where>"
_NOT_FOUND = ("FileNotFoundError", "KeyError", "LookupError", "NotFoundError", "ToolError")


def kill_in_the_middle(
    open_peer: Callable[..., Peer], text: str, kills: int, find: Callable[[Peer, str], list[bool]]
) -> dict[str, Any]:
    """Kill the offload of `text` at moments spread over its length; each into a store of its own.

    Args:
        open_peer: opens the candidate in a folder of a given name.
        text: what is offloaded.
        kills: how often.
        find: says of a ref whether the beginning and the end of the text are found under it.

    Returns:
        How often the result was "nothing", "whole", or "half" to the process that came after; or only a
        state, where a ref cannot be foreseen or nothing is stored.
    """
    first, second = (_in_fork(partial(_rehearse, open_peer, at, text)) for at in _REHEARSALS)
    if first is None:
        return {"state": "not offered"}
    if first["ref"] != second["ref"]:
        return {"state": "random ids"}
    counts = {"nothing": 0, "half": 0, "whole": 0}
    for number in range(kills):
        where = f"-killed-{number}"
        ref = first["ref"].replace(_WHERE, where)
        _offload_and_kill(open_peer, where, text, second["seconds"] * (number + 0.5) / kills)
        counts[_in_fork(partial(_judge, open_peer, where, ref, find))] += 1
    return {"state": "killed", **counts}


def _rehearse(open_peer: Callable[..., Peer], where: str, text: str) -> dict[str, Any] | None:
    """Return the ref that the text will have, and how long its offload takes."""
    peer = open_peer(where=where)
    start = time.perf_counter()
    shown = peer.offload(text, _CALL_ID)
    seconds = time.perf_counter() - start
    try:
        return {"ref": peer.ref(shown).replace(where, _WHERE), "seconds": seconds}
    except (NotImplementedError, LookupError):
        return None


def _offload_and_kill(open_peer: Callable[..., Peer], where: str, text: str, delay: float) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        peer = open_peer(where=where)
        os.write(told, b"!")
        peer.offload(text, _CALL_ID)
        os._exit(0)
    os.read(ready, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(told)


def _judge(
    open_peer: Callable[..., Peer], where: str, ref: str, find: Callable[[Peer, str], list[bool]]
) -> str:
    try:
        found = find(open_peer(where=where), ref)
    except Exception as error:  # noqa: BLE001 # any exception of a candidate is its result
        return "nothing" if type(error).__name__ in _NOT_FOUND else "half"
    return {(True, True): "whole", (False, False): "nothing"}.get((found[0], found[1]), "half")


def _in_fork(work: Callable[[], Any]) -> Any:
    """Return what `work` returns, done in a process of its own: no connection or thread is shared."""
    result, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, json.dumps(work()).encode())
        os._exit(0)
    os.close(told)
    with os.fdopen(result, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)
