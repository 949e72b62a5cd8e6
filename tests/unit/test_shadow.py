"""Replies with and without offloading: their next actions, their agreement, and its interval."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from command import Run
from gateways import opened, turns
from kit.conversation import from_model, tool_use
from kit.store import ActingStore

from offload import ConfigError, EncryptionError, Offloader
from offload.maintenance.jobs import verify
from offload.maintenance.retention import delete, undelete
from offload.maintenance.transfer import copy_session
from offload.replay import HiddenItem, Same, ShadowPair, ShadowReport, pairs_in, shadow
from offload.replay._actions import action_of, hidden_items
from offload.replay._agreement import agreement_of
from offload.replay._pairs import name_of_policy, put_pair
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

Json = dict[str, Any]


def called(name: str, **arguments: Any) -> Json:
    return from_model([tool_use("toolu_x", name, arguments)])


# The next action


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (called("Read", file_path="./src//a.py"), called("Read", file_path="src/a.py", timeout=9)),
        (called("Bash", command="grep  -n 'a' b.py"), called("Bash", command='grep -n "a" ./b.py\n')),
        (called("Bash", command="make", description="Build it"), called("Bash", command="make")),
        (called("shell", cmd=["bash", "-lc", "ls -l"]), called("shell", cmd="ls  -l")),
        (called("f", a=3.0, b="4", c=None), called("f", b=4, a=3)),
        (called("Edit", old_string="it\u2019s  \nb"), called("Edit", old_string="it's\nb")),
        ("There are 1,234 rows in ./a/b.csv.", "1234 rows: `a/b.csv`"),
        ("1. Run `make`\n2. Done", "You can run `make`."),
        ([called("Bash", command="a"), called("context_read", id="x")], called("Bash", command="a")),
        (
            from_model([tool_use("1", "A", {}), tool_use("2", "B", {})]),
            from_model([tool_use("3", "B", {}), tool_use("4", "A", {})]),
        ),
    ],
)
def test_replies_that_do_the_same_have_one_action(one: Any, other: Any) -> None:
    assert action_of(one) == action_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (called("Read", file_path="a.py"), called("Read", file_path="b.py")),
        (called("Read", file_path="a.py"), called("Write", file_path="a.py")),
        (called("Bash", command="ls; rm a"), called("Bash", command="ls 'rm a'")),
        (called("Bash", command="a\nb"), called("Bash", command="a b")),
        (called("f", on=True), called("f", on=False)),
        ("The answer is 42.", "The answer is 17."),
        ("Call `foo()`.", "Call `bar()`."),
        (called("Bash", command="make"), "Run make."),
    ],
)
def test_replies_that_do_another_thing_differ(one: Any, other: Any) -> None:
    assert action_of(one) != action_of(other)


@pytest.mark.parametrize("name", ["context_read", "mcp__offload__context_grep", "context_list"])
def test_a_reply_that_only_reads_back_has_no_action_yet(name: str) -> None:
    assert action_of(called(name, id="abcdefghij")) is None


def test_an_item_out_of_view_is_named_with_its_tool_its_call_and_its_age() -> None:
    off = opened(MemoryStore(), session="s")
    messages = turns(3)
    sent = off.offload([*messages, from_model("Done."), {"role": "user", "content": "Go on."}]).messages
    [first, *_] = hidden_items([*messages, *sent[len(messages) :]], sent)
    assert (first.tool, first.title, first.age) == ("Bash", "make 0", 3)
    assert first.chars > 20_000


# The interval


def drawn(noise: float, harm: float, rng: random.Random) -> Same:
    """Draw three replies of a model that has four other ideas, and does nothing useful if it is harmed."""
    ideas = [rng.randrange(1, 5) if rng.random() < noise else 0 for _ in range(3)]
    offload = -1 if rng.random() < harm else ideas[0]
    return Same(offload == ideas[1], offload == ideas[2], ideas[1] == ideas[2])


@pytest.mark.parametrize(("noise", "harm"), [(0.05, 0.0), (0.1, 0.05), (0.3, 0.0), (0.1, 0.3), (0.5, 0.2)])
@pytest.mark.parametrize("pairs", [30, 150])
def test_the_interval_holds_the_truth_in_95_of_100_runs(noise: float, harm: float, pairs: int) -> None:
    truth = harm * ((1 - noise) ** 2 + noise**2 / 4)
    rng = random.Random(f"{noise} {harm} {pairs}")  # noqa: S311 # a draw
    runs = (agreement_of(drawn(noise, harm, rng) for _ in range(pairs)) for _ in range(1000))
    held = sum(run.low <= truth <= run.high for run in runs)
    assert 930 <= held <= 970


def test_the_interval_is_that_of_wilson_where_no_pair_differs() -> None:
    found = agreement_of([Same(original=True, again=True, itself=True)] * 50)
    assert found.difference == 0
    assert found.high == pytest.approx(1.96**2 / (50 + 1.96**2), rel=1e-4)


def likeliest(alone: int, either: int, neither: int, mean: float) -> float:
    """Return the likeliest share of pairs that count -1/2, given the mean, by trying many."""

    def likelihood(half: float) -> float:
        shares = ((alone, mean + half / 2), (either, half), (neither, 1 - mean - 1.5 * half))
        return sum(count * log(max(share, 1e-12)) for count, share in shares)

    return max((step / 20_000 for step in range(20_000)), key=likelihood)


@pytest.mark.parametrize(("alone", "either", "neither"), [(3, 7, 90), (12, 5, 33), (1, 20, 29)])
def test_an_end_of_the_interval_is_just_not_refuted_by_the_score_test(
    alone: int, either: int, neither: int
) -> None:
    values = [(alone, Same(False, False, True)), (either, Same(True, False, False))]  # noqa: FBT003 # short
    pairs = [same for count, same in values for _ in range(count)]
    found = agreement_of([*pairs, *[Same(True, True, True)] * neither])  # noqa: FBT003 # short
    for end in (found.low, found.high):
        half = likeliest(alone, either, neither, end)
        variance = end + half * 3 / 4 - end**2
        assert (found.difference - end) ** 2 * found.pairs / variance == pytest.approx(1.96**2, rel=0.01)


def test_the_order_of_the_originals_has_no_influence() -> None:
    rng = random.Random(3)  # noqa: S311 # a draw
    pairs = [drawn(0.4, 0.1, rng) for _ in range(80)]
    assert agreement_of(pairs) == agreement_of(Same(s.again, s.original, s.itself) for s in pairs)


# A session


class Model:
    """A provider of known noise, and of known harm: it answers otherwise if a placeholder is in its way."""

    def __init__(self, noise: float = 0.0, harm: float = 0.0) -> None:
        self.rng = random.Random(7)  # noqa: S311 # a draw
        self.noise, self.harm = noise, harm
        self.sent: list[list[Any]] = []

    def __call__(self, messages: list[Any]) -> Json:
        self.sent.append(messages)
        is_harmed = "[Offloaded:" in str(messages) and self.rng.random() < self.harm
        other = self.rng.randrange(5) if self.rng.random() < self.noise else "next"
        return called("Bash", command="make again" if is_harmed else f"make {other}")


@pytest.fixture(scope="module")
def session() -> Offloader:
    off = opened(MemoryStore(), session="s", journal=True)
    for count in range(1, 41):
        off.offload(turns(count))
    return off


def test_harm_is_found_and_its_absence_is_not_called_harm(session: Offloader) -> None:
    harmed, same = shadow(session, Model(0.1, harm=0.4)), shadow(session, Model(0.1))
    assert harmed.agreement.low > 0.1
    assert "offloading changes the next action in " in harmed.verdict
    assert same.agreement.low < 0 < same.agreement.high
    assert same.verdict.startswith("no change shown")
    assert {name: [*some] for name, some in harmed.groups.items()} == {
        "policy": ["custom"],
        "tool": ["Bash"],
        "age": ["up to 1 reply"],
    }
    worst = harmed.disagreements[0]
    assert (worst.offload, worst.original) == (
        'Bash {"command": "make again"}',
        'Bash {"command": "make next"}',
    )
    assert worst.hidden[0].title == "make 0"


def test_a_few_pairs_tell_nothing_and_the_order_of_sending_is_drawn(session: Offloader) -> None:
    model = Model()
    report = shadow(session, model, most=19)
    assert report.verdict == "too few pairs to say: 19 of at least 20"
    places = [at % 3 for at, messages in enumerate(model.sent) if "[Offloaded:" in str(messages)]
    assert len(places) == 19
    assert {*places} == {0, 1, 2}


def test_a_read_back_counts_by_the_action_after_it(session: Offloader) -> None:
    def reader(messages: list[Any]) -> Json:
        refs = [item for item in session.records() if item.ref in str(messages)]
        if refs and "context_read" not in str(messages[-2]["content"]):
            return called("context_read", id=refs[-1].ref)
        return called("Bash", command="make next")

    report = shadow(session, reader, most=5)
    assert [pair.offload for pair in report.pairs] == ['Bash {"command": "make next"}'] * 5


def test_a_client_that_fails_costs_pairs(session: Offloader) -> None:
    answers: Iterator[Json] = iter([called("Bash", command="a")] * 4)
    report = shadow(session, lambda _: next(answers), most=3)
    assert (len(report.pairs), report.lost) == (1, {"StopIteration": 2})
    assert shadow(session, lambda _: called("context_list"), most=1).lost == {
        "the model reads back without end": 1
    }


@pytest.mark.parametrize("reply", [None, {}, [], {"choices": [{"message": called("Bash", command="a")}]}])
def test_what_is_no_reply_is_no_pair(session: Offloader, reply: Any) -> None:
    report = shadow(session, lambda _: reply, most=1)
    assert report.lost == {f"the client returned no reply, but {type(reply).__name__}": 1}


def test_a_session_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="session 's' has no requests"):
        shadow(Offloader(MemoryStore(), session="s"), Model())


@pytest.mark.parametrize("wrong", [{"share": 0}, {"share": 1.1}, {"share": "1"}, {"most": 0}])
def test_an_argument_out_of_its_range_is_named(session: Offloader, wrong: Json) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        shadow(session, Model(), **wrong)


def test_policies_have_their_names() -> None:
    assert name_of_policy(Offloader(MemoryStore(), session="s", model="claude-opus-5-5").policy) == "balanced"
    assert name_of_policy(Offloader(MemoryStore(), session="s", policy="archive").policy) == "archive"


# In the store

PAIR = ShadowPair(3.0, "m", "balanced", [HiddenItem("Bash", "make", 9000, 2)], dollars=0.25)


def test_a_pair_is_copied_deleted_and_brought_back_with_its_session() -> None:
    store, other = MemoryStore(), MemoryStore()
    off = Offloader(store, session="s")
    off.offload_text("a line\n" * 5000)
    pair = PAIR.compared("a", "b", "a")
    put_pair(store, "s", pair)
    copy_session(store, other, "s")
    assert [*pairs_in(store, "s")] == [*pairs_in(other)] == [pair]
    delete(store, "s")
    assert [*pairs_in(store)] == []
    undelete(store, "s")
    assert ShadowReport([*pairs_in(store)]).dollars == 0.25


def test_a_pair_that_is_deleted_while_all_are_read_is_left_out() -> None:
    store = MemoryStore()
    for _ in range(2):
        put_pair(store, "s", PAIR.compared("a", "b", "a"))
    last = [each.key for each in store.keys("c/")][-1]
    racing = ActingStore(store, lambda verb, _: store.delete(last) if verb == "get" else None)
    assert len([*pairs_in(racing)]) == 1


def test_a_pair_that_is_encrypted_is_not_said_to_be_damaged() -> None:
    store = MemoryStore()
    put_pair(EncryptingStore(store, b"k" * 32), "s", PAIR)
    with pytest.raises(EncryptionError, match="it is encrypted"):
        list(pairs_in(store))


def test_the_command_shows_each_disagreement_with_what_was_out_of_view(run: Run, tmp_path: Path) -> None:
    off = Offloader(str(tmp_path), session="s")
    off.offload_text("a line\n" * 5000)
    for _ in range(21):
        put_pair(off.store, "s", PAIR.compared("Bash rm\x1b", "Bash ls", "Bash ls"))
    put_pair(off.store, "s", replace(PAIR, lost="status 429"))
    shown, document = run("shadow", tmp_path), json.loads(run("shadow", "s", tmp_path, "--json").stdout)

    rows = [line.split() for line in shown.stdout.splitlines() if line.startswith("all")]
    assert rows[0][:5] == ["all", "21", "100.0%", "0.0%", "100.0%"]
    assert "with offload: Bash rm\u241b\n" in shown.stdout
    assert "out of view:  Bash (make), 9,000 characters, 2 replies ago" in shown.stdout
    assert "Disagreement 20 of 21" in shown.stdout
    assert "Disagreement 21" not in shown.stdout
    assert "21 pairs in" in shown.stdout
    assert "for $5.50; 1 lost: status 429" in shown.stdout
    assert len(document["disagreements"]) == 21
    assert document["agreement"]["low"] > 0.7
    assert document["disagreements"][0]["hidden"] == [PAIR.hidden[0]._asdict()]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--shadow 0.1", "--shadow-budget 5USD"),
        ("--shadow-stop 5%", "no effect without --shadow"),
        ("--shadow 0.1 --shadow-budget 5EUR", "must be like 5USD, got '5EUR'"),
        ("--shadow 0.1 --shadow-budget 0", "above 0 dollars"),
        ("--shadow 2 --shadow-budget 5", "above 0 and at most 1, got 2"),
        ("--shadow 0.1 --shadow-budget $5 --shadow-stop 5", "must be like 5%"),
    ],
)
@pytest.mark.parametrize("command", ["gateway --upstream http://127.0.0.1:1", "wrap claude"])
def test_a_wrong_limit_is_refused_before_anything_starts(
    run: Run, command: str, options: str, why: str
) -> None:
    name, *rest = command.split()
    done = run(name, *options.split(), *rest)
    assert (done.returncode, why in done.stderr) == (2, True)


def test_a_damaged_pair_is_counted_as_lost_and_costs_no_other() -> None:
    store = MemoryStore()
    for _ in range(2):
        put_pair(store, "s", PAIR.compared("a", "a", "a"))
    stored, _ = store.keys("c/")
    store.put(stored.key, store.get(stored.key).replace(b"9000", b"9001"), overwrite=True)
    report = ShadowReport([*pairs_in(store)])
    assert (len(report.pairs), report.lost) == (1, {"its object is damaged": 1})
    checked = verify(store)
    assert checked.gateway_objects == 2
    [(session, error)] = checked.damaged_entries
    assert (session, stored.key in str(error)) == ("s", True)
