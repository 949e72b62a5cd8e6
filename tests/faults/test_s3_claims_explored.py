"""Every order of the steps and failures of several creates of one large object, on a server other than AWS.

The writers are the shipped code; the server is a model of what such servers do. A state is the server and
the answers that each writer has got, so each state is visited once, however many orders lead to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import pytest

from offload.errors import (
    ExistsError,
    NotFoundError,
    OffloadError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload_backends.s3._uploads import ClaimedUpload

T = TypeVar("T")

KEY = "k"
# What an answer may be, beside the value that was asked for.
DONE, LOST, UNAVAILABLE = "done", "lost", "unavailable"
TAKEN, ABSENT, UNKNOWN_UPLOAD, REFUSED = "taken", "absent", "unknown upload", "refused"
# What came of a create.
STORED, TOLD_TAKEN, FAILED, DIED = "stored", "told that it is taken", "failed", "died"


class EndedError(Exception):
    """The connection's error: the upload is unknown to the server."""


class Stopped(BaseException):  # no handler of the shipped code may catch it
    """A writer has come to a request that has no answer yet."""


ERRORS: dict[str, type[Exception]] = {
    UNAVAILABLE: StoreUnavailableError,
    TAKEN: ExistsError,
    ABSENT: NotFoundError,
    UNKNOWN_UPLOAD: StoreUnavailableError,
    REFUSED: StorePermissionError,
}


# The writers


class Request(NamedTuple):
    method: str
    key: str = ""
    # The content of a claim, or an upload.
    subject: str = ""


class Replayed:
    """The client of a writer: gives the answers so far, and stops the writer at the next request."""

    prefix = ""

    def __init__(self, writer: str, answers: tuple[str, ...], loop: asyncio.AbstractEventLoop) -> None:
        self._writer = writer
        self._answers = iter(answers)
        self._loop = loop
        self.asked: Request | None = None

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        return self._loop.run_until_complete(function(*args))

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        sent: Future[T] = Future()
        sent.set_result(self.run(function, *args))
        return sent

    def is_ended(self, error: BaseException) -> bool:
        return isinstance(error, EndedError)

    def retrying(self) -> Any:
        return SimpleNamespace(statistics={"attempt_number": 0})

    async def get(self, key: str, start: int, end: int) -> bytes:
        content: bytes = await self.call("get_object", key)
        return content[start:end]

    async def call(self, method: str, key: str, *, retrying: Any = None, **arguments: Any) -> Any:
        # Nobody else sees an upload before its claim.
        if method in {"create_multipart_upload", "upload_part"}:
            return {"UploadId": self._writer, "ETag": "etag"}
        statistics = (retrying or self.retrying()).statistics
        subject = arguments.get("Body", b"").decode() or arguments.get("UploadId", "")
        answer = LOST
        while answer == LOST:
            statistics["attempt_number"] += 1
            answer = self._answer(Request(method, key, subject))
        return answer.encode()

    async def pause(self, _: float) -> None:
        self._answer(Request("pause"))

    def _answer(self, request: Request) -> str:
        answer = None if self.asked else next(self._answers, None)
        if answer is None:
            self.asked = self.asked or request
            raise Stopped
        if answer in ERRORS:
            raise ERRORS[answer](answer) from (EndedError() if answer == UNKNOWN_UPLOAD else None)
        return answer


class Answers:
    """The answers that a writer has got; equal ones are one object."""

    def __init__(self, before: Answers | None = None, last: str = "") -> None:
        self._before = before
        self._last = last
        self.then = cache(partial(Answers, self))

    def __repr__(self) -> str:
        return str(self.all())

    def all(self) -> tuple[str, ...]:
        return (*self._before.all(), self._last) if self._before else ()


class Step(NamedTuple):
    """What a writer does after its answers: its next request, or what came of its create."""

    request: Request | None
    outcome: str = ""


