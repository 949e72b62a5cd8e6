"""A scripted agent at its tasks with one candidate: requests are charged as a prompt cache does."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _provider import CHARS_PER_TOKEN, AnthropicCache
from peers import _agent
from peers._agent import next_step
from peers._editing import FAILED, PAGE_LINES, PLACE_LINES, edited, formatted, read
from peers._families import Case, load
from peers._known import TOOL_OPS, Message
from peers._peer import READ_CHARS, Peer, Step

MOST_REQUESTS = 100
_VERBS = ("find", "find_all", "lines", "chars", "query", "diff")
_SECONDS_BETWEEN_REQUESTS = 5

Open = Callable[[Path, str], Peer]
Think = Callable[[list[Message]], dict[str, Any]]


class WindowFullError(Exception):
    """A request is larger than the window."""


class Conversation:
    """One task of the agent; what a tool returns passes through the candidate before it is a message.

    Attributes:
        files: the files of the case, as they are now.
        extra: the number of calls that read something again.
        failed: the number of edits that failed.
        requests: the number of requests.
        tokens: their input tokens in all.
        cost: their price in uncached input tokens.
    """

    def __init__(
        self,
        open_peer: Open,
        home: Path,
        case: Case,
        window: int,
        *,
        without: tuple[str, ...] = (),
        think: Think = next_step,
        session: str = "lead",
        given: tuple[str, ...] = (),
    ) -> None:
        """Begin a task.

        Args:
            open_peer: opens the candidate in a folder, for a session.
            home: the folder.
            case: the task.
            window: tokens of the largest request.
            without: verbs that the agent is not offered.
            think: the agent.
            session: the name of the session.
            given: the results that another agent passes on, as it is shown them.
        """
        self._open, self._home, self.case, self._window = open_peer, home, case, window
        self._without, self._think, self._session, self._given = without, think, session, given
        self._peer: Peer | None = None
        self._to_come = _events(case["ops"])
        self._calls, self._number = 0, 0
        self._notice, self._stored = "", dict[int, str]()
        self._steps = list[Step]()
        self._cache = AnthropicCache()
        self.files: dict[str, str] = case.get("files", {})
        self.extra, self.failed = 0, 0
        self.requests, self.tokens, self.cost = 0, 0.0, 0.0

    def run(self) -> str | None:
        """Return the agent's answer, "" if it has none; None if another process is to go on."""
        self._peer = self._open(self._home, self._session)
        while self.requests < MOST_REQUESTS:
            step = self._think(self._request(self._peer))
            if "answer" in step:
                return str(step["answer"])
            self._steps.append(self._taken(self._peer, dict(step)))
            self._number += 1
            while self._to_come and self._to_come[0][0] == self._calls:
                _, event = self._to_come.pop(0)
                if event["op"] == "leave":
                    self._leave(self._peer, event["to"])
                    return None
                self._compact(self._peer)
        return ""

    def state(self) -> dict[str, Any]:
        """Return what another process needs to go on."""
        lent = ("_open", "_peer", "_think")
        return {name: value for name, value in vars(self).items() if name not in lent}

    def _taken(self, peer: Peer, call: dict[str, Any]) -> Step:
        """Return a call with what the agent is shown of its result."""
        calls, text = self._calls, self._done(peer, call)
        about = str(call.get("argument", call.get("path")))
        number = calls + len(self._given) if self._calls > calls else None
        return Step(f"call_{self._number}", call, about, text, number)

    def _done(self, peer: Peer, step: dict[str, Any]) -> str:
        if step["tool"] == "delegate":
            return self._delegated(peer, self.case["agents"][step["argument"]])
        if step["tool"] == "read back":
            self.extra += 1
            return self._read_back(peer, step)
        output = {"call": self._called, "read": self._read, "edit": self._edited}[step["tool"]](step)
        return peer.offload(output, f"call_{self._number}")

    def _called(self, step: dict[str, Any]) -> str:  # noqa: ARG002 # its task says what it calls
        op = [op for op in self.case["ops"] if op["op"] in TOOL_OPS][self._calls]
        if path := op.get("formats"):
            self.files = {**self.files, path: formatted(self.files[path])}
        self._calls += 1
        return str(self.case["outputs"][self._calls - 1])

    def _read(self, step: dict[str, Any]) -> str:
        if first := step.get("first"):
            self.extra += 1
        else:
            self._calls += 1
        return read(self.files[step["path"]], first)

    def _edited(self, step: dict[str, Any]) -> str:
        path = step["path"]
        text = edited(self.files[path], step["old"], step["new"])
        if text is None:
            self.failed += 1
            return f"{FAILED}the text is not in {path} exactly once"
        self.files = {**self.files, path: text}
        self._calls += 1
        return f"{path} was edited."

    def _request(self, peer: Peer) -> list[Message]:
        verbs = [verb for verb in _VERBS if _offers(peer, verb) and verb not in self._without]
        task = {"ops": self.case["ops"], "verbs": verbs, "given": self._given}
        task |= {"page_chars": peer.page_chars, "language": peer.language}
        sent: list[Message] = [{"role": "user", "content": json.dumps(task)}]
        if self._notice:
            sent.append({"role": "user", "content": self._notice})
        for step, shown in zip(self._steps, self._shown(peer), strict=True):
            sent.append({"role": "assistant", "content": json.dumps(step.call)})
            sent.append({"role": "user", "content": shown})
        self._charge(peer.instructions(), sent)
        return sent

    def _charge(self, system: str, sent: list[Message]) -> None:
        if len(system) + sum(len(message["content"]) for message in sent) > self._window * CHARS_PER_TOKEN:
            raise WindowFullError
        *before, last = sent
        marked = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
        request = {"system": system, "messages": [*before, {**last, "content": [marked]}]}
        charge = self._cache.charge(request, self.requests * _SECONDS_BETWEEN_REQUESTS)
        self.requests += 1
        self.tokens += charge.tokens
        self.cost += charge.cost

    def _shown(self, peer: Peer) -> list[str]:
        return peer.fit(self._steps)

    def _results(self, peer: Peer) -> dict[int, str]:
        """Return the results of calls that are in view, by their number, as the next request shows them."""
        shown = zip(self._steps, self._shown(peer), strict=True)
        results = {step.number: text for step, text in shown if step.number is not None}
        return dict(enumerate(self._given)) | results

    def _read_back(self, peer: Peer, step: dict[str, Any]) -> str:
        """Return what a call reads back, and put the name of the result into the call."""
        argument = step["argument"]
        try:
            if step["verb"] in ("find_all", "near_all"):
                return peer.find_all(argument) if step["verb"] == "find_all" else peer.near_all(argument)
            results = self._results(peer)
            of = self._shown(peer)[step["at"]] if "at" in step else results.get(step["of"], "")
            ref = step.get("ref") or peer.ref(of)
            step["ref"] = ref
            if step["verb"] == "diff":
                step["old"] = peer.ref(results[argument])
            read: dict[str, Callable[[], str]] = {
                "find": lambda: peer.find(ref, argument, step["more"]),
                "near": lambda: peer.near(ref, argument),
                "lines": lambda: peer.lines(ref, argument + 1, PAGE_LINES),
                "at": lambda: peer.lines(ref, argument + 1, PLACE_LINES),
                "chars": lambda: peer.chars(ref, argument, READ_CHARS),
                "diff": lambda: peer.diff(step["old"], ref),
                "query": lambda: peer.query(ref, argument),
            }
            return read[step["verb"]]()
        except Exception as error:  # noqa: BLE001 # whatever a tool raises, a model is shown
            return f"error: {error}"[:400]

    def _compact(self, peer: Peer) -> None:
        """Replace all but the last call by what the candidate leaves of it."""
        results = self._results(peer)
        results.pop(self._calls - 1)
        self._stored |= {number: ref for number, text in results.items() if (ref := _ref(peer, text))}
        shown = self._shown(peer)
        going = [step._replace(text=text) for step, text in zip(self._steps, shown, strict=True)][:-1]
        self._notice = peer.compact(self._notice, going, self._calls - 1, self._stored)
        del self._steps[:-1]

    def _delegated(self, peer: Peer, case: Case) -> str:
        """Return the answer of another agent, which is given what is shown of the first result."""
        shown = self._results(peer)[0]
        ref = _ref(peer, shown)
        session = peer.session_for(f"agent-{self._number}", ref) if ref else None
        other = Conversation(
            self._open,
            self._home,
            case,
            self._window,
            without=self._without,
            think=self._think,
            session=session or self._session,
            given=(shown,),
        )
        answer = other.run()
        self.requests += other.requests
        self.tokens += other.tokens
        self.cost += other.cost
        return answer or ""

    def _leave(self, peer: Peer, to: str) -> None:
        """Take the messages along as the next request has them; another machine has another path."""
        shown = self._shown(peer)
        self._steps = [step._replace(text=text) for step, text in zip(self._steps, shown, strict=True)]
        if to == "machine" and self._home.exists():
            self._home = self._home.rename(self._home.with_name(f"{self._home.name}-elsewhere"))


