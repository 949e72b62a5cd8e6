"""`offload wrap`: run a client of a model behind a gateway of its own, which ends with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from offload import ConfigError, OffloadError
from offload.cli.child import run_child, unlogged, warn
from offload.cli.options import (
    CommandStoreOption,
    FolderSessionOption,
    NoJournalOption,
    ShadowBudgetOption,
    ShadowOption,
    ShadowStopOption,
    shadow_lines,
    shadow_plan,
)
from offload.cli.stores import check_lasting, check_writable, store_at
from offload.cli.terminal import count
from offload.engine.settings.loader import load_config
from offload.integrations._sessions import folder_session

if TYPE_CHECKING:
    from offload import OffloadStore
    from offload.replay import Account

_ANTHROPIC, _OPENAI = "https://api.anthropic.com", "https://api.openai.com"
_GOOGLE = "https://generativelanguage.googleapis.com"
# Without a chosen login, Gemini CLI refuses another URL than Google's.
_GEMINI_DEFAULTS = "GEMINI_CLI_SYSTEM_DEFAULTS_PATH", PurePath(__file__).with_name("gemini_defaults.json")
# The defaults that an administrator set for all users of the machine.
_OF_SYSTEM = Path(
    {
        "darwin": "/Library/Application Support/GeminiCli/system-defaults.json",
        "win32": r"C:\ProgramData\gemini-cli\system-defaults.json",
    }.get(sys.platform, "/etc/gemini-cli/system-defaults.json")
)
# The end of a base URL of OpenAI's API, also at Google.
_VERSION = re.compile(r"/v[0-9]+[a-z]*(?:/openai)?$")
# Where the gateway listens.
_HOST = "127.0.0.1"
_MOST_WARNINGS = 3
_CONNECT_SECONDS = 2.0
# The variable of all processes of a client, with the URL of its gateway.
_MARK = "WRAPPED_BY_OFFLOAD"
# Where this system shows the variables of its processes, if it does.
_PROCESSES = Path("/proc")
# Processes that the client started may need a moment to end with it.
_MOMENT, _LOOKS = 0.05, 20
# Less is shown as $0.00.
_LEAST_DOLLARS = 0.005


class Start(NamedTuple):
    """The arguments in front of a client's own, and its variables."""

    arguments: Sequence[str] = ()
    environ: Mapping[str, str] = MappingProxyType({})


class Client(NamedTuple):
    """A client: how it starts with its provider and the URL of a gateway, and where its provider is.

    Attributes:
        variable: may name the provider, and `upstream` is that of a client without it; empty if it needs one.
        key: the variable of the key without which no request comes through the gateway.
        detours: the variables that send its requests elsewhere.
    """

    start: Callable[..., Start]
    variable: str = ""
    upstream: str = ""
    key: str = ""
    detours: Sequence[str] = ()


def _claude(_: str, url: str) -> Start:
    return Start(environ={"ANTHROPIC_BASE_URL": url})


def _codex(upstream: str, url: str) -> Start:
    host = urlsplit(upstream).hostname or ""
    # By this name Codex asks its provider for compactions, which others do not have.
    name = "OpenAI" if f".{host}".endswith(".openai.com") else host
    api = {"name": name, "base_url": url + _version(upstream), "env_key": "OPENAI_API_KEY"}
    provider = _toml({**api, "wire_api": "responses"})
    values = {"model_provider": '"offload"', "model_providers.offload": provider}
    return Start([word for name, value in values.items() for word in ("-c", f"{name}={value}")])