class Writers:
    """The shipped code, run from its beginning for each list of answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patch: pytest.MonkeyPatch) -> None:
        self._loop = loop
        self._patch = patch
        self.step = cache(self._step)

    def _step(self, writer: str, answers: Answers) -> Step:
        told = answers.all()
        return Step(None, DIED) if told[-1:] == (DIED,) else self._run(writer, told)

    def _run(self, writer: str, answers: tuple[str, ...]) -> Step:
        client: Any = Replayed(writer, answers, self._loop)
        is_begun = False

        async def condition() -> dict[str, str]:
            nonlocal is_begun
            # A writer that comes late takes its first look late; an early look refuses nothing.
            is_late, is_begun = is_begun, True
            with suppress(NotFoundError):
                if is_late:
                    await client.call("head_object", KEY)
                    raise ExistsError
            return {"IfNoneMatch": "*"}

        self._patch.setattr(asyncio, "sleep", client.pause)
        try:
            ClaimedUpload(client, KEY, 1).store([writer.encode()], condition)
        except Stopped:
            return Step(client.asked)
        except ExistsError:
            return Step(None, TOLD_TAKEN)
        except OffloadError:
            return Step(None, FAILED)
        return Step(None, STORED)


# The server


class Completion(NamedTuple):
    """A completion that the server has accepted: it shows the object later, and answers the writer."""

    upload: str
    # Empty if the writer does not wait any more.
    writer: str
    is_ending: bool = False


class State(NamedTuple):
    answers: tuple[Answers, ...]
    faults_left: int
    uploads: frozenset[str]
    refused: frozenset[str] = frozenset()
    completions: frozenset[Completion] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()
    # Claims whose requests are still under way.
    late: frozenset[tuple[str, str]] = frozenset()
    shown: str = ""

    def told(self, writer: str, answer: str) -> State:
        """Return the state after an answer; writers are the numbers of their places."""
        answers = list(self.answers)
        if writer:
            answers[int(writer)] = answers[int(writer)].then(answer)
        return self._replace(answers=tuple(answers))


def on_the_server(state: State) -> Iterator[State]:
    """Yield the states after what the server may do by itself next."""
    for each in state.completions:
        yield from (_ended if each.is_ending else _went_on)(state, each)
    for claim in state.late:
        arrived = state._replace(late=state.late - {claim})
        yield arrived if claim[0] in dict(state.claims) else arrived._replace(claims=state.claims | {claim})


def _went_on(state: State, each: Completion) -> Iterator[State]:
    others = state.completions - {each}
    ending = state._replace(completions=others | {each._replace(is_ending=True)})
    # Some servers forget the upload first, some show the object first.
    yield ending._replace(uploads=state.uploads - {each.upload})
    yield ending._replace(shown=each.upload)
    if each.upload not in state.uploads:
        yield state._replace(completions=others).told(each.writer, UNKNOWN_UPLOAD)


def _ended(state: State, each: Completion) -> Iterator[State]:
    completions, uploads = state.completions - {each}, state.uploads - {each.upload}
    yield state._replace(completions=completions, uploads=uploads, shown=each.upload).told(each.writer, DONE)


def answered(state: State, writer: str, request: Request) -> Iterator[State]:
    """Yield the state after the server has answered as it should."""
    match request.method:
        case "pause":
            # An upload that was forgotten shows its object within this time.
            if not any(each.is_ending for each in state.completions):
                yield state.told(writer, DONE)
        case "head_object" | "get_object":
            found = state.shown if request.key == KEY else dict(state.claims).get(request.key)
            yield state.told(writer, found or ABSENT)
        case "list_parts":
            yield state.told(writer, DONE if request.subject in state.uploads else UNKNOWN_UPLOAD)
        case "complete_multipart_upload":
            yield _completed(state, writer, request)
        case _:
            yield _written(state, request).told(writer, _said(state, request))


def _said(state: State, request: Request) -> str:
    is_taken = request.method == "put_object" and request.key in dict(state.claims)
    is_unknown = request.method == "abort_multipart_upload" and request.subject not in state.uploads
    return TAKEN if is_taken else UNKNOWN_UPLOAD if is_unknown else DONE


def _written(state: State, request: Request) -> State:
    """Return the state after a request that changes something, other than a completion."""
    if request.method == "abort_multipart_upload":
        return state._replace(uploads=state.uploads - {request.subject})
    claims = dict(state.claims)
    if request.method == "delete_object":
        claims.pop(request.key, None)
    else:
        claims.setdefault(request.key, request.subject)
    return state._replace(claims=frozenset(claims.items()))


def _completed(state: State, writer: str, request: Request) -> State:
    if request.subject in state.refused:
        return state.told(writer, REFUSED)
    if request.subject not in state.uploads:
        return state.told(writer, UNKNOWN_UPLOAD)
    if state.shown:
        return state.told(writer, TAKEN)
    return _accepted(state, writer, request)


def _accepted(state: State, writer: str, request: Request) -> State:
    return state._replace(completions=state.completions | {Completion(request.subject, writer)})


# The failures


def failed(state: State, writer: str, request: Request) -> Iterator[State]:
    """Yield the states after each failure that may happen to a request."""
    yield state.told(writer, DIED)
    if request.method != "pause":
        yield state.told(writer, UNAVAILABLE)
        yield from (_failed_completion if "complete" in request.method else _failed)(state, writer, request)


def _failed(state: State, writer: str, request: Request) -> Iterator[State]:
    if request.method not in {"head_object", "get_object", "list_parts"}:
        written = _written(state, request)
        yield from (written.told(writer, answer) for answer in (UNAVAILABLE, LOST, DIED))
    if request.method == "put_object":
        yield state.told(writer, REFUSED)
        late = state._replace(late=state.late | {(request.key, request.subject)})
        yield from (late.told(writer, answer) for answer in (UNAVAILABLE, LOST, DIED))


def _failed_completion(state: State, writer: str, request: Request) -> Iterator[State]:
    # The writer hears nothing of a completion that goes on, or has ended.
    accepted = _completed(state, "", request)
    yield from (accepted.told(writer, answer) for answer in (UNAVAILABLE, LOST, DIED))
    # What a server refuses, it refuses to everybody.
    if not any(each.upload == request.subject for each in state.completions):
        yield state._replace(refused=state.refused | {request.subject}).told(writer, REFUSED)


# The exploration


def states_after(start: State, writers: Writers) -> Iterator[State]:
    """Yield each state that can come after `start`, once; fail if an object replaces another one."""
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        yield state
        for after in _next(state, writers):
            assert not state.shown or after.shown == state.shown, f"replaced: {state}"
            if after not in seen:
                seen.add(after)
                left.append(after)


def _next(state: State, writers: Writers) -> Iterator[State]:
    yield from on_the_server(state)
    waiting = {each.writer for each in state.completions}
    for place, answers in enumerate(state.answers):
        writer = str(place)
        request = writers.step(writer, answers).request
        if request and writer not in waiting:
            yield from answered(state, writer, request)
            if state.faults_left:
                yield from failed(state._replace(faults_left=state.faults_left - 1), writer, request)


def outcomes(state: State, writers: Writers) -> list[str]:
    return [writers.step(str(place), answers).outcome for place, answers in enumerate(state.answers)]


def is_over(state: State, writers: Writers) -> bool:
    return all(outcomes(state, writers)) and not state.completions and not state.late


def creates(count: int, faults: int) -> State:
    return State((Answers(),) * count, faults, frozenset(map(str, range(count))))


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writers]:
    loop = asyncio.new_event_loop()
    yield Writers(loop, monkeypatch)
    loop.close()


def check(state: State, writers: Writers) -> list[str]:
    """Return what came of the creates, after a look that it is true."""
    said = outcomes(state, writers)
    stored = [str(place) for place, outcome in enumerate(said) if outcome == STORED]
    assert stored in ([], [state.shown]), f"stored and not there: {state}"
    assert TOLD_TAKEN not in said or state.shown, f"told that it is taken, but nothing is there: {state}"
    return said


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_failures_one_create_stores_and_the_others_are_told(writers: Writers, count: int) -> None:
    ends = {
        (*sorted(outcomes(state, writers)), *state.claims, *state.uploads)
        for state in states_after(creates(count, faults=0), writers)
        if is_over(state, writers)
    }

    assert ends == {(STORED, *[TOLD_TAKEN] * (count - 1))}


@pytest.mark.parametrize(
    ("count", "faults"),
    [
        (2, 1),
        pytest.param(2, 2, marks=pytest.mark.slow),
        pytest.param(2, 3, marks=pytest.mark.slow),
        pytest.param(3, 1, marks=pytest.mark.slow),
    ],
)
def test_whatever_fails_the_object_stays_that_of_the_create_that_stored_it(
    writers: Writers, count: int, faults: int
) -> None:
    for state in states_after(creates(count, faults), writers):
        check(state, writers)


def test_whatever_failed_before_the_next_create_stores_its_object_or_finds_one(writers: Writers) -> None:
    ends = {
        state._replace(answers=(*state.answers, Answers()), uploads=state.uploads | {"2"}, faults_left=0)
        for state in states_after(creates(2, faults=1), writers)
        if all(outcomes(state, writers)) and not state.late
    }

    assert len(ends) > 100
    for end in ends:
        for state in states_after(end, writers):
            said = check(state, writers)
            if is_over(state, writers):
                assert said[-1] == (STORED if state.shown == "2" else TOLD_TAKEN)
