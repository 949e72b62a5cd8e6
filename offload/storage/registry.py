"""Opens the store of a URL; the core finds backends nowhere else.

A backend is a class under an entry point of the group `offload.backends`, whose name is the URL
scheme that it serves. The entry point `fsspec` serves every other scheme.

The root of a store may have the layout of a preset, which names of its files show. Its store, which gets that
of the root, is an entry point of the group `offload.layouts`. Files never name the code that reads them: the
layouts are those of a fixed list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from offload.base.patterns import lazy_pattern
from offload.base.threads.locks import NO_FORK
from offload.errors import ConfigError, MissingExtraError, UnknownSchemeError, did_you_mean
from offload.storage.layout import FAMILIES, REF_PATTERN, family_of
from offload.storage.store import KEY_VARIABLE, OffloadStore, without_secrets

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

BACKENDS = "offload.backends"
LAYOUTS = "offload.layouts"

_FALLBACK = "fsspec"
# One letter is a Windows drive, not a scheme; `a::b://c` is fsspec's chain of file systems.
_SCHEME = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]+)(://|::)")
# Mistyped URLs: `s3:/b`, `s3:b`, `s3//b`, `s3;//b`, ` s3://b`.
_ALMOST = lazy_pattern(r"[\s'\"]*([a-z][a-z0-9+.-]+)\s*(:/|:|;?//)[:/\\]*(.*)", re.IGNORECASE | re.DOTALL)
# Schemes that are unlikely names of a folder.
_SCHEMES = lazy_pattern(
    "abfss?|adl|az|file|ftp|gc?s|hdfs|https?|memory|s3a?|sftp|smb|ssh|webdav|webhdfs", re.IGNORECASE
)

# The layouts that files show, first the one that hides the others.
_LAYOUTS = ("context_fs", "context_refs", "tool_results")
# The layouts with files that no store encrypts.
_IN_CLEAR = ("context_fs", "tool_results")
_STATE = "~state"
# The folders of a tree above a file in it.
_TREE_DEPTH = 4
_ARTIFACT = lazy_pattern(rf"([^/]+)/artifacts/({REF_PATTERN}(?:\.\d+)?)\.txt(\.zst)?")
_TOOL_RESULT = lazy_pattern(r"tool-result-.+\.md", re.DOTALL)


def default_path() -> Path:
    """Return the local folder of the default store. Raises `ConfigError` if the user has no home folder."""
    with NO_FORK:
        from platformdirs import user_data_path  # noqa: PLC0415  # only the default store needs it

    try:
        return user_data_path("offload", appauthor=False) / "context"
    except RuntimeError as error:
        raise ConfigError("this user has no home folder for the default store; name a store") from error


def is_path(url: str) -> bool:
    """Return whether `url` is a local path, not a URL.

    Raises `ConfigError` for a mistyped URL, such as `s3:/bucket` or `s3//bucket`.
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
    if not store.url.startswith("file://"):
        return None
    url = urlsplit(store.url)
    path = unquote(f"//{url.netloc}{url.path}" if url.netloc else url.path)
    # A drive follows a slash: file:///C:/folder.
    return Path(path[1:] if Path(path[1:]).drive else path)


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
    """Return the store at `url`, without changing or requesting anything.

    A local folder may have the layout of a preset: a tree of `context_fs`, the conversations of
    `context_refs`, the files of `offload_tool_results`. The names in it show that, and the store reads and
    writes this layout. The root of a URL is not looked at, which would cost a request: see `with_layout`.

    Args:
        url: a URL (`s3://bucket/prefix`, `file:///data`, `memory://name`, any fsspec URL), a local
            path (`~` is the home folder; write a path that resembles a URL, such as `s3:/x`, with
            `./` or as a `Path`), a store, which is returned unchanged, or None for the
            folder `default_path()`.
        storage_options: further arguments of the backend, such as credentials.

    Returns:
        A store. A missing bucket or refused credential raises at its first use, not here.

    Raises:
        UnknownSchemeError: no backend serves the scheme; the message names the installed ones.
        MissingExtraError: the backend needs a package that is not installed.
        ConfigError: the URL or a storage option is invalid.
    """
    store = open_backend(url, storage_options=storage_options)
    return _in_layout(store, _layout_at(url, store))


