"""Predictions of the tokens that a provider counts, and the reasons why counts differ."""

from __future__ import annotations

import random
from typing import Any

import pytest

from offload.messages import Usage
from offload.replay import Transcript, check_counts
from offload.replay._counts import SizedRequest, predictions
from offload.replay._transcripts import Answer

LIFETIME = 300


def session(count: int = 12, *, seed: int = 1, shared: int = 900) -> list[SizedRequest]:
    """Return requests of a provider that counts 1.3 tokens for an estimated one and 40 for each request."""
    draw, size, requests = random.Random(seed), 2000.0, list[SizedRequest]()  # noqa: S311 # a draw
    cached = shared
    for number in range(count):
        tokens = round(5000 + 1.3 * size + 40 * number)
        requests.append(
            SizedRequest(size, 10.0 * number, LIFETIME, Usage(tokens, cached, tokens - cached - 3))
        )
        cached, size = tokens - 3, size + draw.randrange(100, 3000)
    return requests


def changed(requests: list[SizedRequest], at: int, **usage: Any) -> list[SizedRequest]:
    """Return the requests, one with another count."""
    used = requests[at].usage
    assert used is not None
    return [*requests[:at], requests[at]._replace(usage=used._replace(**usage)), *requests[at + 1 :]]


def causes(requests: list[SizedRequest]) -> dict[int, str | None]:
    return {n: found.cause for n, found in enumerate(predictions(requests)) if found and found.cause}


@pytest.mark.parametrize("seed", range(5))
def test_a_session_is_predicted_but_for_its_first_request(seed: int) -> None:
    requests = session(seed=seed)
    first, *others = predictions(requests)
    assert first is None
    for found, request in zip(others, requests[1:], strict=True):
        assert found is not None
        assert request.usage is not None
        assert found.cause is None
        assert found.usage.tokens == pytest.approx(request.usage.tokens, abs=2)
        assert found.usage.read == request.usage.read
        assert found.usage.written == pytest.approx(request.usage.written, abs=2)


@pytest.mark.parametrize("at", range(1, 12))
def test_no_count_takes_part_in_its_own_prediction(at: int) -> None:
    requests = session()
    used = requests[at].usage
    assert used is not None
    wrong = changed(requests, at, tokens=used.tokens + 7000)
    # The last one, since the count is also where the next prediction starts.
    before, after = (predictions(some[: at + 1])[at] for some in (requests, wrong))
    assert before is not None
    assert after is not None
    assert before.usage == after.usage
    assert after.cause == "content"


def test_a_count_differs_for_a_reason() -> None:
    requests = session()
    used = requests[6].usage
    assert used is not None
    lost = changed(requests, 6, read=0, written=used.tokens)
    assert causes(lost) == {6: "dropped"}
    in_part = changed(requests, 6, read=4000, written=used.tokens - 4003)
    assert causes([*in_part[:6], in_part[6]._replace(is_changed=True), *in_part[7:]]) == {6: "changed"}
    late = [request._replace(time=request.time + 1000 * (n >= 6)) for n, request in enumerate(requests)]
    assert causes(late) == {6: "kept"}
    expired = changed(late, 6, read=900, written=used.tokens - 903)
    assert causes(expired) == {}
    other = [request._replace(model="other" if n >= 6 else None) for n, request in enumerate(lost)]
    assert causes(other) == {}
    hour = changed(late, 0, kept_for=3600)
    assert causes(hour) == {}


def test_a_provider_that_reports_no_writes_has_all_of_the_last_request_and_one_without_a_cache_nothing():
    requests = session()
    sizes = [request.usage.tokens for request in requests if request.usage]
    reads = [0, *sizes[:-1]]
    cached = [r._replace(usage=Usage(n, read)) for r, n, read in zip(requests, sizes, reads, strict=True)]
    assert causes(cached) == {}
    assert causes([r._replace(usage=Usage(n, 0)) for r, n in zip(requests, sizes, strict=True)]) == {}


def test_a_recording_is_summed_and_what_the_cache_did_is_explained() -> None:
    said: list[dict[str, Any]] = []
    usage, cached = dict[int, Answer](), 0
    for number in range(10):
        said.append({"role": "user", "content": "some words of a question " * (5 + 7 * number % 11)})
        tokens = 3000 + 2 * sum(len(message["content"]) for message in said) // 5
        read = 0 if number == 7 else cached
        usage[len(said)] = Answer(10.0 * number, Usage(tokens, read, tokens - read))
        said.append({"role": "assistant", "content": "an answer"})
        cached = tokens
    check = check_counts(Transcript("t", "anthropic", None, said, usage), LIFETIME)
    assert check is not None
    assert (check.requests, check.causes) == (9, {"dropped": 1})
    assert check.predicted.tokens == pytest.approx(check.counted.tokens, rel=0.01)
    assert check.predicted.written < 0.6 * check.counted.written
    assert check.explained.written == pytest.approx(check.counted.written, rel=0.03)
    assert check_counts(Transcript("t", "anthropic", None, said), LIFETIME) is None
