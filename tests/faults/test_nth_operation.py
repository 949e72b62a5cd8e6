"""Each operation of the store fails in turn, in every way: nothing is lost, nothing wrong is returned.

A scenario runs with its first operation failing, then with its second, until a run meets no failure.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import pytest
from kit.conversation import results
from pairs import every_pair
from strength import some

from offload import (
    CorruptError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Rule,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=60)}, min_saving=0)
SMALL = [f"needle {n} of item {i}\n" * 40 for i, n in enumerate(range(1, 9))]
# Does not fit the last 64 KiB of its record: it takes several requests to read.
LARGE = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(2200))

Objects = list[tuple[str, bytes]]
Check = Callable[[MemoryStore, FaultyStore], None]


class Way(NamedTuple):
    """The failure of an operation."""

    moment: Literal["before", "after", "torn"]
    is_lasting: bool
    error: type[OffloadError]

    def __str__(self) -> str:
        return f"{self.moment}-{'always' if self.is_lasting else 'once'}-{self.error.kind}"


ERRORS = (StoreUnavailableError, StorePermissionError)
WAYS = [
    *(Way("before", is_lasting, error) for is_lasting in (False, True) for error in ERRORS),
    *(Way("after", is_lasting, error) for is_lasting in (False, True) for error in ERRORS),
]
TORN = [Way("torn", is_lasting, StoreUnavailableError) for is_lasting in (False, True)]

CODECS = ("zstd", "json", "raw")
STORES = (FaultyStore, FaultyBulkStore)


def fail_each(
    check: Check, kind: type[FaultyStore], way: Way, objects: Objects, *, at_least: int = 1
) -> None:
    """Run `check` on a store that holds `objects` with operation 1, 2, 3, … failing, until none does."""
    for nth in some(itertools.count(1), 3):
        inner = holding(objects)
        store = kind(inner, nth=nth, moment=way.moment, is_lasting=way.is_lasting, error=way.error)
        try:
            check(inner, store)
        except BaseException as error:
            error.add_note(f"where operation {nth} fails")
            raise
        if store.failures == 0:
            assert nth > at_least, "the scenario asks less of the store than it is meant to"
            return


def holding(objects: Objects) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects:
        store.put(key, data)
    return store


def opened(store: MemoryStore | FaultyStore, codec: str) -> Offloader:
    return Offloader(store, session="s", policy=POLICY, codec=codec)


@cache
def written(codec: str, *texts: str) -> tuple[Objects, list[Any], str]:
    """Return what a faultless run leaves: its objects, the messages to send, the ref of the last item."""
    store = MemoryStore()
    out = opened(store, codec).offload(results(*list(texts)))
    assert len(out.records) == len(texts)
    return [(o.key, store.get(o.key)) for o in store.keys()], out.messages, out.records[-1].ref


@pytest.mark.parametrize(("codec", "kind", "way", "stored_before"), every_pair(CODECS, STORES, WAYS, [0, 4]))
def test_offload_keeps_what_it_could_not_store_and_stores_it_the_next_time(
    codec: str, kind: type[FaultyStore], way: Way, stored_before: int
) -> None:
    messages = results(*SMALL)
    _, sent, _ = written(codec, *SMALL)

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        off = opened(store, codec)

        out = off.offload(messages)

        kept = [new is old for new, old in zip(out.messages, messages, strict=True)]
        assert messages == results(*SMALL)
        assert opened(inner, codec).restore(out.messages) == messages
        # A listing that fails is said too, and costs no item its offload.
        assert {type(error) for error in out.errors} <= {way.error}
        assert out.errors or not any(kept)
        assert len(out.records) == kept.count(False)

        store.heal()
        again = off.offload(messages)
        assert (again.errors, again.messages) == ([], sent)
        assert off.restore(sent) == messages
        assert len(opened(inner, codec).records()) == len(SMALL)

    objects = written(codec, *SMALL[:stored_before])[0] if stored_before else []
    fail_each(check, kind, way, objects, at_least=len(SMALL))


@pytest.mark.parametrize(("codec", "kind", "way"), every_pair(CODECS, STORES, TORN))
def test_a_record_that_a_broken_medium_tore_never_gets_a_placeholder(
    codec: str, kind: type[FaultyStore], way: Way
) -> None:
    messages = results(*SMALL)

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        off = opened(store, codec)

        out = off.offload(messages)
        assert opened(inner, codec).restore(out.messages) == messages

        store.heal()
        again = off.offload(messages)
        assert opened(inner, codec).restore(again.messages) == messages
        assert all(isinstance(error, CorruptError) for error in again.errors)
        intact = len(SMALL) - len(again.errors)
        assert len(again.records) == intact >= len(SMALL) - max(1, store.failures)

    fail_each(check, kind, way, [], at_least=len(SMALL))


@pytest.mark.parametrize(("codec", "way", "is_stored"), every_pair(CODECS, WAYS + TORN, [False, True]))
def test_offload_text_returns_the_text_or_what_restores_it(codec: str, way: Way, is_stored: bool) -> None:
    [text] = SMALL[:1]
    objects, sent, _ = written(codec, text)
    placeholder = sent[0]["content"][0]["content"]

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        off = opened(store, codec)

        answer = off.offload_text(text, tool_use_id="call_0")
        assert answer in (text, placeholder)
        assert opened(inner, codec).restore(results(answer)) == results(text)

        store.heal()
        again = off.offload_text(text, tool_use_id="call_0")
        assert opened(inner, codec).restore(results(again)) == results(text)
        assert again == placeholder or way.moment == "torn"

    fail_each(check, FaultyStore, way, objects if is_stored else [])


@pytest.mark.parametrize(("codec", "kind", "way"), every_pair(CODECS, STORES, WAYS))
def test_with_on_error_raise_nothing_else_than_the_error_leaves_and_the_next_call_goes_on(
    codec: str, kind: type[FaultyStore], way: Way
) -> None:
    messages = results(*SMALL)
    _, sent, _ = written(codec, *SMALL)

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        del inner
        off = Offloader(store, session="s", policy=POLICY, codec=codec, on_error="raise")
        try:
            assert off.offload(messages).messages == sent
            assert store.failures == 0
        except way.error:
            assert store.failures > 0

        store.heal()
        assert off.offload(messages).messages == sent

    fail_each(check, kind, way, [], at_least=len(SMALL))


QUESTIONS: dict[str, Callable[[Offloader, str], Any]] = {
    "read": lambda off, ref: off.tools.read(ref),
    "read a part": lambda off, ref: off.tools.read(ref, offset=60_000, limit=500),
    "read lines": lambda off, ref: off.tools.read(ref, start_line=1, end_line=1),
    "tail": lambda off, ref: off.tools.tail(ref, lines=3),
    "grep": lambda off, ref: off.tools.grep(LARGE[70_000:70_020], ref),
    "grep all": lambda off, _: off.tools.grep("needle", max_matches=100),
    "list": lambda off, _: off.tools.list(),
    "records": lambda off, _: off.records(),
    "stats": lambda off, _: off.stats(),
}


@pytest.mark.parametrize(("codec", "kind", "way"), every_pair(CODECS, STORES, WAYS))
def test_restore_gives_everything_back_or_raises(codec: str, kind: type[FaultyStore], way: Way) -> None:
    texts = [*SMALL, LARGE]
    objects, sent, _ = written(codec, *texts)

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        del inner
        off = opened(store, codec)
        raised = error_of(partial(off.restore, sent), results(*texts))
        assert raised is None or (raised is way.error and store.failures > 0)

        store.heal()
        assert off.restore(sent) == results(*texts)

    fail_each(check, kind, way, objects, at_least=len(texts))


@pytest.mark.parametrize(("codec", "kind", "way", "question"), every_pair(CODECS, STORES, WAYS, [*QUESTIONS]))
def test_a_question_gets_the_right_answer_or_an_error(
    codec: str, kind: type[FaultyStore], way: Way, question: str
) -> None:
    objects, _, ref = written(codec, *SMALL, LARGE)

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        right = QUESTIONS[question](opened(inner, codec), ref)
        off = opened(store, codec)
        ask = partial(QUESTIONS[question], off, ref)
        raised = error_of(lambda: titled(ask(), right), right)
        assert raised is None or (raised is way.error and store.failures > 0)

        store.heal()
        # An answer that was given says in the next that it was.
        assert raised is None or ask() == right
        assert QUESTIONS[question](opened(store, codec), ref) == right

    fail_each(check, kind, way, objects)


@pytest.mark.parametrize(("codec", "way", "name"), every_pair(CODECS, WAYS, ["read", "tail", "grep", "list"]))
def test_a_call_of_the_model_never_raises(codec: str, way: Way, name: str) -> None:
    objects, _, ref = written(codec, *SMALL, LARGE)
    others = {"grep": {"pattern": "needle"}, "list": {}}
    arguments = others.get(name, {"id": ref})

    def check(inner: MemoryStore, store: FaultyStore) -> None:
        right = opened(inner, codec).tools.call(f"context_{name}", arguments)
        answer = opened(store, codec).tools.call(f"context_{name}", arguments)

        assert not right.startswith("Error: ")
        is_untitled = UNTITLED in answer and titled(answer, right) == right
        is_told = is_untitled or answer.startswith("Error: ")
        assert is_told if store.failures else answer == right

    fail_each(check, FaultyStore, way, objects)


UNTITLED = "; titles could not be read"


def titled(answer: Any, right: Any) -> Any:
    """Return an answer with the titles of the right one, if it says that it lacks them."""
    if not isinstance(answer, str) or UNTITLED not in answer:
        return answer
    lines = zip(answer.replace(UNTITLED, "").splitlines(), right.splitlines(), strict=True)
    return "\n".join(whole if whole.startswith(line) else line for line, whole in lines)


def error_of(ask: Callable[[], object], right: object) -> type[OffloadError] | None:
    """Return the class of the error that `ask` raises; an answer must be the right one."""
    try:
        answer = ask()
    except OffloadError as error:
        return type(error)
    assert answer == right
    return None
