"""Settings of the library: where they come from, which source wins, and the origin of each value.

Sources, from the lowest priority to the highest; a later one overrides an earlier one value by value:

1. files of the working folder: `offload.toml`, `.yaml`, `.yml` or `.json` in it, then the table
   `tool.offload` of the nearest `pyproject.toml`, in it or above. Such files come with a clone or an archive,
   so they may set how items are offloaded, but not where data goes, whose it is or what is deleted;
2. the user's file: `config.toml` in the user's configuration folder for `offload`;
3. the environment: `OFFLOAD_STORE`, `OFFLOAD_CODEC` and so on. A double underscore enters a table:
   `OFFLOAD_STORAGE_OPTIONS__ENDPOINT_URL`. `OFFLOAD_POLICY` may name a policy or a file;
4. keyword arguments.

A file that the host names, as an argument or in `OFFLOAD_CONFIG`, replaces 1 and 2 and may set everything.

A source that sets `store` also discards `storage_options` from lower-priority sources. A relative path in a
file is relative to the folder of that file.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, PlainValidator

from offload.base.schema import SettingsModel, expand_path, merge, parse_value, read_environment, read_file
from offload.base.text import escape_controls
from offload.base.threads.locks import NO_FORK
from offload.engine.policy import OffloadPolicy
from offload.engine.settings.options import OnError, Options, SessionArguments
from offload.errors import ConfigError, check_path
from offload.storage.registry import default_path, is_path, open_with_key
from offload.storage.store import OffloadStore, without_secrets

FILE_VARIABLE = "OFFLOAD_CONFIG"
_NAMES = ("offload.toml", "offload.yaml", "offload.yml", "offload.json")
_PYPROJECT = "pyproject.toml"
_TABLE = ("tool", "offload")
# Settings that a file of the working folder may change, except `policy.retention`, which deletes records.
_FOLDER_SETTINGS = frozenset(["policy", "codec", "tools", "max_answer_chars", "agent"])
_RETENTION = "policy.retention"
# Settings whose variable is a text, though it may look like a number.
_TEXT_SETTINGS = ("store", "session", "codec", "on_error")
# Settings whose variable may name a file.
_FILE_SETTINGS = ("policy", "agent")
_HIDDEN = "(hidden)"
# Storage options whose values are not secret.
_PUBLIC_OPTIONS = frozenset(["anon", "durability", "endpoint_url", "region", "region_name", "sse", "use_ssl"])

Json = dict[str, Any]

_log = logging.getLogger("offload")
_DEFAULTS = Options()


def _check_store(value: object) -> object:
    if value is None or isinstance(value, str | os.PathLike | OffloadStore):
        return value
    raise ValueError(f"must be a URL, a path or an OffloadStore, got {value!r:.60}")


class Settings(SettingsModel):
    """Arguments of `Offloader` that files and the environment can set; `agent` is for `AgentConfig`."""

    _is_named = False

    store: Annotated[str | os.PathLike[str] | OffloadStore | None, PlainValidator(_check_store)] = None
    session: str | None = None
    storage_options: Json = Field(default_factory=dict)
    policy: OffloadPolicy = Field(default_factory=OffloadPolicy)
    codec: str = _DEFAULTS.codec
    tools: list[str] = Field(default_factory=lambda: [*_DEFAULTS.tools])
    max_answer_chars: Annotated[int, Field(strict=True)] = _DEFAULTS.max_answer_chars
    on_error: OnError = _DEFAULTS.on_error
    agent: Json = Field(default_factory=dict)

    def open_store(self) -> OffloadStore:
        """Return the store of the settings, encrypted if the variable `OFFLOAD_KEY` is set.

        Raises `ConfigError` as `offload.open_with_key` does.
        """
        return open_with_key(self.store, storage_options=self.storage_options)

    def arguments(self) -> SessionArguments:
        """Return the settings that are keyword arguments of `Offloader`, for a store that is open."""
        names = type(self).model_fields.keys() - {"store", "storage_options", "agent"}
        return cast("SessionArguments", {name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Source:
    """A source of settings.

    Attributes:
        name: its name in messages: a path, "environment" or "arguments".
        data: the settings in it, as plain data.
        refused: settings in it that a file of the working folder may not change; they have no effect.
    """

    name: str
    data: Json
    refused: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettingValue:
    """One value of the settings, for display.

    Attributes:
        path: name of the setting; dots separate the keys of tables.
        value: the value, or "(hidden)" if it may be secret.
        origin: name of the source.
    """

    path: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """Settings and their sources, the one with the lowest priority first."""

    settings: Settings
    sources: tuple[Source, ...]

    def values(self) -> list[SettingValue]:
        """Return every value in effect and its origin, in the order of the fields, with secrets hidden."""
        values: dict[str, SettingValue] = {}
        for source in self.sources:
            for value in _values(source.name, source.data):
                values = {p: v for p, v in values.items() if not f"{p}.".startswith(f"{value.path}.")}
                values[value.path] = value
        order = list(Settings.model_fields)
        defaults = {**self.settings.model_dump(mode="json"), "policy": "balanced"}
        missing = set(order) - {path.partition(".")[0] for path in values}
        if "store" in missing:
            with suppress(ConfigError):
                defaults["store"] = str(default_path())
        values |= {name: SettingValue(name, defaults[name], "default") for name in missing}
        return sorted(values.values(), key=lambda value: order.index(value.path.partition(".")[0]))

    def refused(self) -> list[SettingValue]:
        """Return the values in files of the working folder that have no effect, with secrets hidden."""
        return [value for source in self.sources for value in _values(source.name, source.refused)]


def load_config(
    *,
    folder: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings in effect in a folder.

    Values that a file of the folder may not set have no effect; a warning is logged.

    Args:
        folder: the folder to look for files in; the default is the working folder.
        file: the one file to read, which may set everything; the default is the value of `OFFLOAD_CONFIG`.
        environ: the variables; the default is the process environment.
        arguments: values by field of `Settings`, with the highest priority; None values are ignored.

    Raises:
        ConfigError: a source cannot be read or has an invalid value; the message names the source.
    """
    for name, path in {"folder": folder, "file": file}.items():
        if path is not None:
            check_path(name, path)
    variables = os.environ if environ is None else environ
    named = variables.get(FILE_VARIABLE) if file is None else os.fspath(file)
    overrides = {name: value for name, value in (arguments or {}).items() if value is not None}
    files = (
        [_read(expand_path(named))] if named else _unnamed_files(Path() if folder is None else Path(folder))
    )
    sources = [*files, _environment(variables), Source("arguments", overrides)]
    used = _without_options_of_other_stores([s for s in sources if s.data or s.refused])
    merged: Json = {}
    for source in used:
        _validated(source.data, source.name)
        _warn_of_refused(source)
        merged = merge(merged, source.data)
    return Config(_validated(merged, " and ".join(source.name for source in used)), used)


