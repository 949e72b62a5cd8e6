"""Settings from files, the environment and the call, and where each came from.

Each source may give any part of the settings, and the later one wins, value by value:

1. the working folder's files: `offload.toml`, `.yaml`, `.yml` or `.json` in it, and the table `tool.offload`
   of the nearest `pyproject.toml` from there upwards, which wins. They come with what was cloned or unpacked
   there, so they say what is offloaded and how it looks, and nothing else: not where data goes, nor whose it
   is, nor what is lost;
2. the user's own file: `config.toml` in the user's configuration folder for `offload`;
3. the environment: `OFFLOAD_STORE`, `OFFLOAD_CODEC` and so on; a double underscore goes down one table, as in
   `OFFLOAD_STORAGE_OPTIONS__ENDPOINT_URL`; `OFFLOAD_POLICY` may also name a preset or a file;
4. keyword arguments.

A file that the host names, by an argument or by `OFFLOAD_CONFIG`, stands in the place of 1 and 2, and may
say everything.

A source that names a store means it as a whole: storage options of weaker sources belong to another one.
A relative path in a file starts where the file is.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, PlainValidator

from offload.controls import visible
from offload.engine.conversation import OnError
from offload.errors import ConfigError, PolicyError
from offload.options import OptionArguments, Options
from offload.policy import OffloadPolicy
from offload.policy._load import from_environment, from_file
from offload.policy._model import Model
from offload.registry import is_path
from offload.store import OffloadStore, without_secrets
from offload.tools import MAX_ANSWER_CHARS, TOOL_NAMES

FILE_VARIABLE = "OFFLOAD_CONFIG"
_NAMES = ("offload.toml", "offload.yaml", "offload.yml", "offload.json")
_PYPROJECT = "pyproject.toml"
_TABLE = ("tool", "offload")
# What a file of the working folder may set; of these, `retention` says what is deleted.
_FOLDERS_OWN = frozenset(["policy", "codec", "tools", "max_answer_chars", "agent"])
_RETENTION = "policy.retention"
_HIDDEN = "(hidden)"
# What of a storage option's name says that its value is no secret.
_HARMLESS = frozenset(["anon", "durability", "endpoint_url", "region", "region_name", "sse", "use_ssl"])

Json = dict[str, Any]
_Store = str | os.PathLike[str] | OffloadStore | None

_log = logging.getLogger("offload")


def _store(value: object) -> object:
    if value is None or isinstance(value, str | os.PathLike | OffloadStore):
        return value
    raise ValueError(f"a store is a URL, a path or an OffloadStore, not {value!r:.60}")


class Settings(Model):
    """What an `Offloader` is set up with, as a file or the environment can say it.

    Attributes:
        store: path or URL of the store, in a call also an open store; None is a folder under the user's data
            directory.
        session: name of the session; None draws a new one.
        storage_options: passed to the backend: credentials, endpoint, durability.
        policy: what is offloaded.
        codec: how records are written.
        tools: the tools that the model is offered, by name.
        max_answer_chars: the most characters of a tool's answer.
        on_error: what becomes of an item that cannot be stored.
        agent: the settings of `offload.agent`, which reads them itself.
    """

    store: Annotated[_Store, PlainValidator(_store)] = None
    session: str | None = None
    storage_options: Json = Field(default_factory=dict)
    policy: OffloadPolicy = Field(default_factory=OffloadPolicy)
    codec: str = "zstd"
    tools: tuple[str, ...] = TOOL_NAMES
    max_answer_chars: Annotated[int, Field(strict=True)] = MAX_ANSWER_CHARS
    on_error: OnError = "keep"
    agent: Json = Field(default_factory=dict)

    def options(self) -> OptionArguments:
        """Return the settings that are options of `Offloader`."""
        names = Options.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return cast("OptionArguments", {name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Source:
    """One place that settings come from.

    Attributes:
        name: what it is called in messages: a path, "environment", "arguments".
        data: what it says, as plain data.
        refused: what it said that a file of the working folder may not say, and that has no effect.
    """

    name: str
    data: Json
    refused: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the settings, for a person to read.

    Attributes:
        path: its name; that of a value in a table is joined by dots.
        value: the value; what may be a secret is hidden.
        origin: the name of the source that gave it.
    """

    path: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """Settings, and the sources they were made of, the weakest first."""

    settings: Settings
    sources: tuple[Source, ...]

    def values(self) -> list[Value]:
        """Return every value in effect and its origin, secrets hidden, in the order of the fields."""
        given: dict[str, Value] = {}
        for source in self.sources:
            for path, value in _leaves(source.data):
                given = {p: v for p, v in given.items() if not _is_under(p, path)}
                given[path] = Value(path, _shown(path, value), source.name)
        said = {path.partition(".")[0] for path in given}
        default = self.settings.model_dump(mode="json")
        for name in Settings.model_fields:
            if name not in said:
                given[name] = Value(name, _plain(name, default[name]), "default")
        order = list(Settings.model_fields)
        return sorted(given.values(), key=lambda value: order.index(value.path.partition(".")[0]))

    def refused(self) -> list[Value]:
        """Return what files of the working folder said in vain, secrets hidden."""
        return [
            Value(path, _shown(path, value), source.name)
            for source in self.sources
            for path, value in _leaves(source.refused)
        ]


