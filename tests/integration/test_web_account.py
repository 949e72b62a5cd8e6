"""What the pages say of read-backs and of saved cost, which a journal alone can tell."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kit.store import ActingStore, failing
from pages import Html, path_of, visitor
from retained import opened

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule, StoreUnavailableError
from offload.base.tokens import estimate_tokens
from offload.engine.policy.models import known_model
from offload.reading.tools._definitions import definitions, system_prompt
from offload.records.session.reader import SessionReader
from offload.replay import Account, replay_journal
from offload.storage.layout import JOURNAL
from offload.web import _account, _session_pages, _store_pages
from offload.web._account import Accounts
from offload.web._render import compact
from offload_backends.memory import MemoryStore

MODEL = "claude-opus-4-5"  # 5 dollars a million, a tenth if cached, a quarter more if written to the cache
LOG = "".join(f"line {n} of the log of a build\n" for n in range(3000))
FIXED = estimate_tokens(json.dumps(definitions(), ensure_ascii=False) + system_prompt())

# The line below the table that explains the sign of a cost that is not known yet.
LEGEND = 1


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the page of all sessions wait for their accounts, however busy the machine is."""
    monkeypatch.setattr(_store_pages, "_ACCOUNT_SECONDS", 60.0)


class Loop:
    """An agent loop, one answer of its model at a time."""

    def __init__(self, store: Any, session: str = "s", *, model: str = MODEL, **options: Any) -> None:
        self.off = Offloader(store, session=session, **options)
        self.context = ContextManager(self.off, AgentConfig(window_tokens=200_000, model=model))
        self.calls = 0
        self.sent: list[list[Any]] = []

    def say(self, text: str) -> None:
        self.context.add({"role": "user", "content": text})

    def answer(self, message: Any) -> None:
        self.sent.append(self.context.before_model_call().messages)
        self.context.after_model_call({"role": "assistant", "content": message})

    def use(self, tool: str, result: str | None = None, **arguments: Any) -> None:
        """Let the model call a tool, and add its result: by default, what the retrieval tool answers."""
        self.calls += 1
        name = f"t{self.calls}"
        self.answer([{"type": "tool_use", "id": name, "name": tool, "input": arguments}])
        text = self.off.tools.call(tool, arguments) if result is None else result
        self.context.add(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": text}]}
        )

    @property
    def account(self) -> Account:
        return replay_journal(SessionReader(self.off.store, self.off.session))


def count(messages: list[Any]) -> int:
    """Return the tokens of messages, counted apart from the formats of the library."""
    contents = [message["content"] for message in messages]
    blocks = [block for content in contents for block in ([content] if isinstance(content, str) else content)]
    texts = [
        block if isinstance(block, str) else block.get("text") or block.get("content") for block in blocks
    ]
    return sum(estimate_tokens(text) for text in texts if text)


def test_the_cost_is_that_of_the_requests_that_were_sent(store: MemoryStore) -> None:
    loop = Loop(store)
    loop.say("Why does the build fail? " * 40)
    loop.use("Bash", LOG)
    loop.answer([{"type": "text", "text": "The disk is full. " * 30}])
    loop.say("And now? " * 40)
    loop.answer([{"type": "text", "text": "It works."}])
    found = loop.account
    [record] = loop.off.records()

    first, second, third = map(count, loop.sent)
    units = FIXED * 1.25 + first * 1.25
    units += (FIXED + first) * 0.1 + (second - first) * 1.25
    units += (FIXED + second) * 0.1 + (third - second) * 1.25
    out = record.tokens - estimate_tokens(loop.sent[1][-1]["content"][0]["content"])
    plain = first * 1.25 + first * 0.1 + (second + out - first) * 1.25
    plain += (second + out) * 0.1 + (third - second) * 1.25
    assert (found.requests, found.priced_as, found.is_assumed) == (3, MODEL, False)
    assert found.dollars == pytest.approx(units * 5 / 1_000_000, rel=0.02)
    assert found.dollars_plain == pytest.approx(plain * 5 / 1_000_000, rel=0.02)
    assert found.kept_out == pytest.approx(2 * out, rel=0.02)


def test_a_request_that_ends_with_a_text_of_the_model_is_counted_as_in_the_log(store: MemoryStore) -> None:
    off = Offloader(store, session="s", journal=True, model=MODEL)
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because"}]
    off.offload(messages)
    off.offload([*messages, {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "So"}])

    found = replay_journal(SessionReader(store, "s"))
    assert (found.requests, len(off.timeline())) == (2, 2)
    assert found.dollars > 0


