"""Which store and session a command works on: what it was told, else what the settings say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from offload import ConfigError, ExpiredError, NotFoundError, Offloader, OffloadStore, open_store
from offload.config import load_config
from offload.errors import StoreMissingError
from offload.index import sessions
from offload.registry import folder_of
from offload.session import SessionReader, check_known

# As many names of what is there as one line of an error has room for.
_NAMED = 5


def opened(url: str | None) -> OffloadStore:
    """Open the store at `url`, or without one the store of the settings; it need not be there yet."""
    settings = load_config(arguments={"store": url}).settings
    return open_store(settings.store, storage_options=settings.storage_options)


def existing(url: str | None) -> OffloadStore:
    """Open a store that must be there: a folder that exists, or an address under which something is stored.

    Raises:
        StoreMissingError: it is not.
    """
    store = opened(url)
    folder = folder_of(store)
    if folder is None:
        why = "" if any(store.keys()) else "nothing is stored there"
    else:
        why = "" if folder.exists() else "there is no such folder"
    if why:
        hint = "" if url else " (the store of the settings: another is named by its path or URL)"
        raise StoreMissingError(f"no store at {place_of(store)}: {why}, so no session and no record{hint}")
    return store


def offloader(store: OffloadStore, session: str) -> Offloader:
    """Return the session of `store` with the tools, and the size of their answers, that the settings say."""
    settings = load_config().settings
    return Offloader(store, session=session, tools=settings.tools, max_answer_chars=settings.max_answer_chars)


def opened_session(url: str | None, session: str | None) -> Offloader:
    """Open a session that must be there: the named one, else that of the settings, else the only one.

    Raises:
        NotFoundError: there is no such session, or none at all.
        ConfigError: there are several, and none is named.
    """
    store = existing(url)
    name = load_config(arguments={"session": session}).settings.session
    if name is not None:
        return offloader(holding(store, name), name)
    names = list(islice(sessions(store), 2))
    if not names:
        raise NotFoundError(f"{place_of(store)} holds no session yet")
    if len(names) > 1:
        raise ConfigError(f"{place_of(store)} holds {_sessions_in(store)}: name one with --session")
    return offloader(store, names[0])


def holding(store: OffloadStore, session: str) -> OffloadStore:
    """Return `store` if it holds `session`. Raises `NotFoundError`, which names what it holds, if not."""
    try:
        check_known(store, session)
    except NotFoundError:
        there = f"no session {session!r:.80} in {place_of(store)}, which holds {_sessions_in(store)}"
        raise NotFoundError(there) from None
    return store


@contextmanager
def looking_in(off: Offloader) -> Iterator[None]:
    """Say of a record that is not found where it was looked for, and what is there."""
    try:
        yield
    except ExpiredError:
        raise
    except NotFoundError as error:
        there = _listed([info.ref for info in off.records()], "no record")
        raise NotFoundError(f"{error} of {place_of(off.store)}, which holds {there}") from error


def check_ref(store: OffloadStore, session: str, ref: str) -> None:
    """Raise `NotFoundError` if a session holds no record of `ref`, and say where it was looked for."""
    with looking_in(Offloader(store, session=session)):
        SessionReader(store, session).find(ref)


def place_of(store: OffloadStore) -> str:
    """Return how a person writes the address of `store`: a folder's path, else the URL."""
    return str(folder_of(store) or store.url)


def _sessions_in(store: OffloadStore) -> str:
    return _listed([f"{name!r:.80}" for name in islice(sessions(store), _NAMED + 1)], "no session")


def _listed(names: list[str], nothing: str) -> str:
    more = ["others (offload ls)"] if len(names) > _NAMED else []
    return ", ".join(names[:_NAMED] + more) or nothing
