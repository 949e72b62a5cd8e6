"""Predictions of the tokens that a provider counts for the requests of a session, and why counts differ.

A request is predicted from the count of the one before it, which has the system prompt and the tools: its
input is that count and its new texts. Their tokens are estimated, and corrected by how the *other* requests
of the session grew: no count takes part in its own prediction. The cache has all that the request before
read from it or wrote to it, unless the pause is longer than it lives; then only what the first request found
there. The rest is written. The first request is not predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from offload.agent._usage import HIGHEST, LOWEST
from offload.base.tokens import estimate_tokens
from offload.messages import Usage
from offload.messages.calls import Calls
from offload.replay._recording import scan_at
from offload.replay._transcripts import Transcript

# A prediction agrees with a count if they differ by at most this part of the input.
TOLERANCE = 0.03
# If the growth of the requests differs by less, in tokens, it does not show how the provider counts.
_LEAST_SPREAD = 100.0

Cause = Literal["content", "dropped", "kept", "changed"]


class SizedRequest(NamedTuple):
    """A request as it was sent, and its count.

    Attributes:
        tokens: the estimated tokens of its messages.
        time: when it was sent, in seconds.
        lifetime: how many seconds the provider's cache lives, None if unlimited.
        usage: what the provider counted, None if that is not known.
        is_changed: whether texts that were sent before may be replaced, or left out.
        model: the model; another one has a cache and a count of its own.
    """

    tokens: float
    time: float
    lifetime: float | None
    usage: Usage | None
    is_changed: bool = False
    model: str | None = None


class Prediction(NamedTuple):
    """The prediction of a request's count.

    Attributes:
        usage: the tokens.
        cause: why the count differs, None if it does not. "content": the new texts take other tokens than
            those of the other requests, or there is content that is not known, such as hidden prompts.
            "dropped": the provider lost the cache before its time. "kept": the cache lived longer.
            "changed": earlier texts may have been replaced.
    """

    usage: Usage
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class CountCheck:
    """The predictions of a session's requests and their counts, in total.

    Attributes:
        requests: how many requests were predicted.
        predicted: the sum of their predictions.
        counted: the sum of their counts.
        explained: the sum of their predictions, of requests that differ by what the cache did their counts.
        causes: how many requests differ, by the cause.
    """

    requests: int
    predicted: Usage
    counted: Usage
    explained: Usage
    causes: Mapping[Cause, int]


def check_counts(transcript: Transcript, lifetime: float | None) -> CountCheck | None:
    """Compare what should be counted for the requests of a recording with what was.

    Args:
        transcript: the recording.
        lifetime: how many seconds the cache lives if the usage does not say; None is unlimited.

    Returns:
        The comparison; None if the recording has the usage of less than two requests.

    Raises:
        MessageError: a message is malformed.
    """
    calls = Calls()
    scans = (scan_at(m, f"messages[{i}]", calls) for i, m in enumerate(transcript.messages))
    sizes = [*accumulate((scan.tokens(estimate_tokens) for scan in scans), initial=0)]
    requests = [
        SizedRequest(sizes[index], answer.time, lifetime, answer.usage)
        for index, answer in sorted(transcript.usage.items())
    ]
    found = [(p, r.usage) for p, r in zip(predictions(requests), requests, strict=True) if p and r.usage]
    if not found:
        return None
    return CountCheck(
        len(found),
        _total([prediction.usage for prediction, _ in found]),
        _total([usage for _, usage in found]),
        _total([p.usage if p.cause in (None, "content") else usage for p, usage in found]),
        Counter(prediction.cause for prediction, _ in found if prediction.cause),
    )


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(usage.tokens for usage in usages),
        sum(usage.read or 0 for usage in usages),
        sum(usage.written for usage in usages),
    )


class _Step(NamedTuple):
    """A counted request and the one before it."""

    before: SizedRequest
    now: SizedRequest
    was: Usage
    used: Usage

    @property
    def estimated(self) -> float:
        return self.now.tokens - self.before.tokens

    @property
    def counted(self) -> int:
        return self.used.tokens - self.was.tokens


def predictions(requests: Sequence[SizedRequest]) -> list[Prediction | None]:
    """Return the prediction of each request; None without its count and the last one of its model."""
    steps = [
        _Step(before, now, before.usage, now.usage)
        if before.usage and now.usage and before.model == now.model
        else None
        for before, now in pairwise(requests)
    ]
    known = [step for step in steps if step]
    growth = _Growth(known)
    reports = _Reports(any(step.used.read for step in known), any(step.used.written for step in known))
    shared = next((request.usage.read for request in requests if request.usage), None) or 0
    kept_for: int | None = None
    found: list[Prediction | None] = [None] * bool(requests)
    for step in steps:
        kept_for = (step.was.kept_for if step else None) or kept_for
        found.append(step and _predicted(step, growth.without(step), shared, kept_for, reports))
    return found


class _Reports(NamedTuple):
    """Whether a provider reports tokens that it read from its cache, and those that it wrote to it."""

    reads: bool
    writes: bool

    def cached(self, usage: Usage) -> int:
        """Return the tokens that the cache has after a request."""
        return (usage.read or 0) + usage.written if self.writes else usage.tokens * self.reads


def _predicted(
    step: _Step, growth: float, shared: int, kept_for: int | None, reports: _Reports
) -> Prediction:
    was = step.was
    tokens = max(1, round(was.tokens + growth))
    lifetime = kept_for or step.now.lifetime
    is_late = lifetime is not None and step.now.time - step.before.time > lifetime
    read = None if step.used.read is None else min(tokens, shared if is_late else reports.cached(was))
    uncached = was.tokens - (was.read or 0) - was.written
    written = max(0, tokens - (read or 0) - uncached) if reports.writes else 0
    return Prediction(Usage(tokens, read, written), _cause(step, tokens, read))


def _cause(step: _Step, tokens: int, read: int | None) -> Cause | None:
    least = TOLERANCE * step.used.tokens
    gap = 0 if read is None else read - (step.used.read or 0)
    if abs(gap) > least:
        if gap < 0:
            return "kept"
        # Before a changed text, the cache has something still.
        return "changed" if step.now.is_changed and step.used.read else "dropped"
    return "content" if abs(tokens - step.used.tokens) > least else None


class _Growth:
    """The growth of counts with the estimated tokens: a ratio, and tokens for each request."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._sums: list[float] = [sum(column) for column in zip(*map(_moments, steps), strict=True)] or [
            0.0
        ] * 5

    def without(self, step: _Step) -> float:
        """Return what the other steps let expect of a step."""
        count, x, y, xx, xy = (a - b for a, b in zip(self._sums, _moments(step), strict=True))
        if not count:
            return step.estimated
        mean, mean_y = x / count, y / count
        spread = xx / count - mean**2
        if spread < _LEAST_SPREAD**2:
            ratio = mean_y / mean if mean > 0 else 1.0
            return ratio * step.estimated
        slope = (xy / count - mean * mean_y) / spread
        return mean_y + min(HIGHEST, max(LOWEST, slope)) * (step.estimated - mean)


def _moments(step: _Step) -> tuple[float, float, float, float, float]:
    x, y = step.estimated, float(step.counted)
    return 1.0, x, y, x * x, x * y
