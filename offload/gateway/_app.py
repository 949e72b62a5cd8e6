"""The ASGI app of a gateway, and the server that runs it."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from offload import __version__
from offload.base.origins import listening, refusal_of, url_host
from offload.base.threads.calls import in_thread
from offload.errors import ConfigError, StoreError, check_choice
from offload.gateway._clock import StoreClock
from offload.gateway._exchange import BrokenAnswerError, send_error, send_json
from offload.gateway._forward import Forwarder
from offload.gateway._headers import framing_fault
from offload.gateway._incoming import MAX_WAIT, api_of
from offload.gateway._notes import Notes
from offload.gateway._own_tools import OwnTools
from offload.gateway._provider import Provider
from offload.gateway._rewriter import Rewriter, ToolsMode
from offload.gateway._sent import SentStore
from offload.gateway._shadow_plan import ShadowPlan
from offload.gateway._status import Status, logger
from offload.gateway._threads import Threads
from offload.gateway._turns import Turns, Workers
from offload.offloader import Offloader
from offload.records.session.names import session_for

if TYPE_CHECKING:
    from offload.gateway._shadow import Shadow

LOOPBACK = "127.0.0.1"
STATUS_PATH = "/offload/status"
_LOCAL_NAMES = frozenset(["localhost", "host.docker.internal"])
_STOP_SECONDS = 5

# Returns the session whose records a request may use, None if it may use none.
SessionOf = Callable[[Request], str | None]


class Gateway:
    """An ASGI app that forwards requests to one provider, and replaces old large results in them.

    Its arguments are those of `gateway_app`.
    """

    def __init__(
        self,
        upstream: str,
        offloader: Offloader,
        *,
        tools: ToolsMode = "gateway",
        names: Collection[str] = (),
        session_of: SessionOf | None = None,
        max_wait: float = MAX_WAIT,
        shadow: ShadowPlan | None = None,
    ) -> None:
        self._upstream = check_upstream(upstream)
        self._offloader = offloader
        self._session_of = session_of
        self._names = _LOCAL_NAMES.union(map(_without_port, names))
        self._status = Status()
        check_choice("tools", tools, get_args(ToolsMode))
        clock, self._workers = StoreClock(offloader.store), Workers()
        self._sent = SentStore(offloader.store, self._status)
        threads = Threads(offloader, clock, self._status)
        turns = Turns(self._workers, clock, self._sent, self._status, max_wait)
        self._notes = Notes(self._workers, threads, self._sent, self._status)
        self._own = OwnTools(
            offloader,
            self._workers,
            self._status,
            self._sent,
            are_added=tools == "gateway",
            max_wait=max_wait,
        )
        rewriter = Rewriter(
            self._workers,
            threads,
            turns,
            self._status,
            needs_read_back=tools != "none",
        )
        self._provider = Provider(self._upstream)
        self._shadow = None if shadow is None else self._shadow_of(shadow)
        self._forwarder = Forwarder(
            self._provider, rewriter, self._notes, self._own, self._status, shadow=self._shadow
        )

    def _shadow_of(self, plan: ShadowPlan) -> Shadow:
        from offload.gateway._shadow import Shadow  # noqa: PLC0415 # replays are slow to load

        return Shadow(plan, self._provider, self._offloader, self._status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise ConfigError("a gateway serves HTTP only")
        self._status.count("requests")
        self._status.open_requests += 1
        try:
            await self._answer(scope, receive, send)
        except BrokenAnswerError:
            raise
        except Exception as error:
            self._status.failed(f"a request failed: {type(error).__name__}")
            raise
        finally:
            self._status.open_requests -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = refusal_of(headers, self._is_own_name)
        if refusal is not None:
            await send_error(send, refusal.status, f"offload gateway: {refusal.reason}")
        elif not scope["raw_path"].startswith(b"/"):
            await send_error(send, 400, "offload gateway: this is not a proxy; send the path alone")
        elif (fault := framing_fault(scope["headers"], scope["http_version"])) is not None:
            await send_error(send, 400, f"offload gateway: {fault}", [(b"connection", b"close")])
        elif headers.get("upgrade", "").lower() == "websocket":
            text = "offload gateway: WebSockets are not supported; use HTTP"
            await send_error(send, 426, text, [(b"upgrade", b"HTTP/1.1")])
        elif scope["path"] == STATUS_PATH:
            await send_json(send, 200, self.status())
        elif (session := await self._session_for(scope)) is None:
            await send_error(send, 403, "offload gateway: this request may use no session")
        else:
            await self._forwarder.forward(scope, receive, send, session)

    async def _session_for(self, scope: Scope) -> str | None:
        if self._session_of is None:
            return self._offloader.session
        return await session_for(self._session_of, Request(scope))

    def status(self) -> dict[str, Any]:
        """Return what this gateway did, for JSON; of several users, counters alone."""
        facts = self._status.facts()
        if self._shadow is not None:
            facts["shadow"] = self._shadow.facts()
        if self._session_of is not None:
            # A warning may name a session.
            del facts["warnings"]
            return {"version": __version__, **facts}
        return {
            "version": __version__,
            "upstream": self._upstream,
            "store": self._offloader.store.url,
            "session": self._offloader.session,
            **facts,
        }

    @property
    def timelines(self) -> list[str]:
        """The sessions with the timelines that this gateway wrote."""
        return sorted(self._notes.timelines)

    def _is_own_name(self, host: str) -> bool:
        """Return whether a Host header names this server; a web page can give its own name any address."""
        name = _without_port(host)
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name.strip("[]")))
        return name in self._names

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await in_thread(_warm_up)
        if self._shadow is not None:
            await self._shadow.begin(None if self._session_of is not None else self._offloader.session)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._notes.close()
        self._workers.close()
        await self._own.close()
        if self._shadow is not None:
            await self._shadow.close()
        await self._provider.close()
        await self._sent.close()
        await send({"type": "lifespan.shutdown.complete"})


def gateway_app(
    upstream: str,
    offloader: Offloader,
    *,
    tools: ToolsMode = "gateway",
    names: Collection[str] = (),
    session_of: SessionOf | None = None,
    max_wait: float = MAX_WAIT,
    shadow: ShadowPlan | None = None,
) -> ASGIApp:
    """Return the ASGI app that `serve` runs.

    Args:
        upstream: the URL of the provider, such as "https://api.anthropic.com"; the path of each request is
            added to it. Nothing else decides where a request goes: redirects are passed to the client, and
            no proxy of the environment is used.
        offloader: has the store, the session and the options for all conversations. With `journal=True`, each
            conversation keeps its requests in a journal of its own, that of the session `NAME.CONVERSATION`.
        tools: who answers the model's calls of the retrieval tools: "gateway", unless the client has these
            tools; "client", whose requests pass unchanged without them; or "none".
        names: further names by which clients call this server, as in the header `Host`: those of a domain or
            of a balancer. Names of this machine and IP addresses need not be given.
        session_of: returns the session for a request (`starlette.requests.Request`, whose body is not read),
            instead of that of `offloader`, or None to refuse it; the function authenticates the request. It
            runs in a thread, once for each request; its errors refuse it too. Requests of different sessions
            share no record, no answered call and no message in memory.
        max_wait: the most seconds that a request waits for the store if only that knows what was sent before,
            as after a restart. If the store is slower or not available, the client gets status 503 with
            `Retry-After`; if it fails otherwise, the request passes as the client has it.
        shadow: sends some changed requests again as the client had them, see `docs/shadow.md`; None sends
            none. With `session_of`, the budgets are those of this process.

    Raises:
        ConfigError: `upstream` is not the URL of a server, or another `tools`.
    """
    return Gateway(
        upstream,
        offloader,
        tools=tools,
        names=names,
        session_of=session_of,
        max_wait=max_wait,
        shadow=shadow,
    )


def serve(
    upstream: str,
    offloader: Offloader,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    tools: ToolsMode = "gateway",
    names: Collection[str] = (),
    session_of: SessionOf | None = None,
    max_wait: float = MAX_WAIT,
    shadow: ShadowPlan | None = None,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    """Serve a gateway until the process is stopped; return what it did, as its status page does.

    Args:
        upstream: as for `gateway_app`, like the next two.
        offloader: has the store, the session and the options.
        host: the address to listen on; one that other machines can reach lets them use this gateway.
        port: the port; 0 is a free one.
        tools: who answers the model's calls of the retrieval tools.
        names: as for `gateway_app`, like the next one.
        session_of: returns the session for a request.
        max_wait: as for `gateway_app`.
        shadow: as for `gateway_app`.
        announce: called with the URL of the gateway.

    Raises:
        ConfigError: `upstream` is not the URL of another server, or the address is not available.
    """
    app = Gateway(
        upstream,
        offloader,
        tools=tools,
        names=[*names, *_names(host)],
        session_of=session_of,
        max_wait=max_wait,
        shadow=shadow,
    )
    if session_of is None:
        _touch(offloader)
    opened, server, url = _server(app, upstream, host, port)
    announce(url)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[opened])
    return app.status()


@contextmanager
def serving(
    upstream: str, offloader: Offloader, *, tools: ToolsMode = "gateway", shadow: ShadowPlan | None = None
) -> Iterator[tuple[str, Gateway]]:
    """Serve a gateway on a free port of this machine in a thread; yield its URL and the gateway.

    At the end, open requests get a few seconds and the journals are written. Arguments and errors are those
    of `serve`.
    """
    app = Gateway(upstream, offloader, tools=tools, shadow=shadow)
    _touch(offloader)
    opened, server, url = _server(app, upstream, LOOPBACK, 0)
    thread = threading.Thread(target=server.run, args=[[opened]], name="offload-gateway-server")
    thread.start()
    try:
        yield url, app
    finally:
        server.should_exit = True
        thread.join()
        opened.close()


def _touch(offloader: Offloader) -> None:
    """Make the session exist, so that a server of read-back tools can be started on it."""
    try:
        offloader.touch()
    except StoreError as error:
        logger.warning("requests pass unchanged while the store fails: %s", error)


def _server(app: Gateway, upstream: str, host: str, port: int) -> tuple[socket.socket, uvicorn.Server, str]:
    """Return the socket that a gateway listens on, its server and its URL. Raises `ConfigError`."""
    if _is_itself(upstream, host, port):
        raise ConfigError(f"upstream {upstream} is this gateway; give the URL of the provider")
    opened = listening(host, port)
    # asyncio sets it only for sockets that it creates; without it a small part may wait for 40 ms.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        # Another parser, which may be installed too, lets targets and headers pass that this one refuses.
        http="h11",
        ws="none",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    return opened, uvicorn.Server(config), f"http://{url_host(host)}:{opened.getsockname()[1]}"


def _warm_up() -> None:
    """Load the modules that the first request would wait for."""
    Offloader("memory://").offload_text("a line of output\n" * 1000)


def _names(host: str) -> list[str]:
    """Return the names by which clients may reach a server on an address."""
    return [host] if host in (LOOPBACK, "::1", "localhost") else [host, socket.gethostname()]


def _without_port(host: str) -> str:
    """Return the name in a `Host` header, in lower case."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.lower()


def _is_itself(upstream: str, host: str, port: int) -> bool:
    """Return whether a gateway would send its requests to itself, without end."""
    parts = urlsplit(upstream)
    return parts.port == port and parts.hostname in (host.lower(), LOOPBACK, "::1", "localhost")


def check_upstream(url: str) -> str:
    """Return the URL of a provider. Raises `ConfigError` for anything else."""
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_server = False
    if not is_server:
        raise ConfigError(f"upstream must be a URL such as https://api.anthropic.com, got {url!r:.80}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "upstream must have no user, password, query or fragment; clients send their own keys"
        )
    if (api := api_of(parts.path.rstrip("/"))) is not None:
        raise ConfigError(f"upstream must not have {api.end}, the path of a request, which is added to it")
    return url.rstrip("/")
