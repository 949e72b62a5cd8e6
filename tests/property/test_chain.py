"""Any edit of the stored files of a session is found by the chain of its journal."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache
from typing import Any

from forks import conversation, journaled, run
from hypothesis import assume, given
from hypothesis import strategies as st
from strength import examples

from offload.codec._frames import SLOW_LEVEL, compress, decompress
from offload.errors import CorruptError
from offload.jobs import verify_chain
from offload.layout import BRANCH, JOURNAL
from offload_backends.memory import MemoryStore

Draw = Callable[[st.SearchStrategy[Any]], Any]
Objects = dict[str, bytes]


@cache
def sessions() -> tuple[Objects, list[tuple[str, str]]]:
    """Return the journals and records of a session with a rewind and a restart and of its fork, and heads.

    A head is that of a session or of what a rewind left.
    """
    store = MemoryStore()
    off = journaled(store)
    run(off, 4)
    left = verify_chain(store).heads
    fork = off.fork("b", at=3)
    off.rewind(2)
    for turns, each in ((4, fork), (5, fork), (3, off), (4, journaled(store)), (5, journaled(store))):
        each.offload(conversation(turns))
    objects = {found.key: store.get(found.key) for found in store.keys() if found.key[:2] in ("j/", "r/")}
    return objects, [*left.items(), *verify_chain(store).heads.items()]


def findings(objects: Objects) -> list[Any]:
    """Return what the chain of each session shows, with each of the known heads."""
    store = MemoryStore()
    for key, data in objects.items():
        store.put(key, data)
    reports = [verify_chain(store, session=name, head=head) for name, head in sessions()[1]]
    return [(each.problems, each.notes, each.failures) for each in reports]


@cache
def clean() -> list[Any]:
    return findings(sessions()[0])


def content(key: str, data: bytes) -> bytes:
    match = JOURNAL.match(key)
    try:
        return decompress(data, int(match["bytes"])) if match else data
    except CorruptError:
        return b""


def flip(objects: Objects, key: str, draw: Draw) -> None:
    data = bytearray(objects[key])
    data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    # A bit that no reader looks at changes nothing, nor does the name of an unknown field of a branch.
    assume(not BRANCH.match(key) and content(key, bytes(data)) != content(key, objects[key]))
    objects[key] = bytes(data)


def rewrite(objects: Objects, key: str, draw: Draw) -> None:
    """Change a letter of an entry, with a checksum that fits."""
    plain = bytearray(content(key, objects[key]))
    plain[draw(st.integers(0, len(plain) - 1))] = ord(draw(st.sampled_from(string.ascii_letters)))
    assume(key.startswith("j/") and plain != content(key, objects[key]))
    objects[key] = compress(bytes(plain), SLOW_LEVEL)


def rename(objects: Objects, key: str, draw: Draw) -> None:
    place = draw(st.sampled_from([place for place, letter in enumerate(key) if letter.isdigit()]))
    renamed = key[:place] + draw(st.sampled_from("123456789")) + key[place + 1 :]
    assume(renamed not in objects and JOURNAL.match(renamed))
    objects[renamed] = objects.pop(key)


def swap(objects: Objects, key: str, draw: Draw) -> None:
    other = draw(st.sampled_from([*objects]))
    assume(objects[key] != objects[other])
    objects[key], objects[other] = objects[other], objects[key]


def drop(objects: Objects, key: str, draw: Draw) -> None:
    del objects[key]


def duplicate(objects: Objects, key: str, draw: Draw) -> None:
    """Store an entry twice, under the same number or a later one."""
    assume(key.startswith("j/"))
    number = int(key[4:13]) + draw(st.integers(0, 9))
    letters = draw(st.text(string.ascii_lowercase, min_size=10, max_size=10))
    objects[f"{key[:4]}{number:09}{key[13:]}".replace(key.split("~")[3], letters)] = objects[key]


def truncate(objects: Objects, key: str, draw: Draw) -> None:
    objects[key] = objects[key][: draw(st.integers(0, len(objects[key]) - 1))]


def test_sessions_that_nobody_edited_have_no_problem() -> None:
    [(_, notes, _), *others] = clean()

    assert ["on a branch that a rewind left" in note.text for note in notes] == [True]
    assert others == [([], [], [])] * 2


@given(data=st.data(), edit=st.sampled_from([flip, rewrite, rename, swap, drop, duplicate, truncate]))
@examples(300)
def test_every_edit_of_a_stored_file_is_found(data: st.DataObject, edit: Callable[..., None]) -> None:
    objects = dict(sessions()[0])
    edit(objects, data.draw(st.sampled_from([*objects])), data.draw)

    assert findings(objects) != clean()
