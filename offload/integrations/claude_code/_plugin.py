"""The plugin of Claude Code as files: hooks, and the server of the tools that read.

The hooks call a tool of the plugin's own server, which has the store open; no process is started for a call.
"""

from __future__ import annotations

import json
import os
import re
import site
import sys
from pathlib import Path
from typing import Any

from offload import __version__
from offload.integrations.claude_code._shapes import EVENT, PLUGIN, READER, SERVER, TOOL_PREFIX
from offload.presets._files import replace_file

MARKETPLACE = "offload-local"
# Seconds that the program waits for a hook; the hook itself ends before.
TIMEOUT = 20

_ABOUT = "Moves large tool results out of the context to a store; tools read them back."
_TOOLS = ("Bash", "Agent", "Task", "WebFetch", "WebSearch")
# The fields of an event that the hook needs.
_FIELDS = ("hook_event_name", "tool_name", "tool_use_id", "tool_input", "tool_response", "transcript_path")


def write_plugin(folder: Path, readers: int | None = None) -> Path:
    """Write the plugin to a folder and return it; `readers` as in `offloader_for`."""
    for name, content in _plugin(readers).items():
        _write(folder / name, content)
    return folder


def write_marketplace(folder: Path, readers: int | None = None) -> Path:
    """Write a marketplace with the plugin to a folder and return it; `readers` as in `write_plugin`."""
    entry = {"name": PLUGIN, "source": f"./{PLUGIN}", "description": _ABOUT}
    about = {"name": MARKETPLACE, "owner": {"name": PLUGIN}, "plugins": [entry]}
    write_plugin(folder / PLUGIN, readers)
    _write(folder / ".claude-plugin" / "marketplace.json", about)
    return folder


def server_command(plugin: Path) -> list[str] | None:
    """Return the command of the server in a plugin's folder, None if there is no plugin."""
    try:
        server = json.loads((plugin / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"][SERVER]
        return [server["command"], *server["args"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def names_taken_in(file: Path) -> list[str]:
    """Return the servers of a project that Claude Code calls instead of the plugin's, by their names."""
    ours = f"plugin_{PLUGIN}_{SERVER}"
    try:
        servers = json.loads(file.read_bytes())["mcpServers"]
        return [name for name in servers if re.sub(r"[^A-Za-z0-9_-]", "_", name) == ours]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def server_command_of(readers: int | None) -> list[str]:
    """Return the command of the server, with this interpreter."""
    options = [] if readers is None else ["--readers", str(readers)]
    return [sys.executable, _isolation(), "-m", "offload", "mcp", "--hook", "claude-code", *options]


def _isolation() -> str:
    """Return the option of Python that keeps out modules of the project, and its variables."""
    needs_variables = bool(os.environ.get("PYTHONPATH")) or site.ENABLE_USER_SITE
    return "-P" if needs_variables else "-I"


def matcher(prefix: str, *, has_readers: bool) -> str:
    """Return the pattern of the tools whose results may be offloaded; those with `prefix` are never."""
    readers = [READER] if has_readers else []
    return f"^({'|'.join([*_TOOLS, *readers, rf'(?!{re.escape(prefix)})mcp__.*'])})$"


def _plugin(readers: int | None) -> dict[str, Any]:
    command, *args = server_command_of(readers)
    server = {"command": command, "args": args}
    about = {
        "name": PLUGIN,
        "version": __version__,
        "description": _ABOUT,
        "author": {"name": PLUGIN},
        "license": "Apache-2.0",
    }
    return {
        ".claude-plugin/plugin.json": about,
        "hooks/hooks.json": {"hooks": _hooks(has_readers=readers is not None)},
        ".mcp.json": {"mcpServers": {SERVER: server}},
    }


def _hooks(*, has_readers: bool) -> dict[str, Any]:
    own = re.escape(TOOL_PREFIX)
    call = {
        "type": "mcp_tool",
        "server": f"plugin:{PLUGIN}:{SERVER}",
        "tool": "hook",
        "input": {name: f"${{{name}}}" for name in _FIELDS},
        "timeout": TIMEOUT,
    }
    return {
        EVENT: [{"matcher": matcher(TOOL_PREFIX, has_readers=has_readers), "hooks": [call]}],
        "PreToolUse": [{"matcher": f"^{own}.*$", "hooks": [call]}],
        "PreCompact": [{"hooks": [call]}],
    }


def _write(path: Path, content: Any) -> None:
    """Write JSON to a file at once, so that a program that starts meanwhile reads all of it."""
    data = (json.dumps(content, indent=2) + "\n").encode()
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
