"""Many sessions in one gateway, as the host says, and in two replicas over one bucket."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from gateways import HEADERS, REPLY, Provider, Upstream, ask, body_of, opened, providing, running, turns
from servers import Server, new_bucket

from offload import Offloader
from offload.gateway import _journals, _threads
from offload.reading.timeline import Timeline

Json = dict[str, Any]
TOKENS = "Bearer token of "
TOOLS = [{"name": "Bash"}]
_ID = re.compile(r'context_read\(id="([a-z]{10,20})"')


def session_of(request: Any) -> str | None:
    """Return the session of a token, as a host would that checks one."""
    token = request.headers.get("authorization", "")
    if token == TOKENS + "nobody":
        raise LookupError(token)
    return token.removeprefix(TOKENS) if token.startswith(TOKENS) else None


def headers_of(user: str) -> dict[str, str]:
    # All clients send the same key and the same id of a session: neither says who they are.
    return HEADERS | {"Authorization": TOKENS + user, "X-Claude-Code-Session-Id": "1"}


def messages_of(user: str, count: int) -> list[Json]:
    return turns(count, f"{user} has this line\n" * 600)


def read_back(provider: Provider) -> None:
    """Answer as a model that reads the items that the user names, and says what it read."""
    blocks = json.loads(provider.body)["messages"][-1]["content"]
    reply: Json = REPLY | {"content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"}
    results = [block for block in blocks if str(block.get("tool_use_id")).startswith("read_")]
    asked = blocks[0].get("text", "") if isinstance(blocks[0], dict) else ""
    if results:
        texts = [block["content"] for block in results]
        reply |= {"content": [{"type": "text", "text": json.dumps(texts)}]}
    elif asked.startswith("Read "):
        calls = [
            {"type": "tool_use", "id": f"read_{ref}", "name": "context_read", "input": {"id": ref}}
            for ref in asked.split()[1:]
        ]
        reply |= {"content": calls, "stop_reason": "tool_use"}
    provider.say(200, json.dumps(reply).encode())


class Users:
    """Clients of some gateways, whose requests go to each of these in turn."""

    def __init__(self, names: list[str], urls: list[str], upstream: Upstream) -> None:
        self.names, self.upstream = names, upstream
        self.url_of = dict(zip([(name, n) for n in range(9) for name in names], cycle(urls), strict=False))
        self.refs: dict[str, str] = {}
        self.answers: dict[str, str] = {}

    def run(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self.work, self.names))
            for user, requests in self.arrived().items():
                self.refs[user] = _ID.search(json.dumps(requests[-1]).replace("\\", ""))[1]  # type: ignore[index] # there is one
            list(pool.map(self.ask_back, self.names))

    def work(self, user: str) -> None:
        for count in range(4):
            self.send(user, count, messages_of(user, count))

    def ask_back(self, user: str) -> None:
        other = self.names[self.names.index(user) - 1]
        text = {"type": "text", "text": f"Read {self.refs[user]} {self.refs[other]}"}
        last: list[Json] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": [text]}]
        reply = self.send(user, 4, [*messages_of(user, 3), *last])
        self.answers[user] = reply["content"][0]["text"]

    def send(self, user: str, number: int, messages: list[Json]) -> Any:
        body = body_of(messages, tools=TOOLS)
        reply = ask(f"{self.url_of[user, number]}/v1/messages", body, headers=headers_of(user))
        assert reply.status == 200
        return reply.json

    def arrived(self) -> dict[str, list[list[Json]]]:
        """Return the messages of the requests of each user as the provider got them."""
        requests = defaultdict(list)
        for seen in self.upstream.seen:
            user = dict(seen.headers)["authorization"].removeprefix(TOKENS)
            requests[user].append(seen.json["messages"])
        return dict(requests)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for journals that are written slowly."""
    monkeypatch.setattr(_journals, "_MOST_WAITING", 100_000)
    monkeypatch.setattr(_journals, "_STOP_SECONDS", 600)


@pytest.fixture
def upstream():
    with providing() as provider:
        provider.answer = read_back
        yield provider


LARGE = [pytest.mark.slow, pytest.mark.timeout(1800)]


