"""Real coding clients, by `offload wrap`, on a provider with a script.

The clients of `RECIPES` are behind a gateway, with the settings that docs/gateway.md gives for them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from _provider import Provider, serving
from gateways import opened, running

from offload import Offloader
from offload.reading.timeline import Timeline

PROGRAMS = Path(sys.prefix) / "node_modules" / ".bin"
VERCEL = Path(sys.prefix) / "vercel" / "node_modules"
REF = re.compile(r", id ([a-z]+)\]")
LARGE, SHORT = "seq 1 6000", "echo short"


class Client(NamedTuple):
    """A program: its arguments for one task, those for the next task of the session, and its shell tool.

    Its provider is named by the second one of `variables`, or by an option if that is empty.
    """

    arguments: list[str]
    again: list[str]
    shell: str
    argument: str
    variables: tuple[str, str]
    more: Mapping[str, str] = MappingProxyType({})
    large: str = LARGE


CODEX = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
RESUME = ["exec", "resume", "--last", *CODEX[1:]]
OF_OPENAI = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
# Its tools are a field of the request, or with newer models a message.
OLDER = ["-m", "gpt-5.5"]
OPENCODE = ["run", "-m", "anthropic/claude-sonnet-4-6"]
GOOSE = ["run", "--with-builtin", "developer", "--name", "one"]
OF_GOOSE = {"GOOSE_DISABLE_KEYRING": "1", "GOOSE_MODEL": "claude-sonnet-4-6", "GOOSE_PROVIDER": "anthropic"}
GEMINI = ["--yolo", "--skip-trust", "-m", "gemini-3.1-pro-preview"]
CLIENTS = {
    "codex": Client(CODEX, RESUME, "exec_command", "cmd", OF_OPENAI),
    "codex gpt-5.5": Client([*CODEX, *OLDER], [*RESUME, *OLDER], "exec_command", "cmd", OF_OPENAI),
    "opencode": Client(
        OPENCODE, [*OPENCODE, "--continue"], "bash", "command", ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
    ),
    "gemini": Client(
        [*GEMINI, "-p"],
        [*GEMINI, "--resume", "latest", "-p"],
        "run_shell_command",
        "command",
        ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
    ),
    "goose": Client(
        [*GOOSE, "-t"],
        [*GOOSE, "--resume", "-t"],
        "shell",
        "command",
        ("ANTHROPIC_API_KEY", ""),
        OF_GOOSE,
        # It keeps 2,000 lines.
        f"{LARGE} | paste -d' ' - - - -",
    ),
    "qwen": Client(
        ["--yolo", "-p"],
        ["--yolo", "--continue", "-p"],
        "run_shell_command",
        "command",
        ("OPENAI_API_KEY", ""),
        {"OPENAI_MODEL": "qwen3-coder-plus"},
    ),
}


@pytest.fixture(params=CLIENTS)
def name(request: pytest.FixtureRequest) -> Any:
    program = request.param.partition(" ")[0]
    if not (PROGRAMS / program).exists():
        pytest.skip(f"{program} is not installed: make test-integration-coding-clients")
    return request.param


def calls_in(request: dict[str, Any]) -> list[str]:
    """Return the names of the calls of tools in a request, also of those that the client does not see."""
    if "contents" in request:
        parts = [part for content in request["contents"] for part in content["parts"]]
        return [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    calls = [call for message in request.get("messages", ()) for call in message.get("tool_calls") or ()]
    if calls:
        return [call["function"]["name"] for call in calls]
    if "input" in request:
        return [item["name"] for item in request["input"] if item.get("type") == "function_call"]
    blocks = [
        block
        for message in request["messages"]
        for block in message["content"] or ()
        if isinstance(block, dict)
    ]
    return [block["name"] for block in blocks if block.get("type") == "tool_use"]


class Script:
    """Answers a client: two commands, a question about the first result, and the end."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.requests: list[dict[str, Any]] = []
        self.given: Callable[[str], Any] = lambda command: {client.argument: command, "description": "count"}

    def __call__(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        if not request.get("tools") and "input" not in request:
            return [{"type": "text", "text": "a title"}]
        self.requests.append(request)
        calls = calls_in(request)
        if len(calls) < 2:
            command = (self.client.large, SHORT)[len(calls)]
            return [self._call(len(calls), self.client.shell, self.given(command))]
        if calls[-1] == self.client.shell:
            found = REF.search(str(request))
            return [
                self._call(
                    2,
                    "context_grep",
                    {"id": found[1] if found else "none", "pattern": r"^4321\b", "mode": "regex"},
                )
            ]
        return [{"type": "text", "text": "all done"}]

    @staticmethod
    def _call(number: int, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"call_{number}", "name": tool, "input": given}


class Wrapped:
    """A client behind `offload wrap` in a folder of its own."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        client = CLIENTS[name]
        self.folder, self.client = folder, client
        (folder / "project").mkdir()
        key, base = client.variables
        self.command = [
            sys.executable,
            "-m",
            "offload",
            "wrap",
            "--store",
            str(folder / "store"),
            *([] if base else ["--upstream", url]),
            name.partition(" ")[0],
        ]
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OFFLOAD_")},
            **dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(folder)),
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            # Results leave after the next reply, whatever that costs.
            "OFFLOAD_POLICY__COST_PLAN": "none",
            **client.more,
            **({base: url} if base else {}),
            key: "sk-none",
        }

    def start(self, arguments: list[str], task: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *arguments, task],
            cwd=self.folder / "project",
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, arguments: list[str], task: str = "count") -> tuple[int, str, str]:
        process = self.start(arguments, task)
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err


def outputs_of(request: dict[str, Any]) -> str:
    return str(request.get("input") or request.get("messages") or request.get("contents"))


def test_a_result_leaves_and_the_gateway_answers_what_the_model_asks_about_it(
    name: str, tmp_path: Path
) -> None:
    script = Script(CLIENTS[name])
    with serving(Provider(answer=script, is_strict=True)) as provider:
        wrapped = Wrapped(name, tmp_path, provider.url)
        code, out, err = wrapped.run(wrapped.client.arguments)

    assert (code, provider.refused) == (0, 0), err
    assert "all done" in out + err
    assert "tokens kept out" in err.splitlines()[-1]
    last = script.requests[-1]
    assert calls_in(last) == [wrapped.client.shell, wrapped.client.shell, "context_grep"]
    assert "[Offloaded: " in outputs_of(last)
    assert "4321" in outputs_of(last).rpartition("[1 match shown")[2]
    store = Offloader(tmp_path / "store").store
    lengths = [len(Timeline(store, key.key.split("/")[1])) for key in store.keys("j/")]
    assert max(lengths) >= 3


def test_a_continued_session_has_the_placeholder_and_the_hidden_call_at_their_places(
    name: str, tmp_path: Path
) -> None:
    script = Script(CLIENTS[name])
    with serving(Provider(answer=script, is_strict=True)) as provider:
        wrapped = Wrapped(name, tmp_path, provider.url)
        wrapped.run(wrapped.client.arguments)
        before = script.requests[-1]
        code, out, err = wrapped.run(wrapped.client.again, "and now?")

    assert (code, provider.refused) == (0, 0), out + err
    after = script.requests[-1]
    assert calls_in(after)[:3] == calls_in(before)[:3]
    [placeholder] = {*REF.findall(outputs_of(before))}
    assert placeholder in REF.findall(outputs_of(after))


def test_an_error_of_the_provider_ends_the_client_with_its_own_code(name: str, tmp_path: Path) -> None:
    refusal = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    with serving(Provider(failure=lambda _: (401, refusal))) as provider:
        wrapped = Wrapped(name, tmp_path, provider.url)
        code, out, err = wrapped.run(wrapped.client.arguments)

    assert "invalid x-api-key" in out + err
    assert "request" in err.splitlines()[-1]
    # goose ends well in any case.
    assert code == (0 if name == "goose" else 1)


def test_an_interrupt_ends_client_and_gateway(name: str, tmp_path: Path) -> None:
    seen: list[Any] = []

    def slow(request: dict[str, Any]) -> list[dict[str, Any]]:
        seen.append(request)
        time.sleep(3)
        return [{"type": "text", "text": "late"}]

    with serving(Provider(answer=slow)) as provider:
        wrapped = Wrapped(name, tmp_path, provider.url)
        process = wrapped.start(wrapped.client.arguments, "count")
        while not seen and process.poll() is None:
            time.sleep(0.05)
        # As a terminal: some clients are started by a program that does not pass it on.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert seen
    assert process.returncode != 0 or name in ("gemini", "goose")
    assert "late" not in err


# Recipes: clients that take a base URL


class Recipe(NamedTuple):
    """A client in a folder, behind a gateway: its command, its variables, and its shell tool.

    Attributes:
        keeps_large: whether its large results reach the provider; else it puts them into files itself.
    """

    start: Callable[[Path, str], tuple[list[str | Path], dict[str, str]]]
    shell: str
    argument: str
    keeps_large: bool = True


def pi(home: Path, url: str) -> tuple[list[str | Path], dict[str, str]]:
    settings = home / ".pi" / "agent"
    settings.mkdir(parents=True)
    (settings / "models.json").write_text(json.dumps({"providers": {"anthropic": {"baseUrl": url}}}))
    command: list[str | Path] = [
        PROGRAMS / "pi",
        "--provider",
        "anthropic",
        "--model",
        "claude-sonnet-4-6",
        "-p",
        "count",
    ]
    return command, {"ANTHROPIC_API_KEY": "sk-none", "PI_OFFLINE": "1"}


def copilot(_: Path, url: str) -> tuple[list[str | Path], dict[str, str]]:
    model = {"COPILOT_MODEL": "claude-sonnet-4.6", "COPILOT_PROVIDER_TYPE": "anthropic"}
    provider = {"COPILOT_PROVIDER_BASE_URL": url, "COPILOT_PROVIDER_API_KEY": "sk-none"}
    return [
        PROGRAMS / "copilot",
        "-p",
        "count",
        "--allow-all-tools",
        "--disable-builtin-mcps",
    ], model | provider


def cline(home: Path, url: str) -> tuple[list[str | Path], dict[str, str]]:
    login = ["auth", "-p", "openai", "-k", "sk-none", "-m", "gpt-5.5", "-b", f"{url}/v1"]
    environ = os.environ | {"HOME": str(home)}
    subprocess.run([PROGRAMS / "cline", *login], env=environ, stdin=subprocess.DEVNULL, check=True)
    return [PROGRAMS / "cline", "-P", "openai", "-m", "gpt-5.5", "count the numbers"], {}


def vercel(provider: str, model: str, version: str) -> Recipe:
    def start(_: Path, url: str) -> tuple[list[str | Path], dict[str, str]]:
        agent = Path(__file__).with_name("vercel_agent.mjs")
        return ["node", agent, VERCEL, provider, model, f"{url}/{version}"], {}

    return Recipe(start, "bash", "command")


RECIPES = {
    "pi": Recipe(pi, "bash", "command"),
    "copilot": Recipe(copilot, "bash", "command", keeps_large=False),
    "cline": Recipe(cline, "run_commands", "commands"),
    "ai openai": vercel("openai", "gpt-5.5", "v1"),
    "ai anthropic": vercel("anthropic", "claude-sonnet-4-6", "v1"),
    "ai google": vercel("google", "gemini-3.1-pro-preview", "v1beta"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_client_with_the_gateway_as_its_base_url_gets_answers_and_its_results_leave(
    recipe: str, tmp_path: Path
) -> None:
    program = recipe.partition(" ")[0]
    if not (PROGRAMS / program).exists() and not (VERCEL / program).exists():
        pytest.skip(f"{program} is not installed: make test-integration-coding-clients")
    client = RECIPES[recipe]
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    script = Script(Client([], [], client.shell, client.argument, ("", "")))
    if client.argument == "commands":
        script.given = lambda command: {"commands": [command]}
    store = opened(tmp_path / "store", session="gateway")
    with serving(Provider(answer=script, is_strict=True)) as provider, running(provider.url, store) as url:
        command, variables = client.start(home, url)
        environ = os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home), **variables}
        done = subprocess.run(
            command,
            cwd=home / "project",
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    assert (done.returncode, provider.refused) == (0, 0), done.stderr
    assert "all done" in done.stdout
    last = script.requests[-1]
    assert calls_in(last) == [client.shell, client.shell, "context_grep"]
    assert ("[Offloaded: " in outputs_of(last)) is client.keeps_large
    if client.keeps_large:
        assert "4321" in outputs_of(last).rpartition("[1 match shown")[2]