def open_with_key(
    url: str | os.PathLike[str] | OffloadStore | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> OffloadStore:
    """Return the store at `url` as `open_store` does, encrypted if the variable `OFFLOAD_KEY` is set.

    Commands and settings open every store by it; a store that is encrypted already is returned unchanged.

    Raises:
        ConfigError: as for `open_store`; the key in the variable is invalid, or the folder has a layout whose
            files are read without a key.
    """
    if KEY_VARIABLE not in os.environ:
        return open_store(url, storage_options=storage_options)
    with NO_FORK:
        from offload.storage.wrappers import EncryptingStore, encryption_of  # noqa: PLC0415 # only a key needs them

    store = open_backend(url, storage_options=storage_options)
    if encryption_of(store) is not None:
        return store
    layout = _layout_at(url, store)
    if layout in _IN_CLEAR:
        raise ConfigError(
            f"{folder_of(store)} has the layout of {layout}, whose files are in clear for agents and people, "
            f"so {KEY_VARIABLE} cannot encrypt it; unset {KEY_VARIABLE} for this store"
        )
    return _in_layout(EncryptingStore(store), layout)


def open_backend(
    url: str | os.PathLike[str] | OffloadStore | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> OffloadStore:
    """Return the plain store at `url` and ignore the layout of its root; see `open_store`."""
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise ConfigError(f"storage_options must be a dict, got {type(storage_options).__name__}")
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


def with_layout(store: OffloadStore) -> OffloadStore | None:
    """Return `store`, or the store that reads the layout at its root; None if nothing is stored there.

    It takes one listing, and up to two more if the first key is foreign. A local store is returned as it is:
    `open_store` has looked at its folder. Raises `StoreError` if the store cannot be listed.
    """
    if folder_of(store) is not None:
        return store
    first = next(iter(store.keys()), None)
    if first is None:
        return None
    if family_of(first.key) is not None:
        return store
    proofs = filter(None, (_proof_of(first.key), f"{_STATE}/"))
    return _in_layout(store, "context_refs" if any(any(store.keys(proof)) for proof in proofs) else None)


def roots_near(path: Path) -> list[Path]:
    """Return the stores that a user may have meant by `path`: the tree that contains it, else those in it."""
    around = next((f for f in islice(path.parents, _TREE_DEPTH) if _layout_in(f) is not None), None)
    if around is not None:
        return [around]
    try:
        return sorted(folder for folder in path.iterdir() if folder.is_dir() and is_root(folder))
    except OSError:
        return []


def is_root(folder: Path) -> bool:
    """Return whether a local folder has objects of this library or the layout of a preset."""
    has_objects = any((folder / family.prefix()).is_dir() for family in FAMILIES)
    return has_objects or _layout_in(folder) is not None


def _layout_at(url: object, store: OffloadStore) -> str | None:
    folder = None if store is url else folder_of(store)
    return None if folder is None else _layout_in(folder)


def _in_layout(store: OffloadStore, name: str | None) -> OffloadStore:
    if name is None:
        return store
    entry_point = _entry_point(name, LAYOUTS)
    if entry_point is None:
        raise ConfigError(f"no installed package reads the layout {name}; install offload again")
    opened: OffloadStore = entry_point.load()(store)
    return opened


def _layout_in(folder: Path) -> str | None:
    """Return the name of the layout in a local folder, by names alone; no link is followed."""
    try:
        with os.scandir(folder) as entries:
            found = {_layout_shown_by(entry) for entry in entries}
    except OSError:
        # The first use of the store raises its own error.
        return None
    return next((name for name in _LAYOUTS if name in found), None)


def _layout_shown_by(entry: os.DirEntry[str]) -> str | None:
    if not entry.is_dir(follow_symlinks=False):
        is_result = _TOOL_RESULT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        return "tool_results" if is_result else None
    if entry.name == ".offload":
        return "context_fs" if Path(entry, "r").is_dir() else None
    proofs = filter(None, map(_proof_of, _artifacts_in(Path(entry))))
    is_tree = entry.name == _STATE or any((Path(entry).parent / proof).is_file() for proof in proofs)
    return "context_refs" if is_tree else None


def _proof_of(key: str) -> str | None:
    """Return the key that proves that `key` is a context file, and not one of another program; or None."""
    artifact = _ARTIFACT.fullmatch(key)
    if artifact is None or family_of(key) is not None:
        return None
    part, stem, is_compressed = artifact.groups()
    return f"{part}/manifest.json" if is_compressed else f"{part}/headers/{stem}.json"


def _artifacts_in(folder: Path) -> Iterator[str]:
    """Yield the keys of the files in the folder `artifacts` of a conversation, unless it is a link."""
    artifacts = folder / "artifacts"
    with suppress(OSError):
        if not artifacts.is_symlink():
            yield from (f"{folder.name}/artifacts/{file.name}" for file in artifacts.iterdir())


def _opened(scheme: str, url: str, storage_options: Mapping[str, Any] | None) -> OffloadStore:
    entry_point = _entry_point(scheme) or _entry_point(_FALLBACK)
    if entry_point is None:
        hint = did_you_mean(scheme, _installed_in(BACKENDS))
        raise UnknownSchemeError(f"no backend serves {scheme!r}; known schemes: {_known()}{hint}")
    try:
        store: OffloadStore = entry_point.load()(url, storage_options=storage_options)
    except UnknownSchemeError as error:
        hint = did_you_mean(url.partition(":")[0], _installed_in(BACKENDS))
        raise UnknownSchemeError(f"{error}; installed backends: {_known()}{hint}") from error
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


def _entry_point(name: str, group: str = BACKENDS) -> EntryPoint | None:
    points = _installed_in(group).get(name)
    if points is None:
        # It may have been installed while this process runs.
        _installed.cache_clear()
        points = _installed_in(group).get(name, {})
    if len(points) > 1:
        raise ConfigError(
            f"several installed packages claim {name!r} of {group}: {', '.join(sorted(points))}"
        )
    return next(iter(points.values()), None)


def _installed_in(group: str) -> Mapping[str, Mapping[str, EntryPoint]]:
    with NO_FORK:
        from importlib import metadata  # noqa: PLC0415 # slow to import; only a store that is opened needs it

    return _installed(metadata.entry_points, group)


@lru_cache(maxsize=2)
def _installed(find: Callable[..., EntryPoints], group: str) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return name → value → entry point; cached, because `find` reads the metadata of every package."""
    points: dict[str, dict[str, EntryPoint]] = {}
    for point in find(group=group):
        # A checkout and an installed wheel both list the same entry point.
        points.setdefault(point.name, {})[point.value] = point
    return points


def _known() -> str:
    return ", ".join(sorted(_installed_in(BACKENDS))) or "none"