# The server in Python reads every key of its bucket at each listing.
@pytest.mark.parametrize(
    ("count", "server"), [(6, "s3_endpoint"), pytest.param(1000, "seaweedfs_server", marks=LARGE)]
)
def test_two_replicas_over_a_bucket_serve_many_sessions_as_one_process_would_serve_each(
    request: pytest.FixtureRequest, upstream: Upstream, count: int, server: str
) -> None:
    started = request.getfixturevalue(server)
    bucket = new_bucket(started.endpoint if isinstance(started, Server) else started)
    names = [f"user-{n}" for n in range(count)]

    def off(session: str = "nobody's", *, journal: bool = False) -> Offloader:
        return opened(bucket.url, session=session, storage_options=bucket.storage_options, journal=journal)

    with (
        running(upstream.url, off(journal=True), session_of=session_of) as one,
        running(upstream.url, off(journal=True), session_of=session_of) as two,
    ):
        users = Users(names, [one, two], upstream)
        users.run()
        assert ask(f"{one}/offload/status", method="GET").json["failures"] == 0
    with providing() as alone:
        alone.answer = read_back
        reference = Users(names, [""], alone)
        for name in names[:3]:
            with running(alone.url, opened("memory://", session=name)) as url:
                reference.url_of = dict.fromkeys(users.url_of, url)
                reference.work(name)
                reference.refs = users.refs
                reference.ask_back(name)

    arrived = users.arrived()
    assert {name: arrived[name] for name in names[:3]} == reference.arrived()
    for user in names:
        other = names[names.index(user) - 1]
        own, foreign = json.loads(users.answers[user])
        assert f"{user} has this line" in own
        assert foreign.startswith(f"Error: unknown id '{users.refs[other]}'")
        assert off(user).restore(arrived[user][3]) == messages_of(user, 3)
        assert len(off(user).records()) == 3
    assert off().records() == []


@pytest.mark.parametrize("token", ["", TOKENS + "nobody", TOKENS])
def test_a_request_that_the_host_gives_no_session_is_refused_and_goes_nowhere(
    tmp_path: Path, upstream: Upstream, token: str
) -> None:
    off = opened(tmp_path, session="s")
    with running(upstream.url, off, session_of=session_of) as url:
        for path in ("/v1/messages", "/v1/models"):
            reply = ask(url + path, body_of(turns(3)), headers=HEADERS | {"Authorization": token})
            assert reply.status == 403
            assert b"this request may use no session" in reply.body
        told = ask(f"{url}/offload/status", method="GET").json
    assert upstream.seen == []
    assert not {"session", "store", "warnings"} & told.keys()
    assert [*off.store.keys("r/")] == []


def test_a_session_that_leaves_memory_while_its_request_is_under_way_loses_nothing(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_threads, "_MOST_BYTES", 1)
    arrived, may_go = Event(), Event()

    def answer(provider: Provider) -> None:
        if provider.headers["authorization"] == TOKENS + "slow" and not may_go.is_set():
            arrived.set()
            may_go.wait(20)
        read_back(provider)

    upstream.answer = answer
    off = opened(tmp_path, session="nobody's", journal=True)
    with running(upstream.url, off, session_of=session_of) as url:
        users = Users(["slow", "a", "b"], [url], upstream)
        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(users.work, "slow")
            assert arrived.wait(20)
            users.work("a")
            users.work("b")
            may_go.set()
            begun.result()
        users.send("slow", 4, messages_of("slow", 4))
    for user in users.names:
        requests = users.arrived()[user]
        assert off.with_options(session=user).restore(requests[-1]) == messages_of(user, len(requests) - 1)
        sessions = {key.key.split("/")[1] for key in off.store.keys(f"j/{user}.")}
        [timeline] = [Timeline(off.store, name) for name in sessions]
        assert [timeline.at(n + 1) for n in range(len(requests))] == requests


def test_a_thread_that_the_provider_keeps_is_continued_in_its_own_session_alone(
    tmp_path: Path, upstream: Upstream
) -> None:
    reply = REPLY | {"id": "msg_1", "content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"}
    upstream.answer = lambda provider: provider.say(200, json.dumps(reply).encode())
    with running(upstream.url, opened(tmp_path, session="s"), session_of=session_of, tools="none") as url:
        begun = body_of(messages_of("a", 1), tools=TOOLS, thread={"type": "create"})
        ask(f"{url}/v1/messages", begun, headers=headers_of("a"))
        thread = {"type": "continue", "previous_message_id": "msg_1"}
        goes_on = json.dumps({"model": "m", "messages": messages_of("a", 2)[3:], "thread": thread}).encode()
        for user in ("b", "a"):
            ask(f"{url}/v1/messages", goes_on, headers=headers_of(user))
    foreign, own = upstream.seen[1:]
    assert foreign.body == goes_on
    assert "[Offloaded: " in json.dumps(own.json)


def test_a_gateway_is_called_by_the_names_that_it_is_given(tmp_path: Path, upstream: Upstream) -> None:
    off = opened(tmp_path, session="s")
    with running(upstream.url, off, names=["GW.example.com", "other.example:8443"]) as url:
        hosts = ["gw.example.com", "gw.example.com:8790", "other.example", "third.example"]
        replies = [
            ask(f"{url}/v1/messages", body_of(turns(0)), headers=HEADERS | {"Host": host}) for host in hosts
        ]
    assert [reply.status for reply in replies] == [200, 200, 200, 421]
