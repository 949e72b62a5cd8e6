"""Servers on this machine: the socket that they listen on, and the requests of other sites that they refuse.

A web page may make a browser send a simple request anywhere without asking, and have its own name resolve to
this machine. Then the browser names the page in `Origin`, its relation in `Sec-Fetch-Site`, or the name in
`Host`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

from offload.errors import ConfigError

_OWN_SITES = ("none", "same-origin")


class Refusal(NamedTuple):
    """The status of a refused request and why, for its sender."""

    status: int
    reason: str


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raises `ConfigError` if that is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error}") from error


def url_host(host: str) -> str:
    """Return a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


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
