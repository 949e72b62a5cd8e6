"""Items whose records another process deleted are stored again under the placeholders that were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.conversation import tool_turn
from kit.store import ActingStore, failing

from offload import Offloader, OffloadPolicy, Rule, StoreError, open_store
from offload.maintenance.retention import delete
from offload_backends.memory import MemoryStore

TEXT = "".join(f"line {n} of the log\n" for n in range(2000))


def messages(count: int = 3) -> list[Any]:
    made: list[Any] = [{"role": "user", "content": "Build it."}]
    for n in range(count):
        made += tool_turn(f"t{n}", f"{n}\n{TEXT}", "Bash", {"command": f"make {n}"})
    return made


def records_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.zst"))


def test_only_what_is_gone_is_stored_again_and_placeholders_stay(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    out = off.offload(messages())
    before = {path: path.read_bytes() for path in records_in(tmp_path)}
    lost = records_in(tmp_path)[1]
    lost.unlink()

    assert off.store_again() == 1
    assert off.store_again() == 0

    again = off.offload(messages())
    assert (again.messages, again.errors) == (out.messages, [])
    assert records_in(tmp_path) == sorted(before)
    kept = {path: path.read_bytes() for path in before if path != lost}
    assert kept == {path: data for path, data in before.items() if path != lost}
    assert Offloader(tmp_path, session="s").restore(out.messages) == messages()


def test_items_that_no_rule_would_offload_now_keep_their_placeholders_too(tmp_path: Path) -> None:
    rules = OffloadPolicy(types={"tool_result": Rule(min_tokens=10)})
    Offloader(tmp_path, session="s", policy=rules).offload(messages())
    off = Offloader(
        tmp_path, session="s", policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=10**6)})
    )
    # The result is found as stored once another process has replied.
    grown = [*messages(), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
    out = off.offload(grown)
    assert len(out.records) == 3
    for path in records_in(tmp_path):
        path.unlink()

    assert off.store_again() == 3
    assert off.offload(grown).messages == out.messages
    assert Offloader(tmp_path, session="s").restore(out.messages) == grown


def test_if_the_store_takes_nothing_the_items_are_in_their_messages_again(tmp_path: Path) -> None:
    store = ActingStore(open_store(str(tmp_path)))
    off = Offloader(store, session="s")
    out = off.offload(messages())
    assert len(out.records) == 3
    for path in records_in(tmp_path):
        path.unlink()
    store.act = failing(StoreError("the disk is full"), "put")

    with pytest.raises(StoreError, match="the disk is full"):
        off.store_again()
    assert off.offload(messages()).messages == messages()


def test_what_this_process_deleted_is_stored_again_for_the_messages_that_come_again_alone(
    tmp_path: Path,
) -> None:
    off = Offloader(tmp_path, session="s", model="claude-opus-5-5")
    grown = messages()
    for n, message in enumerate(grown[1::2]):
        message["content"].insert(0, {"type": "thinking", "thinking": "", "signature": f"s{n}"})
    for end in (3, 5, 7):
        out = off.offload(grown[:end])
    delete(off.store, "s")

    again = off.offload(grown[:5])

    assert (again.messages, again.errors) == (out.messages[:5], [])
    assert {info.ref for info in off.records()} == {info.ref for info in out.records[:2]}


@pytest.mark.parametrize(("is_same", "asks"), [(False, False), (True, True)], ids=["another", "the same"])
def test_a_deletion_concerns_the_store_in_which_it_was_and_no_other_with_its_address(
    *, is_same: bool, asks: bool
) -> None:
    store, other = ActingStore(MemoryStore()), MemoryStore()
    assert store.url == other.url
    off = Offloader(store, session="s")
    for each in (off, Offloader(other, session="s")):
        each.offload(messages())
    delete(store.inner if is_same else other, "s")
    store.asked.clear()

    off.offload(messages())

    assert any(verb != "put" for verb, _ in store.asked) is asks
