"""The names of sessions."""

from __future__ import annotations

import logging
import secrets
import string
import time
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from offload.base.threads.calls import in_thread
from offload.errors import ConfigError, NotFoundError
from offload.storage.layout import JOURNAL, PIN, RECORD, encode_part
from offload.storage.store import OffloadStore

T = TypeVar("T")

_log = logging.getLogger("offload")
_MAX_NAME_CHARS = 1000


def new_name() -> str:
    """Return a new unique name: `session_{YYYYMMDD_HHMMSS}_{6 random}`."""
    letters = string.ascii_lowercase + string.digits
    random = "".join(secrets.choice(letters) for _ in range(6))
    return f"session_{time.strftime('%Y%m%d_%H%M%S')}_{random}"


def check_name(session: object) -> str:
    """Return `session` if it is a valid session name. Raises `ConfigError`."""
    if not isinstance(session, str) or not 1 <= len(session) <= _MAX_NAME_CHARS:
        raise ConfigError(
            f"session name must be a str of 1 to {_MAX_NAME_CHARS} characters, got {session!r:.60}"
        )
    try:
        session.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"session name must be valid Unicode, got {session!r:.60}") from None
    return session


async def session_for(session_of: Callable[[T], str | None], request: T) -> str | None:
    """Return the session that a function of the host names for a request, None if the request is refused.

    The function runs in a thread. Its errors and invalid names refuse the request.
    """
    try:
        session = await in_thread(session_of, request)
        return None if session is None else check_name(session)
    except Exception as error:  # noqa: BLE001 # a function of the host may raise anything
        _log.warning("session_of failed, so a request was refused: %s", type(error).__name__)
        return None


def check_known(store: OffloadStore, session: str) -> str:
    """Return `session` if `store` has a record, tombstone, mark or journal of it. Raises `NotFoundError`."""
    part = encode_part(check_name(session))
    prefixes = (family.prefix(part) for family in (RECORD, PIN, JOURNAL))
    if next(chain.from_iterable(map(store.keys, prefixes)), None) is None:
        raise NotFoundError(f"no session {session!r:.80} in {store.url}")
    return session
