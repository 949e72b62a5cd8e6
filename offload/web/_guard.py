"""Who may see the page: a browser on this machine that was given the address with the ticket.

A page of another site may make a browser send requests here, and may resolve its own name to this address.
Such a request names another host or another origin, or comes without the cookie.
"""

from __future__ import annotations

import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offload.web._render import render

# What holds nothing of a store; a refusal is shown with it.
OPEN_PATHS = frozenset(["/style.css", "/icon.svg"])
_SAFE_METHODS = frozenset(["GET", "HEAD"])
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser would send the origin of a form as null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI app that answers for `app` where a request is not to reach it.

    Args:
        app: what is guarded.
        port: the port of the loopback address that it is served at.

    Attributes:
        ticket: what opens the page once, as `/?ticket=…`; the browser gets a cookie for it.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.ticket = secrets.token_urlsafe(24)
        self._app = app
        self._is_used = False
        self._secret = secrets.token_urlsafe(32)
        # Cookies are shared by all ports of a host.
        self._cookie = f"offload-{port}"
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._origins = frozenset(f"http://{host}" for host in self._hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; every answer carries the headers that keep content from acting."""

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(Request(scope)) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send_secured)

    def _answer(self, request: Request) -> Response | None:
        """Return what is answered in place of the page; None lets the request through."""
        if request.headers.get("host") not in self._hosts:
            return PlainTextResponse("This server goes by 127.0.0.1 and its port.\n", 421)
        if not self._is_from_here(request):
            return PlainTextResponse("Another site sent this request.\n", 403)
        if request.url.path in OPEN_PATHS:
            return None
        ticket = request.query_params.get("ticket") if request.url.path == "/" else None
        if _is_same(request.cookies.get(self._cookie), self._secret):
            return None if ticket is None else RedirectResponse("/", 303)
        return self._refuse() if ticket is None else self._admit(ticket)

    def _is_from_here(self, request: Request) -> bool:
        origin = request.headers.get("origin")
        return request.method in _SAFE_METHODS if origin is None else origin in self._origins

    def _admit(self, ticket: str) -> Response:
        """Change the ticket into a cookie, once."""
        if not _is_same(ticket, self.ticket) or self._is_used:
            return self._refuse()
        self._is_used = True
        # No redirect: where another site led here, a browser would send it without a strict cookie.
        welcome = render("welcome.html")
        welcome.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict")
        return welcome

    def _refuse(self) -> Response:
        said = (
            "Open the address that offload serve printed, in the browser that is to show the page. "
            "It works once; start offload serve again for a new one."
        )
        return render("message.html", 401, title="Not open to this browser", said=said)


def _is_same(given: str | None, secret: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), secret.encode())