def solving(open_peer: Callable[..., Peer], task: dict[str, Any]) -> dict[str, Any]:
    """Do a case of each family with each seed, and return how each went."""
    with fresh_agent() as think:
        return {"rows": list(_rows(open_peer, task, think))}


def _rows(open_peer: Callable[..., Peer], task: dict[str, Any], think: Think) -> Iterator[dict[str, Any]]:
    def opened(home: Path, session: str) -> Peer:
        return open_peer(session=session, least_chars=None, where=f"/{home.name}")

    for number, (family, seed) in enumerate(
        (family, seed) for family in task["families"] for seed in task["seeds"]
    ):
        case, home = load(Path(task["cases"]), family, task["tokens"], seed), Path(task["store"], str(number))
        talk = Conversation(opened, home, case, task["window"], without=tuple(task["without"]), think=think)
        state = "left"
        while state == "left":
            state, changed, modules = _in_a_process(talk)
            _import(modules)
            vars(talk).update(changed)
        names = ("requests", "tokens", "cost", "extra", "failed")
        counted = {name: getattr(talk, name) for name in names}
        yield {"family": family, "seed": seed, "state": state, **counted}


def _in_a_process(talk: Conversation) -> tuple[str, dict[str, Any], list[str]]:
    """Run a conversation until it ends or leaves, in a process that has the imports of this one alone.

    The result is how it ended, its state, and the modules that the process has.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "wb") as answer:
            try:
                pickle.dump((_outcome(talk), talk.state(), list(sys.modules)), answer)
            except Exception:  # noqa: BLE001 # the parent raises it
                answer.write(b"\n" + traceback.format_exc().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    if told.startswith(b"\n") or not told:
        raise RuntimeError(told.decode() or "a process ended early")
    outcome: tuple[str, dict[str, Any], list[str]] = pickle.loads(told)  # noqa: S301 # written by the child
    return outcome


def _import(modules: list[str]) -> None:
    """Import what a process needed, so that the next ones need not; nothing else of it is kept."""
    for name in modules:
        if name not in sys.modules:
            with suppress(Exception):
                importlib.import_module(name)


def _outcome(talk: Conversation) -> str:
    try:
        answer = talk.run()
    except WindowFullError:
        return "window full"
    if answer is None:
        return "left"
    is_right = answer == talk.case["answer"] and talk.files == talk.case.get("edited", {})
    return "solved" if is_right else "wrong" if answer else "no answer"


@contextmanager
def fresh_agent() -> Iterator[Think]:
    """Yield the agent as a program that answers each request in a process of its own."""
    command = [sys.executable, _agent.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None  # noqa: S101 # piped
        assert program.stdout is not None  # noqa: S101 # piped
        asked, told = program.stdin, program.stdout

        def think(messages: list[Message]) -> dict[str, Any]:
            asked.write(json.dumps(messages).encode() + b"\n")
            asked.flush()
            step: dict[str, Any] = json.loads(told.readline())
            return step

        yield think
        asked.close()


def _events(ops: list[Case]) -> list[tuple[int, Case]]:
    """Return what happens to the conversation, each with the number of calls before it."""
    calls, events = 0, []
    for op in ops:
        calls += op["op"] in TOOL_OPS
        if op["op"] in ("leave", "compact"):
            events.append((calls, op))
    return events


def _ref(peer: Peer, shown: str) -> str | None:
    try:
        return peer.ref(shown)
    except (LookupError, NotImplementedError):
        return None


def _offers(peer: Peer, verb: str) -> bool:
    return getattr(type(peer), verb) is not getattr(Peer, verb)
