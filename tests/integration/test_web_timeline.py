"""The timeline of a session on the pages: its requests, their tokens, and each as it was sent."""

from __future__ import annotations

import re
from typing import Any

from forks import exchange
from kit.conversation import tool_turn
from kit.store import ActingStore
from pages import Html, path_of, visitor

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule
from offload.maintenance.retention import delete
from offload_backends.memory import MemoryStore

PATH = path_of("s") + "/timeline"
HOSTILE = '"><script>alert(1)</script>'


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
    in_plot, in_table = [1, 2, 3, 4], [4, 3, 2, 1]
    links = [link for link in page.links if "at=" in link]
    assert links == [f"{conversation}?at={n}" for n in in_plot + in_table]
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


def test_cost_stands_beneath_the_plot_and_requests_with_a_cold_cache_are_marked(store: MemoryStore) -> None:
    now = [0.0]
    off = Offloader(store, session="s", journal=True, model="claude-sonnet-4-6", clock=lambda: now[0])
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for n, (pause, read) in enumerate([(0, 0), (10, 1000), (10, 0), (9999, 0), (10, 1000)]):
        now[0] += pause
        off.offload(messages)
        off.report_usage(
            {"input_tokens": 10, "cache_read_input_tokens": read, "cache_creation_input_tokens": 1000}
        )
        messages += exchange(n)
    off.offload(messages)
    for path in (PATH, path_of("s")):
        text = visitor(store).get(path).text
        assert text.count('<path class="cold"') == 2
        assert len(re.findall(r"M[\d.]+,20V[\d.]+", text)) == 6
        assert "for 5 of 6 requests" in Html(text).text
    table = Html(visitor(store).get(PATH).text).text
    assert ("cache missed" in table, "cache expired" in table) == (True, True)
    assert re.search(r"\(0\) predicted 2\.\dk \(2\.0k\)", " ".join(table.split()))
    request = Html(visitor(store).get(f"{path_of('s')}/conversation?at=4").text).text
    assert "expired" in request
    assert "$0.004" in request


def test_a_strip_shows_what_fills_the_context_by_color_and_in_words(store: MemoryStore) -> None:
    off = Offloader(store, session="s", journal=True)
    messages: list[Any] = [
        {"role": "system", "content": "Be brief. " * 30},
        {"role": "user", "content": f"{HOSTILE} " * 20},
        *tool_turn("small", "a short result " * 20, "Read", {"path": HOSTILE}),
        *exchange(1),
    ]
    out = off.offload(messages)
    off.report_usage({"input_tokens": out.tokens_after + 500})
    off.offload([*messages, {"role": "assistant", "content": "Done."}])
    text = visitor(store).get(PATH).text
    strip = dict(re.findall(r'<rect class="((?:part|tool)-\d)" [^>]*><title>[^:]*: ([\d,]+) tokens', text))
    assert list(strip) == ["part-0", "part-1", "part-2", "tool-0", "part-4"]
    assert int(strip["part-0"]) > 500
    key = Html(text).text
    for label in ("system and tools", "user", "assistant", "results of Read", "placeholders"):
        assert label in key
    assert HOSTILE not in text


def test_forks_and_what_rewinds_left_are_a_tree_on_the_pages(store: MemoryStore) -> None:
    off = run(store, 5)
    fork = off.fork("b", at=3)
    fork.fork("c", at=2)
    off.rewind(2)
    [branch] = off.timeline().branches
    off.fork("d", at=4, branch=branch)
    for name in "sbcd":
        page = Html(visitor(store).get(f"{path_of(name)}").text)
        assert {path_of(other) for other in "sbcd" if other != name} <= set(page.links)
        for text in ("from request 3", "from request 2", "from request 4", "requests 3 to 5"):
            assert text in page.text
    [left] = {link for link in page.links if "branch=" in link}
    shown = Html(visitor(store).get(left).text)
    assert "A rewind left this request" in shown.text
    assert any(link.endswith(f"branch={branch}&at=4") for link in shown.links)

    home = visitor(store).get("/").text
    assert home.count('<span class="badge">fork</span>') == 3
    # Its row, and those of its parent and of its parent's.
    assert home.count(f'class="name" href="{path_of("c")}"') == 3
    delete(store, "c")
    assert path_of("c") not in Html(visitor(store).get(path_of("s")).text).links


def test_what_changed_is_coloured_by_its_kind_and_what_is_gone_is_counted(store: MemoryStore) -> None:
    off = Offloader(store, session="s", journal=True)
    messages: list[Any] = [{"role": "user", "content": f"question {n}"} for n in range(3)]
    off.offload(messages)
    off.offload([messages[0], {"role": "user", "content": "edited"}])
    text = visitor(store).get(f"{path_of('s')}/conversation?at=2").text
    assert re.findall(r'class="user(?: changed)? ?(\w*)"', text) == ["", "edited"]
    assert "1 message of the request before is gone" in Html(text).text


def test_the_pages_of_a_session_list_its_journal_once_when_it_did_not_change(store: MemoryStore) -> None:
    run(store, 6)
    counted = ActingStore(store)
    browser = visitor(counted)
    pages = [path_of("s"), PATH, f"{path_of('s')}/conversation?at=5"]
    for path in pages:
        browser.get(path)
    counted.asked.clear()
    for path in pages:
        browser.get(path)
    assert counted.asked.count(("keys", "j/s/")) == len(pages)


def test_the_values_of_a_reply_open_their_places_and_one_that_is_found_nowhere_stands_out(
    store: MemoryStore,
) -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=100, preview_chars=100)})
    off = Offloader(store, session="s", journal=True, policy=policy)
    log = "".join(f"{n} took {n * 7919} ms\n" for n in range(500))
    call = {"id": "c", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "user", "content": "Which is slower than 2,500 ms?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": log},
    ]
    off.offload(messages)
    reply = {"role": "assistant", "content": f"Above 2500: 3167600 and 4711. {HOSTILE}"}
    off.offload([*messages, reply, {"role": "user", "content": "Thanks."}])
    [ref] = [info.ref for info in off.records()]
    browser = visitor(store)

    path = path_of("s") + "/evidence"
    assert f"{path}?at=1" in Html(browser.get(path_of("s") + "/conversation?at=1").text).links
    page = browser.get(f"{path}?at=1").text
    assert {f"{path_of('s')}/r/{ref}?line=401", f"{path_of('s')}/conversation?at=1&page=1#M1"} <= {
        *Html(page).links
    }
    assert '<mark class="not_found">4711</mark>' in page
    assert "3 exact values, 1 found nowhere." in page
    assert "<script" not in page
    assert browser.get(f"{path}?at=2").status_code == 404
