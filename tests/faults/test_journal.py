"""An agent that is killed by `kill -9` is gone on with: nothing that it was told is written down is lost."""

from __future__ import annotations

from pathlib import Path

import prepared
import pytest
from strength import thinned

from offload import AgentConfig, ContextManager, Offloader
from offload.maintenance.jobs import verify

# Goes on with the conversation for ever, and prints what it was told is written down.
AGENT = """
import sys
from offload import Offloader
from offload import AgentConfig, ContextManager

m = ContextManager(Offloader(sys.argv[1], session="s"), AgentConfig(window_tokens=1500))
m.resume()
for n in range(len(m.restore()), 10**6, 2):
    m.add({"role": "user", "content": f"question {n} " + "please " * 20})
    assert m.before_model_call().errors == []
    assert m.after_model_call({"role": "assistant", "content": f"answer {n + 1} " + "well " * 40}) == []
    print(n + 1, flush=True)
"""
# After so many turns of each of them: in the midst of one, before and after compactions.
TURNS = (1, 4, 9, 2)


@pytest.mark.parametrize("delay", thinned([0, 1, 2], 3))
def test_an_agent_that_is_killed_again_and_again_is_gone_on_with(tmp_path: Path, delay: int) -> None:
    last = -1
    for turns in TURNS:
        with prepared.start(AGENT, tmp_path) as agent:
            for _ in range(turns + delay):
                last = int(agent.stdout.readline())
            agent.kill()
            last = max([last, *map(int, agent.stdout.read().split())])

    m = ContextManager(Offloader(tmp_path, session="s"), AgentConfig(window_tokens=1500))
    m.resume()
    told = [int(message["content"].split()[1]) for message in m.restore()]
    assert told == list(range(len(told)))
    assert len(told) > last
    report = verify(Offloader(tmp_path, session="s").store)
    assert (report.damaged, report.damaged_entries) == ([], [])
