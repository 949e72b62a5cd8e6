"""The real Claude Code program, and a Messages API on the loopback interface that answers it by a script.

with serving([tool("Bash", command="seq 1 6000"), text("done")]) as api:
    ran = ClaudeCode(tmp_path, api.url).run("go", "--allowedTools", "Bash")
assert ran.result == "done"
assert api.last.results == ["…what the model was sent of the command's output"]
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property  # noqa: TID251 # no child of a fork uses it
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from frameworks.anthropic_server import events

NO_BINARY = "Claude Code comes with claude-agent-sdk: make test-integration-claude-code"
# A run takes 1 to 4 seconds on a machine that has nothing else to do.
SECONDS = 90
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """One answer of the model.

    Attributes:
        blocks: its content.
        usage: what it adds to or changes in the reported usage, such as `{"input_tokens": 90_000}`.
        overloaded: how many requests for it are answered with 529 before.
    """

    blocks: tuple[dict[str, Any], ...]
    usage: dict[str, int] = field(default_factory=dict)
    overloaded: int = 0

    def __add__(self, other: Answer) -> Answer:
        """Join two answers, for example to call two tools at once, or to think first."""
        return Answer(
            self.blocks + other.blocks, self.usage | other.usage, self.overloaded + other.overloaded
        )


def text(said: str, *, overloaded: int = 0, **usage: int) -> Answer:
    return Answer(({"type": "text", "text": said},), usage, overloaded)


def thinking(thought: str) -> Answer:
    return Answer(({"type": "thinking", "thinking": thought, "signature": "c2lnbmF0dXJl"},))


def tool(name: str, /, **arguments: Any) -> Answer:
    """Return a call of a tool; its id is unique."""
    call = {"type": "tool_use", "id": f"toolu_{next(_numbers):06}", "name": name, "input": arguments}
    return Answer((call,))


@dataclass(frozen=True)
class Request:
    """One request as it came.

    Attributes:
        path: path and query.
        headers: its headers, names in lower case.
        body: its bytes.
    """

    path: str
    headers: dict[str, str]
    body: bytes

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[Any]:
        return self.json["messages"]  # type: ignore[no-any-return] # it is JSON

    @property
    def is_of_agent(self) -> bool:
        """Whether a subagent sent it."""
        return "x-claude-code-agent-id" in self.headers

    @property
    def step(self) -> int:
        """The number of answers before it."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def results(self) -> list[str]:
        """The text of each tool result, in order."""
        blocks = [block for message in self.messages for block in blocks_of(message)]
        return [_text(block) for block in blocks if block["type"] == "tool_result"]

    @property
    def texts(self) -> str:
        """All text that the model was sent as system prompt and messages."""
        system = {"content": self.json.get("system", [])}
        return "\n".join(_text(block) for m in [system, *self.messages] for block in blocks_of(m))


# What to answer: by the number of answers before (after the last: "done"), or by the request.
Script = Sequence[Answer] | Callable[[Request], Answer]


