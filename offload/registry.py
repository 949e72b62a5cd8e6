"""Opens the store of a URL; the core finds backends nowhere else.

A backend is a class under an entry point of the group `offload.backends`, whose name is the URL
scheme that it serves. The entry point `fsspec` serves every other scheme.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from offload.errors import ConfigError, MissingExtraError, UnknownSchemeError
from offload.store import OffloadStore, without_secrets

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUP = "offload.backends"

_FALLBACK = "fsspec"
# One letter is a Windows drive, not a scheme; `a::b://c` is fsspec's chain of file systems.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(://|::)")
# Mistyped URLs: `s3:/b`, `s3:b`, `s3//b`, `s3;//b`, ` s3://b`.
_ALMOST = re.compile(r"[\s'\"]*([a-z][a-z0-9+.-]+)\s*(:/|:|;?//)[:/\\]*(.*)", re.IGNORECASE | re.DOTALL)
# Schemes that are unlikely names of a folder.
_SCHEMES = re.compile(
    "abfss?|adl|az|file|ftp|gc?s|hdfs|https?|memory|s3a?|sftp|smb|ssh|webdav|webhdfs", re.IGNORECASE
)


def default_path() -> Path:
    """Return the local folder that holds offloaded context when no store is named.

    Raises:
        ConfigError: the user has no home folder.
    """
    from platformdirs import user_data_path  # noqa: PLC0415  # only the default store needs it

    try:
        return user_data_path("offload", appauthor=False) / "context"
    except RuntimeError as error:
        raise ConfigError("this user has no home folder for the default store; name a store") from error


def is_path(url: str) -> bool:
    """Return whether `url` is a local path, not a URL.

    Raises:
        ConfigError: it is a mistyped URL, such as `s3:/bucket` or `s3//bucket`.
    """
    if _SCHEME.match(url):
        return False
    almost = _ALMOST.match(url)
    if almost and (_SCHEMES.fullmatch(almost[1]) or almost[2] == ":/"):
        root = "/" if almost[1].lower() == "file" else ""
        corrected = without_secrets(f"{almost[1].lower()}://{root}{almost[3]}").rstrip("'\" \n")
        raise ConfigError(f"mistyped store URL; write {corrected!r}, or start a path of this name with ./")
    if "://" in url and not url.startswith((".", "/", "~")):
        raise ConfigError(
            "a store URL must start with its scheme, as in 's3://bucket', and a path like this one with ./"
        )
    return True


def folder_of(store: OffloadStore) -> Path | None:
    """Return the folder of a local store; None for any other."""
    url = urlsplit(store.url)
    return Path(unquote(url.path)) if url.scheme == "file" else None


@contextmanager
def leaving_no_folder(store: OffloadStore) -> Iterator[None]:
    """Remove the folders of a local store that the block created, if they are empty."""
    root = folder_of(store)
    missing = [f for f in (root, *root.parents) if not os.path.lexists(f)] if root else []
    try:
        yield
    finally:
        # Another process may have stored something there meanwhile.
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()


def open_store(
    url: str | os.PathLike[str] | OffloadStore | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> OffloadStore:
    """Return the store at `url`, without touching it.

    Args:
        url: a URL (`s3://bucket/prefix`, `file:///data`, `memory://name`, any fsspec URL), a local
            path (`~` is the home folder; write a path that resembles a URL, such as `s3:/x`, with
            `./` or as a `Path`), a store, which is returned unchanged, or None for the
            folder `default_path()`.
        storage_options: further arguments of the backend, such as credentials.

    Returns:
        A store. A missing bucket or refused credential raises at its first use, not here.

    Raises:
        UnknownSchemeError: no backend serves the scheme; the message names the known schemes.
        MissingExtraError: the backend needs a package that is not installed.
        ConfigError: the URL or a storage option is invalid.
    """
    if url is None:
        url = default_path()
    if isinstance(url, os.PathLike):
        return _opened("file", os.fspath(url), storage_options)
    if isinstance(url, str):
        return _opened(*_split(url), storage_options)
    if not isinstance(url, OffloadStore):
        raise ConfigError(f"expected a store URL, a path or an OffloadStore, got {type(url).__name__}")
    if storage_options:
        raise ConfigError("storage_options need a store URL; this store is already open")
    return url


def _opened(scheme: str, url: str, storage_options: Mapping[str, Any] | None) -> OffloadStore:
    entry_point = _entry_point(scheme) or _entry_point(_FALLBACK)
    if entry_point is None:
        raise UnknownSchemeError(f"no backend serves {scheme!r}; known schemes: {_known()}")
    try:
        store: OffloadStore = entry_point.load()(url, storage_options=storage_options)
    except UnknownSchemeError as error:
        raise UnknownSchemeError(f"{error}; installed backends: {_known()}") from error
    except MissingExtraError:
        raise
    except ImportError as error:
        extra = f" (an extra of {entry_point.dist.name!r}?)" if entry_point.dist else ""
        raise MissingExtraError(
            f"the backend for {scheme!r} ({entry_point.value}) could not be imported: {error}; "
            f"install the missing package{extra}"
        ) from error
    return store


def _split(url: str) -> tuple[str, str]:
    """Return the name of the entry point that serves `url`, and the URL for it."""
    if not url:
        raise ConfigError("store URL must not be empty; pass a URL, a path, or None for the default")
    match = None if is_path(url) else _SCHEME.match(url)
    if match is None:
        return "file", url
    if match[2] == "::":
        return _FALLBACK, url
    scheme = match[1].lower()
    return scheme, scheme + url[len(scheme) :]


def _entry_point(name: str) -> EntryPoint | None:
    backends = _backends().get(name)
    if backends is None:
        # It may have been installed while this process runs.
        _installed.cache_clear()
        backends = _backends().get(name, {})
    if len(backends) > 1:
        raise ConfigError(f"several installed backends claim {name!r}: {', '.join(sorted(backends))}")
    return next(iter(backends.values()), None)


def _backends() -> Mapping[str, Mapping[str, EntryPoint]]:
    from importlib import metadata  # noqa: PLC0415 # slow to import; only a store that is opened needs it

    return _installed(metadata.entry_points)


@lru_cache(maxsize=1)
def _installed(find: Callable[..., EntryPoints]) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return name → value → entry point; cached, because `find` reads the metadata of every package."""
    backends: dict[str, dict[str, EntryPoint]] = {}
    for point in find(group=GROUP):
        # A checkout and an installed wheel both list the same entry point.
        backends.setdefault(point.name, {})[point.value] = point
    return backends


def _known() -> str:
    return ", ".join(sorted(_backends())) or "none"
