"""What processes do in step on one store, each with a store of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from offload import Offloader, OffloadPolicy, Rule, open_store
from offload.errors import ExistsError

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=40)}, min_saving=0)

Act = Callable[[str, dict[str, Any], str, int, Barrier], Any]


def create(url: str, options: dict[str, Any], name: str, count: int, barrier: Barrier) -> list[int]:
    """Create the same keys as the others; return the numbers of those that were created here."""
    store = open_store(url, storage_options=options)
    store.put(f"ready/{name}", b"")
    won = []
    for number in range(count):
        barrier.wait()
        try:
            store.put(f"race/{number}", name.encode())
        except ExistsError:
            continue
        won.append(number)
    return won


def offload(url: str, options: dict[str, Any], name: str, count: int, barrier: Barrier) -> list[str]:
    """Offload items of this process's own, and one that all have, turn by turn; return the texts left."""
    off = Offloader(url, session="s", storage_options=options, policy=POLICY)
    messages = conversation(name, count)
    for end in range(1, len(messages) + 1):
        barrier.wait()
        out = off.offload(messages[:end])
        assert not out.errors, out.errors
    return [message["content"] for message in out.messages]


def conversation(name: str, count: int) -> list[dict[str, Any]]:
    texts = [text for n in range(count) for text in (f"{name} {n}\n" * 200, f"everyone's {n}\n" * 200)]
    return [{"role": "tool", "tool_call_id": f"call-{n}", "content": text} for n, text in enumerate(texts)]


def in_step(act: Act, url: str, options: dict[str, Any], names: str, count: int) -> dict[str, Any]:
    """Let a process per name act, all in step; return what each returned."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(len(names), timeout=100), context.Queue()
    arguments = [(act, answers, (url, options, name, count, barrier)) for name in names]
    processes = [context.Process(target=_answer, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get(timeout=110) for _ in processes)
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    for answer in found.values():
        if isinstance(answer, BaseException):
            raise answer
    return found


def _answer(act: Act, answers: Queue[Any], arguments: Any) -> None:
    try:
        answers.put((arguments[2], act(*arguments)))
    except BaseException as error:  # noqa: BLE001  # the parent raises it
        answers.put((arguments[2], RuntimeError(repr(error))))