class Api(ThreadingHTTPServer):
    """Answers requests for messages as scripts say, and logs them.

    Args:
        script: what the main agent is answered.
        agents: what its subagents are answered.
        count: tokens of a body that is sent to be counted.

    Attributes:
        script: as above; may be set.
        agents: the same.
        requests: the requests for messages.
        counted: the requests for a count of tokens.
    """

    daemon_threads = True
    # Nothing is refused when many ask at once.
    request_queue_size = 128

    def __init__(self, script: Script, agents: Script = (), count: Callable[[bytes], int] | None = None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.agents = script, agents
        self.count = count or (lambda body: len(body) // 4)
        self.requests: list[Request] = []
        self.counted: list[Request] = []
        self._asked: Counter[bytes] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def last(self) -> Request:
        """The last request of the main agent."""
        return [request for request in self.requests if not request.is_of_agent][-1]

    def answer(self, request: Request) -> Answer | None:
        """Log a request and return its answer, None for 529."""
        self.requests.append(request)
        script = self.agents if request.is_of_agent else self.script
        if callable(script):
            answer = script(request)
        else:
            answer = script[request.step] if request.step < len(script) else text("done")
        self._asked[request.body] += 1
        return answer if self._asked[request.body] > answer.overloaded else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        if "/count_tokens" in self.path:
            self.server.counted.append(request)
            self._send(200, json.dumps({"input_tokens": self.server.count(body)}))
            return
        answer = self.server.answer(request)
        if answer is None:
            error = {"type": "overloaded_error", "message": "Overloaded"}
            self._send(529, json.dumps({"type": "error", "error": error}))
        elif request.json.get("stream"):
            self._send(200, events(_message(answer)), "text/event-stream; charset=utf-8")
        else:
            self._send(200, json.dumps(_message(answer)))

    def _send(self, status: int, body: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(
    script: Script, agents: Script = (), count: Callable[[bytes], int] | None = None
) -> Iterator[Api]:
    """Run an API for as long as the block takes."""
    with Api(script, agents, count) as api:
        threading.Thread(target=api.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield api
        finally:
            api.shutdown()


@dataclass(frozen=True)
class Run:
    """What a run printed.

    Attributes:
        events: its events, in order.
        stderr: its error output.
        returncode: its exit code.
    """

    events: list[dict[str, Any]]
    stderr: str
    returncode: int

    @property
    def init(self) -> dict[str, Any]:
        """The last event that names the session, its tools and MCP servers."""
        return [event for event in self.events if event.get("subtype") == "init"][-1]

    @property
    def session(self) -> str:
        return str(self.init["session_id"])

    @property
    def result(self) -> str:
        """The last answer."""
        return str([event for event in self.events if event["type"] == "result"][-1].get("result"))


@dataclass
class ClaudeCode:
    """Claude Code with a new home, in a folder of its own.

    Args:
        root: a folder; `home` and `folder` are made in it.
        url: where the API listens.
        environ: environment variables beside those that every run has.
        before: a command that starts the program, in front of it.

    Attributes:
        home: the home folder.
        folder: the project's folder.
    """

    root: Path
    url: str
    environ: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._binary = binary()
        self.home, self.folder = self.root / "home", self.root / "project"
        self.home.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(exist_ok=True)

    def run(self, prompt: str, *options: str, resume: str | None = None, seconds: float = SECONDS) -> Run:
        """Answer one prompt in print mode, in a new session or in the session `resume`."""
        resumed = ("--resume", resume) if resume else ()
        command = self._command("--print", *resumed, *options)
        done = subprocess.run(
            command, input=prompt, capture_output=True, text=True, timeout=seconds, check=False, **self.place
        )
        return Run(_events_of(done.stdout.splitlines()), done.stderr, done.returncode)

    def talk(self, *prompts: str, options: Sequence[str] = (), seconds: float = SECONDS) -> Run:
        """Answer prompts, or commands such as /clear, in one process, each after the answer before."""
        command = self._command("--print", "--input-format", "stream-json", *options)
        lines: list[str] = []
        with (
            (self.root / "stderr").open("w+") as errors,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **self.place,
            ) as run,
        ):
            assert run.stdin is not None
            assert run.stdout is not None
            timer = threading.Timer(seconds, run.kill)
            timer.start()
            for prompt in prompts:
                message = {"role": "user", "content": prompt}
                print(json.dumps({"type": "user", "message": message}), file=run.stdin, flush=True)
                lines += _until_result(run.stdout)
            run.stdin.close()
            lines += run.stdout
            run.wait()
            timer.cancel()
        return Run(_events_of(lines), (self.root / "stderr").read_text(), run.returncode)

    def transcript(self, session: str) -> list[dict[str, Any]]:
        """Return the entries of a session's file."""
        (file,) = (self.home / ".claude" / "projects").rglob(f"{session}.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def _command(self, *options: str) -> list[str]:
        return [*self.before, self._binary, "--output-format", "stream-json", "--verbose", *options]

    @property
    def place(self) -> dict[str, Any]:
        """Folder and environment; nothing of the environment of the tests but PATH."""
        environ = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "ANTHROPIC_API_KEY": "dummy",
            "ANTHROPIC_BASE_URL": self.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        return {"cwd": self.folder, "env": {**environ, **self.environ}}


def binary() -> str:
    """Return the path of Claude Code; skip the test if there is none."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    path = Path(spec.origin).with_name("_bundled") / "claude" if spec and spec.origin else None
    if path is None or not path.exists():
        pytest.skip(NO_BINARY)
    return str(path)


def blocks_of(message: Any) -> list[Any]:
    """Return the blocks of a message or of a tool result."""
    content = message.get("content", [])
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(block: Any) -> str:
    if block["type"] == "tool_result":
        return "\n".join(_text(part) for part in blocks_of(block))
    return str(block.get("text", ""))


def _until_result(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if '"type":"result"' in line:
            return


def _events_of(lines: Sequence[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def _message(answer: Answer) -> dict[str, Any]:
    is_call = any(block["type"] == "tool_use" for block in answer.blocks)
    return {
        "id": f"msg_{next(_numbers):06}",
        "type": "message",
        "role": "assistant",
        "model": "claude-scripted",
        "content": [*answer.blocks],
        "stop_reason": "tool_use" if is_call else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 10,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            **answer.usage,
        },
    }
