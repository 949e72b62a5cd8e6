"""A model that finds the largest file by the tool of an example or a page, as the API of each provider.

It knows what to do next from what it is sent alone, so that a program may ask it any number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from frameworks import anthropic_server, claude_code, gemini_server, openai_server
from frameworks.scenario import Call, Script, refs
from provider import serving

QUESTION = "Which file is the largest?"
LIST = "list_files"
SQL = "SELECT path, bytes FROM t ORDER BY bytes DESC LIMIT 1"
_ASKED = re.compile(rf"{re.escape(QUESTION)}|Mail me")
# What frameworks would report to their makers.
_QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
_ROW = re.compile(r"^(\S+\.py)\|(\d+)$", re.MULTILINE)


@dataclass
class Librarian(Script):
    """Lists the files, queries the list that it sees as a placeholder, and answers, or mails the answer.

    `last` is the name of the tool by which it answers, if the framework has one.
    """

    turns: Sequence[Callable[[Sequence[str]], Call | list[Call] | str]] = ()
    last: str = ""

    def reply(self, texts: Sequence[str], system: str | None = None) -> list[Call] | str:  # noqa: ARG002 # it heeds none
        """Return the next step towards the answer to the last question in `texts`."""
        self.seen.append(list(texts))
        name, arguments = self._step(texts)
        return [Call(name, arguments, f"call_{len(self.seen)}")] if name else arguments["answer"]

    def _step(self, texts: Sequence[str]) -> tuple[str, dict[str, str]]:
        *_, asked = [-1, *(n for n, text in enumerate(texts) if _ASKED.search(text))]
        told = "\n".join(texts[asked + 1 :])
        if found := _ROW.search(told):
            answer = f"{found[1]} has {found[2]} bytes."
            if "Mail me" in texts[asked] and "Sent." not in told:
                return "send_mail", {"text": answer}
            return self.last, {"answer": answer}
        if placeholders := refs([told]):
            return "context_query", {"sql": SQL, "id": placeholders[-1]}
        if LIST in texts[asked + 1 :]:
            return self.last, {"answer": "The list is somewhere else."}
        return LIST, {}


@contextmanager
def _anthropic(script: Script) -> Iterator[dict[str, str]]:
    with anthropic_server.serving(script) as server:
        yield {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "k"}


@contextmanager
def _openai(script: Script) -> Iterator[dict[str, str]]:
    with serving(openai_server.OpenAI(script)) as url:
        # LlamaIndex has its own name for the URL.
        yield {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": "k",
            **_QUIET,
        }


@contextmanager
def _gemini(script: Script) -> Iterator[dict[str, str]]:
    with serving(gemini_server.Gemini(script)) as url:
        yield {"GOOGLE_GEMINI_BASE_URL": url, "GOOGLE_API_KEY": "k"}


@contextmanager
def _claude_code(script: Script) -> Iterator[dict[str, str]]:
    """Answer Claude Code, which names the tools of a server after it."""
    servers = {"list_files": "python", "context_query": "offload"}

    def reply(request: claude_code.Request) -> claude_code.Answer:
        said = script.reply(openai_server.texts_of(request.messages))
        if isinstance(said, str):
            return claude_code.text(said)
        [call] = said
        return claude_code.tool(f"mcp__{servers[call.name]}__{call.name}", **call.arguments)

    with claude_code.serving(reply) as server:
        yield {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "k",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }


# By what stands in the text of a program: its framework, or the key that it needs.
_APIS: dict[str, Callable[[Script], AbstractContextManager[dict[str, str]]]] = {
    "claude_agent_sdk": _claude_code,
    "ANTHROPIC_API_KEY": _anthropic,
    "OPENAI_API_KEY": _openai,
    "GOOGLE_API_KEY": _gemini,
}


@contextmanager
def serving_for(program: Path) -> Iterator[tuple[Script, dict[str, str]]]:
    """Run the API that a program or a page asks; yield its model, and the variables that lead there."""
    text = program.read_text(encoding="utf-8")
    script = Librarian(last="final_answer" if "smolagents" in text else "")
    serve = next((serve for mark, serve in _APIS.items() if mark in text), None)
    if serve is None:
        yield script, {}
        return
    with serve(script) as variables:
        yield script, variables
