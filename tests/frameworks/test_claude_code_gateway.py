"""Claude Code through a gateway, with `offload mcp` beside it on the same store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from frameworks.claude_code import Answer, ClaudeCode, Request, serving, text, thinking, tool

from offload import Offloader
from offload.engine.placeholder.forms import known_refs

# Seven results of this size in a row, and what Claude Code keeps whole of one.
BASH = "seq 1 4000"
PLACEHOLDER = "[Offloaded: "
ALLOWED = ("--allowedTools", "Bash,Read,Edit,Agent,mcp__offload__*")
SESSION = "gateway"


@contextmanager
def gateway(upstream: str, store: Path) -> Iterator[str]:
    """Run the command; yield its URL."""
    command = [sys.executable, "-m", "offload", "gateway", "--upstream", upstream, "--store", str(store)]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2]
        finally:
            process.kill()


def mcp(store: Path) -> tuple[str, ...]:
    """Return the option that adds the server of the retrieval tools."""
    arguments = ["-m", "offload", "mcp", str(store), "--session", SESSION]
    servers = {"offload": {"command": sys.executable, "args": arguments}}
    return ("--mcp-config", json.dumps({"mcpServers": servers}))


def run(tmp_path: Path, url: str, prompt: str = "go", **options: Any) -> Any:
    program = ClaudeCode(tmp_path, url)
    # A model that allows edits: a result is seen in full first.
    model = ("--model", "claude-opus-5")
    return program.run(prompt, *model, *mcp(tmp_path / "store"), *ALLOWED, seconds=300, **options)


def placeholders(request: Request) -> dict[str, str]:
    """Return the placeholders by the id of the call."""
    results = (b for m in request.messages for b in _blocks(m) if b["type"] == "tool_result")
    texts = {block["tool_use_id"]: _text(block) for block in results}
    return {call: said for call, said in texts.items() if said.startswith(PLACEHOLDER)}


def _blocks(message: Any) -> list[Any]:
    content = message["content"]
    return [] if isinstance(content, str) else content


def _text(block: Any) -> str:
    content = block["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def without_results(request: Request) -> Any:
    """Return a request without the texts of its results."""
    value = json.loads(request.body)
    for message in value["messages"]:
        for block in _blocks(message):
            if block["type"] == "tool_result":
                block["content"] = ""
    return value


def test_a_result_leaves_after_the_reply_and_the_model_reads_it_back(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        if request.step == 0:
            return thinking("first") + tool("Bash", command=BASH)
        if request.step == 1:
            return thinking("second") + tool("Bash", command="echo short")
        if request.step == 2:
            [said] = placeholders(request).values()
            return tool("mcp__offload__context_grep", id=next(known_refs(said)), pattern="3999")
        return text("done")

    with serving(script) as api, gateway(api.url, tmp_path / "store") as url:
        ran = run(tmp_path, url)

    first, after, answered = (request.results for request in api.requests[1:4])
    assert ran.result == "done"
    assert first[0].count("\n") == 3999
    assert after[0].startswith(PLACEHOLDER)
    assert "3999" in answered[-1]
    [record] = Offloader(str(tmp_path / "store"), session=SESSION).records()
    assert record.tool_name == "Bash"


def test_all_but_the_replaced_results_is_what_claude_code_sends_without_a_gateway(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        step = request.step
        return thinking(f"step {step}") + tool("Bash", command=BASH) if step < 6 else text("done")

    with serving(script) as api, gateway(api.url, tmp_path / "store") as url:
        run(tmp_path, url)
    requests = api.requests

    blocks = [block for message in requests[-1].messages for block in _blocks(message)]
    assert [b["thinking"] for b in blocks if b["type"] == "thinking"] == [f"step {n}" for n in range(6)]
    assert {b["signature"] for b in blocks if b["type"] == "thinking"} == {"c2lnbmF0dXJl"}
    for request in requests:
        marked = [b for m in request.messages for b in _blocks(m) if "cache_control" in b]
        assert marked == _blocks(request.messages[-1])[-1:]
    shown = [placeholders(request) for request in requests]
    assert len(shown[-1]) == 5
    for earlier, later in pairwise(shown):
        assert earlier.items() <= later.items()


def test_an_edit_after_its_read_left_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By default a file that the model works on stays.
    monkeypatch.setenv("OFFLOAD_POLICY", "archive")
    lines = "".join(f"line {n} of the file that is read\n" for n in range(900))
    script = [
        tool("Read", file_path=str(tmp_path / "project" / "big.txt")),
        tool("Bash", command="echo between"),
        tool(
            "Edit",
            file_path=str(tmp_path / "project" / "big.txt"),
            old_string="line 450 of the file",
            new_string="line 450 of THE file",
        ),
        text("done"),
    ]
    with serving(script) as api, gateway(api.url, tmp_path / "store") as url:
        program = ClaudeCode(tmp_path, url)
        (program.folder / "big.txt").write_text(lines)
        ran = program.run("go", *mcp(tmp_path / "store"), *ALLOWED, "--permission-mode", "acceptEdits")

    assert ran.result == "done"
    assert list(placeholders(api.last).values())
    assert "line 450 of THE file" in (tmp_path / "project" / "big.txt").read_text()


def test_an_overloaded_provider_is_asked_again_with_the_same_bytes(tmp_path: Path) -> None:
    script = [tool("Bash", command=BASH), tool("Bash", command="echo short"), text("at last", overloaded=1)]
    with serving(script) as api, gateway(api.url, tmp_path / "store") as url:
        ran = run(tmp_path, url)

    assert ran.result == "at last"
    again = [request.body for request in api.requests if request.step == 2]
    assert len(again) == 2
    assert len(set(again)) == 1


def test_a_resumed_session_sends_the_same_placeholders_after_a_restart(tmp_path: Path) -> None:
    script = [tool("Bash", command=BASH), tool("Bash", command="echo short"), text("one"), text("two")]
    with serving(script) as api:
        with gateway(api.url, tmp_path / "store") as url:
            first = run(tmp_path, url)
        before = placeholders(api.last)
        with gateway(api.url, tmp_path / "store") as url:
            second = run(tmp_path, url, "and now?", resume=first.session)

    assert second.result == "two"
    assert before
    assert placeholders(api.last) == before


def test_a_sub_agent_has_a_conversation_of_its_own(tmp_path: Path) -> None:
    task = tool(
        "Agent", description="count", prompt="count", subagent_type="general-purpose", run_in_background=False
    )
    agents = [tool("Bash", command=BASH), tool("Bash", command="echo short"), text("the report")]
    with serving([task, text("done")], agents) as api, gateway(api.url, tmp_path / "store") as url:
        ran = run(tmp_path, url)

    of_agent = [request for request in api.requests if request.is_of_agent]
    assert ran.result == "done"
    assert len(placeholders(of_agent[-1])) == 1
    assert "the report" in api.last.results[0]


def test_a_compaction_cites_the_ids_and_the_session_goes_on(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        if "TEXT ONLY" in request.texts:
            cited = [ref for said in placeholders(request).values() for ref in known_refs(said)]
            return text(f"<summary>Read back {' '.join(cited)}.</summary>")
        if "Read back" in request.texts:
            return text("done")
        usage = {"input_tokens": 90_000} if request.step == 3 else {}
        return Answer(tool("Bash", command=BASH).blocks, usage)

    with serving(script) as api, gateway(api.url, tmp_path / "store") as url:
        program = ClaudeCode(tmp_path, url)
        ran = program.run("go", *mcp(tmp_path / "store"), *ALLOWED, "--autocompact", "100000", seconds=300)

    refs = {record.ref for record in Offloader(str(tmp_path / "store"), session=SESSION).records()}
    assert ran.result == "done"
    assert refs & set(api.last.texts.replace(".", " ").split())


def test_three_hundred_requests_keep_every_placeholder_and_every_other_byte(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        step = request.step
        if step >= 300:
            return text("done")
        return tool("Bash", command=BASH if step % 25 == 0 else f"echo {step}")

    with serving(script) as api, gateway(api.url, tmp_path / "store") as url:
        ran = run(tmp_path, url)

    assert ran.result == "done"
    main = [request for request in api.requests if not request.is_of_agent]
    assert len(main) == 301
    shown = [placeholders(request) for request in main]
    assert len(shown[-1]) == 12
    changes = sum(earlier != later for earlier, later in pairwise(shown))
    assert changes == 12
    for earlier, later in pairwise(shown):
        assert earlier.items() <= later.items()


def reading_back(request: Request) -> Answer:
    if request.step == 0:
        return thinking("first") + tool("Bash", command=BASH)
    if request.step == 1:
        return thinking("second") + text("I look.") + tool("Bash", command="echo short")
    if request.step == 2:
        [said] = placeholders(request).values()
        return thinking("third") + tool("context_grep", id=next(known_refs(said)), pattern="3999")
    if request.step == 3:
        return thinking("fourth") + tool("context_list") + tool("Bash", command="echo beside")
    return text("done")


def test_the_gateway_answers_its_own_tools_inside_the_stream_and_after_a_resume(tmp_path: Path) -> None:
    """Without any tool of the client's; the instructions of the project change between two runs."""
    with serving(reading_back) as api:
        program = ClaudeCode(tmp_path, api.url)
        options = ("--model", "claude-opus-5", "--allowedTools", "Bash")
        with gateway(api.url, tmp_path / "store") as url:
            program.url = url
            first = program.run("go", *options, seconds=300)
        requests = [request for request in api.requests if not request.is_of_agent]
        (program.folder / "CLAUDE.md").write_text("Answer briefly.")
        with gateway(api.url, tmp_path / "store") as url:
            program.url = url
            program.run("and now?", *options, resume=first.session, seconds=300)

    assert first.result == "done"
    assert len(requests) == 5
    answers = [b for m in api.last.messages for b in _blocks(m) if b["type"] == "tool_result"]
    assert "3999" in _text(answers[2])
    calls = [b["name"] for m in api.last.messages for b in _blocks(m) if b["type"] == "tool_use"]
    assert calls == ["Bash", "Bash", "context_grep", "context_list", "Bash"]
    assert api.last.json["tools"] == requests[0].json["tools"]
    for earlier, later in pairwise(without_results(request) for request in requests):
        assert plain(later["messages"][: len(earlier["messages"])]) == plain(earlier["messages"])


def plain(messages: Any) -> Any:
    """Return messages without marks of the cache, for which the client writes a text as a block."""
    copied = json.loads(json.dumps(messages))
    for message in copied:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        for block in message["content"]:
            block.pop("cache_control", None)
    return copied
