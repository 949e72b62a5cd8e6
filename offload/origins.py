"""Requests that a web page made a browser send: servers on this machine refuse those of other sites.

A page may send a simple request anywhere without asking, and have its own name resolve to this machine. Then
the browser names the page in `Origin`, its relation in `Sec-Fetch-Site`, or the name in `Host`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

_OWN_SITES = ("none", "same-origin")


class Refusal(NamedTuple):
    """The status of a refused request and why, for its sender."""

    status: int
    reason: str


def refusal_of(
    headers: Mapping[str, str], is_own: Callable[[str], bool], *, is_link: bool = False
) -> Refusal | None:
    """Return the refusal of a request for another server or of a page of another site, None if it may pass.

    Args:
        headers: those of the request, with names in lower case or in any.
        is_own: returns whether a host, with its port if it has one, is a name of this server.
        is_link: whether a link on a page of another site may lead here.
    """
    host = headers.get("host", "").lower()
    if not is_own(host):
        return Refusal(421, "the Host header names another server")
    origin = headers.get("origin")
    is_foreign = origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")
    if is_foreign or not (is_link or headers.get("sec-fetch-site", "none") in _OWN_SITES):
        return Refusal(403, "a web page of another site sent the request")
    return None
