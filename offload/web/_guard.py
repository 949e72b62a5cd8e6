"""Access control: only a browser on this machine that opened the URL with the ticket gets in.

A request that a page of another site made a browser send is refused, or lacks the cookie.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offload.base.origins import refusal_of
from offload.web._render import SCRIPT, render

# Static files without store content; pages that refuse access use them.
OPEN_PATHS = frozenset(["/style.css", "/icon.svg"])
_SAFE_METHODS = frozenset(["GET", "HEAD"])
_REFUSED = {
    421: "Invalid Host header: use http://127.0.0.1 and this server's port.",
    403: "The request came from another site.",
}
# No script but the one with this digest is executed.
_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
_SECURITY = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'sha256-{_DIGEST}'; style-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer`, a browser would send forms with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI app that passes only authorized requests on to `app`, served on `port` of the loopback address.

    The secret `ticket` in the query of any URL is exchanged once for a cookie.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.ticket = secrets.token_urlsafe(24)
        self._app = app
        self._is_used = False
        self._secret = secrets.token_urlsafe(32)
        # Cookies are shared by all ports of a host.
        self._cookie = f"offload-{port}"
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it; every response has the security headers."""

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._check(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send_secured)

    def _check(self, request: Request) -> Response | None:
        is_read = request.method in _SAFE_METHODS
        refusal = refusal_of(request.headers, self._hosts.__contains__, is_link=is_read)
        if refusal is not None:
            return PlainTextResponse(f"{_REFUSED[refusal.status]}\n", refusal.status)
        if not is_read and "origin" not in request.headers:
            return PlainTextResponse(f"{_REFUSED[403]}\n", 403)
        if request.url.path in OPEN_PATHS:
            return None
        ticket, here = request.query_params.get("ticket"), request.url.remove_query_params("ticket")
        if _is_same(request.cookies.get(self._cookie), self._secret):
            return None if ticket is None else RedirectResponse(here, 303)
        if not _is_same(ticket, self.ticket) or self._is_used:
            query = [(name, text) for name, text in request.query_params.multi_items() if name != "ticket"]
            return render("locked.html", 401, query=query)
        self._is_used = True
        # No redirect: after a link from another site, a browser would follow it without the strict cookie.
        welcome = render("welcome.html", here=str(here))
        welcome.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict")
        return welcome


def _is_same(text: str | None, secret: str) -> bool:
    return text is not None and hmac.compare_digest(text.encode(), secret.encode())
