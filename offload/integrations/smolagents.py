"""smolagents: offloading as a step callback of agents, and the retrieval tools."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from offload.engine.policy.tool_names import RETRIEVAL_TOOLS
from offload.engine.settings.options import SessionArguments
from offload.errors import needs_extra
from offload.integrations._sessions import Sessions, agent_named, refuse_journal
from offload.messages.bedrock import call_block, fixed_block, result_block
from offload.offloader import Offloader

with needs_extra("smolagents"):
    from smolagents import ActionStep, MultiStepAgent, PlanningStep, TaskStep, Tool, ToolCall
    from smolagents.utils import truncate_content

_MessageChange = Callable[[list[Any]], Sequence[Any]]

_log = logging.getLogger("offload")

_CALL = re.compile(r"\b(\w+)\s*\(")
# The headings in the observations of a step of code.
_LOGS = "Execution logs:\n"
_LAST_VALUE = "Last output from code snippet:\n"
# Characters that smolagents adds to the answers in an observation.
_ADDED_CHARS = 200
_TEXTS = {TaskStep: "task", PlanningStep: "plan", ActionStep: "model_output"}

__all__ = ["OffloadSteps"]


class OffloadSteps:
    """Offloads the memory of agents after each of their steps; for `step_callbacks`.

    A placeholder replaces the observations of a step before the step is added to the agent's memory.
    Observations that a policy offloads later, and tasks, are replaced in the memory too. Final answers and
    images are kept. If smolagents cuts the last value of a step of code, the whole value is stored.

    Every agent needs its own `tools` and `step_callbacks`, also a managed agent: the memory of an agent
    without the tools is not offloaded.

    Arguments and errors are those of `Offloader`. All agents share one session.

    Attributes:
        offloader: the `Offloader` of the session.
        tools: the retrieval tools.
        prompt: the instructions for `instructions`.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        refuse_journal(options)
        self._sessions = Sessions(store, **options)
        self._agents: WeakKeyDictionary[MultiStepAgent, Offloader] = WeakKeyDictionary()
        self.offloader: Offloader = self._sessions.own
        self.prompt: str = self.offloader.prompt()
        self.tools = [_RetrievalTool(self.offloader, tool) for tool in self.offloader.tools.definitions()]

    def __call__(self, step: Any, agent: MultiStepAgent) -> None:
        """Offload the memory of `agent`, whose latest step is `step`."""
        if agent not in self._agents:
            self._agents[agent] = self._sessions.open(self.offloader.session)
            if not self._has_tools(agent):
                name = agent.name or type(agent).__name__
                _log.warning("agent %r has no retrieval tools: its memory is not offloaded", name)
        if not self._has_tools(agent):
            return
        offloader = self._agents[agent]
        _report_usage(offloader, step)
        steps = [*(each for each in agent.memory.steps if each is not step), step]
        names = {*agent.tools, *agent.managed_agents}
        name = agent_named(offloader, agent.name)
        _rewrite(
            steps, names, offloader, lambda messages: offloader.offload(messages, agent_name=name).messages
        )

    def restore(self, steps: Sequence[Any]) -> list[Any]:
        """Return copies of steps of an agent's memory with every placeholder replaced by its content.

        Errors are those of `Offloader.restore`.
        """
        copies = list(map(copy, steps))
        _rewrite(copies, (), self.offloader, self.offloader.restore)
        return copies

    def _has_tools(self, agent: MultiStepAgent) -> bool:
        return any(isinstance(tool, _RetrievalTool) for tool in agent.tools.values())


class _RetrievalTool(Tool):
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, offloader: Offloader, tool: Mapping[str, Any]) -> None:
        schema = tool["input_schema"]
        self.name, self.description = tool["name"], tool["description"]
        required = schema.get("required", ())
        # smolagents refuses an argument without a description.
        self.inputs = {
            name: {"description": "", **field, **({} if name in required else {"nullable": True})}
            for name, field in schema["properties"].items()
        }
        self._offloader = offloader
        super().__init__()

    # Code may pass arguments by position.
    def forward(self, *values: Any, **arguments: Any) -> str:
        given = dict(zip(self.inputs, values, strict=False)) | arguments
        return self._offloader.tools.call(self.name, given)


def _rewrite(
    steps: Sequence[Any], names: Collection[str], offloader: Offloader, change: _MessageChange
) -> None:
    """Change the texts of steps through the messages that they are."""
    limit = offloader.options.max_answer_chars
    before = [_messages_of(step, names, limit) for step in steps]
    after = iter(change(list(chain.from_iterable(before))))
    for step, old in zip(steps, before, strict=True):
        _replace(step, old, list(islice(after, len(old))))


