"""Names of sessions, and what a ref looks like."""

from __future__ import annotations

import re
import secrets
import string
import time
from itertools import chain
from typing import TypeGuard

from offload.errors import ConfigError, NotFoundError
from offload.layout import JOURNAL, PIN, RECORD, REF_PATTERN, encode_part
from offload.store import OffloadStore

_MAX_NAME_CHARS = 1000
_REF = re.compile(REF_PATTERN, re.ASCII)


def new_name() -> str:
    """Return a name that no other session has: `session_{YYYYMMDD_HHMMSS}_{6 random}`."""
    letters = string.ascii_lowercase + string.digits
    random = "".join(secrets.choice(letters) for _ in range(6))
    return f"session_{time.strftime('%Y%m%d_%H%M%S')}_{random}"


def check_name(session: object) -> str:
    """Return `session` if it can name a session. Raises `ConfigError` if it cannot."""
    if not isinstance(session, str) or not 1 <= len(session) <= _MAX_NAME_CHARS:
        raise ConfigError(
            f"a session's name is a text of 1 to {_MAX_NAME_CHARS} characters, not {session!r:.60}"
        )
    try:
        session.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"a session's name has a UTF-8 form, {session!r:.60} has none") from None
    return session


def check_known(store: OffloadStore, session: str) -> str:
    """Return `session` if `store` holds, or has held, anything of it: a record, its trace, a mark, a journal.

    Raises:
        NotFoundError: it does not.
        ConfigError: nothing can have this name.
    """
    part = encode_part(check_name(session))
    prefixes = (family.prefix(part) for family in (RECORD, PIN, JOURNAL))
    if next(chain.from_iterable(map(store.keys, prefixes)), None) is None:
        raise NotFoundError(f"no session {session!r:.80} in {store.url}")
    return session


def is_ref(text: object) -> TypeGuard[str]:
    """Tell whether `text` has the form of a ref; nothing else is ever looked up in a store."""
    return isinstance(text, str) and _REF.fullmatch(text) is not None
