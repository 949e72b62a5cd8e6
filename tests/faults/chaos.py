"""Chaos: writers, collectors, indexers and readers on one session, killed at random, with clocks that differ.

    python tests/faults/chaos.py URL [--option NAME=VALUE]... [--seconds 30] [--seed 1] [--careless]

Every actor is a process of its own. Writers store items, new ones and again such as may be collected by
then, and write down what they were promised: the placeholder, and when they asked for it. Collectors mark
and empty what is due, indexers write snapshots, readers restore what writers were promised. A random actor,
of those that have started, is killed with SIGKILL every 0.7 seconds and started again. In the end everything
that was ever promised is restored once more.

What must hold for each promise: the item comes back as it was, or, if it may be collected, `ExpiredError`
says that it was marked after it was promised. Anything else is a loss and is printed; the exit code is 1.

`--careless` is the negative control: its writers adopt a record without looking whether a collector has
marked it. A run that finds no loss with it proves nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from offload import ExpiredError, Offloader, OffloadError, OffloadPolicy, Rule, open_store
from offload.engine.policy import Retention
from offload.maintenance.retention import collect
from offload.records.index.catalog import Catalog

_PROCESSES = multiprocessing.get_context("forkserver")
SESSION = "chaos"
ROLES = ("writer", "writer", "writer", "collector", "collector", "indexer", "indexer", "reader", "reader")
KILL_EVERY = 0.7
TTL, GRACE = 2, 4
# Stores tell times in whole seconds.
TICK = 2.0
POLICY = OffloadPolicy(
    types={"tool_result": Rule(min_chars=1, preview_chars=40)},
    tools={"temporary": Rule(min_chars=1, preview_chars=40, ttl=TTL)},
    retention=Retention(grace=GRACE, live_for=0),
    min_saving=0,
)


class Promise(NamedTuple):
    """The guarantees given to a writer.

    Attributes:
        item: number of the item.
        placeholder: the text that stands for it.
        asked: when the writer asked, in seconds since the epoch.
    """

    item: int
    placeholder: str
    asked: float


class Place(NamedTuple):
    """The place of a run.

    Attributes:
        url: the store.
        options: its storage options.
        folder: where actors write down what they saw.
    """

    url: str
    options: dict[str, Any]
    folder: Path

    def offloader(self) -> Offloader:
        """Return a new offloader, as a new process would have."""
        return Offloader(self.url, session=SESSION, policy=POLICY, storage_options=self.options)


def tool_of(item: int) -> str:
    """Return the tool that made an item: two in three may be collected."""
    return "temporary" if item % 3 else "lasting"


def text_of(item: int) -> str:
    """Return the text of an item, which anybody can make again."""
    chosen = random.Random(item)  # noqa: S311  # texts, no secrets
    lines = chosen.choice((20, 200, 200, 20_000))
    return "".join(f"item {item} line {n} {chosen.getrandbits(64):x}\n" for n in range(lines))


def message_of(item: int, text: str) -> dict[str, Any]:
    """Return the message that holds an item or its placeholder."""
    return {"role": "tool", "tool_call_id": f"call-{item}", "content": text}


def judge(off: Offloader, promise: Promise) -> str:
    """Return what became of a promise: "kept", "collected", or a loss in words."""
    try:
        [restored] = off.restore([message_of(promise.item, promise.placeholder)])
    except ExpiredError as error:
        if tool_of(promise.item) == "lasting":
            return f"item {promise.item} was to last: {error}"
        if error.at < promise.asked - TICK:
            return f"item {promise.item} was promised {promise.asked - error.at:.1f} s after it was marked"
        return "collected"
    except OffloadError as error:
        return f"item {promise.item}: {type(error).__name__}: {error}"
    if restored["content"] != text_of(promise.item):
        return f"item {promise.item} came back as something else"
    return "kept"


def note(place: Place, kind: str, value: object) -> None:
    """Write down one line of one actor, at once and whole, since the actor may be killed after it."""
    line = json.dumps(value).encode() + b"\n"
    target = os.open(place.folder / f"{kind}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(target, line)
    os.close(target)


def noted(place: Place, kind: str) -> Iterator[Any]:
    """Yield what all actors have written down so far."""
    for file in sorted(place.folder.glob(f"{kind}-*")):
        # A line that has no end was being written when its actor was killed.
        yield from (json.loads(line) for line in file.read_text().split("\n")[:-1])


def write(place: Place, chosen: random.Random) -> None:
    """Store one item, every second time one that was stored before, and note what was promised."""
    off = place.offloader()
    for _ in range(5):
        known = [Promise(*p).item for p in noted(place, "promise")]
        item = chosen.choice(known) if known and chosen.random() < 0.5 else chosen.getrandbits(30)
        asked = REAL_TIME()
        out = off.offload([_call(item), message_of(item, text_of(item))])
        for error in out.errors:
            note(place, "trouble", str(error))
        if not out.errors:
            note(place, "promise", Promise(item, out.messages[-1]["content"], asked))


def _call(item: int) -> dict[str, Any]:
    function = {"name": tool_of(item), "arguments": "{}"}
    return {
        "role": "assistant",
        "tool_calls": [{"id": f"call-{item}", "type": "function", "function": function}],
    }


def gather(place: Place, _: random.Random) -> None:
    """Collect what is due."""
    collect(open_store(place.url, storage_options=place.options), POLICY.retention, session=SESSION)


def index(place: Place, _: random.Random) -> None:
    """Write a snapshot of the session's listing."""
    Catalog(open_store(place.url, storage_options=place.options), SESSION).load()