def _opencode(upstream: str, url: str) -> Start:
    own = "anthropic" if _is_anthropic(upstream) else _OF_OPENCODE.get(urlsplit(upstream).hostname or "")
    version = _version(upstream)
    urls = {"anthropic": f"{url}/v1", "google": f"{url}/v1beta", "openai": url + version}
    named = urls if own is None else {own: urls.get(own, url + version)}
    config = {"provider": {name: {"options": {"baseURL": base}} for name, base in named.items()}}
    return Start(environ={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _gemini(_: str, url: str) -> Start:
    name, path = _GEMINI_DEFAULTS
    defaults = {} if name in os.environ or _OF_SYSTEM.exists() else {name: str(path)}
    return Start(environ={"GOOGLE_GEMINI_BASE_URL": url, **defaults})


def _copilot(upstream: str, url: str) -> Start:
    given = os.environ.get("COPILOT_PROVIDER_TYPE", "openai")
    kind = "anthropic" if _is_anthropic(upstream) else given
    base = url + _version(upstream) if kind == "openai" else url
    return Start(environ={"COPILOT_PROVIDER_BASE_URL": base, "COPILOT_PROVIDER_TYPE": kind})


def _goose(_: str, url: str) -> Start:
    return Start(environ={"ANTHROPIC_HOST": url, "OPENAI_HOST": url})


def _other(upstream: str, url: str) -> Start:
    """Start a client whose API is not known: the gateway knows the API of a request by its path."""
    if _is_anthropic(upstream):
        return _claude(upstream, url)
    base = url + _version(upstream)
    names = {"ANTHROPIC_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": url, "OPENAI_API_BASE": base}
    return Start(environ={**names, "OPENAI_BASE_URL": base})


_CLIENTS = {
    "claude": Client(
        _claude,
        "ANTHROPIC_BASE_URL",
        _ANTHROPIC,
        detours=("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX"),
    ),
    "codex": Client(_codex, "OPENAI_BASE_URL", _OPENAI, "OPENAI_API_KEY"),
    "opencode": Client(_opencode, "ANTHROPIC_BASE_URL", _ANTHROPIC),
    "gemini": Client(
        _gemini,
        "GOOGLE_GEMINI_BASE_URL",
        _GOOGLE,
        "GEMINI_API_KEY",
        ("GOOGLE_GENAI_USE_GCA", "GOOGLE_GENAI_USE_VERTEXAI"),
    ),
    "copilot": Client(_copilot, "COPILOT_PROVIDER_BASE_URL"),
    "goose": Client(_goose),
}
# The providers of opencode at some hosts.
_OF_OPENCODE = {
    "api.openai.com": "openai",
    "openrouter.ai": "openrouter",
    "generativelanguage.googleapis.com": "google",
}


def wrap(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND")],
    *,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="URL of the provider [default: that of a known client].")
    ] = None,
    store: CommandStoreOption = None,
    session: FolderSessionOption = None,
    keeps_no_journal: NoJournalOption = False,
    shadow: ShadowOption = None,
    shadow_budget: ShadowBudgetOption = None,
    shadow_stop: ShadowStopOption = None,
) -> None:
    """Run COMMAND, a client of a model, behind a gateway that replaces old large tool results.

    The gateway adds the retrieval tools and answers their calls. Known clients are claude, codex,
    opencode and gemini. Any other one needs --upstream; it gets the base URLs of all APIs.
    The gateway ends with the client. Options after COMMAND belong to COMMAND.

    Example: offload wrap claude
    """
    from offload import Offloader  # noqa: PLC0415 # slow to load
    from offload.gateway import serving  # noqa: PLC0415 # an extra, and slow to load

    plan = shadow_plan(shadow, shadow_budget, shadow_stop)
    client = _client(command[0], upstream)
    program = shutil.which(command[0])
    if program is None:
        raise typer.Exit(run_child(command))  # which says why
    name = load_config(arguments={"session": session}).settings.session or folder_session()
    off = Offloader.from_config(store=store_at(store), session=name, journal=not keeps_no_journal)
    check_lasting(off.store)
    check_writable(off.store, name)
    began = time.time()
    with unlogged():
        with serving(client.upstream, off, shadow=plan) as (url, gateway):
            for line in _missing(client):
                warn(line)
            start = client.start(url)
            environ = {**os.environ, **_without_proxy(os.environ), **start.environ, _MARK: url}
            code = run_child([program, *start.arguments, *command[1:]], environ=environ)
        status = gateway.status()
        summary = _summary(status, _accounts(off.store, gateway.timelines, began))
        for line in [*_left(url), *shadow_lines(status), *summary]:
            warn(line)
    raise typer.Exit(code)


def _left(url: str) -> list[str]:
    """Return a line about the processes of a client that are still running; [] if there are none."""
    numbers = _processes(url)
    for _ in range(_LOOKS):
        if not numbers:
            return []
        time.sleep(_MOMENT)
        numbers = [number for number in _processes(url) if number in numbers]
    return [f"the client left processes that have no gateway now: {', '.join(map(str, numbers))}"]


def _processes(url: str) -> list[int]:
    """Return the numbers of the processes that a client with the gateway at a URL has started."""
    mark = f"{_MARK}={url}".encode()
    found = []
    for path in _PROCESSES.glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return sorted(found)


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a client sends nothing to the gateway through a proxy."""
    lower, upper = environ.get("no_proxy"), environ.get("NO_PROXY")
    hosts = {"no_proxy": lower or upper, "NO_PROXY": upper or lower}
    return {name: f"{known},{_HOST}" if known else _HOST for name, known in hosts.items() if known != "*"}


def _client(program: str, upstream: str | None) -> Client:
    """Return the client that a program is, with the provider for it. Raises `ConfigError` without one."""
    name = PurePath(program).name.removesuffix(".exe").removesuffix(".cmd")
    client = _CLIENTS.get(name, Client(_other))
    url = _upstream(client, upstream)
    if not url:
        known = ", ".join(known for known, one in _CLIENTS.items() if one.upstream)
        raise ConfigError(
            f"{name!r:.80} is not one of {known}: name the provider with --upstream, such as {_ANTHROPIC}"
        )
    return client._replace(upstream=url, start=partial(client.start, url))


def _upstream(client: Client, upstream: str | None) -> str:
    """Return the URL of the provider: the option, that of the client's variable, or its default."""
    return (upstream or os.environ.get(client.variable) or client.upstream).rstrip("/")


