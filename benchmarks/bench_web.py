"""The web pages of a store of 200 sessions and 5,000 records: the time of each until it is complete.

A session of 5,000 requests, in a store of its own, has two journal entries for each.

The app answers in this process. A quarter of the sessions have a journal. The first visit of a page reads
what the pages keep: titles, and the accounts of sessions.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles

from _measure import Figure, require, run
from starlette.testclient import TestClient

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, OffloadStore, Rule, open_store
from offload.replay.sample import conversation
from offload.web import web_app

_SESSIONS, _RECORDS, _TALKS, _REQUESTS = 200, 25, 50, 5000
_ROUNDS, _PORT = 20, 8765
_BUDGET_MS = 150.0
_LONG = {
    "a session of 5,000 requests": "/s/long",
    "its timeline": "/s/long/timeline",
    "one of its requests": "/s/long/conversation?at=4990",
}
_TABLE = "id,name,total\n" + "".join(f"{n},name {n},{n * 7919 % 10007}\n" for n in range(20_000))
_JSON = json.dumps({"meta": {"version": 1}, "rows": [{"id": n, "name": f"name {n}"} for n in range(28_000)]})
_TEXT = "".join(f"line {n} of the output of a command\n" for n in range(600))


def figures(is_quick: bool) -> Iterator[Figure]:
    """Measure the pages; with `is_quick` fewer rounds."""
    with tempfile.TemporaryDirectory() as folder:
        _fill(open_store(folder, storage_options={"durability": "none"}))
        for name, path in _pages(Offloader(folder, session="session-7")).items():
            yield _figure(name, path, Path(folder), _ROUNDS // 4 if is_quick else _ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        _talk_long(open_store(folder, storage_options={"durability": "none"}))
        for name, path in _LONG.items():
            yield _figure(name, path, Path(folder), _ROUNDS)


def _fill(store: OffloadStore) -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1000, preview_chars=0)})
    talk = [message for message in conversation() if len(str(message)) < len(_TEXT) * 10]
    for number in range(_SESSIONS):
        off = Offloader(store, session=f"session-{number}", policy=policy)
        if number < _TALKS:
            context = ContextManager(off, AgentConfig(window_tokens=200_000))
            for message in talk:
                context.add(message)
            context.before_model_call()
        for count in range(_RECORDS - len(off.records())):
            off.offload_text(f"{number} {count}\n{_TEXT}", tool_name="Bash", title=f"src/file_{count}.py")


def _talk_long(store: OffloadStore) -> None:
    """Send many requests with reported usage, in an agent loop that compacts now and then."""
    off = Offloader(store, session="long")
    context = ContextManager(off, AgentConfig(window_tokens=20_000, model="claude-sonnet-5"))
    for number in range(_REQUESTS):
        context.add({"role": "user", "content": f"question {number} of a long session"})
        tokens = context.before_model_call().tokens
        usage = {"input_tokens": 40, "cache_read_input_tokens": tokens, "cache_creation_input_tokens": 30}
        context.after_model_call({"role": "assistant", "content": f"answer {number}"}, usage=usage)


def _pages(off: Offloader) -> dict[str, str]:
    session = "/s/session-7"
    record = f"{session}/r/{off.records()[-1].ref}"
    table, value = (f"{session}/r/{_stored(off, text)}" for text in (_TABLE, _JSON))
    return {
        "all sessions": "/",
        "a search of all titles that finds some": "/find?q=file_3",
        "a search of all titles that finds none": "/find?q=nowhere",
        "a preview of gc": "/retention",
        "a preview of gc with a quota": "/retention?session_records=20&live_for=0s",
        "a session": session,
        "a session filtered by words": f"{session}?q=file_1",
        "a conversation": f"{session}/conversation",
        "a record": record,
        "a record of 20,000 rows": table,
        "the same, sorted": f"{table}?sort=2&desc=1",
        "a record of 1 MB of JSON on one line": value,
        "a record's search": f"{record}/search?q=line",
        "a record's query": f"{record}/query",
        "a record's changes": f"{record}/changes",
    }


def _stored(off: Offloader, text: str) -> str:
    off.offload_text(text, tool_name="fetch")
    return off.records()[-1].ref


def _figure(name: str, path: str, folder: Path, rounds: int) -> Figure:
    """Measure a page in a new app, so that its first visit reads everything."""
    app = web_app(open_store(folder), _PORT)
    took = []
    with TestClient(app, base_url=f"http://127.0.0.1:{_PORT}") as client:
        client.get("/", params={"ticket": app.ticket})
        for _ in range(rounds):
            began, cpu = time.perf_counter(), time.process_time()
            answer = client.get(path)
            took.append((time.perf_counter() - began, time.process_time() - cpu))
            require(answer.status_code == 200, f"{path} answered {answer.status_code}")  # noqa: PLR2004
    waited, spent = ([each * 1000 for each in times] for times in zip(*took, strict=True))
    detail = f"first {waited[0]:.0f}; CPU time {_p95(spent):.0f}, first {spent[0]:.0f}"
    return Figure(f"{name}, p95", _p95(waited), "ms", at_most=_BUDGET_MS, detail=detail)


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    run(__doc__, figures)
