"""`offload claude-code`: the plugin of Claude Code that offloads its tool results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from offload import ConfigError, OffloadError
from offload.cli.help import HelpfulCommand, group
from offload.cli.options import JsonOption
from offload.cli.stores import place_of
from offload.cli.tables import print_facts
from offload.cli.terminal import PROBLEMS, count, err, one_line, say
from offload.errors import MissingExtraError
from offload.integrations._sessions import folder_session, project_folder
from offload.integrations.claude_code import _plugin as plugin
from offload.integrations.claude_code._shapes import PLUGIN
from offload.registry import default_path
from offload.settings.loader import load_config

_PLUGIN_ID = f"{PLUGIN}@{plugin.MARKETPLACE}"
_NO_EXTRA = "the plugin's server needs the extra `claude-code`: pip install 'offload[claude-code]'"
_OTHER_WAY = 'or start it with the plugin: claude --plugin-dir "$(offload claude-code path)"'
_ABSENT = b"null"
# Seconds for a command of the program, and for the server to answer its first request.
_PROGRAM_SECONDS, _SERVER_SECONDS = 120, 60
_GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "offload", "version": "1"},
    },
}

app = group("Offload the tool results of Claude Code.", "Example: offload claude-code install")

ClaudeOption = Annotated[
    str | None, typer.Option("--claude", metavar="PATH", help="The program [default: `claude` on PATH].")
]
ReadersOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Offload file reads of at least N tokens [default: none]."),
]


@app.command(cls=HelpfulCommand)
def install(*, readers: ReadersOption = None, claude: ClaudeOption = None) -> None:
    """Install the plugin for this user, in every project. New sessions use it.

    Example: offload claude-code install
    """
    if find_spec("mcp") is None:
        raise MissingExtraError(_NO_EXTRA)
    program = _program(claude, f", {_OTHER_WAY}")
    _remember_settings()
    marketplace = plugin.write_marketplace(_home() / "marketplace", readers)
    _call(program, "install", PLUGIN, "--marketplace", str(marketplace))
    folder = marketplace / PLUGIN
    used = _used_folder(program)
    if used != folder:
        raise OffloadError(
            f"Claude Code uses the plugin at {used}; run `offload claude-code uninstall` first"
        )
    say(f"installed from {folder}; undo it with `offload claude-code uninstall`")


@app.command(cls=HelpfulCommand)
def path(*, readers: ReadersOption = None) -> None:
    """Create the plugin and print its folder.

    Pass the folder to `claude --plugin-dir`. Nothing is installed.

    Example: claude --plugin-dir "$(offload claude-code path)"
    """
    if find_spec("mcp") is None:
        err.print(f"offload: {_NO_EXTRA}", soft_wrap=True)
    typer.echo(plugin.write_plugin(_home() / "plugin", readers))


@app.command(cls=HelpfulCommand)
def uninstall(*, claude: ClaudeOption = None) -> None:
    """Remove the plugin and its marketplace from Claude Code. Stored items are kept.

    Example: offload claude-code uninstall
    """
    settings = _settings()
    if not _has_entry(settings) and not _home().exists():
        say("nothing to remove: the plugin is not installed")
        return
    if _has_entry(settings):
        program = _program(claude)
        if _PLUGIN_ID in settings.get("enabledPlugins", {}):
            _call(program, "uninstall", _PLUGIN_ID)
        _call(program, "marketplace", "remove", plugin.MARKETPLACE)
    _restore_settings()
    shutil.rmtree(_config() / "plugins" / "cache" / plugin.MARKETPLACE, ignore_errors=True)
    shutil.rmtree(_home(), ignore_errors=True)
    say("removed; stored items are kept")


@app.command(cls=HelpfulCommand)
def status(*, as_json: JsonOption = False) -> None:
    """Check the plugin; show store and session.

    These are the store and the session of a Claude Code that is started in this folder and environment.

    Example: offload claude-code status
    """
    folder = _installed_folder()
    command = plugin.server_command(folder or _home() / "plugin") or plugin.server_command_of(None)
    problem = _server_problem(command)
    facts = {
        "installed": _installed(folder),
        "file_reads": _readers(command),
        "server": problem or "starts",
        "server_command": " ".join(command),
        **_stored(),
    }
    print_facts(facts, as_json=as_json)
    if problem:
        raise typer.Exit(PROBLEMS)


def _home() -> Path:
    """Return the folder of the plugins that were written."""
    return default_path().parent / "claude-code"


def _config() -> Path:
    """Return the folder in which Claude Code has its settings."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def _settings_file() -> Path:
    return _config() / "settings.json"


def _settings() -> dict[str, Any]:
    with suppress(OSError, ValueError):
        settings = json.loads(_settings_file().read_bytes())
        if isinstance(settings, dict):
            return settings
    return {}


