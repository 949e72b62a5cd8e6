"""Tokens over time as SVG paths, and tokens by tool, offloaded and read back, as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from offload.reading.timeline import SentRequest
from offload.replay import RequestCost

WIDTH, HEIGHT, COST_HEIGHT = 240, 100, 20
_ROWS = 12
_BARS = 8


def plot(points: Iterable[tuple[float, int]]) -> dict[str, Any] | None:
    """Return the cumulative sum of time and value pairs; None if all have one time or the sum is 0.

    It has SVG paths of the curve and its area in a box of `WIDTH` by `HEIGHT`, and rows of times and sums for
    screen readers.
    """
    ordered = sorted(points)
    total = sum(value for _, value in ordered)
    if not total or ordered[0][0] == ordered[-1][0]:
        return None
    start, end = ordered[0][0], ordered[-1][0]
    added = [0] * (WIDTH + 1)
    for at, value in ordered:
        added[int((at - start) / (end - start) * WIDTH)] += value
    sums = list(accumulate(added))
    steps = "".join(f"H{x}V{HEIGHT - HEIGHT * value / total:.1f}" for x, value in enumerate(sums))
    line = f"M0,{HEIGHT}{steps}H{WIDTH}"
    every = WIDTH // _ROWS
    rows = [(start + (end - start) * x / WIDTH, sums[x]) for x in range(every, WIDTH + 1, every)]
    area = f"{line}V{HEIGHT}Z"
    return {"line": line, "area": area, "start": start, "end": end, "total": total, "rows": rows}


def curves(requests: Sequence[SentRequest], costs: Sequence[RequestCost]) -> dict[str, Any] | None:
    """Return the curves of requests: tokens that were sent, tokens without offloading, and the cost beneath.

    Returns:
        SVG paths in a box of `WIDTH` by `HEIGHT`, the cost by `COST_HEIGHT`; the places of compactions
        and of requests that found the cache cold; the largest values; the sum of the cost, and for how many
        requests it is known; `links`, for each place the largest request there, which is the one shown.
        None for fewer than two requests.
    """
    whole = [request.tokens + request.tokens_offloaded for request in requests]
    most, last = max(whole, default=0), len(requests) - 1
    if last < 1 or not most:
        return None
    places = [round(WIDTH * index / last) for index in range(len(requests))]
    columns: dict[int, list[int]] = {}
    for index, x in enumerate(places):
        columns.setdefault(x, []).append(index)

    def path(values: Sequence[float], highest: float, height: int) -> Iterator[tuple[int, str]]:
        for x, indexes in columns.items():
            yield x, f"{height - height * max(values[index] for index in indexes) / highest:.1f}"

    dollars = [cost.dollars or 0.0 for cost in costs]
    dearest = max(dollars)
    sent = [request.tokens for request in requests]
    steps = path(dollars, dearest, COST_HEIGHT) if dearest else ()
    return {
        "sent": "M" + "L".join(f"{x},{y}" for x, y in path(sent, most, HEIGHT)),
        "whole": "M" + "L".join(f"{x},{y}" for x, y in path(whole, most, HEIGHT)),
        "cost": "".join(f"M{x},{COST_HEIGHT}V{y}" for x, y in steps),
        "marks": sorted({x for x, each in zip(places, requests, strict=True) if each.is_compacted}),
        "cold": sorted({x for x, cost in zip(places, costs, strict=True) if cost.cold}),
        "most": most,
        "dearest": dearest,
        "dollars": sum(dollars),
        "priced": sum(cost.dollars is not None for cost in costs),
        "count": len(requests),
        "links": [(x, requests[max(indexes, key=whole.__getitem__)]) for x, indexes in columns.items()],
        "width": max(1.0, WIDTH / last),
    }


def bars(values: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return the sums of named pairs of tokens, offloaded and read back, the largest first.

    Each has its lengths in percent of the largest. After the first eight, a bar without a name has the rest.
    """
    out, back = Counter[str](), Counter[str]()
    for name, tokens, read in values:
        out[name] += tokens
        back[name] += read
    names = sorted(out, key=lambda name: (-out[name], name))
    shown = [(name, out[name], back[name]) for name in names[:_BARS]]
    if rest := names[_BARS:]:
        shown.append(("", sum(map(out.__getitem__, rest)), sum(map(back.__getitem__, rest))))
    most = max((max(tokens, read) for _, tokens, read in shown), default=0) or 1
    return [
        {
            "name": name,
            "value": tokens,
            "read": read,
            "length": round(100 * tokens / most, 1),
            "read_length": round(100 * read / most, 1),
        }
        for name, tokens, read in shown
    ]