def _version(upstream: str) -> str:
    """Return the end of a base URL that is a part of the path of each request."""
    return match[0] if (match := _VERSION.search(upstream)) else "/v1"


def _is_anthropic(upstream: str) -> bool:
    """Return whether a provider has Anthropic's API alone, as some have at a path of its name."""
    parts = urlsplit(_VERSION.sub("", upstream))
    return "anthropic" in (parts.hostname or "") or parts.path.endswith("/anthropic")


def _missing(client: Client) -> Iterator[str]:
    """Yield why no request can come through the gateway."""
    for name in client.detours:
        if os.environ.get(name, "").lower() not in ("", "0", "false"):
            yield f"no request comes through the gateway while {name} is set"
    if client.key and not os.environ.get(client.key):
        yield f"no request comes through the gateway with a login: {client.key} is not set"
    parts = urlsplit(client.upstream)
    address = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection(address, _CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        yield f"no request comes through the gateway: {client.upstream} does not answer, {error}"


def _toml(value: Mapping[str, Any]) -> str:
    """Return an inline table of TOML; its strings and lists of strings are those of JSON."""
    return "{" + ", ".join(f"{name}={json.dumps(one)}" for name, one in value.items()) + "}"


def _accounts(store: OffloadStore, timelines: Iterable[str], since: float) -> list[Account]:
    """Return the accounts of the requests since a time, of each conversation; none if one cannot be read."""
    from offload.records.session.reader import SessionReader  # noqa: PLC0415 # slow to load
    from offload.replay import replay_journal  # noqa: PLC0415 # slow to load

    try:
        return [replay_journal(SessionReader(store, name), since=since) for name in timelines]
    except OffloadError:
        return []


def _summary(status: Mapping[str, Any], accounts: Sequence[Account]) -> list[str]:
    """Return what a gateway did, in a line, and its first warnings."""
    from offload.gateway._status import Unchanged  # noqa: PLC0415 # of an extra, and slow to load

    warnings = status["warnings"]
    more = [] if len(warnings) <= _MOST_WARNINGS else [f"and {len(warnings) - _MOST_WARNINGS} more warnings"]
    problems = [*warnings[:_MOST_WARNINGS], *more]
    if not status["requests"]:
        return [*problems, "no request came through the gateway: does the client use another URL?"]
    freed = sum(account.kept_out for account in accounts) or status["tokens_removed"]
    unusual = {why: number for why, number in status["passed"].items() if why != Unchanged.NOTHING_DUE}
    passed = "; ".join(f"{number:,} passed unchanged: {why}" for why, number in unusual.items())
    kept = passed or "nothing was large or old enough to offload"
    if freed:
        # The answers to calls may be more than what was kept out.
        kept = f"{freed:,} tokens kept out" if freed > 0 else f"{-freed:,} tokens added"
    # Other requests, as one that counts tokens, are in no log.
    requests = sum(account.requests for account in accounts) or status["requests"]
    parts = [count(requests, "request"), kept]
    if freed and accounts:
        parts += filter(None, (_saved(accounts), *_read_back(accounts)))
    shown = "offload log" if accounts else "offload ls"
    return [*problems, f"{', '.join(parts)}. See them: {shown}, offload serve"]


def _saved(accounts: Sequence[Account]) -> str:
    """Return what the requests cost less, as `offload savings` counts; "" if it is not known."""
    if not all(account.is_priced for account in accounts):
        return ""
    saved = sum(account.saved for account in accounts)
    plain = sum(account.dollars_plain for account in accounts)
    return f"about ${saved:,.2f} of ${plain:,.2f} input saved" if saved >= _LEAST_DOLLARS else ""


def _read_back(accounts: Sequence[Account]) -> Iterator[str]:
    """Yield what the saving cost: requests that read back, and quotes of edits that were out of view."""
    requests, gone, quotes = (
        sum(getattr(account, name) for account in accounts)
        for name in ("extra_requests", "quotes_gone", "quotes")
    )
    yield count(requests, "extra request")
    yield f"{gone:,} of {count(quotes, 'quote')} in edits gone"
