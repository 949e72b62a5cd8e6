"""The examples find the answer, each in the environment of its framework, with a scripted model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from docs.pages import ROOT, lacking
from frameworks import anthropic_server, claude_code, gemini_server, openai_server
from frameworks.scenario import Call, Script, ask, refs
from provider import serving

FOLDER = ROOT / "examples"
# It has tests of its own.
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "agent")
QUESTION = "Which file is the largest?"
# With the commands of this environment, such as `offload`.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SQL = "SELECT path, bytes FROM t ORDER BY bytes DESC LIMIT 1"
Serve = Callable[[Script], AbstractContextManager[dict[str, str]]]


@contextmanager
def anthropic(script: Script) -> Iterator[dict[str, str]]:
    with anthropic_server.serving(script) as server:
        yield {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "k"}


@contextmanager
def openai(script: Script) -> Iterator[dict[str, str]]:
    with serving(openai_server.OpenAI(script)) as url:
        # LlamaIndex has its own name for the URL.
        yield {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "k"}


@contextmanager
def gemini(script: Script) -> Iterator[dict[str, str]]:
    with serving(gemini_server.Gemini(script)) as url:
        yield {"GOOGLE_GEMINI_BASE_URL": url, "GOOGLE_API_KEY": "k"}


@contextmanager
def smolagents(script: Script) -> Iterator[dict[str, str]]:
    """Answer as OpenAI does, by a call of the tool that ends a run."""
    script.turns = [*script.turns[:-1], lambda texts: Call("final_answer", {"answer": answer(texts)}, "end")]
    with openai(script) as variables:
        yield variables


@contextmanager
def claude_code_api(script: Script) -> Iterator[dict[str, str]]:
    """Answer Claude Code, which names the tools of a server after it."""
    servers = {"list_files": "python", "context_query": "offload"}

    def reply(request: claude_code.Request) -> claude_code.Answer:
        said = script.reply(openai_server.texts_of(request.messages))
        if isinstance(said, Call):
            return claude_code.tool(f"mcp__{servers[said.name]}__{said.name}", **said.arguments)
        return claude_code.text(str(said))

    with claude_code.serving(reply) as server:
        yield {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "k",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }


# The API of an example's model.
APIS: dict[str, Serve] = {
    "agent_framework_agent": openai,
    "agno_agent": anthropic,
    "anthropic_loop": anthropic,
    "claude_agent_sdk_agent": claude_code_api,
    "crewai_agent": openai,
    "deepagents_agent": anthropic,
    "google_adk_agent": gemini,
    "haystack_agent": openai,
    "langchain_agent": anthropic,
    "llama_index_agent": openai,
    "mcp_agent": anthropic,
    "openai_agents_agent": openai,
    "openai_loop": openai,
    "pydantic_ai_agent": anthropic,
    "smolagents_agent": smolagents,
    "strands_agent": anthropic,
}


def installed_for(name: str) -> list[str]:
    """Return what the first lines of an example say to install."""
    [command] = re.findall(
        r"^pip install (.+)", (FOLDER / f"{name}.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    return shlex.split(command)


def query(texts: Any) -> Call:
    """The model asks for the largest file of the list that it saw as a placeholder."""
    return Call("context_query", {"sql": SQL, "id": refs(texts)[-1]}, "call_query")


def answer(texts: Any) -> str:
    """The model answers with what it was told."""
    [found] = {row for text in texts for row in re.findall(r"^\S+\.py\|\d+$", text, re.MULTILINE)}
    return f"It is {found}."


def listed() -> list[Path]:
    return list(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))


def largest() -> str:
    size, path = max((path.stat().st_size, path) for path in listed())
    return f"{path}|{size}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_model_of_an_example_finds_the_answer_in_what_was_offloaded(name: str, tmp_path: Path) -> None:
    needs = [each for need in installed_for(name) for each in lacking(need)]
    if needs:
        pytest.skip(f"needs {', '.join(needs)}")
    script = Script([ask("list_files"), query, answer])

    with APIS[name](script) as variables:
        done = subprocess.run(
            [sys.executable, str(FOLDER / f"{name}.py"), QUESTION],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": PATH, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    *_, said, saved = filter(None, done.stdout.splitlines())
    assert said == f"It is {largest()}."
    assert QUESTION in script.shown(1)
    assert largest() not in script.shown(2)
    assert len(script.shown(2)) < 20_000
    chars = int(saved.removeprefix("offloaded: ").removesuffix(" characters").replace(",", ""))
    assert chars > sum(len(f"{path}") + 1 for path in listed()) > 15_000


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_in_a_minute(name: str) -> None:
    assert 20 <= len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 50


def test_every_example_is_in_the_list_with_its_command() -> None:
    listed = re.findall(r"`python examples/(\w+)\.py", (FOLDER / "README.md").read_text(encoding="utf-8"))

    assert sorted(listed) == sorted([*EXAMPLES, "agent"])
