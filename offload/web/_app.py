"""The app: which address is answered by which page, and the server that runs it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from offload.errors import (
    ConfigError,
    CorruptError,
    ExpiredError,
    NotFoundError,
    OffloadError,
    StoreError,
)
from offload.store import OffloadStore
from offload.web._changes import Changes
from offload.web._guard import OPEN_PATHS, Guard
from offload.web._record_pages import RecordPages
from offload.web._render import FOLDER, render
from offload.web._session_pages import SessionPages
from offload.web._site import Site
from offload.web._store_pages import StorePages

_LOOPBACK = "127.0.0.1"
# The first that fits.
_FAILURES: tuple[tuple[type[OffloadError], int, str], ...] = (
    (ExpiredError, 410, "Collected"),
    (NotFoundError, 404, "Not here"),
    (CorruptError, 500, "Damaged"),
    (ConfigError, 400, "Not understood"),
    (StoreError, 503, "The store did not answer"),
    (OffloadError, 500, "It failed"),
)


def web_app(store: OffloadStore, port: int, *, allows_changes: bool = False) -> Guard:
    """Return the ASGI app that `serve` runs.

    Args:
        store: what is shown.
        port: the port of the loopback address that it is served at; requests that name another are refused.
        allows_changes: whether records can be pinned and deleted; without it nothing is written.
    """
    site = Site(store, allows_changes=allows_changes)
    pages, session, record = StorePages(site), SessionPages(site), RecordPages(site)
    at_session, at_record = "/s/{part}", "/s/{part}/r/{ref}"
    routes = [
        Route("/", pages.sessions),
        Route("/retention", pages.retention),
        Route(at_session, session.records),
        Route(f"{at_session}/collected", session.collected),
        Route(f"{at_session}/check", session.check),
        Route(at_record, record.content),
        Route(f"{at_record}/model", record.model),
        Route(f"{at_record}/outline", record.outline),
        Route(f"{at_record}/search", record.search),
        Route(f"{at_record}/download", record.download),
        *(Route(path, _file) for path in sorted(OPEN_PATHS)),
    ]
    if allows_changes:
        change = Changes(site).change
        routes += [Route(f"{at}/{{act}}", change, methods=["POST"]) for at in (at_session, at_record)]
    handlers = {OffloadError: _failed, HTTPException: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port)


def serve(
    store: OffloadStore, *, port: int = 0, allows_changes: bool = False, tell: Callable[[str], None]
) -> None:
    """Serve the pages of a store on this machine alone, until the process is stopped.

    Args:
        store: what is shown.
        port: the port to listen at; 0 takes a free one.
        allows_changes: whether records can be pinned and deleted; without it nothing is written.
        tell: is given the address to open, which works once.

    Raises:
        ConfigError: the port cannot be listened at.
    """
    try:
        listening = socket.create_server((_LOOPBACK, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {_LOOPBACK}, port {port}: {error}") from error
    port = listening.getsockname()[1]
    app = web_app(store, port, allows_changes=allows_changes)
    config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False)
    tell(f"http://{_LOOPBACK}:{port}/?ticket={app.ticket}")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _file(request: Request) -> Response:
    return FileResponse(FOLDER / request.url.path.removeprefix("/"))


def _failed(_request: Request, error: Exception) -> Response:
    status, title = next((s, title) for kind, s, title in _FAILURES if isinstance(error, kind))
    return render("message.html", status, title=title, said=str(error))


def _refused(_request: Request, error: Exception) -> Response:
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
    return render("message.html", status, title="Not here" if status == 404 else "Refused", said=detail)  # noqa: PLR2004
