"""Policies from files and environment variables, as plain data."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from offload.errors import MissingExtraError, PolicyError

_VARIABLE = "OFFLOAD_POLICY"
_TABLE = ("tool", "offload", "policy")
# Names that stand for others let some hundred characters say millions.
_MOST_ALIASED_CHARS = 1024 * 1024


def from_file(path: str | os.PathLike[str], table: Sequence[str] = _TABLE) -> dict[str, Any]:
    """Return the fields that a TOML, YAML or JSON file gives. Raises `PolicyError`.

    Args:
        path: the file.
        table: where they stand in a file that is for several programs, as pyproject.toml is.
    """
    file = Path(path).expanduser()
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise PolicyError(f"{file}: settings are a file of suffix {', '.join(sorted(_PARSERS))}")
    try:
        data = parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"{file} cannot be read: {error}") from error
    for name in table if isinstance(data, dict) and data.keys() & {*table[:1]} else ():
        data = data.get(name) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        raise PolicyError(f"{file} holds no table of settings")
    return data


def from_environment(
    environ: Mapping[str, str], variable: str = _VARIABLE, table: Sequence[str] = _TABLE
) -> dict[str, Any]:
    """Return the fields that variables give. Raises `PolicyError`.

    Args:
        environ: the variables.
        variable: the one that names a file or a preset, and that the others begin with.
        table: as in `from_file`.
    """
    named = environ.get(variable, "")
    data: dict[str, Any] = {}
    if named:
        data = from_file(named, table) if Path(named).suffix else {"preset": named}
    prefix = f"{variable}__"
    for name, text in sorted(environ.items()):
        if name.upper().startswith(prefix):
            _set(data, name[len(prefix) :].lower().split("__"), _value(text), name)
    return data


def _set(data: dict[str, Any], path: list[str], value: Any, variable: str) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise PolicyError(f"{variable}: {name} has no fields")
    data[path[-1]] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _yaml(text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise MissingExtraError("a YAML file needs PyYAML: pip install 'offload[yaml]'") from error
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if _expanded(root, {}) > 2 * len(text) + _MOST_ALIASED_CHARS:
            raise ValueError("its aliases (*name) make too much of it: write out what they stand for")
        # YAML has names and values that are no text, such as dates; settings are plain data.
        return json.loads(json.dumps(root and loader.construct_document(root), default=str))
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error
    finally:
        loader.dispose()


def _expanded(node: Any, known: dict[int, float]) -> float:
    """Return about how many characters a node of YAML has with its aliases written out, each seen once."""
    if node is None or isinstance(node.value, str):
        return 1 + len(node.value if node else "")
    if id(node) not in known:
        known[id(node)] = inf  # what stands within itself has no end
        parts = chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in node.value)
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": json.loads,
}
