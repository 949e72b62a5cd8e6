"""Which store and session a command works on: what it was told, else what the settings say."""

from __future__ import annotations

from itertools import islice

from offload import ConfigError, NotFoundError, Offloader, OffloadStore, open_store
from offload.config import load_config
from offload.index import session_prefix, sessions


def opened(url: str | None) -> OffloadStore:
    """Open the store at `url`, or without one the store of the settings."""
    settings = load_config(arguments={"store": url}).settings
    return open_store(settings.store, storage_options=settings.storage_options)


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
    store = opened(url)
    name = load_config(arguments={"session": session}).settings.session
    if name is not None:
        return offloader(holding(store, name), name)
    names = list(islice(sessions(store), 2))
    if not names:
        raise NotFoundError(f"{store.url} holds no session yet")
    if len(names) > 1:
        raise ConfigError("the store holds several sessions (offload ls): name one with --session")
    return offloader(store, names[0])


def holding(store: OffloadStore, session: str) -> OffloadStore:
    """Return `store` if it holds `session`. Raises `NotFoundError` if it does not."""
    if next(store.keys(session_prefix(session)), None) is None:
        raise NotFoundError(f"{store.url} holds no session {session!r} (offload ls)")
    return store
