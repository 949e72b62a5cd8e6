"""The ASGI app with the routes of all pages, and the server that runs it."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from offload import errors
from offload.base.origins import listening
from offload.storage.store import OffloadStore
from offload.web._forms import Forms
from offload.web._guard import OPEN_PATHS, Guard
from offload.web._record_pages import RecordPages
from offload.web._render import FOLDER, render
from offload.web._session_pages import SessionPages
from offload.web._site import Site
from offload.web._store_pages import StorePages

_LOOPBACK = "127.0.0.1"
# The ports of stores, below those that systems give to connections.
_FIRST_PORT, _PORTS = 20_000, 10_000
# HTTP status and title by error; the first match counts.
_FAILURES: tuple[tuple[type[errors.OffloadError], int, str], ...] = (
    (errors.ExpiredError, 410, "Deleted"),
    (errors.NotFoundError, 404, "Not found"),
    (errors.CorruptError, 500, "Damaged"),
    (errors.EncryptionError, 403, "Encrypted"),
    (errors.ConfigError, 400, "Invalid request"),
    (errors.StorePermissionError, 403, "Refused"),
    (errors.StoreError, 503, "Store unavailable"),
    (errors.OffloadError, 500, "Failed"),
)


def web_app(store: OffloadStore, port: int, *, allows_changes: bool = False) -> Guard:
    """Return the ASGI app that `serve` runs.

    Args:
        store: the store.
        port: the port of the loopback address; requests with another host or port are refused.
        allows_changes: whether visitors may pin and delete records; if False, nothing is written.
    """
    site = Site(store, allows_changes=allows_changes)
    routes = [*StorePages(site).routes(), *SessionPages(site).routes(), *RecordPages(site).routes()]
    if allows_changes:
        routes += Forms(site).routes()
    routes += [Route(path, _file) for path in sorted(OPEN_PATHS)]
    handlers = {errors.OffloadError: _failed, HTTPException: _failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port)


def serve(
    store: OffloadStore,
    *,
    port: int | None = None,
    allows_changes: bool = False,
    announce: Callable[[str], None],
) -> None:
    """Serve the pages of a store to this machine only, until the process is stopped.

    Takes the arguments of `web_app`. Port 0 is a free one; None is the same one for a store each time, or a
    free one if that is in use. `announce` is called with the URL to open, which works once. Raises
    `ConfigError` if the port is not available.
    """
    server = _listening(store.url, port)
    port = server.getsockname()[1]
    app = web_app(store, port, allows_changes=allows_changes)
    config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False)
    announce(f"http://{_LOOPBACK}:{port}/?ticket={app.ticket}")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[server])


def _listening(url: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a port, by default on that of the store at a URL if it is free."""
    if port is None:
        digest = hashlib.sha256(url.encode()).digest()
        with suppress(errors.ConfigError):
            return listening(_LOOPBACK, _FIRST_PORT + int.from_bytes(digest[:4]) % _PORTS)
    return listening(_LOOPBACK, port or 0)


def _file(request: Request) -> Response:
    return FileResponse(FOLDER / request.url.path.removeprefix("/"))


def _failed(_request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        title = "Not found" if error.status_code == 404 else "Refused"  # noqa: PLR2004  # a status of HTTP
        return render("message.html", error.status_code, title=title, text=error.detail)
    status, title = next((s, title) for kind, s, title in _FAILURES if isinstance(error, kind))
    return render("message.html", status, title=title, text=str(error))
