"""The tasks of every candidate, run in its own environment: only the standard library here.

`python -m peers.NAME TASKS.json ANSWERS.json` does tasks in turn for `bench_peers.py`.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from peers._kill import kill_in_the_middle
from peers._peer import Peer
from peers._solving import solving

MARK = "mark-{}-here"
_LEAST_CHARS = 5_000
_REPEATS = 3
_FULL_DISK_BYTES = 4096

Task = dict[str, Any]
Answer = dict[str, Any]
Open = Callable[..., Peer]


def main(peer_class: type[Peer]) -> None:
    """Do the tasks that the command line names; each answer is there even if the next task ends badly."""
    answers = []
    for task in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        answers.append(_TASKS[task["task"]](partial(_open, peer_class, task["store"]), task))
        Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


def transcripts(open_peer: Open, task: Task) -> Answer:
    """Offload every large result of the transcripts and note the name of each."""
    texts = json.loads(Path(task["texts"]).read_text("utf-8"))
    peer = open_peer()
    peer.offload(texts[0], "warm-up")
    start = time.perf_counter()
    shown = [peer.offload(text, f"call_{number}") for number, text in enumerate(texts)]
    seconds = time.perf_counter() - start
    kept = sum(text == left for text, left in zip(texts, shown, strict=True))
    return {"seconds": seconds, "shown": sum(map(len, shown)), "kept": kept}


def defaults(open_peer: Open, task: Task) -> Answer:
    """Return the replacement of each text under the default configuration."""
    texts = json.loads(Path(task["texts"]).read_text("utf-8"))
    peer = open_peer(least_chars=None)
    return {"shown": [peer.offload(text, f"call_{number}") for number, text in enumerate(texts)]}


def session(open_peer: Open, task: Task) -> Answer:
    """Offload many results into one session: the time of all, and of the last hundred over the first."""
    peer = open_peer()
    peer.offload(_marked(task, "warm-up"), "warm-up")
    times = []
    for number in range(task["count"]):
        text = _marked(task, str(number))
        start = time.perf_counter()
        peer.offload(text, f"call_{number}")
        times.append(time.perf_counter() - start)
    return {"seconds": sum(times), "growth": median(times[-100:]) / median(times[:100])}


def writer(open_peer: Open, task: Task) -> Answer:
    """Be one of several processes that write into one store once all of them are ready."""
    peer = open_peer()
    gate = Path(task["gate"])
    Path(gate, f"ready-{task['number']}").touch()
    while not (gate / "go").exists():
        time.sleep(0.002)
    start, refs, errors = time.time(), {}, []
    for number in range(task["count"]):
        name = f"{task['number']}-{number}"
        try:
            refs[MARK.format(name)] = peer.ref(peer.offload(_marked(task, name), f"call_{name}"))
        except NotImplementedError:
            return {"state": "not offered"}
        except Exception as error:  # noqa: BLE001 # any exception of a candidate is its result
            errors.append(_told(error))
    return {"start": start, "end": time.time(), "refs": refs, "errors": errors}


def check(open_peer: Open, task: Task) -> Answer:
    """Count the results that can be found under their refs by another process."""
    peer = open_peer()
    return {"found": sum(_shows(peer, ref, mark) for mark, ref in task["refs"].items())}


def reading(open_peer: Open, task: Task) -> Answer:
    """Read parts of a long listing and a long line, and find a needle late in a very long line."""
    peer = open_peer(least_chars=None)
    names = ("listing", "words", "line", "long")
    listing, words, line, long_line = (Path(task[name]).read_text("utf-8") for name in names)
    row, offset = task["row"], words.index(task["mark"])
    return {
        "lines": _read(peer, listing, "listing", lambda ref: peer.lines(ref, row - 50, 100), task["mark"]),
        "tail": _read(peer, listing, "tail", lambda ref: peer.tail(ref, 20), task["last"]),
        "chars": _read(peer, words, "words", lambda ref: peer.chars(ref, offset, 8192), task["mark"]),
        "find": _read(peer, line, "find", lambda ref: peer.find(ref, task["mark"]), task["mark"]),
        "find_long": _read(peer, long_line, "long", lambda ref: peer.find(ref, task["mark"]), task["mark"]),
    }


def searching(open_peer: Open, task: Task) -> Answer:
    """Offload the results of conversations, and search: whether a fact is shown, and in how much text."""
    found = []
    for number, (texts, questions) in enumerate(json.loads(Path(task["conversations"]).read_text("utf-8"))):
        peer = open_peer(session=f"s{number}", where=f"-{number}")
        for at, text in enumerate(texts):
            peer.offload(text, f"call_{at}")
        for fact, *queries in questions:
            answers = ["\n".join(peer.search(query)) for query in queries]
            found.append([(fact in answer, len(answer)) for answer in answers])
    return {"found": found}


def regex(open_peer: Open, task: Task) -> Answer:
    """Search a result with a pattern that backtracks; an alarm ends the process if the search does not."""
    peer = open_peer()
    text = _marked(task, "regex") + "\n" + "a" * 40 + "b\n"
    shown, start = peer.offload(text, "call_0"), time.perf_counter()
    try:
        ref = peer.ref(shown)
        signal.alarm(task["seconds"])
        peer.grep(ref, task["pattern"])
    except NotImplementedError:
        return {"state": "not offered"}
    except Exception as error:  # noqa: BLE001 # any exception of a candidate is its result
        return {"state": f"stops: {_told(error)}", "seconds": time.perf_counter() - start}
    return {"state": "answers", "seconds": time.perf_counter() - start}


def large(open_peer: Open, task: Task) -> Answer:
    """Offload one very large result: the time, and the peak of memory over what the text itself takes."""
    peer = open_peer()
    peer.offload(_marked(task, "warm-up"), "warm-up")
    text = Path(task["block"]).read_text("utf-8") * task["blocks"] + MARK.format("last")
    return _weigh(peer, lambda: peer.offload(text, "call_0"), text)


def stream(open_peer: Open, task: Task) -> Answer:
    """Offload the same result as it comes, in parts."""
    peer = open_peer()
    block = Path(task["block"]).read_text("utf-8")

    def chunks() -> Iterator[str]:
        yield from (block for _ in range(task["blocks"]))
        yield MARK.format("last")

    return _weigh(peer, lambda: peer.stream(chunks(), "call_0"), "")


def failing(open_peer: Open, task: Task) -> Answer:
    """Offload while the store cannot take it: a file cannot grow, or no server answers."""
    peer, text = open_peer(), Path(task["block"]).read_text("utf-8") + MARK.format("full")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if task["is_local"]:
        peer.offload(_marked(task, "before"), "call_before")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_DISK_BYTES, hard))
    try:
        shown = peer.offload(text, "call_1")
    except Exception as error:  # noqa: BLE001 # any exception of a candidate is its result
        return {"state": f"raises {_told(error)}"}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return {"state": _state(peer, shown, text, MARK.format("full"))}


def one_id(open_peer: Open, task: Task) -> Answer:
    """Use one id of a call for two results: of two agents on one store, and of one agent."""
    two = [open_peer("alice"), open_peer("bob")]
    agent = open_peer("carol")
    return {"agents": _use_twice(two, task, "agents"), "agent": _use_twice([agent, agent], task, "agent")}


def kill(open_peer: Open, task: Task) -> Answer:
    """Be killed while a result is offloaded, and see what another process finds under its ref."""
    block = Path(task["block"]).read_text("utf-8")
    text = f"{MARK.format('first')}\n{block}\n{MARK.format('last')}"

    def find(peer: Peer, ref: str) -> list[bool]:
        return [_shows(peer, ref, MARK.format(end), is_strict=True) for end in ("first", "last")]

    return kill_in_the_middle(open_peer, text, task["kills"], find)


def _open(
    peer_class: type[Peer],
    store: str,
    session: str = "one",
    least_chars: int | None = _LEAST_CHARS,
    where: str = "",
) -> Peer:
    return peer_class(store + where, session, least_chars)


def _marked(task: Task, name: str) -> str:
    """Return an item of work that holds a mark of its own, on a line in its middle."""
    block = str(task["item"])
    return f"{block}\n{MARK.format(name)}\n{block}"


def _read(peer: Peer, text: str, call_id: str, read: Callable[[str], str], mark: str) -> Answer:
    try:
        ref = peer.ref(peer.offload(text, call_id))
    except NotImplementedError:
        return {"state": "not offered"}
    except LookupError as error:
        return {"state": f"not stored: {error}"}
    peer.calls, times, answer = 1, [], ""
    for _ in range(_REPEATS):
        start = time.perf_counter()
        try:
            answer = read(ref)
        except NotImplementedError:
            return {"state": "not offered"}
        times.append(time.perf_counter() - start)
    found = {"seconds": median(times), "chars": len(answer), "calls": peer.calls}
    return {"state": "shown" if mark in answer else "not shown", **found}


def _weigh(peer: Peer, offload: Callable[[], str], text: str) -> Answer:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Resets the peak.
    before, start = _memory("VmRSS"), time.perf_counter()
    try:
        shown = offload()
    except NotImplementedError:
        return {"state": "not offered"}
    except Exception as error:  # noqa: BLE001 # any exception of a candidate is its result
        return {"state": f"raises {_told(error)}"}
    found = {"seconds": time.perf_counter() - start, "bytes": _memory("VmHWM") - before}
    return {"state": _state(peer, shown, text, MARK.format("last")), **found}


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text("ascii")
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def _use_twice(peers: list[Peer], task: Task, name: str) -> str:
    shown = [peer.offload(_marked(task, f"{name}-{at}"), "call_0") for at, peer in enumerate(peers)]
    found = []
    for at, (peer, left) in enumerate(zip(peers, shown, strict=True)):
        try:
            ref = peer.ref(left)
        except NotImplementedError:
            return "not offered"
        found.append(_shows(peer, ref, MARK.format(f"{name}-{at}")))
    return "both kept" if all(found) else "the first is lost"


def _state(peer: Peer, shown: str, text: str, mark: str) -> str:
    if shown == text:
        return "kept"
    with suppress(NotImplementedError, LookupError):
        ref = peer.ref(shown)
        if _shows(peer, ref, mark):
            return "stored"
        if mark in peer.tail(ref, 1):
            return "stored, its search does not find it"
    return f"lost ({len(shown):,} characters left)"


def _shows(peer: Peer, ref: str, mark: str, *, is_strict: bool = False) -> bool:
    """Return whether a read back shows `mark`; an error is a no, unless the caller wants to see it."""
    try:
        return mark in peer.find(ref, mark)
    except Exception:
        if is_strict:
            raise
        return False


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:100]


_TASKS = {
    task.__name__: task
    for task in (
        transcripts,
        defaults,
        session,
        writer,
        check,
        reading,
        searching,
        regex,
        large,
        stream,
        failing,
        one_id,
        kill,
        solving,
    )
}