def read(place: Place, chosen: random.Random) -> None:
    """Restore some of what was promised, and note losses."""
    promises = [Promise(*p) for p in noted(place, "promise")]
    off = place.offloader()
    for promise in chosen.sample(promises, min(5, len(promises))):
        verdict = judge(off, promise)
        note(place, "read", verdict if verdict in ("kept", "collected") else "lost")
        if verdict not in ("kept", "collected"):
            note(place, "loss", verdict)


ACTS: dict[str, Callable[[Place, random.Random], None]] = {
    "writer": write,
    "collector": gather,
    "indexer": index,
    "reader": read,
}
REAL_TIME = time.time


def act(place: Place, role: str, seed: int, *, is_careless: bool) -> None:
    """Play a role for ever, with a clock that is up to 1.5 seconds wrong."""
    chosen = random.Random(seed)  # noqa: S311  # a course of events, no secret
    skew = chosen.uniform(-1.5, 1.5)
    time.time = lambda: REAL_TIME() + skew
    if is_careless:
        from offload.engine.recognition import Recognition  # noqa: PLC0415  # only the control needs it
        from offload.records.session import Session  # noqa: PLC0415  # only the control needs it

        careless: Any = Session
        recognition: Any = Recognition
        recognition.load_session = lambda _: None
        careless.gone = lambda _, __: set()
        careless._adopt = _adopt_blindly
    # It takes most of the time of a start, on a busy machine more than actors have to live.
    with suppress(OffloadError):
        next(open_store(place.url, storage_options=place.options).keys(), None)
    note(place, "started", role)
    while True:
        try:
            ACTS[role](place, chosen)
        except OffloadError as error:
            note(place, "trouble", f"{role}: {type(error).__name__}: {error}")


def _adopt_blindly(session: Any, attempt: Any, _: Any) -> Any:
    counts = attempt.draft.content.counts
    return session._offloaded(attempt.header, counts, attempt.key, len(attempt.encoded.body))


def run(
    url: str,
    options: dict[str, Any],
    *,
    seconds: float,
    seed: int,
    kill_every: float = KILL_EVERY,
    is_careless: bool = False,
) -> Counter[str]:
    """Let all actors loose on a store, then check every promise; return what was counted.

    Args:
        url: the store.
        options: its storage options.
        seconds: how long the actors act, once all have started.
        seed: decides the course of events.
        kill_every: seconds from one kill to the next, of an actor that has started.
        is_careless: whether the writers are those of the negative control.

    Returns:
        Counts by name: "kills", "promises", "reads", "kept" and "collected" by the last check, "trouble"
        (errors that an actor was told), and each loss by its description.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Place(url, options, Path(folder))
        chosen = random.Random(seed)  # noqa: S311  # a course of events, no secret
        kills = _play(place, chosen, seconds, kill_every, is_careless=is_careless)
        promises = [Promise(*p) for p in noted(place, "promise")]
        off = place.offloader()
        verdicts = Counter(judge(off, promise) for promise in promises)
        verdicts.update(noted(place, "loss"))
        verdicts.update(
            kills=kills,
            promises=len(promises),
            reads=sum(1 for _ in noted(place, "read")),
            trouble=sum(1 for _ in noted(place, "trouble")),
        )
        return verdicts


def losses(counted: Counter[str]) -> list[str]:
    """Return the descriptions of what was lost in a run."""
    return [said for said in counted if said.startswith("item ")]


def _play(
    place: Place, chosen: random.Random, seconds: float, kill_every: float, *, is_careless: bool
) -> int:
    """Run the actors for some seconds, killing one now and then; return how many were killed."""
    seeds = iter(lambda: chosen.getrandbits(30), None)
    actors = [_start(place, role, next(seeds), is_careless=is_careless) for role in ROLES]
    kills = 0
    try:
        while not all(_has_started(place, actor) for actor in actors):
            time.sleep(0.05)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(kill_every)
            started = [at for at, actor in enumerate(actors) if _has_started(place, actor)]
            if started:
                victim = chosen.choice(started)
                actors[victim].kill()
                actors[victim].join()
                kills += 1
                actors[victim] = _start(place, ROLES[victim], next(seeds), is_careless=is_careless)
    finally:
        for actor in actors:
            actor.kill()
            actor.join()
    return kills


def _has_started(place: Place, actor: BaseProcess) -> bool:
    return (place.folder / f"started-{actor.pid}").exists() or not actor.is_alive()


def _start(place: Place, role: str, seed: int, *, is_careless: bool) -> BaseProcess:
    actor = _PROCESSES.Process(target=act, args=(place, role, seed), kwargs={"is_careless": is_careless})
    actor.start()
    return actor


def _options(given: list[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in given)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="the store: an empty folder, or an S3 prefix")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--careless", action="store_true", help="the negative control")
    given = parser.parse_args()
    counted = run(
        given.url,
        _options(given.option),
        seconds=given.seconds,
        seed=given.seed,
        is_careless=given.careless,
    )
    for name, count in sorted(counted.items()):
        sys.stdout.write(f"{count:8} {name}\n")
    return 1 if losses(counted) else 0


if __name__ == "__main__":
    sys.exit(main())
