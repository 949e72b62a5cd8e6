"""Stored bytes are damaged behind the store's back: every answer is the right one or names the record.

The damage is done to the files of a session in a local folder.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from offload import CorruptError, NotFoundError, Offloader, OffloadPolicy, Rule
from offload_backends.local import LocalStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=60)}, min_saving=0)
OTHER = "another item, which nobody touches\n" * 60
# The tests that damage one byte after another take 16th; the long run takes all.
EACH = 16
Damage = Callable[[bytes], bytes]
Question = Callable[[Offloader, str], str]


def hexadecimal(chars: int, seed: int = 0) -> str:
    """Return lines that compress to half at best."""
    digests = (hashlib.sha256(b"%d %d" % (seed, n)).hexdigest() + "\n" for n in range(chars // 65 + 1))
    return "".join(digests)[:chars]


NEEDLE = hexadecimal(2000)[-30:]
QUESTIONS: tuple[Question, ...] = (
    lambda off, ref: off.tools.read(ref),
    lambda off, ref: off.tools.read(ref, start_line=30, end_line=32),
    lambda off, ref: off.tools.tail(ref, lines=2),
    lambda off, ref: off.tools.grep(NEEDLE, ref),
)


def message(text: str, call_id: str = "call_0") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


class Stored(NamedTuple):
    """A session of two items in a local folder, and the right answers about the first."""

    root: Path
    messages: list[Any]
    sent: list[Any]
    refs: list[str]
    answers: list[str]

    def open(self) -> Offloader:
        """Open the session as a process does that has nothing of it in memory."""
        return Offloader(LocalStore(str(self.root)), session="s")

    def files(self, item: int = 0) -> list[Path]:
        """Return the files that hold an item: its record and, of codec `raw`, its header after it."""
        return [*self.root.glob(f"r/s/{self.refs[item]}~*"), *self.root.glob(f"h/s/{self.refs[item]}~*")]


def stored(root: Path, codec: str, text: str) -> Stored:
    messages = [message(text), message(OTHER, "call_1")]
    off = Offloader(root, session="s", policy=POLICY, codec=codec)
    out = off.offload(messages)
    refs = [record.ref for record in out.records]
    return Stored(root, messages, out.messages, refs, [ask(off, refs[0]) for ask in QUESTIONS])


def errors_of(session: Stored) -> list[int]:
    """Ask everything; return which questions met an error. Any other answer must be the right one."""
    off = session.open()
    asked: list[Callable[[], Any]] = [
        partial(off.restore, session.sent),
        *(partial(ask, off, session.refs[0]) for ask in QUESTIONS),
    ]
    errors = []
    for number, (ask, right) in enumerate(zip(asked, [session.messages, *session.answers], strict=True)):
        try:
            answer = ask()
        except (CorruptError, NotFoundError) as error:
            assert session.refs[0] in str(error)  # noqa: PT017  # any of the questions may raise
            errors.append(number)
        else:
            assert answer == right
    assert off.restore(session.sent[1:]) == session.messages[1:]
    return errors


def damage_each(session: Stored, file: Path, damages: Iterable[Damage]) -> list[list[int]]:
    """Damage a file in each way in turn, ask everything, and put it back; return the errors of each."""
    data = file.read_bytes()
    errors = []
    for number, damage in enumerate(damages):
        damaged = damage(data)
        assert damaged != data
        file.write_bytes(damaged)
        try:
            errors.append(errors_of(session))
        except BaseException as error:
            error.add_note(f"damage {number} of {file.name}")
            raise
    file.write_bytes(data)
    assert errors_of(session) == []
    return errors


def flip(byte: int, bit: int) -> Damage:
    return lambda data: data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def cut_to(percent: int) -> Damage:
    return lambda data: data[: len(data) * percent // 100]


def append(junk: bytes) -> Damage:
    return lambda data: data + junk


# A bit of the low half, which turns a letter into another, and one of the high half.
@pytest.mark.parametrize("bit", [0, 6])
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, EACH))])
def test_every_flipped_bit_of_a_small_record_is_found(tmp_path: Path, first: int, bit: int) -> None:
    session = stored(tmp_path, "zstd", hexadecimal(6500))
    [file] = session.files()
    places = range(first, file.stat().st_size, EACH)

    errors = damage_each(session, file, (flip(byte, bit) for byte in places))

    assert 3800 / EACH < len(errors) < 4600 / EACH
    assert all(0 in each for each in errors)


@pytest.mark.parametrize(
    ("codec", "file"),
    [("raw", 0), ("json", 0), ("raw", 1)],
)
@pytest.mark.parametrize("step", [13, pytest.param(3, marks=pytest.mark.slow)])
def test_a_flipped_bit_of_a_readable_record_is_found_or_harms_nothing(
    tmp_path: Path, codec: str, file: int, step: int
) -> None:
    session = stored(tmp_path, codec, hexadecimal(2500))
    path = session.files()[file]

    errors = damage_each(session, path, (flip(byte, 0) for byte in range(0, path.stat().st_size, step)))

    assert len(errors) > 600 / step


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_flipped_bits_of_a_large_record_are_found(tmp_path: Path, count: int) -> None:
    session = stored(tmp_path, "zstd", hexadecimal(2_000_000))
    [file] = session.files()
    size = file.stat().st_size
    dice = random.Random(7)  # noqa: S311  # places for damage, no secret

    errors = damage_each(session, file, (flip(dice.randrange(size), dice.randrange(8)) for _ in range(count)))

    assert size > 1_000_000
    assert all(0 in each for each in errors)
    # What is damaged elsewhere does not keep a range from being read.
    assert any(1 not in each for each in errors)


@pytest.mark.parametrize(
    ("codec", "chars"), [("zstd", 6500), ("zstd", 700_000), ("json", 2500), ("raw", 2500)]
)
def test_a_truncated_file_is_found_wherever_it_ends(tmp_path: Path, codec: str, chars: int) -> None:
    session = stored(tmp_path, codec, hexadecimal(chars))

    for file in session.files():
        errors = damage_each(session, file, map(cut_to, range(100)))

        assert all(0 in each for each in errors)


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_appended_junk_is_found(tmp_path: Path, codec: str) -> None:
    session = stored(tmp_path, codec, hexadecimal(2500))

    for file in session.files():
        junk = (b"x", b"\0" * 100, b"{}", file.read_bytes(), hexadecimal(200_000).encode())
        errors = damage_each(session, file, map(append, junk))

        assert all(0 in each for each in errors)


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_a_record_that_is_gone_is_not_found(tmp_path: Path, codec: str) -> None:
    session = stored(tmp_path, codec, hexadecimal(2500))
    off = session.open()
    assert len(off.records()) == 2

    for file in session.files():
        file.unlink()

    with pytest.raises(NotFoundError, match=session.refs[0]):
        off.tools.read(session.refs[0])
    with pytest.raises(NotFoundError, match=session.refs[0]):
        session.open().tools.read(session.refs[0])
    assert [record.ref for record in off.records()] == session.refs[1:]
    assert off.restore(session.sent[1:]) == session.messages[1:]


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_two_records_under_each_others_keys_are_both_found(tmp_path: Path, codec: str) -> None:
    session = stored(tmp_path, codec, hexadecimal(2500))

    for one, other in zip(session.files(0), session.files(1), strict=True):
        aside = one.rename(tmp_path / "aside")
        other.rename(one)
        aside.rename(other)

    off = session.open()
    for ref, sent in zip(session.refs, session.sent, strict=True):
        for ask in (off.tools.read, off.tools.tail, partial(off.tools.grep, "a")):
            with pytest.raises(CorruptError, match=ref):
                ask(id=ref)
        with pytest.raises(CorruptError, match=ref):
            off.restore([sent])


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
@pytest.mark.parametrize("session_name", ["s", "another"])
@pytest.mark.parametrize("parts", [slice(0, 1), slice(0, 2)])
def test_an_older_object_replayed_under_a_key_is_found(
    tmp_path: Path, codec: str, session_name: str, parts: slice
) -> None:
    session = stored(tmp_path / "new", codec, hexadecimal(2500))
    # As long as the new one, of the same call: only the content or the session differs.
    text = hexadecimal(2500, seed=1) if session_name == "s" else hexadecimal(2500)
    older = Offloader(tmp_path / "old", session=session_name, policy=POLICY, codec=codec)
    [old] = older.offload([message(text)]).records
    old_files = [*(tmp_path / "old").glob(f"r/*/{old.ref}~*"), *(tmp_path / "old").glob(f"h/*/{old.ref}~*")]

    for new, replayed in list(zip(session.files(), old_files, strict=True))[parts]:
        shutil.copyfile(replayed, new)

    is_same_body = codec == "raw" and session_name != "s" and parts.stop == 1
    assert errors_of(session) == ([] if is_same_body else [0, 1, 2, 3, 4])


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_a_damaged_item_that_is_offloaded_again_stays_in_its_message(tmp_path: Path, codec: str) -> None:
    session = stored(tmp_path, codec, hexadecimal(2500))
    file = session.files()[0]
    file.write_bytes(file.read_bytes()[:-1])

    again = Offloader(tmp_path, session="s", policy=POLICY, codec=codec).offload(session.messages)

    assert session.open().restore(again.messages) == session.messages
    assert again.messages[1:] == session.sent[1:]
