"""An agent that explores a folder of source files, with `offload` to keep its context small.

    python examples/agent.py --fake                     a scripted model, without network access
    python examples/agent.py "Where are refs drawn?"    Claude, if ANTHROPIC_API_KEY is set

Tools and store are real in both cases; Claude needs the package `anthropic`. Run it again with the same
--session to continue the conversation.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import offload
from offload import AgentConfig, AnthropicSummarizer, ContextManager, Offloader

MODEL = "claude-sonnet-5-5"
QUESTION = "Which classes are there?"
Reply = tuple[list[dict[str, Any]], Any]
Model = Callable[[str, list[Any], list[Any]], Reply]


def list_files(folder: Path) -> str:
    """Return all source files with their sizes."""
    return "\n".join(f"{p.stat().st_size:8} {p.relative_to(folder)}" for p in sorted(folder.rglob("*.py")))


def print_files(folder: Path, glob: str) -> str:
    """Return the text of all files whose path matches, with line numbers."""
    lines = []
    for path in sorted(p for p in folder.rglob("*.py") if p.match(glob)):
        numbered = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        lines += [f"{path.relative_to(folder)}:{number}: {line}" for number, line in numbered]
    return "\n".join(lines) or f"no file matches {glob}"


TOOLS: dict[str, Callable[..., str]] = {"list_files": list_files, "print_files": print_files}
DEFINITIONS = [
    {
        "name": "list_files",
        "description": "List all source files with their sizes.",
        "input_schema": {"type": "object", "properties": {}},
    },
    {
        "name": "print_files",
        "description": "Print all files whose path matches a glob such as *.py, with numbered lines.",
        "input_schema": {"type": "object", "properties": {"glob": {"type": "string"}}, "required": ["glob"]},
    },
]


def scripted(_system: str, messages: list[Any], _tools: list[Any]) -> Reply:
    """Play a model: list the files, print all of them, and search the offloaded result."""
    question = max(i for i, message in enumerate(messages) if isinstance(message["content"], str))
    turn = (len(messages) - question) // 2
    result = messages[-1]["content"][-1]["content"] if turn else ""
    ref = re.search(r"id ([a-z]{10,20})\]", result)
    script: list[tuple[str, dict[str, Any]]] = [
        ("list_files", {}),
        ("print_files", {"glob": "*.py"}),
        ("context_grep", {"id": ref[1] if ref else "", "pattern": ": class ", "max_matches": 20}),
    ]
    if turn >= len(script):
        return [{"type": "text", "text": f"Here they are, among others:\n{result}"}], None
    name, arguments = script[turn]
    return [{"type": "tool_use", "id": f"call_{len(messages)}", "name": name, "input": arguments}], None


def claude(client: Any) -> Model:
    """Return Claude as a model."""

    def ask(system: str, messages: list[Any], tools: list[Any]) -> Reply:
        reply = client.messages.create(
            model=MODEL, max_tokens=2000, system=system, messages=messages, tools=tools
        )
        return [block.model_dump(exclude_none=True) for block in reply.content], reply.usage

    return ask


def answer_call(context: ContextManager, folder: Path, call: dict[str, Any]) -> dict[str, Any]:
    """Return the result block for a call of a tool above or of a retrieval tool."""
    try:
        if call["name"] in TOOLS:
            text = TOOLS[call["name"]](folder, **call["input"])
        else:
            text = context.tools.call(call["name"], call["input"])
    except Exception as error:  # noqa: BLE001 # the model reads the error and can try again
        return {"type": "tool_result", "tool_use_id": call["id"], "content": str(error), "is_error": True}
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def run(context: ContextManager, model: Model, folder: Path, question: str) -> str:
    """Return the model's answer to a question; this is the complete agent loop."""
    system = f"You answer questions about a folder of source files.\n{context.prompt()}"
    tools = [*DEFINITIONS, *context.tools.definitions("anthropic")]
    last = [block for m in context.messages[-1:] if m["role"] == "assistant" for block in m["content"]]
    if left := [block for block in last if block["type"] == "tool_use"]:  # a killed process did not answer
        context.add({"role": "user", "content": [answer_call(context, folder, call) for call in left]})
    context.add({"role": "user", "content": question})
    while True:
        request = context.before_model_call(system_prompt=system, tools=tools)
        print(f"> {len(request.messages)} messages, {request.tokens:,} tokens")
        content, usage = model(system, request.messages, tools)
        context.after_model_call({"role": "assistant", "content": content}, usage=usage)
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return "".join(block["text"] for block in content if block["type"] == "text")
        for call in calls:
            print(f"  {call['name']}({', '.join(f'{k}={v!r}' for k, v in call['input'].items())})")
        results = [answer_call(context, folder, call) for call in calls]
        context.add({"role": "user", "content": results})


def main() -> None:
    """Parse the command line, run the agent, and print how much of the conversation is in view."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--fake", action="store_true", help="use a scripted model, without a key")
    parser.add_argument("--folder", type=Path, default=Path(offload.__file__).parent)
    parser.add_argument("--store", help="path or URL of the store [default: user data folder]")
    parser.add_argument("--session", help="continue the conversation with this name")
    options = parser.parse_args()

    model: Model = scripted
    summarizer = None
    if not options.fake and os.environ.get("ANTHROPIC_API_KEY"):
        import anthropic  # noqa: PLC0415 # a scripted run needs none

        client = anthropic.Anthropic()
        model, summarizer = claude(client), AnthropicSummarizer(client, MODEL)
    off = Offloader(options.store, session=options.session)
    context = ContextManager(off, AgentConfig(model=MODEL), summarizer=summarizer)
    context.resume()
    print(run(context, model, options.folder, options.question))
    sizes = [len(str(messages)) for messages in (context.restore(), context.messages)]
    print(f"\nsession {off.session}: {sizes[0]:,} characters in all, {sizes[1]:,} of them in view")


if __name__ == "__main__":
    main()