def test_a_result_that_is_seen_once_in_full_saves_less_by_its_price_and_that_of_the_change() -> None:
    saved = []
    for turns in (0, 1):
        policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=2000, after_replies=turns)})
        loop = Loop(MemoryStore(), policy=policy)
        loop.say("Why?")
        loop.use("Bash", LOG)
        for n in range(4):
            loop.answer([{"type": "text", "text": f"Step {n}."}])
            loop.say("Go on.")
        loop.answer([{"type": "text", "text": "Done."}])
        saved.append(loop.account)
        plain = saved[-1].dollars_plain
    [record] = loop.off.records()

    assert saved[0].dollars_plain == pytest.approx(plain, rel=0.01)
    assert saved[1].dollars - saved[0].dollars == pytest.approx(record.tokens * 1.25 * 5 / 1e6, rel=0.2)
    assert saved[0].saved > saved[1].saved > 0


def test_read_backs_are_counted_by_record_and_cost_what_they_add(store: MemoryStore) -> None:
    loop = Loop(store)
    loop.say("Why?")
    loop.use("Bash", LOG)
    loop.use("Bash", LOG.replace("build", "test"))
    loop.answer([{"type": "text", "text": "A moment."}])
    first, second = [info.ref for info in loop.off.records()]
    before = loop.account
    loop.say("Look again.")
    loop.use("context_read", id=first, limit=4000)
    loop.use("mcp__offload__context_grep", "[2 matches]", id=first, pattern="7")
    loop.use("context_diff", old=first, new=second)
    loop.use("context_read", id="zzzzzzzzzz")
    loop.use("context_list")
    loop.answer([{"type": "text", "text": "Found."}])
    found = loop.account

    assert before.times == {}
    assert found.times == {first: 3, second: 1}
    assert found.tokens[first] > 1000
    assert found.tokens[second] == 0
    # Without offloading there is one request after the question, not six.
    assert found.requests == before.requests + 6
    assert (before.extra_requests, found.extra_requests) == (0, 5)
    assert found.dollars_plain - before.dollars_plain < 0.2 * before.dollars_plain
    assert found.dollars > before.dollars


@pytest.mark.parametrize("others", [(), (("Bash", "found"),)], ids=["alone", "with another call"])
def test_an_answer_that_was_offloaded_is_one_read_back_and_no_part_of_the_plain_cost(others: Any) -> None:
    accounts = []
    for reads in (False, True):
        loop = Loop(MemoryStore(), policy=OffloadPolicy(history="editable", cost_plan="none"))
        loop.say("Why?")
        loop.use("Bash", LOG)
        loop.use("Bash", "short")
        page = loop.off.tools.read(loop.off.records()[0].ref, limit=8000)
        called = [*others, *([("context_read", page)] if reads else ())]
        if called:
            names = [(f"p{n}", *call) for n, call in enumerate(called)]
            given = {"id": loop.off.records()[0].ref}
            loop.answer([{"type": "tool_use", "id": i, "name": tool, "input": given} for i, tool, _ in names])
            results = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, _, text in names]
            loop.context.add({"role": "user", "content": results})
        for n in range(6):
            loop.use("Bash", f"result {n}")
        loop.answer([{"type": "text", "text": "Done."}])
        accounts.append(loop.account)
    [ref] = accounts[1].times
    without, read = accounts

    assert len(loop.off.records()) == 2
    assert (read.times[ref], read.extra_requests) == (1, not others)
    assert read.tokens[ref] > 1000
    assert read.dollars_plain == pytest.approx(without.dollars_plain, rel=0.01)


def test_a_quote_in_an_edit_is_gone_if_its_text_was_offloaded_also_if_it_was_read_back(
    store: MemoryStore,
) -> None:
    loop = Loop(store)
    loop.say("Fix the build; the first rule is\nuse the new compiler")
    loop.use("Bash", LOG)
    loop.use("Edit", "done", path="rules", old_string="use the new compiler", new_string="use it")
    ref = loop.off.records()[0].ref
    loop.use("Edit", "no such text", path="log", old_string="line 1400 of the log of a build", new_string="")
    in_view = loop.account
    loop.use("Bash", "short")
    unknown = loop.account
    loop.use("context_grep", id=ref, pattern="line 1500 of")
    loop.use("Edit", "done", path="log", old_string="line 1500 of the log of a build", new_string="")
    loop.use("Bash", "short")
    read = loop.account
    other = Loop(store)
    other.context.resume()

    counts = [(a.extra_requests, a.quotes, a.quotes_gone) for a in (in_view, unknown, read)]
    assert counts == [(0, 1, 0), (0, 1, 0), (1, 2, 1)]
    assert (other.account.quotes, other.account.quotes_gone) == (2, 1)