def load_config(
    *,
    folder: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings that hold in `folder`.

    What a file of the folder says and may not say has no effect, and is logged as a warning.

    Args:
        folder: where files are looked for; without it the working folder.
        file: the one file to read, which may say everything; without it the one that `OFFLOAD_CONFIG` names.
        environ: the variables; without it those of the process.
        arguments: what the caller says, by field of `Settings`; None values say nothing.

    Raises:
        ConfigError: a source cannot be read, or says what cannot be meant; the message names it.
    """
    variables = os.environ if environ is None else environ
    named = variables.get(FILE_VARIABLE) if file is None else os.fspath(file)
    overrides = {name: value for name, value in (arguments or {}).items() if value is not None}
    files = [_read(_expanded(named))] if named else _found_files(Path() if folder is None else Path(folder))
    found = [*files, _environment(variables), Source("arguments", overrides)]
    sources = _in_effect([source for source in found if source.data or source.refused])
    merged: Json = {}
    for source in sources:
        _validated(source.data, f"{source.name}: ")
        _warn_of(source)
        merged = _merged(merged, source.data)
    together = " and ".join(source.name for source in sources)
    return Config(_validated(merged, f"{together}: "), sources)


def _absolute(folder: Path) -> Path:
    try:
        return folder.absolute()
    except FileNotFoundError as error:
        raise ConfigError("the working folder is gone: change to one that is there") from error


def _in_effect(sources: list[Source]) -> tuple[Source, ...]:
    """Return `sources` without the storage options of stores that a later one replaces by its own."""
    last = max((i for i, source in enumerate(sources) if "store" in source.data), default=0)
    weaker = (
        replace(source, data={name: v for name, v in source.data.items() if name != "storage_options"})
        for source in sources[:last]
    )
    return (*weaker, *sources[last:])


def _found_files(folder: Path) -> list[Source]:
    """Return what the files say that nobody named: those of the working folder, then the user's own."""
    here = _absolute(folder)
    settings = [here / name for name in _NAMES if (here / name).is_file()][:1]
    found = [_read(path) for path in settings]
    return [
        *(_restricted(source) for source in (*found, *_project(here))),
        *(_read(path) for path in _users_files() if path.is_file()),
    ]


def _restricted(source: Source) -> Source:
    """Return `source` with what a file of the working folder may not say taken out. Raises `ConfigError`."""
    _validated(source.data, f"{source.name}: ")
    may = {name: value for name, value in source.data.items() if name in _FOLDERS_OWN}
    refused = {name: value for name, value in source.data.items() if name not in may}
    policy = may.get("policy")
    if isinstance(policy, dict) and "retention" in policy:
        may["policy"] = {name: value for name, value in policy.items() if name != "retention"}
        refused["policy"] = {"retention": policy["retention"]}
    return Source(source.name, may, refused)


def _warn_of(source: Source) -> None:
    if source.refused:
        names = (_RETENTION if name == "policy" else name for name in source.refused)
        _warn(
            f"{visible(source.name)} sets {', '.join(names)}: ignored, a file of the working folder says "
            "neither where data goes nor what is lost. Set it by an argument, a variable or your own file, "
            "or name this file (--config, OFFLOAD_CONFIG, file=)"
        )


@lru_cache  # once a process: a command loads its settings several times
def _warn(message: str) -> None:
    _log.warning(message)
    listening = (h for h in (*_log.handlers, *_log.root.handlers) if not isinstance(h, logging.NullHandler))
    if not any(listening):
        sys.stderr.write(f"offload: {message}\n")


def _users_files() -> list[Path]:
    from platformdirs import user_config_path  # noqa: PLC0415 # only who asks for settings needs it

    try:
        return [user_config_path("offload", appauthor=False) / "config.toml"]
    except RuntimeError:  # a user without a home, as in a container, has no file either
        return []


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read(path: Path) -> Source:
    return _source(path, from_file(path, _TABLE))


def _source(path: Path, data: Json) -> Source:
    try:
        return Source(str(path), _anchored(data, path.parent))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _project(folder: Path) -> list[Source]:
    for parent in (folder, *folder.parents):
        path = parent / _PYPROJECT
        if path.is_file():
            tools = from_file(path, ()).get("tool", {})
            data = tools.get("offload", {}) if isinstance(tools, dict) else {}
            if not isinstance(data, dict):
                raise ConfigError(f"{path}: tool.offload is a table, not {data!r:.60}")
            return [_source(path, data)]
    return []


def _environment(environ: Mapping[str, str]) -> Source:
    data: Json = {}
    for name in Settings.model_fields:
        variable = f"OFFLOAD_{name.upper()}"
        if name in ("policy", "agent"):
            value = from_environment(environ, variable, (*_TABLE, name))
            data |= {name: value} if value else {}
        else:
            data |= _variables(environ, name, variable)
    return Source("environment", data)


def _variables(environ: Mapping[str, str], name: str, variable: str) -> Json:
    """Return the field `name` as its variable, or those of its values, give it."""
    fields = from_environment({k: v for k, v in environ.items() if k.startswith(f"{variable}__")}, variable)
    text = environ.get(variable)
    if not text:
        return {name: fields} if fields else {}
    # Names may look like numbers; only what is no text is read as JSON.
    is_text = Settings.model_fields[name].annotation in (str, str | None, OnError, _Store)
    whole = {name: text} if is_text else from_environment({f"_X__{name}": text}, "_X")
    return _merged(whole, {name: fields}) if fields else whole


def _anchored(data: Json, folder: Path) -> Json:
    """Return `data` of a file in `folder`: what it names by a path is found from there, a policy is read."""
    store, policy = data.get("store"), data.get("policy")
    found: Json = {}
    if isinstance(store, str) and store and is_path(store):
        found["store"] = str(_absolute(folder / _expanded(store)))
    if isinstance(policy, str):
        is_file = bool(Path(policy).suffix)
        found["policy"] = from_file(folder / _expanded(policy)) if is_file else {"preset": policy}
    return {**data, **found}


def _validated(data: Json, origin: str) -> Settings:
    try:
        return Settings.model_validate(data)
    except PolicyError as error:
        raise ConfigError(f"{origin}{error}") from None


def _merged(weak: Json, strong: Json) -> Json:
    both = {
        name: _merged(weak[name], value)
        for name, value in strong.items()
        if isinstance(value, dict) and isinstance(weak.get(name), dict)
    }
    return {**weak, **strong, **both}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_under(path: str, other: str) -> bool:
    """Tell whether a value at `other` replaces the one at `path`."""
    return path == other or path.startswith(f"{other}.")


def _plain(name: str, value: Any) -> Any:
    return "balanced" if name == "policy" else value  # the whole table of a preset tells less than its name


def _shown(path: str, value: Any) -> Any:
    name = path.rpartition(".")[2]
    if path.startswith("storage_options") and name not in _HARMLESS and not isinstance(value, bool):
        return _HIDDEN
    return without_secrets(value, f"{_HIDDEN}@") if isinstance(value, str) else value
