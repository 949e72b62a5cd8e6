"""Input, cached and written tokens of recorded sessions: predicted against what their providers counted.

No count takes part in its own prediction, see `offload.replay.check_counts`. The first request of a session
is not predicted: its count has the system prompt and the tools, which recordings lack. `explained` is the
difference of written tokens without the requests that found another cache than predicted; what remains is
content: texts that take other tokens than the session's others, images, hidden prompts.
The folder of transcripts is named by OFFLOAD_TRANSCRIPTS, or is next to the repository as
`shared/transcripts`; without one there is nothing to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from _measure import Figure, run
from peers._conversations import folder

from offload.messages import Usage
from offload.replay import CountCheck, Prices, check_counts, find, load

_WORST, _MEDIAN = 0.03, 0.01
_KINDS: dict[str, Callable[[Usage], int]] = {
    "input": lambda usage: usage.tokens,
    "cached": lambda usage: usage.read or 0,
    "written": lambda usage: usage.written,
}


def figures(is_quick: bool) -> Iterator[Figure]:  # noqa: ARG001 # it takes seconds
    """Print the sessions, and yield the figures."""
    prices, checks = Prices(), dict[str, CountCheck]()
    for path in find([folder() / "trajectories"]):
        for transcript in filter(lambda each: each.usage, load(path)):
            check = check_counts(transcript, prices.of(transcript.model)[1].cache.ttl)
            if check is not None:
                checks[f"{path.parent.name}/{path.stem}"] = check
    if not checks:
        print(f"no transcripts with usage in {folder()}: set OFFLOAD_TRANSCRIPTS to a folder of them")
        return
    print("\n| session | requests | input | cached | written | explained | requests that differ |")
    print("|---" * 7 + "|")
    for name, check in checks.items():
        gaps = [_gap(check.predicted, check.counted, kind) for kind in _KINDS]
        shown = " | ".join(f"{gap:+.2%}" for gap in [*gaps, _gap(check.explained, check.counted, "written")])
        causes = ", ".join(f"{number} {cause}" for cause, number in sorted(check.causes.items()))
        print(f"| {name} | {check.requests} | {shown} | {causes} |")
    print()
    for kind in _KINDS:
        plain = [abs(_gap(check.predicted, check.counted, kind)) for check in checks.values()]
        explained = [abs(_gap(check.explained, check.counted, kind)) for check in checks.values()]
        yield Figure(
            f"{kind} tokens, predicted / counted: median difference, cache as predicted",
            median(explained),
            at_most=_MEDIAN,
            detail=f"at most {max(explained):.4f}, {sum(gap > _WORST for gap in explained)} above {_WORST}; "
            f"all requests: median {median(plain):.4f}, {sum(gap > _WORST for gap in plain)} above {_WORST}",
        )


def _gap(predicted: Usage, counted: Usage, kind: str) -> float:
    whole = _KINDS[kind](counted)
    return _KINDS[kind](predicted) / whole - 1 if whole else 0.0


if __name__ == "__main__":
    run(__doc__, figures)
