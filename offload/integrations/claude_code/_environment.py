"""The environment of the plugin, without the variables of a project.

Claude Code gives its servers and hooks the variables in `env` of a project's settings, over those of the
user: not HOME and some others, but proxies, certificates and variables of Python (seen in 2.1.330).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path

from offload.errors import ConfigError
from offload.integrations._sessions import project_folder

# In the folder `.claude` of a project.
_FILES = ("settings.json", "settings.local.json")
_HOMES = ("HOME", "USERPROFILE")
# Variables that begin with these choose a store or where its settings are; the user's own value is not known.
_CHOOSING = (
    *("OFFLOAD_", "FSSPEC_", "AZURE_STORAGE_", "STORAGE_EMULATOR_HOST"),
    *("AWS_ENDPOINT_URL", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_DATA_PATH"),
    *(*_HOMES, "XDG_", "APPDATA", "LOCALAPPDATA", "CLAUDE_PROJECT_DIR", "CLAUDE_CONFIG_DIR"),
)
_log = logging.getLogger("offload")


def leave_out_project(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove from the environment each variable that has the value of a project's settings.

    Raises:
        ConfigError: such a variable chooses the store or where its settings are; the message names it.
    """
    for file, variables in _settings():
        added = sorted(name for name, value in variables.items() if environ.get(name) == value)
        if chosen := [name for name in added if name.startswith(_CHOOSING)]:
            raise ConfigError(
                f"{file} sets {', '.join(chosen)}: a file of the project may not choose where data goes; set "
                "it in your own environment or in ~/.claude/settings.json"
            )
        for name in added:
            del environ[name]
        if added:
            _log.warning("%s sets %s: left out, since a project may set nothing here", file, ", ".join(added))


def set_by_project() -> dict[str, str]:
    """Return the variables in a project's settings of Claude Code."""
    return {name: value for _, variables in _settings() for name, value in variables.items()}


def _settings() -> list[tuple[Path, dict[str, str]]]:
    # The working folder is the project's too, and no variable names it.
    folders = {project_folder(): None, Path.cwd().resolve(): None}
    found = [each for folder in folders for each in _read(folder / ".claude")]
    if any(name in variables for _, variables in found for name in _HOMES):
        return found
    # In the home folder the file is the user's own.
    return [(file, variables) for file, variables in found if file.parent.parent != Path.home()]


def _read(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    for file in (folder / name for name in _FILES):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            variables = json.loads(file.read_bytes())["env"].items()
            yield file, {name: _text(value) for name, value in variables}


def _text(value: object) -> str:
    """Return the text that Claude Code makes of a value."""
    return value if isinstance(value, str) else json.dumps(value)