def _without_options_of_other_stores(sources: list[Source]) -> tuple[Source, ...]:
    """Drop the storage options from each source before the last one that sets a store."""
    last = max((i for i, source in enumerate(sources) if "store" in source.data), default=0)
    earlier = (
        replace(source, data={name: v for name, v in source.data.items() if name != "storage_options"})
        for source in sources[:last]
    )
    return (*earlier, *sources[last:])


def _unnamed_files(folder: Path) -> list[Source]:
    """Read the files of the working folder, then the user's own."""
    here = _absolute(folder)
    local = [_read(path) for path in [here / name for name in _NAMES if _is_file(here / name)][:1]]
    users = [_read(path) for path in _users_files() if _is_file(path)]
    return [*(_restricted(source) for source in (*local, *_project(here))), *users]


def _absolute(folder: Path) -> Path:
    try:
        return folder.absolute()
    except FileNotFoundError as error:
        raise ConfigError("the working folder was deleted; change to an existing folder") from error


def _restricted(source: Source) -> Source:
    """Separate the settings that a file of the working folder may not change. Raises `ConfigError`."""
    _validated(source.data, source.name)
    data = {name: value for name, value in source.data.items() if name in _FOLDER_SETTINGS}
    refused = {name: value for name, value in source.data.items() if name not in data}
    policy = data.get("policy")
    if isinstance(policy, dict) and "retention" in policy:
        data["policy"] = {name: value for name, value in policy.items() if name != "retention"}
        refused["policy"] = {"retention": policy["retention"]}
    return Source(source.name, data, refused)


