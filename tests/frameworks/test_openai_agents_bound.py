"""`OffloadRuns` in runs of the OpenAI Agents SDK whose model, behind LiteLLM, binds its thinking."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from binding import Binding, BoundError
from frameworks.bound import BOUND, TURNS, UNBOUND, call, long_run, models_told, outputs as made_outputs
from frameworks.scenario import QUERY, QUESTION, READER, Script, end, refs

pytest.importorskip("agents", reason="in the environment of the group integration-openai-agents")

from agents import Agent, RunConfig, SQLiteSession
from agents.models.chatcmpl_converter import Converter
from agents.testing import ModelStep, ScriptedModel
from frameworks.scripted_openai import WAYS, answer, outputs, sync, texts, tool
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_reasoning_item import Content, Summary

from offload.integrations.openai_agents import OffloadRuns


class Provider:
    """Checks what the SDK's chat models send, which carry the thinking of Claude in reasoning items."""

    def __init__(self, script: Script) -> None:
        self.binding = Binding()
        self.script = script
        self.requests: list[list[object]] = []
        self.model = ScriptedModel([ModelStep.respond(self._respond)] * len(script.turns))
        self.model.model = BOUND

    def _respond(self, request):
        sent = Converter.items_to_messages(request.input, model=BOUND, preserve_thinking_blocks=True)
        self.requests.append(sent)
        context = {"system": request.system_instructions, "tools": [tool.name for tool in request.tools]}
        self.binding.check(sent, **context)
        number = len(self.requests)
        signatures = self.binding.sign(sent, **context, blocks=1 + number % 2)
        said = self.script.reply([text for text in map(_text, request.input) if text])
        return ModelStep([_reasoning(signatures), *answer(said)])


def _text(item):
    return "" if item.get("type") == "reasoning" else texts([item])[0]


def _reasoning(signatures):
    """Return what the SDK makes of thinking blocks."""
    blocks = [{"type": "thinking", "thinking": "So.", "signature": each} for each in signatures[:1]]
    blocks += [{"type": "redacted_thinking", "data": each} for each in signatures[1:]]
    return ResponseReasoningItem(
        id="__fake_id__",
        summary=[Summary(text="So.", type="summary_text")],
        type="reasoning",
        content=[Content(text="So.", type="reasoning_text")],
        encrypted_content="\n".join(signatures[:1]),
        provider_data={"model": BOUND, "thinking_blocks": blocks},
    )


def agent(provider, offloading, instructions=None):
    made = made_outputs()
    tools = [tool(name, returns=made) for name in (QUERY, READER)]
    given = {"model": provider.model, "tools": [*tools, *offloading.tools], "instructions": instructions}
    return Agent(name="analyst", **given)


@WAYS
def test_nothing_that_was_sent_changes_and_all_is_restored(store, run):
    offloading, provider = OffloadRuns(store), Provider(long_run())
    alice = offloading.conversation("alice")

    result = run(agent(provider, offloading), run_config=alice.run_config(), max_turns=TURNS)

    assert provider.binding.checked == TURNS
    assert len(provider.binding.signatures(provider.requests[-1])) >= TURNS - 1
    assert refs(provider.script.seen[-1])
    made = made_outputs()
    assert outputs(result.to_input_list())[: TURNS - 2] == [made() for _ in range(TURNS - 2)]
    sent = asyncio.run(alice.outgoing(result.to_input_list(), BOUND))
    assert alice.offloader.restore(sent) == result.to_input_list()


def test_a_session_of_the_sdk_may_be_continued(store):
    provider = Provider(Script([*long_run(8).turns, call(8), end]))
    with closing(SQLiteSession("alice")) as session:
        for _ in range(2):
            offloading = OffloadRuns(store)
            alice = offloading.conversation("alice")
            options = {"session": alice.memory(session), "run_config": alice.run_config()}
            sync(agent(provider, offloading), QUESTION, **options)

    assert provider.binding.checked == 10
    assert len(provider.binding.signatures(provider.requests[-1])) >= 9


def test_thinking_that_was_removed_takes_its_item_along_and_restore_returns_it(store):
    offloading, provider = OffloadRuns(store), Provider(Script([*long_run(8).turns, call(8), end]))
    alice = offloading.conversation("alice")
    made = agent(provider, offloading)
    items = sync(made, run_config=alice.run_config()).to_input_list()

    assert alice.offloader.remove_thinking(items, 4) > 0
    items = sync(
        made, [*items, {"role": "user", "content": "?"}], run_config=alice.run_config()
    ).to_input_list()

    assert provider.binding.checked == 10
    assert (
        len(provider.binding.signatures(provider.requests[7]))
        > len(provider.binding.signatures(provider.requests[8]))
        > 0
    )
    placed = asyncio.run(alice.placed(items))
    assert placed != items
    assert alice.offloader.restore(placed) == items


def test_a_run_that_a_provider_refused_goes_on_once_it_is_repaired(store):
    offloading, provider = OffloadRuns(store), Provider(Script([*long_run(8).turns, call(8), end, end]))
    alice = offloading.conversation("alice")
    items = sync(agent(provider, offloading), run_config=alice.run_config()).to_input_list()
    changed = agent(provider, offloading, "Be verbose.")

    with pytest.raises(BoundError) as refused:
        sync(changed, [*items, {"role": "user", "content": "?"}], run_config=alice.run_config())
    assert not asyncio.run(alice.repair(ValueError("another")))
    assert asyncio.run(alice.repair(refused.value))
    result = sync(changed, alice.items, run_config=alice.run_config())

    sent = [len(provider.binding.signatures(request)) for request in provider.requests]
    assert sent[8] > sent[9] == 0
    assert sent[10] > 0
    assert result.to_input_list()[: len(items)] == items


def test_the_model_of_the_request_is_told(store, monkeypatch):
    told = models_told(monkeypatch)
    offloading, provider = OffloadRuns(store), Provider(Script([end, end]))
    made = agent(provider, offloading)
    for base in (None, RunConfig(model=UNBOUND, model_provider=_Only(provider.model))):
        sync(made, run_config=offloading.conversation().run_config(base))

    assert told == [BOUND, UNBOUND]


class _Only:
    def __init__(self, model):
        self._model = model

    def get_model(self, _name):
        return self._model
