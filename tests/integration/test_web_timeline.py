"""The timeline of a session on the pages: its requests, their tokens, and each as it was sent."""

from __future__ import annotations

import re
from typing import Any

import pytest
from forks import exchange
from pages import Html, path_of, visitor

from offload import Offloader
from offload.agent import AgentConfig, ContextManager
from offload_backends.memory import MemoryStore

PATH = path_of("s") + "/timeline"
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def run(store: Any, turns: int, **options: Any) -> Offloader:
    off = Offloader(store, session="s", journal=True, **options)
    messages: list[Any] = [{"role": "user", "content": HOSTILE}]
    for n in range(turns):
        off.offload(messages)
        messages += exchange(n)
    return off


def test_the_session_leads_to_its_requests_and_each_of_them_to_its_messages(store: MemoryStore) -> None:
    run(store, 4, model=HOSTILE)
    browser = visitor(store)
    assert PATH in Html(browser.get(path_of("s")).text).links
    page = Html(browser.get(PATH).text)
    conversation = path_of("s") + "/conversation"
    assert [link for link in page.links if "at=" in link] == [f"{conversation}?at={n}" for n in (4, 3, 2, 1)]
    assert page.count("script") == 0

    shown = browser.get(f"{conversation}?at=2").text
    assert "3 messages, as they were sent" in Html(shown).text
    assert re.findall(r'<span class="badge">(\w+)</span>', shown) == ["added", "added"]
    assert {f"{conversation}?at=1", f"{conversation}?at=3"} <= set(Html(shown).links)
    assert "step 0" in shown
    assert "step 1" not in shown


def test_compactions_are_marked_in_the_curves(store: MemoryStore) -> None:
    context = ContextManager(Offloader(store, session="s"), AgentConfig(window_tokens=2000))
    for n in range(30):
        context.add({"role": "user", "content": f"question {n} " + "word " * 80})
        context.before_model_call()
        context.after_model_call({"role": "assistant", "content": "answer " * 40})
    text = visitor(store).get(PATH).text
    assert '<path class="sent"' in visitor(store).get(path_of("s")).text
    assert text.count('<path class="mark"') == context.compaction_count > 0
    assert len(re.findall(r'<path class="(?:sent|whole)" d="M0,[\d.]+L', text)) == 2


def test_a_session_without_requests_and_a_request_that_is_not_there_say_so(store: MemoryStore) -> None:
    Offloader(store, session="s").offload_text("a line\n" * 5000, tool_name="Bash")
    browser = visitor(store)
    assert "no requests in a journal" in Html(browser.get(PATH).text).text
    run(store, 2)
    for number in ("9", "0", "x"):
        answer = browser.get(f"{path_of('s')}/conversation?at={number}")
        assert answer.status_code == 404
        assert "has requests 1 to 2" in Html(answer.text).text
