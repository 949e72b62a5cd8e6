"""`StrandsOffloadPlugin` in an agent of Strands whose model binds its thinking."""

from __future__ import annotations

import pytest
from binding import REFUSAL, Binding, BoundError
from frameworks.anthropic_server import Server, serving
from frameworks.bound import BOUND, TURNS, UNBOUND, call, check_bound_run, long_run, models_told, outputs
from frameworks.scenario import QUERY, QUESTION, READER, Script, end

pytest.importorskip("strands", reason="in the environment of the group integration-strands")

from anthropic import BadRequestError
from frameworks.strands_model import tool
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager
from strands.models.anthropic import AnthropicModel

from offload.integrations.strands import StrandsOffloadPlugin

# The framework's client of Anthropic loses thinking that is not shown, so nothing here is redacted.


def agent(server, plugin, *, model=BOUND, manager=None, **options):
    made = outputs()
    client = {"base_url": server.url, "api_key": "k", "max_retries": 0}
    return Agent(
        model=AnthropicModel(client_args=client, model_id=model, max_tokens=100),
        tools=[tool(name, returns=made) for name in (QUERY, READER)],
        plugins=[plugin],
        callback_handler=None,
        conversation_manager=manager or NullConversationManager(),
        **options,
    )


def thinking(messages):
    blocks = [block for message in messages for block in message["content"]]
    return [block["reasoningContent"] for block in blocks if "reasoningContent" in block]


def test_nothing_that_was_sent_changes_and_all_is_restored(store):
    plugin = StrandsOffloadPlugin(store)
    with serving(long_run(), Binding(), redacts=False) as server:
        made = agent(server, plugin)
        made(QUESTION)

    check_bound_run(server)
    restored = plugin.offloader(made).restore(made.messages)
    results = [b["toolResult"]["content"] for m in restored for b in m["content"] if "toolResult" in b]
    output = outputs()
    assert results[: TURNS - 2] == [[{"text": output()}] for _ in range(TURNS - 2)]
    assert thinking(restored) == thinking(made.messages)


def test_a_conversation_manager_may_trim_since_the_thinking_behind_it_is_removed(store):
    plugin, provider = StrandsOffloadPlugin(store), Binding()
    with serving(long_run(), provider, redacts=False) as server:
        made = agent(server, plugin, manager=SlidingWindowConversationManager(window_size=10, per_turn=True))
        made(QUESTION)

    assert server.refusals == []
    assert min(len(request["messages"]) for request in server.requests[-3:]) <= 12
    assert provider.signatures(server.requests[4]["messages"])
    off = plugin.offloader(made)
    sent = off.offload(made.messages).messages
    assert len(thinking(sent)) < len(thinking(made.messages))
    assert off.restore(sent) == off.restore(made.messages)


def test_the_model_of_the_request_is_told(store, monkeypatch):
    told = models_told(monkeypatch)
    with serving(Script([call(0), call(1), end]), Binding()) as server:
        agent(server, StrandsOffloadPlugin(store), model=UNBOUND)(QUESTION)

    # Before each request, and behind each tool.
    assert told == [UNBOUND] * 5


def test_thinking_that_a_provider_refuses_is_removed_once_and_the_run_goes_on(store):
    with serving(Script([*long_run(6).turns, call(6), end]), Binding(), redacts=False) as server:
        first = agent(server, StrandsOffloadPlugin(store, session="alice"), system_prompt="Be brief.")
        first(QUESTION)
        plugin = StrandsOffloadPlugin(store, session="alice")
        later = agent(server, plugin, messages=first.messages, system_prompt="Be verbose.")
        later(QUESTION)

    assert len(server.refusals) == 1
    assert "bound to a different conversation" in server.refusals[0]
    sent = [server.binding.signatures(request["messages"]) for request in server.requests]
    assert sent[6]
    assert not sent[7]
    assert sent[8]
    off = plugin.offloader(later)
    assert thinking(off.restore(off.offload(later.messages).messages)) == thinking(later.messages)


def test_a_second_refusal_is_the_error_of_the_run(store):
    class Stubborn(Server):
        def answer(self, request):
            self.requests.append(request)
            raise BoundError(REFUSAL.format(1, 0))

    plugin = StrandsOffloadPlugin(store)
    with serving(Script([call(0), end]), Binding(), redacts=False) as server:
        made = agent(server, plugin)
        made(QUESTION)
        server.__class__ = Stubborn
        with pytest.raises(BadRequestError, match="bound to a different conversation"):
            made(QUESTION)

    assert len(server.requests) == 2 + 2
