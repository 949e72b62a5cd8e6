"""Checks of keys and arguments that the backends share."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from offload.errors import ConfigError, InvalidKeyError, did_you_mean
from offload.storage.layout import check_key
from offload.storage.store import without_secrets

_OF_FSSPEC = {"batch_size", "listings_expiry_time", "max_paths", "skip_instance_cache", "use_listings_cache"}


def check_options(options: Mapping[str, Any] | None, known: Collection[str], url: str) -> None:
    """Raise `ConfigError` if a storage option of the store at `url` is not one of `known`."""
    for name in sorted(set(options or ()) - set(known)):
        hint = did_you_mean(name, known) or f"; known: {', '.join(sorted(known)) or 'none'}"
        raise ConfigError(f"{without_secrets(url)}: unknown storage option {name!r}{hint}")


def options_of(*kinds: Any) -> set[str]:
    """Return the names of the storage options of a class of file systems, and of what it passes others to."""
    parameters = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
    return (parameters | _OF_FSSPEC) - {"self", "kwargs"}


def is_key(text: str) -> bool:
    """Return whether `text` is a store key; listings skip other objects."""
    try:
        check_key(text)
    except InvalidKeyError:
        return False
    return True


def may_hold(folder: str, prefix: str, after: str) -> bool:
    """Return whether keys below `folder`, which ends in a slash, can match a listing."""
    in_prefix = folder.startswith(prefix) or prefix.startswith(folder)
    return in_prefix and (folder > after or after.startswith(folder))