def _has_entry(settings: Mapping[str, Any]) -> bool:
    return any(
        name in settings.get(table, {})
        for table, name in (("enabledPlugins", _PLUGIN_ID), ("extraKnownMarketplaces", plugin.MARKETPLACE))
    )


def _remember_settings() -> None:
    """Keep the user's settings as they are before the installation."""
    if _has_entry(_settings()):
        return
    file = _settings_file()
    _home().mkdir(parents=True, exist_ok=True)
    (_home() / "settings-before").write_bytes(file.read_bytes() if file.exists() else _ABSENT)


def _restore_settings() -> None:
    """Write the settings as before the installation, unless the user has changed anything since."""
    file, before = _settings_file(), _home() / "settings-before"
    if not before.exists() or not file.exists():
        return
    kept = before.read_bytes()
    with suppress(ValueError):
        had = json.loads(kept) or {}
        empty: dict[str, Any] = {"enabledPlugins": {}, "extraKnownMarketplaces": {}}
        if {**empty, **had} != {**empty, **_settings()}:
            return
        if kept == _ABSENT:
            file.unlink()
        else:
            file.write_bytes(kept)


def _program(claude: str | None, other: str = "") -> str:
    """Return the path of Claude Code. Raises `ConfigError` if there is none."""
    found = shutil.which("claude" if claude is None else claude)
    if found is None:
        missing = "no `claude` on PATH" if claude is None else f"no program {claude!r}"
        raise ConfigError(f"{missing}: name Claude Code with --claude PATH{other}")
    return found


def _call(program: str, *arguments: str) -> str:
    """Return the output of `claude plugin ...`. Raises `OffloadError` if it fails."""
    try:
        done = _run([program, "plugin", *arguments], _PROGRAM_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OffloadError(f"cannot run {program}: {error}") from error
    if done.returncode:
        said = one_line(done.stderr or done.stdout)[-500:]
        raise OffloadError(f"`claude plugin {' '.join(arguments)}` failed: {said}")
    return done.stdout


def _run(
    command: Sequence[str], seconds: float, text: str = "", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Return what a program did with a text as its input."""
    return subprocess.run(  # noqa: S603 # the user's program, or the plugin's own command
        command,
        input=text,
        env=environ,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _used_folder(program: str) -> Path | None:
    """Return the folder from which Claude Code loads the plugin."""
    with suppress(ValueError, TypeError, AttributeError):
        for entry in json.loads(_call(program, "list", "--json")):
            if entry.get("id") == _PLUGIN_ID:
                return Path(entry.get("readFromFolder") or _installed_folder() or entry["installPath"])
    return None


def _installed_folder() -> Path | None:
    """Return the folder of the plugin that the user's settings name."""
    with suppress(KeyError, TypeError):
        marketplace = _settings()["extraKnownMarketplaces"][plugin.MARKETPLACE]
        return Path(marketplace["source"]["path"]) / PLUGIN
    return None


def _installed(folder: Path | None) -> str:
    enabled = _settings().get("enabledPlugins", {}).get(_PLUGIN_ID)
    if folder is None or enabled is None:
        return "no (`offload claude-code install`, or --plugin-dir with `offload claude-code path`)"
    return f"{'yes' if enabled else 'yes, but disabled in Claude Code'}, from {folder}"


def _readers(command: Sequence[str]) -> str:
    if "--readers" not in command:
        return "kept"
    return f"offloaded from {command[command.index('--readers') + 1]} tokens"


def _server_problem(command: Sequence[str]) -> str:
    """Return why the server does not answer, empty if it does."""
    file = project_folder() / ".mcp.json"
    if taken := plugin.names_taken_in(file):
        return f"{file} has a server {taken[0]!r}: Claude Code calls it in place of the plugin's; rename it"
    from offload.integrations.claude_code._environment import set_by_project  # noqa: PLC0415 # slow to load

    # Claude Code adds the variables of the project.
    environ = {**os.environ, **set_by_project()}
    try:
        done = _run(command, _SERVER_SECONDS, json.dumps(_GREETING) + "\n", environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {one_line(error)}"
    if '"result"' in done.stdout:
        return ""
    return f"does not start: {one_line(done.stderr)[-500:] or f'exit code {done.returncode}'}"


def _stored() -> dict[str, str]:
    """Return where results are stored, and how many of this folder are."""
    from offload.integrations.claude_code._hook import offloader_for  # noqa: PLC0415 # slow to load

    try:
        off = offloader_for(load_config().settings, folder_session())
        infos = sorted(off.records(), key=lambda info: info.created_at)
    except OffloadError as error:
        return {"store": f"cannot be read: {one_line(error)}"}
    last = (
        f", the last {infos[-1].ref} ({infos[-1].chars:,} characters of {infos[-1].tool_name})"
        if infos
        else ""
    )
    return {
        "store": place_of(off.store),
        "session": off.session,
        "records": f"{count(len(infos), 'record')}{last}",
    }
