"""File systems of fsspec, whose connections the stores of one process share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import fsspec.config

from offload_backends._shared import Shared, key_of

# A listing cache would hide writes of other machines.
FIXED_OPTIONS = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False}

_SYSTEMS: Shared[Any] = Shared()


def merged(schemes: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` and fsspec's configuration of `schemes`; the options win, then the first scheme."""
    configured = [fsspec.config.conf.get(scheme, {}) for scheme in reversed(schemes)]
    return {name: value for layer in (*configured, options) for name, value in layer.items()}


def shared(options: Mapping[str, Any], variables: tuple[str, ...], connect: Callable[[], Any]) -> Any:
    """Return the file system of `connect`, shared where options and environment are equal.

    `variables` are beginnings of the names of environment variables that the service reads.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith(variables)}
    return _SYSTEMS.get((variables, key_of((options, environment))), connect)


def forget(system: Any) -> None:
    """Have the next caller of `shared` connect again."""
    _SYSTEMS.forget(system)
