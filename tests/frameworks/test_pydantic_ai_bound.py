"""`OffloadCapability` in an agent of pydantic-ai whose model binds its thinking."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binding import Binding
from frameworks import bound
from frameworks.anthropic_server import serving
from frameworks.bound import BOUND, UNBOUND, call, check_bound_run, long_run, models_told, outputs
from frameworks.scenario import QUERY, READER, Script, end

pytest.importorskip("pydantic_ai", reason="in the environment of the group integration-pydantic-ai")

from frameworks.scripted_pydantic import WAYS, results, sync
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from offload.integrations.pydantic_ai import OffloadCapability


def agent(server, capability, *, model=BOUND, instructions="Be brief."):
    made = outputs()

    def now(note: str = "") -> str:  # what the model writes in a long call
        return made()

    return Agent(
        AnthropicModel(model, provider=AnthropicProvider(api_key="k", base_url=server.url)),
        tools=[Tool(now, name=QUERY), Tool(now, name=READER)],
        capabilities=[capability],
        instructions=instructions,
    )


def thinking(messages):
    replies = [message for message in messages if isinstance(message, ModelResponse)]
    return [[part for part in reply.parts if isinstance(part, ThinkingPart)] for reply in replies]


@WAYS
def test_nothing_that_was_sent_changes_also_after_a_restart_and_all_is_restored(store, run):
    with serving(Script([*long_run().turns, call(bound.TURNS), end]), Binding()) as server:
        first = run(agent(server, OffloadCapability(store))).all_messages()
        capability = OffloadCapability(store)
        messages = run(agent(server, capability), message_history=first).all_messages()

    check_bound_run(server)
    made = outputs()
    assert results(capability.restore(messages))[: bound.TURNS - 2] == [
        made() for _ in range(bound.TURNS - 2)
    ]
    assert capability.offloader(messages[-1].conversation_id).records()


def test_the_model_of_the_request_is_told(store, monkeypatch):
    told = models_told(monkeypatch)
    with serving(Script([end]), Binding()) as server:
        sync(agent(server, OffloadCapability(store), model=UNBOUND))

    assert set(told) == {UNBOUND}


def test_a_change_by_the_host_takes_the_thinking_behind_it_out_of_the_history_and_restore_returns_it(store):
    script = Script([*long_run(9).turns, end, end])
    capability = OffloadCapability(store, session="x")
    with serving(script, Binding()) as server:
        made = agent(server, capability)
        messages = sync(made).all_messages()
        before = thinking(messages)
        messages[4] = replace(messages[4], parts=[replace(messages[4].parts[0], content="shorter")])
        later = sync(made, "And then?", message_history=messages).all_messages()
        again = sync(made, "And now?", message_history=later).all_messages()

    assert server.refusals == []
    assert all(before)
    stays = [True, True, *[False] * (len(before) - 2), True, True]
    assert [bool(parts) for parts in thinking(again)] == stays
    restored = capability.restore(again)
    assert thinking(restored)[: len(before)] == before
    assert restored[: len(messages)] == capability.restore(messages)


@WAYS
def test_thinking_that_a_provider_refuses_is_removed_once_and_the_run_goes_on(store, run):
    capability = OffloadCapability(store)
    with serving(Script([*long_run(6).turns, call(6), end]), Binding()) as server:
        first = run(agent(server, capability)).all_messages()
        changed = agent(server, capability, instructions="Be verbose.")
        messages = run(changed, message_history=first).all_messages()

    # The client of the framework sends a refused request twice itself.
    [refusal] = set(server.refusals)
    assert "bound to a different conversation" in refusal
    *_, refused, repaired, last = [server.binding.signatures(r["messages"]) for r in server.requests]
    assert refused
    assert not repaired
    assert last
    assert thinking(capability.restore(messages))[: len(thinking(first))] == thinking(first)
