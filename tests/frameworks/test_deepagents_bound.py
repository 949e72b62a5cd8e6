"""`OffloadMiddleware` in a deep agent whose model binds its thinking, next to deepagents' own summaries."""

from __future__ import annotations

from itertools import pairwise

import pytest
from binding import Binding
from frameworks.anthropic_server import serving
from frameworks.bound import BOUND, TURNS, check_bound_run, long_run, outputs
from frameworks.scenario import QUERY, QUESTION, READER, Script

pytest.importorskip("deepagents", reason="in the environment of the group integration-deepagents")

from deepagents import create_deep_agent
from deepagents.middleware.summarization import SummarizationMiddleware
from frameworks.scripted import scripted
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from offload.integrations.deepagents import OffloadBackend
from offload.integrations.langchain import OffloadMiddleware


def run(server, files, *middleware):
    made = outputs()

    def now(note: str = "") -> object:
        return made()

    agent = create_deep_agent(
        ChatAnthropic(model=BOUND, base_url=server.url, api_key="k", max_retries=0),
        [StructuredTool.from_function(now, name=name, description="D.") for name in (QUERY, READER)],
        backend=files,
        middleware=middleware,
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "alice"}, "recursion_limit": 200}
    return agent.invoke({"messages": [HumanMessage(QUESTION)]}, config)["messages"]


def test_nothing_that_was_sent_changes_and_all_is_restored(store):
    middleware = OffloadMiddleware(store)
    with serving(long_run(), Binding()) as server:
        messages = run(server, OffloadBackend(store), middleware)

    check_bound_run(server)
    restored = middleware.offloader("alice").restore(messages)
    made = outputs()
    results = [m.content for m in restored if isinstance(m, ToolMessage) and m.name in (QUERY, READER)]
    assert results == [made() for _ in range(TURNS - 2)]


def test_a_summary_takes_only_the_thinking_before_it(store):
    summaries = SummarizationMiddleware(
        model=scripted(Script([lambda _: "A summary."] * TURNS)),
        backend=OffloadBackend(store),
        trigger=("messages", 13),
        keep=("messages", 4),
    )
    provider = Binding()
    with serving(long_run(), provider) as server:
        messages = run(server, OffloadBackend(store), summaries, OffloadMiddleware(store))

    assert server.refusals == []
    assert len(messages) == 2 * TURNS
    sent = [request["messages"] for request in server.requests]
    first = next(i for i, messages in enumerate(sent) if i and len(messages) < len(sent[i - 1]))
    kept = [len(provider.signatures(messages)) for messages in sent[first : first + 4]]
    assert [kept[0], *(b > a for a, b in pairwise(kept))] == [0, True, True, True]
