"""The gateway before a real LiteLLM proxy, which turns the client's API into that of another provider."""

from __future__ import annotations

import json
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from _provider import Provider, serving
from gateways import LOG, ask, running, turns

from offload import Offloader

PROGRAM = Path(sys.prefix) / "bin" / "litellm"
if not PROGRAM.exists():
    pytest.skip("litellm[proxy] is not installed: make test-integration-litellm", allow_module_level=True)

KEY = f"sk-{secrets.token_hex(32)}"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
REF = re.compile(r", id ([a-z]+)\]")
MODELS = {"by-anthropic": "anthropic/claude-sonnet-4-6", "by-openai": "openai/gpt-5"}
RESULTS = 3
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The model runs three commands, asks for a line of the first result, and says what it found."""
    # LiteLLM asks OpenAI's Responses API for a client of Anthropic's.
    said = json.dumps(request.get("messages") or request["input"])
    count = len({*re.findall(r"toolu_\d", said)})
    if count < RESULTS:
        return [{"type": "tool_use", "id": f"toolu_{count}", "name": "Bash", "input": {}}]
    if '"context_grep"' in said:
        found = re.findall(r"(\d+) checked unit 152100 ", said.partition('"context_grep"')[2])
        return [{"type": "text", "text": f"It is number {found[0]}."}]
    given = {"id": REF.findall(said)[0], "pattern": "unit 152100 "}
    return [{"type": "tool_use", "id": "call_grep", "name": "context_grep", "input": given}]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serving(Provider(answer=answer, is_strict=True, keeps=True)) as provider:
        yield provider


@pytest.fixture(scope="module")
def litellm(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a proxy with a model of each provider."""
    folder = tmp_path_factory.mktemp("litellm")
    bases = {"by-anthropic": provider.url, "by-openai": f"{provider.url}/v1"}
    models = [
        {"model_name": name, "litellm_params": {"model": model, "api_base": bases[name], "api_key": "k"}}
        for name, model in MODELS.items()
    ]
    (folder / "config.yaml").write_text(json.dumps({"model_list": models}))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [str(PROGRAM), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    environ = {
        "PATH": f"{PROGRAM.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": KEY,
    }
    url = f"http://127.0.0.1:{port}"
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(f"{url}/health/liveliness", process, folder / "log")
            yield url
        finally:
            process.kill()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        try:
            ask(url, method="GET")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(log.read_text())


def chat(model: str, results: int, *, stream: bool) -> dict[str, Any]:
    made: list[Any] = [{"role": "user", "content": "Which number is unit 152100?"}]
    for n in range(results):
        call = {"id": f"toolu_{n}", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
        made.append({"role": "assistant", "content": None, "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": f"toolu_{n}", "content": LOG})
    tool = {"type": "function", "function": {"name": "Bash", "parameters": SCHEMA}}
    return {"model": model, "messages": made, "tools": [tool], "stream": stream}


def messages(model: str, results: int, *, stream: bool) -> dict[str, Any]:
    tool = {"name": "Bash", "input_schema": SCHEMA}
    return {"model": model, "messages": turns(results), "tools": [tool], "max_tokens": 99, "stream": stream}


BODIES = {"/v1/chat/completions": chat, "/v1/messages": messages}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("path", BODIES)
def test_a_result_leaves_and_is_searched_whatever_the_api_of_client_and_provider(
    provider: Provider, litellm: str, path: str, model: str, *, stream: bool
) -> None:
    before = len(provider.requests)

    with running(litellm, Offloader("memory://", session="gateway")) as url:
        for results in range(RESULTS + 1):
            body = BODIES[path](model, results, stream=stream)
            reply = ask(f"{url}{path}", json.dumps(body).encode(), headers=HEADERS)
            said = reply.body.decode()
            assert reply.status == 200, said

    assert "context_grep" not in said
    assert "".join(re.findall(r'"(?:text|content)": ?"([^"]*)"', said)).endswith("It is number 390.")
    requests = [request[2].decode() for request in provider.requests[before:]]
    assert len(requests) == RESULTS + 2
    *_, first, second = requests
    assert first.count("[Offloaded: Bash result") == RESULTS - 1
    assert "390 checked unit 152100 of the build" in second.partition("context_grep")[2]
    assert provider.refused == 0