def _warn_of_refused(source: Source) -> None:
    if source.refused:
        names = (_RETENTION if name == "policy" else name for name in source.refused)
        _warn(
            f"{escape_controls(source.name)} sets {', '.join(names)}: ignored, since a file of the working "
            "folder may not choose where data goes or what is deleted. Use an argument, a variable or your "
            "own file, or name this file (--config, OFFLOAD_CONFIG, file=)"
        )


@lru_cache  # once per process: a command loads its settings several times
def _warn(message: str) -> None:
    _log.warning(message)


def _users_files() -> list[Path]:
    with NO_FORK:
        from platformdirs import user_config_path  # noqa: PLC0415 # only settings need it

    try:
        return [user_config_path("offload", appauthor=False) / "config.toml"]
    except RuntimeError:  # a user without a home folder, as in a container, has no file
        return []


def _is_file(path: Path) -> bool:
    """Return whether there is a file. Raises `ConfigError` if this user may not look into its folder."""
    try:
        return stat.S_ISREG(path.stat().st_mode)  # `is_file` of Python 3.14 hides the error
    except PermissionError as error:
        raise ConfigError(
            f"settings are looked for in {path.parent}, which cannot be searched: {error.strerror}; change "
            "to another folder, or name a file with --config, OFFLOAD_CONFIG or file="
        ) from error
    except (OSError, ValueError):
        return False


def _read(path: Path) -> Source:
    return _source(path, read_file(path, _TABLE))


def _project(folder: Path) -> list[Source]:
    for parent in (folder, *folder.parents):
        path = parent / _PYPROJECT
        if _is_file(path):
            tools = read_file(path).get("tool", {})
            data = tools.get("offload", {}) if isinstance(tools, dict) else {}
            if not isinstance(data, dict):
                raise ConfigError(f"{path}: tool.offload must be a table, got {data!r:.60}")
            return [_source(path, data)]
    return []


def _source(path: Path, data: Json) -> Source:
    try:
        return Source(str(path), _resolved(data, path.parent))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _resolved(data: Json, folder: Path) -> Json:
    """Return settings of a file in `folder` with absolute paths and the content of a policy file."""
    store, policy = data.get("store"), data.get("policy")
    resolved: Json = {}
    if isinstance(store, str) and store and is_path(store):
        resolved["store"] = str(_absolute(folder / expand_path(store)))
    if isinstance(policy, str) and Path(policy).suffix:
        resolved["policy"] = read_file(folder / expand_path(policy), (*_TABLE, "policy"))
    elif isinstance(policy, str):
        resolved["policy"] = {"preset": policy}
    return {**data, **resolved}


def _environment(environ: Mapping[str, str]) -> Source:
    data: Json = {}
    for name in Settings.model_fields:
        variable = f"OFFLOAD_{name.upper()}"
        text = "" if name in _FILE_SETTINGS else environ.get(variable, "")
        if text:
            data[name] = text if name in _TEXT_SETTINGS else parse_value(text)
        fields = read_environment(
            environ if name in _FILE_SETTINGS else {**environ, variable: ""}, variable, (*_TABLE, name)
        )
        data = merge(data, {name: fields} if fields else {})
    return Source("environment", data)


def _validated(data: Json, origin: str) -> Settings:
    try:
        return Settings.model_validate(data)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _values(origin: str, data: Mapping[str, Any], prefix: str = "") -> Iterator[SettingValue]:
    for name, value in data.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _values(origin, value, f"{path}.")
        else:
            yield SettingValue(path, _without_secret(path, value), origin)


def _without_secret(path: str, value: Any) -> Any:
    name = path.rpartition(".")[2]
    if path.startswith("storage_options") and name not in _PUBLIC_OPTIONS and not isinstance(value, bool):
        return _HIDDEN
    return without_secrets(value, f"{_HIDDEN}@") if isinstance(value, str) else value