def _report_usage(offloader: Offloader, step: Any) -> None:
    raw = getattr(getattr(step, "model_output_message", None), "raw", None)
    for usage in (getattr(raw, "usage", None), getattr(step, "token_usage", None)):
        if usage is not None and offloader.report_usage(usage) is not None:
            return


def _messages_of(step: Any, names: Collection[str], max_answer_chars: int) -> list[dict[str, Any]]:
    """Return a step in the Bedrock Converse format; `names` are those of its agent's tools."""
    match step:
        case TaskStep():
            return [{"role": "user", "content": [{"text": step.task}]}]
        case PlanningStep():
            return [{"role": "assistant", "content": [{"text": step.plan}]}]
        case ActionStep(observations=str(), is_final_answer=False):
            call = _call_of(step, names, max_answer_chars)
            calls = [call, replace(call, id=f"{call.id}_value", arguments={})]
            pairs = [*zip(calls, _texts(step), strict=False)]
            uses = [call_block(each.id, each.name, each.arguments) for each, _ in pairs]
            is_error = step.error is not None
            results = [result_block(each.id, [{"text": text}], is_error=is_error) for each, text in pairs]
            return [
                {"role": "assistant", "content": [_said(step), *uses]},
                {"role": "user", "content": results},
            ]
        case ActionStep():
            kept = fixed_block(f"{step.observations or ''}{step.error or ''}")
            return [{"role": "assistant", "content": [_said(step)]}, {"role": "user", "content": [kept]}]
    return []


def _call_of(step: ActionStep, names: Collection[str], max_answer_chars: int) -> ToolCall:
    """Return one call for all calls of a step, because their results are one text.

    A step that shows little more than stored items is a call of a retrieval tool, whose answers are kept.
    """
    calls = step.tool_calls or [ToolCall("python_interpreter", {}, f"step_{step.step_number}")]
    first = calls[0]
    if step.code_action is not None:
        called = [name for name in _CALL.findall(step.code_action) if name in names]
        calls = [replace(first, name=name) for name in called]
    retrievals = [call for call in calls if call.name in RETRIEVAL_TOOLS]
    if retrievals and len(step.observations) <= len(retrievals) * max_answer_chars + _ADDED_CHARS:
        return replace(retrievals[0], arguments={})
    return next((call for call in calls if call.name not in RETRIEVAL_TOOLS), first)


def _parts(step: ActionStep) -> list[str]:
    """Return the observations of a step in pairs of a heading and a text.

    A step of code has two pairs, its logs and its last value, or one if it failed.
    """
    text = step.observations
    if step.code_action is None or not text.startswith(_LOGS):
        return ["", text]
    logs, heading, value = text.removeprefix(_LOGS).rpartition(_LAST_VALUE)
    if not heading:
        return [_LOGS, value]
    return [_LOGS, logs.removesuffix("\n"), "\n" * logs.endswith("\n") + heading, value]


def _texts(step: ActionStep) -> list[str]:
    """Return the texts of its parts, with all of the last value if smolagents cut it."""
    [_, first, *rest] = _parts(step)
    return [first, _complete(rest[1], step.action_output)] if rest else [first]


def _complete(text: str, value: Any) -> str:
    """Return the text of the last value of a step of code, also if smolagents cut it."""
    whole = str(value)
    is_cut = text != whole and text == truncate_content(whole)
    # A later step could not find where the value starts.
    return whole if is_cut and _LAST_VALUE not in whole else text


def _said(step: ActionStep) -> dict[str, Any]:
    output = step.model_output
    return {"text": output} if isinstance(output, str) else fixed_block(str(output or ""))


def _replace(step: Any, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    for before, after in zip(old, new, strict=True):
        pairs = zip(before["content"], after["content"], strict=True)
        for index, (block, changed) in enumerate(pairs):
            if changed != block:
                _write(step, index, changed)


def _write(step: Any, index: int, block: dict[str, Any]) -> None:
    match block:
        case {"toolResult": result}:
            parts = _parts(step)
            parts[2 * index + 1] = result["content"][0]["text"]
            step.observations = "".join(parts)
        case {"toolUse": use}:
            step.tool_calls = [
                replace(call, arguments=use["input"]) if call.id == use["toolUseId"] else call
                for call in step.tool_calls
            ]
        case {"text": text}:
            setattr(step, _TEXTS[type(step)], text)
