"""Names from outside are data: whatever they hold, they leave no root, and no two of them meet."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit.conversation import tool_turn

from offload import ConfigError, NotFoundError, Offloader, OffloadPolicy, Rule
from offload.storage.store import OffloadStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=40)}, min_saving=0)
TEXT = "one line of a result\n" * 40

TRAVERSAL = (
    *("..", ".", "...", "../..", "../escape", "a/../../b", "a/..", "./a", "/etc/passwd", "//host/share"),
    *("..\\..\\escape", "C:\\Windows", "c:a", "~", "~root/x", "a/b", "a//b", "a/", "/a", "%2e%2e%2fx"),
    *("..%2f", "%2e%2e", "a%00b", "\uff0e\uff0e\uff0fescape", "\u2025/x"),
)
CHARACTERS = (
    *(" ", "a ", " a", "a\0b", "\0", "a\nb", "a\r\nb", "\t", "\x1b[2J", "\x7f", "\u202eabc", "a\u200bb"),
    *("\u00e9", "e\u0301", "\u212b", "\u00c5", "\U0001f600", "\ufeffa", "Stra\u00dfe", "STRASSE"),
)
SYNTAX = (
    *("*", "?", "[a]", "a?versionId=zz", "a#b", "s3://bucket/key", "file:///etc/passwd", "memory://a"),
    *("a::b", "$HOME", "${x}", "`id`", "$(id)", "a|b", "a;b", "'", '"', "<a>", "{0}", "%s", "-rf", "--help"),
    *("a~b", "a=b", "=2e", "==", "a==b", "a=2fb", "_", "__proto__", "offload.json", "r", "x", ".tmp-1"),
)
FILE_SYSTEMS = (
    *("con", "CON", "aux.txt", "nul", "com1", "LPT9", "a.", "a..", ".hidden", "a.zst", "a.lock"),
    *("README", "readme", "ReadMe", "I", "\u0131", "\u0130", "i"),
)
LONG = ("a" * 120, "a" * 121, "a" * 120 + "b", "a" * 1000, "\u00e9" * 500, "../" * 300, "A" * 999 + "b")
# No session is named so; a tool or a call may be.
NO_SESSION = ("\ud800", "a\udfffb", "a" * 4096, "a" * 4095 + "b", "\x00" * 2000)
SESSIONS = (*TRAVERSAL, *CHARACTERS, *SYNTAX, *FILE_SYSTEMS, *LONG)
NAMES = (*SESSIONS, *NO_SESSION)


@dataclass(frozen=True)
class Place:
    """A store, and how to see past it every object of the medium that it lies in."""

    store: OffloadStore
    everything: Callable[[], set[str]]


PLACES = ["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("memory", "s3"))]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[pytest.FixtureRequest, Path], Place] = {"memory": memory, "local": local, "s3": s3}[
        request.param
    ]
    return make(request, tmp_path)


def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    del request, tmp_path
    whole = MemoryStore(f"memory://{uuid.uuid4()}")
    return Place(MemoryStore(f"{whole.url}/a/root"), lambda: {found.key for found in whole.keys()})


def local(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    del request

    def everything() -> set[str]:
        paths = (path for path in tmp_path.rglob("*") if path.is_symlink() or not path.is_dir())
        return {str(path.relative_to(tmp_path)) for path in paths}

    return Place(LocalStore(str(tmp_path / "a" / "root"), storage_options={"durability": "none"}), everything)


def s3(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    del tmp_path
    bucket: Bucket = request.getfixturevalue("s3_bucket")

    def everything() -> set[str]:
        pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
        return {item["Key"] for page in pages for item in page.get("Contents", ())}

    return Place(S3Store(f"s3://{bucket.name}/a/root", storage_options=bucket.storage_options), everything)


def opened(place: Place, session: str) -> Offloader:
    return Offloader(place.store, session=session, policy=POLICY)


def call(name: str, call_id: str, text: str = TEXT) -> list[dict[str, Any]]:
    return tool_turn(call_id, text, name)


def check_objects(place: Place, count: int) -> None:
    """Check that there are so many objects, all below the root, also where case makes no difference."""
    keys = place.everything() - {"a/root/offload.json"}  # The store's own word on its medium.
    assert {key for key in keys if not key.startswith("a/root/r/")} == set()
    assert len({key.casefold() for key in keys}) == len(keys) == count
    assert all(key.isascii() and key.isprintable() for key in keys)


def test_the_names_are_many_and_all_different() -> None:
    assert len(set(NAMES)) == len(NAMES) > 100


def test_sessions_of_any_name_hold_what_is_theirs_and_nothing_else(place: Place) -> None:
    for number, name in enumerate(SESSIONS):
        messages = call("Bash", "call_0", f"item {number}\n" * 100)
        assert opened(place, name).offload(messages).errors == []

    check_objects(place, len(SESSIONS))
    for number, name in enumerate(SESSIONS):
        off = opened(place, name)
        [record] = off.records()
        assert record.session == name
        assert f"\nitem {number}\nitem {number}\n" in off.tools.read(record.ref)


def test_the_same_item_in_sessions_of_any_name_comes_back_in_each(place: Place) -> None:
    messages = call("Bash", "call_0")
    sent = {name: opened(place, name).offload(messages).messages for name in SESSIONS}

    assert len({out[1]["content"][0]["content"] for out in sent.values()}) == len(SESSIONS)
    for name, out in sent.items():
        assert opened(place, name).restore(out) == messages
    foreign = sent[SESSIONS[0]]
    with pytest.raises(NotFoundError):
        opened(place, SESSIONS[1]).restore(foreign)


@pytest.mark.parametrize("name", ["", *NO_SESSION])
def test_a_session_that_has_no_safe_name_is_refused_before_anything_is_written(
    place: Place, name: str
) -> None:
    with pytest.raises(ConfigError, match="session name"):
        opened(place, name)

    assert place.everything() == set()


def test_results_of_tools_of_any_name_come_back_and_end_nothing_in_their_placeholders(place: Place) -> None:
    calls = (call(name, f"call_{number}") for number, name in enumerate(NAMES))
    messages = list(itertools.chain.from_iterable(calls))

    out = opened(place, "s").offload(messages)

    assert out.errors == []
    assert opened(place, "s").restore(out.messages) == messages
    check_objects(place, len(NAMES))
    for sent, record in zip(out.messages[1::2], out.records, strict=True):
        first, rest = sent["content"][0]["content"].split("\n", 1)
        assert first.isprintable()
        assert first.count("[") == first.count("]") == 1
        assert first.endswith(f", id {record.ref}]")
        assert rest.startswith("one l\n")


def test_results_of_calls_of_any_id_come_back(place: Place) -> None:
    messages = list(itertools.chain.from_iterable(call("Bash", call_id) for call_id in NAMES))

    out = opened(place, "s").offload(messages)

    assert out.errors == []
    assert opened(place, "s").restore(out.messages) == messages
    assert len({record.ref for record in out.records}) == len(NAMES)
    check_objects(place, len(NAMES))
