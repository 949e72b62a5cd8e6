"""The form of every tool result that a hook of Claude Code gets: a release that changes one fails here.

What is read and replaced is in `offload/integrations/_claude_results.py`. Where a name below is new or
missing, see whether that module still finds the text, and record the new form.
"""

from __future__ import annotations

import base64
import http.server
import json
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from frameworks import claude_code_tools
from frameworks.claude_code import Answer, ClaudeCode, Request, serving, text, tool

from offload.integrations._claude_results import result_of

_BASH = "stdout:str stderr:str interrupted:bool isImage:bool noOutputExpected:bool"
_WRITE = "type:str filePath:str content:str userModified:bool"
_PATCH = (
    "structuredPatch[].oldStart:int structuredPatch[].oldLines:int structuredPatch[].newStart:int "
    "structuredPatch[].newLines:int structuredPatch[].lines[]:str"
)
# Fields of each result, those of its parts with their place, each with the type of its value.
SHAPES = {
    "Bash": _BASH,
    "Bash over 30,000 characters": f"{_BASH} persistedOutputPath:str persistedOutputSize:int",
    "Bash in the background": f"{_BASH} backgroundTaskId:str",
    "Bash, exit code 3": "error",
    "Read, text": (
        "type:str file.filePath:str file.content:str file.numLines:int file.startLine:int file.totalLines:int"
    ),
    "Read, image": (
        "type:str file.base64:str file.type:str file.originalSize:int file.dimensions.originalWidth:int "
        "file.dimensions.originalHeight:int file.dimensions.displayWidth:int "
        "file.dimensions.displayHeight:int"
    ),
    "Read, PDF": "type:str file.filePath:str file.base64:str file.originalSize:int",
    "Read, notebook": (
        "type:str file.filePath:str file.cells[].cellType:str file.cells[].source:str "
        "file.cells[].execution_count:int file.cells[].cell_id:str file.cells[].language:str "
        "file.cells[].outputs[].output_type:str file.cells[].outputs[].text:str"
    ),
    "Edit": (
        f"{_PATCH} filePath:str userModified:bool oldString:str newString:str originalFile:str "
        "replaceAll:bool"
    ),
    "Write, new": f"{_WRITE} structuredPatch[] originalFile:NoneType",
    "Write, changed": f"{_WRITE} {_PATCH} originalFile:str",
    "NotebookEdit": (
        "new_source:str old_source:str cell_type:str language:str edit_mode:str cell_id:str error:str "
        "notebook_path:str original_file:str updated_file:str"
    ),
    "Agent, waited for": (
        "status:str prompt:str agentId:str agentType:str content[].type:str content[].text:str "
        "totalDurationMs:int totalTokens:int totalToolUseCount:int usage:dict resolvedModel:str "
        "canContinueAgent:bool harnessNoteCount:int harnessSectionHash:str harnessTailCount:int"
    ),
    "Agent in the background": (
        "status:str prompt:str agentId:str resolvedModel:str canContinueAgent:bool isAsync:bool "
        "description:str outputFile:str canReadOutputFile:bool"
    ),
    "ToolSearch": "matches[]:str query:str total_deferred_tools:int",
    "Monitor": "taskId:str timeoutMs:int persistent:bool",
    "WebFetch": "bytes:int code:int codeText:str result:str durationMs:int url:str",
    "WebSearch": (
        "query:str results[]:str results[].tool_use_id:str results[].content[] durationSeconds:float "
        "searchCount:int"
    ),
    "MCP, text": "[].type:str [].text:str",
    "MCP, text and image": (
        "[].type:str [].text:str [].source.type:str [].source.media_type:str [].source.data:str"
    ),
    "MCP, structured": "str",
    "MCP over 50,000 characters": "[].type:str [].text:str",
    "MCP over 25,000 tokens": "str",
    "MCP, failed": "error",
}
# What every hook gets beside the result.
EVENT = {
    *("session_id", "transcript_path", "cwd", "prompt_id", "permission_mode", "effort", "hook_event_name"),
    *("tool_name", "tool_input", "tool_response", "tool_use_id", "duration_ms"),
}
_NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "c1",
            "source": ["1 + 1"],
            "metadata": {},
            "execution_count": 1,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["2"]}],
        }
    ],
    "metadata": {"language_info": {"name": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
_PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj
trailer<</Root 1 0 R>>
%%EOF"""


def calls(folder: Path, page: str) -> dict[str, Answer]:
    """Return a call for each form."""
    paths = {name: str(folder / name) for name in ("a.txt", "a.png", "a.pdf", "a.ipynb", "b.txt")}
    task = {"description": "count", "prompt": "count", "subagent_type": "general-purpose"}
    cell = {"notebook_path": paths["a.ipynb"], "cell_id": "c1", "new_source": "2 + 2"}
    return {
        "Bash": tool("Bash", command="seq 1 3"),
        "Bash over 30,000 characters": tool("Bash", command="seq 1 9000"),
        "Bash in the background": tool("Bash", command="echo hi", run_in_background=True),
        "Bash, exit code 3": tool("Bash", command="exit 3"),
        "Read, text": tool("Read", file_path=paths["a.txt"]),
        "Read, image": tool("Read", file_path=paths["a.png"]),
        "Read, PDF": tool("Read", file_path=paths["a.pdf"]),
        "Read, notebook": tool("Read", file_path=paths["a.ipynb"]),
        "Edit": tool("Edit", file_path=paths["a.txt"], old_string="two", new_string="2"),
        "Write, new": tool("Write", file_path=paths["b.txt"], content="x"),
        "Write, changed": tool("Write", file_path=paths["b.txt"], content="y"),
        "Agent, waited for": tool("Agent", **task, run_in_background=False),
        "Agent in the background": tool("Agent", **task, run_in_background=True),
        "ToolSearch": tool(
            "ToolSearch",
            query="select:Monitor,NotebookEdit,WebFetch,WebSearch,mcp__t__text,mcp__t__parts,mcp__t__rows,mcp__t__failing",
        ),
        "NotebookEdit": tool("NotebookEdit", **cell),
        "Monitor": tool("Monitor", command="echo hi", description="hi"),
        "WebFetch": tool("WebFetch", url=page, prompt="what is it about?"),
        "WebSearch": tool("WebSearch", query="what is it about?"),
        "MCP, text": tool("mcp__t__text", count=3),
        "MCP, text and image": tool("mcp__t__parts", count=3),
        "MCP, structured": tool("mcp__t__rows", count=3),
        "MCP over 50,000 characters": tool("mcp__t__text", count=2_300),
        "MCP over 25,000 tokens": tool("mcp__t__text", count=20_000),
        "MCP, failed": tool("mcp__t__failing", count=3),
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page that Claude Code may fetch: it takes https only."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("makes a certificate with openssl")
    folder = tmp_path_factory.mktemp("page")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", key, "-out", certificate)
    new = (program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names)
    subprocess.run(new, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><h1>A page</h1></body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def events(page: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a hook got of each form, from a run that makes all calls."""
    root = tmp_path_factory.mktemp("shapes")
    got = root / "events"
    got.mkdir()
    program = ClaudeCode(root, "", {"NODE_TLS_REJECT_UNAUTHORIZED": "0"})
    (program.folder / "a.txt").write_text("one\ntwo\n")
    (program.folder / "a.png").write_bytes(base64.b64decode(claude_code_tools.PIXEL))
    (program.folder / "a.pdf").write_bytes(_PDF)
    (program.folder / "a.ipynb").write_text(json.dumps(_NOTEBOOK))
    made = calls(program.folder, page)
    steps = list(made.values())

    def script(request: Request) -> Answer:
        tools = json.dumps(request.json.get("tools", []))
        if "web_search_" in tools:
            return _searched()
        return (*steps, text("done"))[request.step] if tools != "[]" else text("a digest of the page")

    with serving(script, [text("the report")]) as api:
        program.url = api.url
        program.run("go", *_options(got))
    by_call = [json.loads(path.read_text()) for path in got.iterdir()]
    found = {event["tool_use_id"]: event for event in by_call}
    return {name: found.get(call.blocks[0]["id"]) for name, call in made.items()}


def _options(folder: Path) -> tuple[str, ...]:
    command = f"cat > $(mktemp -p '{folder}')"
    hook = [{"hooks": [{"type": "command", "command": command}]}]
    settings = {
        "skipWebFetchPreflight": True,
        "hooks": {"PostToolUse": hook, "PostToolUseFailure": hook},
    }
    server = {"command": sys.executable, "args": [claude_code_tools.__file__]}
    return (
        *("--settings", json.dumps(settings), "--mcp-config", json.dumps({"mcpServers": {"t": server}})),
        *("--allowedTools", "Bash Read Edit Write NotebookEdit Agent Monitor WebFetch WebSearch mcp__t"),
    )


def _searched() -> Answer:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "it"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    return Answer((search, found)) + text("nothing was found")


def fields_of(value: Any, place: str = "") -> set[str]:
    """Return the fields of a result with the types of their values."""
    if isinstance(value, Mapping) and place != "usage":
        inner = f"{place}." if place else ""
        return set().union(*(fields_of(part, f"{inner}{name}") for name, part in value.items()))
    if isinstance(value, list):
        return set().union(*(fields_of(part, f"{place}[]") for part in value)) or {f"{place}[]"}
    return {f"{place}:{type(value).__name__}" if place else type(value).__name__}


@pytest.mark.parametrize("name", SHAPES)
def test_the_result_of_a_tool_has_the_recorded_form(events: dict[str, Any], name: str) -> None:
    event = events[name]
    assert event is not None, f"{name}: no hook ran for it"

    is_failed = event["hook_event_name"] == "PostToolUseFailure"
    fields = {"error"} if is_failed else fields_of(event["tool_response"])

    recorded = set(SHAPES[name].split())
    changes = {"missing": sorted(recorded - fields), "new": sorted(fields - recorded)}
    assert changes == {"missing": [], "new": []}, f"{name} has another form than the recorded one: {changes}"


def test_an_event_has_the_recorded_fields(events: dict[str, Any]) -> None:
    assert set(events["Bash"]) == EVENT
    assert set(events["MCP, text"]) == {*EVENT, "mcp_server"}


def test_the_text_of_every_result_that_may_be_offloaded_is_found(events: dict[str, Any]) -> None:
    results = {name: e for name, e in events.items() if e["hook_event_name"] == "PostToolUse"}
    found = {name for name, e in results.items() if result_of(e["tool_name"], e["tool_response"])}

    assert found == {
        *("Bash", "Bash over 30,000 characters", "Read, text", "Read, notebook", "Agent, waited for"),
        *("WebFetch", "WebSearch", "MCP, text", "MCP, text and image", "MCP, structured"),
        *("MCP over 50,000 characters", "MCP over 25,000 tokens"),
    }
    for name in ("Bash over 30,000 characters", "MCP over 25,000 tokens"):
        result = result_of(results[name]["tool_name"], results[name]["tool_response"])
        assert result is not None
        assert Path(result.path or "").is_file()
