"""The store and session of a command: from its arguments, else from the settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from offload import ConfigError, EncryptionError, ExpiredError, NotFoundError, OffloadStore
from offload.cli.terminal import count, note
from offload.engine.settings.loader import Settings, load_config
from offload.errors import StoreError, StoreMissingError, did_you_mean, result_or_error
from offload.records.index import sessions
from offload.records.index.objects import list_sessions, session_name, session_parts
from offload.records.record import RecordInfo
from offload.records.session.encryption import check_session
from offload.records.session.names import check_known
from offload.records.session.reader import SessionReader
from offload.records.session.titles import with_titles
from offload.storage.layout import encode_part, is_link, is_ref
from offload.storage.registry import folder_of, is_root, roots_near, with_layout
from offload.storage.store import KEY_VARIABLE, path_of
from offload.storage.wrappers import encryption_of

if TYPE_CHECKING:
    from offload import Offloader

    OpenSession = Callable[[], AbstractContextManager[Offloader]]

# The number of existing names that fit on the line of an error.
_MAX_NAMES = 5
_WORD = re.compile(r"[0-9a-z]+", re.ASCII)
_LAST = "last"
_PREFIX = re.compile(r"[0-9a-z]{1,20}", re.ASCII)


def store_at(url: str | None) -> OffloadStore:
    """Open the store at `url`, or the configured store without one; it need not exist yet."""
    store = _opened(url)
    return with_layout(store) or store


def check_lasting(store: OffloadStore) -> None:
    """Raise `ConfigError` for a store that ends with its process: a resumed conversation needs its items."""
    if store.url.startswith("memory://"):
        raise ConfigError(
            f"{store.url} is lost when its process ends; set OFFLOAD_STORE to a folder or the URL of a store"
        )


def check_writable(store: OffloadStore, session: str) -> None:
    """Check that a session, which need not exist yet, fits the key of its store before it is written to.

    A new session is noted if the store's first one does not fit. A store that fails, and damage, are reported
    at their use.

    Raises `EncryptionError` if the session does not fit: it would be partly in clear.
    """
    found = result_or_error(check_session, store, encode_part(session))
    if isinstance(found, EncryptionError):
        raise found
    fault = result_or_error(_check_first, store) if found is False else None
    if isinstance(fault, EncryptionError):
        way = "in clear" if encryption_of(store) is None else f"with the key of {KEY_VARIABLE}"
        note(f"session {session} is stored {way}, but others are not: {fault}")


def _check_first(store: OffloadStore) -> None:
    for part in islice(session_parts(store), 1):
        check_session(store, part)


def note_unfit(sessions: Sequence[EncryptionError]) -> None:
    """Note that sessions do not fit the key of the store, given an error of each."""
    if sessions:
        note(f"{count(len(sessions), 'session')} cannot be read: {sessions[0]}")


def note_clear(store: OffloadStore, what: str) -> None:
    """Note that what a command wrote outside of an encrypted store is not encrypted."""
    if encryption_of(store) is not None:
        note(f"{what} not encrypted")


def store_for_tests(url: str | None) -> OffloadStore:
    """Open the store at `url` as `store_at` does; one that cannot be listed has no layout that is known."""
    store = _opened(url)
    with suppress(StoreError):
        return with_layout(store) or store
    return store


def existing_store(url: str | None, session: str | None = None) -> OffloadStore:
    """Open a store that contains something: a folder that exists, or a URL with objects under it.

    Raises:
        StoreMissingError: there is no such store.
        NotFoundError: it has no session named `session`.
    """
    opened = _opened(url)
    folder = folder_of(opened)
    store = with_layout(opened)
    if store is None:
        store, problem = opened, "nothing is stored there"
    else:
        problem = "" if folder is None else _problem_at(folder)
    if problem:
        hint = "" if url else f" (this is the store of the settings; {_another_here()})"
        raise StoreMissingError(f"no store at {place_of(store)}: {problem}{hint}")
    if session is not None:
        _check_session(store, session)
    return store


def _opened(url: str | None) -> OffloadStore:
    return load_config(arguments={"store": url}).settings.open_store()


def _problem_at(folder: Path) -> str:
    """Return why a local folder is not a store, empty if it is a store or an empty folder."""
    try:
        is_empty = folder.is_dir() and not any(folder.iterdir())
        near = [] if is_empty or is_root(folder) else roots_near(folder)
    except PermissionError:
        return ""  # the store itself says what it needs
    if near:
        return f"the store is {', or '.join(map(str, near[:_MAX_NAMES]))}"
    return "" if folder.exists() else f"there is no such folder{_did_you_mean_beside(folder)}"


def _another_here() -> str:
    """Return how to name another store, such as the one that programs on the pages make in this folder."""
    name = "context"
    return f"./{name} is one too: name it" if is_root(Path(name)) else "name another by its path or URL"


def _did_you_mean_beside(folder: Path) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 # only an error pays for it

    try:
        alike = get_close_matches(folder.name, [beside.name for beside in folder.parent.iterdir()])
        return did_you_mean(folder.name, [name for name in alike if is_root(folder.parent / name)])
    except OSError:
        return ""


@contextmanager
def open_session(url: str | None, session: str | None) -> Iterator[Offloader]:
    """Open an existing session: the named one, else the configured one, else the only one.

    If a record is not found within the block, the error names the records that are there.

    Raises:
        NotFoundError: there is no such session, or none at all.
        ConfigError: there are several, and none is named.
    """
    store = existing_store(url)
    settings = load_config(arguments={"session": session}).settings
    name = _only_session(store) if settings.session is None else settings.session
    _check_session(store, name)
    with _session_of(store, settings, name) as off:
        yield off


@contextmanager
def _session_of(store: OffloadStore, settings: Settings, name: str) -> Iterator[Offloader]:
    from offload import Offloader  # noqa: PLC0415 # a listing needs none

    off = Offloader(store, session=name, tools=settings.tools, max_answer_chars=settings.max_answer_chars)
    try:
        yield off
    except ExpiredError:
        raise
    except NotFoundError as error:
        there = _listed([info.ref for info in off.records()], "no record")
        raise NotFoundError(f"{error} of {place_of(store)}, which has {there}") from error


@contextmanager
def open_record(url: str | None, session: str | None, text: str) -> Iterator[tuple[Offloader, str]]:
    """Open the session of a record; yield it and the record's id.

    The session is the named, the configured or the only one, else the one with the only record that `text`
    names: by its id, the beginning of its id, or a placeholder. "last" is the newest record:
    of the session, else of the working folder's session, else of the store.

    Raises:
        NotFoundError: there is no such session, or no such record in any.
        ConfigError: the text is the beginning of several ids; the error lists them.
    """
    name = load_config(arguments={"session": session}).settings.session
    if text == _LAST:
        name, text = _last_record(existing_store(url, name), name)
    elif name is None:
        store = existing_store(url)
        if len(list(islice(sessions(store), 2))) > 1:
            name, text = _record_in(store, text)
    with open_session(url, name) as off:
        yield off, full_ref(off, text)


def full_ref(off: Offloader, text: str) -> str:
    """Return the id that `text` names in a session: as for `ref_named`, or by the beginning of the id.

    "last" is the newest record.

    Raises:
        ConfigError: the text is the beginning of several ids; the error lists them.
    """
    if text == _LAST and (records := off.records()):
        return records[-1].ref
    ref = _named(off, text)
    infos = _begun_by(off, ref)
    if len(infos) > 1:
        raise _ambiguous(off.store, ref, [(off.session, info) for info in infos])
    return infos[0].ref if infos else ref


def _begun_by(off: Offloader, text: str) -> list[RecordInfo]:
    """Return the records whose ids begin with `text`; none if it is the id of one."""
    infos = [info for info in off.records() if info.ref.startswith(text)] if _PREFIX.fullmatch(text) else []
    return [] if any(info.ref == text for info in infos) else infos


def _last_record(store: OffloadStore, session: str | None) -> tuple[str, str]:
    """Return the session and the id of the newest record; see `open_record`."""
    from offload.integrations._sessions import folder_session  # noqa: PLC0415 # a listing needs no offloader

    wanted = folder_session() if session is None else session
    found = [objects for objects in list_sessions(store) if objects.records]
    of_session = [objects for objects in found if objects.part == encode_part(wanted)]
    newest = max(
        of_session if of_session or session is not None else found,
        key=lambda objects: objects.newest,
        default=None,
    )
    if newest is None:
        raise NotFoundError(f"no record yet in {place_of(store, session)}")
    return session_name(store, newest.part), newest.records[-1].ref


def _record_in(store: OffloadStore, text: str) -> tuple[str, str]:
    """Return the session and the id of the only record of a store that `text` names."""
    words = set(_WORD.findall(text))
    exact, alike = dict[tuple[str, str], RecordInfo](), dict[tuple[str, str], RecordInfo]()
    for objects in list_sessions(store):
        for info in (*objects.records, *(record.info for record in objects.deleted)):
            if info.ref in words:
                exact[objects.part, info.ref] = info
            elif _PREFIX.fullmatch(text) and info.ref.startswith(text):
                alike[objects.part, info.ref] = info
    found = exact or alike
    # A shared record is named once, in its own session.
    found = {place: info for place, info in found.items() if not is_link(info.key)} or found
    if not found:
        raise NotFoundError(f"no record {text!r:.80} in any session of {place_of(store)}")
    named = [(session_name(store, part), info) for (part, _), info in islice(found.items(), _MAX_NAMES + 1)]
    if len(found) > 1:
        raise _ambiguous(store, text, named)
    [(session, info)] = named
    return session, info.ref


def _ambiguous(store: OffloadStore, text: str, found: Sequence[tuple[str, RecordInfo]]) -> ConfigError:
    """Return the error for a text that names several records, with their sessions and titles."""
    rows = []
    for session, info in found[: _MAX_NAMES + 1]:
        [titled] = with_titles(SessionReader(store, session), [info])
        title = f", {titled.title}" if titled.title else ""
        rows.append(f"{info.ref} (session {session!r:.80}{title})")
    return ConfigError(
        f"{text!r:.80} names several records: {_listed(rows, '')}; write the whole id, or name the session "
        "with --session"
    )


def ref_named(off: Offloader, text: str) -> str:
    """Return the id of the record that a text names: an id, a placeholder, or the path of a context file.

    A text that names no record is returned as it is.

    Raises:
        ConfigError: the text is the beginning of ids; a command that changes a record needs the whole id.
        NotFoundError: it is the path of a file in another store.
    """
    ref = _named(off, text)
    begun = _begun_by(off, ref)
    if begun:
        ids = _listed([info.ref for info in begun[: _MAX_NAMES + 1]], "")
        raise ConfigError(f"{text!r:.80} is only the beginning of {ids}: write the whole id")
    return ref


def _named(off: Offloader, text: str) -> str:
    if is_ref(text):
        return text
    path = Path(os.path.abspath(text)) if {"/", os.sep} & {*text} else Path()  # noqa: PTH100 # without `..`
    near = roots_near(path) if path.is_file() else []
    if near and near[0] != folder_of(off.store):
        raise NotFoundError(f"{text!r:.200} is in another store (use --store {near[0]}), and no record")
    words = _WORD.findall(text)
    refs = [i.ref for i in off.records() if i.ref in words or _file_name(off.store, i.key) in text]
    if not refs:
        return text
    # The last word of a path is the most specific.
    return max(refs, key=lambda ref: max((n for n, word in enumerate(words) if word == ref), default=-1))


def _file_name(store: OffloadStore, key: str) -> str:
    return PurePath(path_of(store, key)).name


def sessions_to_search(url: str | None, named: Sequence[str]) -> dict[str, OpenSession]:
    """Return the named sessions, else the configured one, else every session of an existing store.

    Each has a function that opens it as `open_session` does; the store is opened once.

    Raises:
        NotFoundError: there is none.
    """
    store, settings = existing_store(url), load_config().settings
    known = named or ([] if settings.session is None else [settings.session])
    if known:
        return {name: partial(open_session, url, name) for name in known}
    names = list(sessions(store))
    if not names:
        raise NotFoundError(f"{place_of(store)} has no session yet")
    return {name: partial(_session_of, store, settings, name) for name in names}


def place_of(store: OffloadStore, session: str | None = None) -> str:
    """Return a store's address for people, a folder's path or the URL, and the session in it."""
    place = str(folder_of(store) or store.url)
    return place if session is None else f"session {session} of {place}"


def _only_session(store: OffloadStore) -> str:
    names = list(islice(sessions(store), _MAX_NAMES + 1))
    if not names:
        raise NotFoundError(f"{place_of(store)} has no session yet")
    if len(names) > 1:
        raise ConfigError(f"{place_of(store)} has {_named_sessions(names)}: name one with --session")
    return names[0]


def _check_session(store: OffloadStore, session: str) -> None:
    try:
        check_known(store, session)
    except NotFoundError:
        names = list(sessions(store))
        message = f"no session {session!r:.80} in {place_of(store)}, which has {_named_sessions(names)}"
        raise NotFoundError(f"{message}{did_you_mean(session, names)}") from None


def _named_sessions(names: list[str]) -> str:
    return _listed([f"{name!r:.80}" for name in names[: _MAX_NAMES + 1]], "no session")


def _listed(names: list[str], nothing: str) -> str:
    others = ["others (offload ls)"] if len(names) > _MAX_NAMES else []
    return ", ".join(names[:_MAX_NAMES] + others) or nothing


def is_of(info: RecordInfo, tool: str | None) -> bool:
    """Return whether the tool of a record matches a glob; None matches any."""
    return tool is None or fnmatchcase((info.tool_name or "").lower(), tool.lower())