def test_a_conversation_that_starts_anew_is_counted_alone(store: MemoryStore) -> None:
    loop = Loop(store)
    loop.say("Why?")
    loop.use("Bash", LOG)
    loop.use("Bash", "short")
    loop.use("context_read", id=loop.off.records()[0].ref)
    other = Loop(store)
    other.say("Another question?")
    other.answer([{"type": "text", "text": "An answer."}])

    assert (other.account.requests, other.account.times) == (1, {})


def test_a_journal_that_was_written_anew_after_a_failure_is_counted_once() -> None:
    store = ActingStore(MemoryStore())
    loop = Loop(store)
    loop.say("Why?")
    loop.use("Bash", LOG)
    loop.use("Bash", "short")
    loop.use("context_read", id=loop.off.records()[0].ref, limit=4000)
    loop.use("Edit", "done", old_string="Why?", new_string="How?")
    loop.answer([{"type": "text", "text": "A moment."}])
    before = loop.account
    store.act = failing(StoreUnavailableError("down"), "put", "get")
    loop.say("And?")
    loop.context.before_model_call()
    store.act = None
    loop.answer([{"type": "text", "text": "So."}])
    found = loop.account

    kinds = [m["kind"] for o in store.keys(JOURNAL.prefix()) if (m := JOURNAL.match(o.key))]
    assert kinds.count("whole") == 1
    assert (found.times, found.tokens) == (before.times, before.tokens)
    assert (found.quotes, before.quotes) == (1, 1)
    assert found.requests == before.requests + 1
    # Text that the last request had is not written again.
    assert found.dollars - before.dollars < 0.2 * before.dollars
    assert found.dollars_plain - before.dollars_plain < 0.2 * before.dollars_plain


def test_a_journal_without_a_model_is_priced_as_a_usual_one(store: MemoryStore) -> None:
    loop = Loop(store, model="")
    loop.say("Why? " * 400)
    loop.answer("So.")
    found = loop.account

    assert (found.priced_as, found.is_assumed, found.is_priced) == ("claude-sonnet-4-6", True, True)
    assert not found.is_counted


def test_a_journal_with_the_counts_of_the_provider_has_their_price(store: MemoryStore) -> None:
    """A provider that counts twice the tokens, with the system prompt and tools, and cached most of them."""
    loop = Loop(store)
    counted = []
    for n in range(6):
        loop.say(f"Question {n}. " * 200)
        request = loop.context.before_model_call()
        tokens = 10_000 + 2 * count(request.messages)
        counted.append({"input_tokens": 100, "cache_read_input_tokens": tokens - 100})
        reply = {"role": "assistant", "content": f"Answer {n}."}
        loop.context.after_model_call(reply, usage=counted[-1])
    found = loop.account

    units = sum(used["input_tokens"] + used["cache_read_input_tokens"] * 0.1 for used in counted)
    assert (found.priced_as, found.is_counted) == (MODEL, True)
    assert found.dollars == pytest.approx(units * 5 / 1e6, rel=0.1)  # the last count is not written yet


