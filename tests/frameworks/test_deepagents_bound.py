"""`OffloadMiddleware` in a deep agent whose model binds its thinking, next to deepagents' own summaries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import pytest
from binding import Binding
from frameworks.anthropic_server import serving
from frameworks.bound import BOUND, TURNS, long_run, outputs
from frameworks.scenario import QUERY, QUESTION, READER, Script

pytest.importorskip("deepagents", reason="in the environment of the group integration-deepagents")

from deepagents import create_deep_agent
from deepagents.middleware.summarization import SummarizationMiddleware
from frameworks.scripted import scripted, tool
from frameworks.test_langchain_bound import TestBoundStory as OfLangChain, invoked
from langchain_anthropic import ChatAnthropic
from langgraph.checkpoint.memory import InMemorySaver

from offload.integrations.deepagents import OffloadBackend
from offload.integrations.langchain import OffloadMiddleware


def made(server, saver, output, files, *middleware, model=BOUND):
    return create_deep_agent(
        ChatAnthropic(model=model, base_url=server.url, api_key="k", max_retries=0),
        [tool(name, returns=output) for name in (QUERY, READER)],
        backend=files,
        middleware=middleware,
        checkpointer=saver,
    )


class TestBoundStory(OfLangChain):
    ways: ClassVar[Any] = ((invoked, {}),)

    def graph(self, **_):
        files = OffloadBackend(self.store)
        return made(self.server, self.saver, self.output, files, self.middleware, model=self.server.model)


def test_a_summary_takes_only_the_thinking_before_it(store):
    summaries = SummarizationMiddleware(
        model=scripted(Script([lambda _: "A summary."] * TURNS)),
        backend=OffloadBackend(store),
        trigger=("messages", 13),
        keep=("messages", 4),
    )
    provider = Binding()
    with serving(long_run(), provider) as server:
        agent = made(
            server,
            InMemorySaver(),
            outputs(),
            OffloadBackend(store),
            summaries,
            OffloadMiddleware(store),
        )
        messages = invoked(agent, QUESTION)

    assert server.refusals == []
    assert len(messages) == 2 * TURNS
    sent = [request["messages"] for request in server.requests]
    first = next(i for i, messages in enumerate(sent) if i and len(messages) < len(sent[i - 1]))
    kept = [len(provider.signatures(messages)) for messages in sent[first : first + 4]]
    assert [kept[0], *(b > a for a, b in pairwise(kept))] == [0, True, True, True]