def test_the_price_of_an_unknown_model_is_not_that_of_another(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(store)
    loop.say("Why? " * 400)
    request = loop.context.before_model_call()
    loop.context.after_model_call({"role": "assistant", "content": "So."}, usage=request.tokens * 2)
    loop.answer("So too.")
    monkeypatch.setattr(
        "offload.replay._prices.known_model", lambda name: known_model(name) if name != MODEL else None
    )
    page = Html(visitor(store).get(path_of("s")).text).text

    assert not loop.account.is_priced
    assert "Their cost is not known, since the journal names no model of known price." in page
    assert "$" not in page


# The pages


def test_a_session_of_several_models_has_the_prices_of_each(store: MemoryStore) -> None:
    loop = Loop(store)
    for model in ("claude-haiku-4-5", MODEL):
        loop.say("Why?")
        request = loop.context.before_model_call()
        reply = {"role": "assistant", "content": "So."}
        loop.context.after_model_call(reply, usage=request.tokens, model=model)

    said = Html(visitor(store).get(path_of("s")).text).text

    assert "at the prices of claude-haiku-4-5 and of the other model of the session" in said


def test_a_session_shows_its_saved_cost_and_the_read_backs_of_each_record_and_tool(
    store: MemoryStore,
) -> None:
    loop = Loop(store)
    loop.say("Why?")
    loop.use("Bash", LOG)
    loop.use("Search", LOG.replace("build", "test"))
    [ref] = [info.ref for info in loop.off.records() if info.tool_name == "Bash"]
    loop.use("context_read", id=ref, limit=4000)
    loop.use("context_read", id=ref, offset=4000, limit=4000)
    loop.answer([{"type": "text", "text": "Found."}])
    page = visitor(store).get(path_of("s")).text

    found = loop.account
    said = Html(page).text
    assert f"${found.saved:.3f}" in said
    assert "5 requests with an input of about" in said
    assert f"estimated at the prices of {MODEL}, tools and read-backs included" in said
    rows = [Html(part).text for part in page.split("<tr>") if "/r/" in part]
    assert ["2\N{MULTIPLICATION SIGN}" in row for row in rows] == ["Bash" in row for row in rows]
    by_tool = dict(re.findall(r"(Bash|Search)\s*\S+ · (\S+)", said))
    assert by_tool == {"Bash": compact(found.tokens[ref]), "Search": "0"}
    assert f"${found.saved:.3f}" in Html(visitor(store).get("/").text).text


def test_without_a_journal_nothing_is_claimed(store: MemoryStore) -> None:
    opened(store, "plain").offload_text(LOG, tool_name="Bash")
    client = visitor(store)

    assert "no journal" in Html(client.get("/").text).text
    page = Html(client.get(path_of("plain")).text).text
    assert "No cost data: this session keeps no journal" in page
    assert "$" not in page


def test_a_journal_that_cannot_be_read_is_said_with_the_reason(store: MemoryStore) -> None:
    loop = Loop(store)
    loop.say("Why?")
    loop.use("Bash", LOG)
    key = next(found.key for found in store.keys(JOURNAL.prefix()))
    store.put(key, store.get(key)[:-4], overwrite=True)
    client = visitor(store)

    page = client.get(path_of("s"))
    assert page.status_code == 200
    assert "Read-backs and saved cost are not known." in Html(page.text).text
    assert key in Html(page.text).text
    assert "unknown" in Html(client.get("/").text).text


def test_the_journals_of_many_sessions_are_read_within_a_time_and_each_once(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in ("one", "two", "three"):
        loop = Loop(store, session)
        loop.say("Why?")
        loop.answer("So.")
    client = visitor(store)
    client.get("/")
    assert "…" not in Html(client.get("/").text).text

    monkeypatch.setattr(_store_pages, "_ACCOUNT_SECONDS", -1.0)
    assert "…" not in Html(client.get("/").text).text
    assert Html(visitor(store).get("/").text).text.count("…") == 3 + LEGEND
    loop.say("And now?")
    loop.answer("So.")
    assert Html(client.get("/").text).text.count("…") == 1 + LEGEND


def test_an_account_that_a_failing_store_prevents_is_there_once_the_store_works(store: MemoryStore) -> None:
    loop = Loop(store)
    loop.say("Why?")
    loop.answer("So.")
    down = ActingStore(store, failing(StoreUnavailableError("down"), "put", "get"))
    accounts = Accounts(lambda part: SessionReader(down, part))

    assert accounts.of("s", "last") == "down"
    down.act = None
    assert isinstance(accounts.of("s", "last"), Account)


def test_a_long_journal_is_read_only_where_the_page_of_its_session_is_asked_to(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_account, _session_pages):
        monkeypatch.setattr(module, "MANY_ENTRIES", 3)
    loop = Loop(store)
    loop.say("Why?")
    for _ in range(2):
        loop.use("Bash", "short")
    client = visitor(store)

    assert Html(client.get("/").text).text.count("…") == 1 + LEGEND
    page = Html(client.get(path_of("s")).text)
    assert "$" not in page.text
    [link] = [link for link in page.links if "account" in link]
    assert "$" in Html(client.get(link).text).text
    assert "…" not in Html(client.get("/").text).text


def test_a_session_whose_long_name_is_in_no_record_is_listed_with_the_reason(store: MemoryStore) -> None:
    Loop(store, "n" * 200).answer("So.")
    client = visitor(store)

    [link] = {link for link in Html(client.get("/").text).links if re.fullmatch("/s/[^/]+", link)}
    page = client.get(link)
    assert page.status_code == 404
    assert "has a name that is too long for a key" in Html(page.text).text
