"""The journal of a conversation: its size, its keys, and the processes that continue from it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kit.conversation import tool_turn
from pages import Html, visitor
from strength import thinned
from typer.testing import CliRunner

from offload import (
    AgentConfig,
    ConfigError,
    ContextManager,
    CorruptError,
    EncryptionError,
    MessageError,
    Offloader,
    open_store,
)
from offload.agent.compaction import TypeRule
from offload.cli.app import app
from offload.maintenance.retention import delete
from offload.messages.context import ItemType
from offload.records.index import sessions
from offload.storage.layout import JOURNAL
from offload.storage.wrappers import EncryptingStore
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

SMALL = AgentConfig(model="m", window_tokens=4000)
NOTHING_GOES = {name: TypeRule() for name in ItemType}


def manager(store: Any, config: AgentConfig = SMALL, session: str = "s", **options: Any) -> ContextManager:
    if isinstance(store, Path):
        store = open_store(store, storage_options={"durability": "none"})
    return ContextManager(Offloader(store, session=session, **options), config)


def resumed(store: Any, config: AgentConfig = SMALL, session: str = "s") -> ContextManager:
    m = manager(store, config, session)
    m.resume()
    return m


def exchange(n: int, words: int = 8) -> list[dict[str, Any]]:
    return tool_turn(f"t{n}", f"made {n} " * words, "Bash", {"command": f"make {n}"})


def turn(m: ContextManager, n: int, words: int = 8) -> list[dict[str, Any]]:
    call, result = exchange(n, words)
    m.before_model_call()
    m.after_model_call(call)
    m.add(result)
    return [call, result]


def written(root: Path, session: str = "s") -> int:
    return sum(path.stat().st_size for path in (root / "j" / session).iterdir())


def size_of(messages: list[Any]) -> int:
    return len(json.dumps(messages))


# What it takes


def test_a_conversation_above_the_trigger_is_stored_once(tmp_path: Path) -> None:
    config = AgentConfig(window_tokens=1000, rules=NOTHING_GOES)
    m = manager(tmp_path, config)
    messages = []
    for n in range(45):
        message = {"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n} " + "word " * 15}
        messages.append(message)
        m.add(message)
        m.before_model_call()
        m.before_model_call()

    assert m.before_model_call().tokens > config.trigger_tokens
    assert written(tmp_path) <= 2 * size_of(messages) + 500
    assert resumed(tmp_path, config).messages == m.messages


@pytest.mark.parametrize("words", thinned([30, 3, 300], 3))
@pytest.mark.parametrize("window", thinned([2000, 4000, 10**6], 2))
def test_the_journal_grows_with_new_messages_only_through_compactions_too(
    tmp_path: Path, window: int, words: int
) -> None:
    config = AgentConfig(model="m", window_tokens=window)
    m = manager(tmp_path, config)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    m.add(messages[0])
    for n in range(9000 // (words + 100)):
        messages += turn(m, n, words)
    m.before_model_call()

    assert written(tmp_path) <= 2 * size_of(messages) + 2000
    other = resumed(tmp_path, config)
    assert other.messages == m.messages
    assert other.before_model_call().tokens == m.before_model_call().tokens
    assert other.restore() == messages


def test_resume_after_many_compactions_reads_little_more_than_the_conversation(tmp_path: Path) -> None:
    m = manager(tmp_path)
    m.add({"role": "user", "content": "go"})
    for n in range(80):
        turn(m, n, 60)
    store = FaultyStore(Offloader(tmp_path).store, nth=10**9)
    resumed(store)

    assert len(list((tmp_path / "j" / "s").iterdir())) == 160
    assert store.operations < len(m.messages)


def test_every_message_is_resumed_in_its_place(tmp_path: Path) -> None:
    m = manager(tmp_path)
    m.add({"role": "user", "content": "go"})
    m.before_model_call()
    m.add({"role": "user", "content": "Ask others first."}, ItemType.SUBAGENT_STRATEGY)
    m.add({"role": "system", "content": "A file came."})
    turn(m, 1)
    m.before_model_call()

    assert resumed(tmp_path).messages == m.messages
    assert m.messages[0]["content"] == "Ask others first."


# Where it lies


def test_no_listing_shows_the_journal_as_a_session(tmp_path: Path) -> None:
    m = manager(tmp_path)
    turn(m, 1, 900)
    m.before_model_call()

    shown = CliRunner().invoke(app, ["ls", str(tmp_path)]).output

    assert list(sessions(open_store(tmp_path))) == ["s"]
    assert "journal" not in shown
    assert "made" not in m.tools.call("context_list")
    assert Offloader(tmp_path, session="s").verify() == []


@pytest.mark.parametrize("name", ["s.journal", "j", "s/journal", "~s", "j/s"])
def test_no_session_name_collides_with_the_journal_of_another(tmp_path: Path, name: str) -> None:
    text = "".join(f"line {n}\n" for n in range(4000))
    other = Offloader(tmp_path, session=name)
    placeholder = other.offload_text(text, tool_name="Bash")
    mine, theirs = manager(tmp_path), manager(tmp_path, session=name)
    turn(mine, 1)
    turn(theirs, 2)
    turn(mine, 3)

    assert placeholder != text
    assert len(other.records()) == 1
    assert [m["content"][0].get("id") for m in resumed(tmp_path).messages[::2]] == ["t1", "t3"]
    assert [m["content"][0].get("id") for m in resumed(tmp_path, session=name).messages] == ["t2"]


# Forks, copies, deletion


def test_a_fork_is_updated_until_it_has_changes_and_continues_the_conversation_independently(
    tmp_path: Path,
) -> None:
    m = manager(tmp_path)
    messages = []
    for n in range(12):
        messages += turn(m, n, 100)
        m.before_model_call()
        Offloader(tmp_path, session="s").fork("other")
    fork = resumed(tmp_path, session="other")
    assert fork.messages == m.messages
    turn(fork, 100)
    fork.before_model_call()
    turn(m, 200)
    m.before_model_call()
    with pytest.raises(ConfigError, match="session 'other' exists"):
        Offloader(tmp_path, session="s").fork("other")

    forked = resumed(tmp_path, session="other").restore()
    assert forked == [*messages, *exchange(100)]
    assert resumed(tmp_path).restore() == [*messages, *exchange(200)]


@pytest.mark.parametrize(("pin", "left"), [(False, 0), (True, 2)])
def test_the_conversation_is_deleted_with_its_session_unless_that_is_pinned(
    tmp_path: Path, pin: bool, left: int
) -> None:
    m = manager(tmp_path)
    turn(m, 1)
    m.before_model_call()
    off = Offloader(tmp_path, session="s")
    if pin:
        off.pin()

    delete(off.store, "s")

    assert len(list((tmp_path / "j" / "s").iterdir())) == left


# What cannot be written, or read


def test_a_value_without_json_is_replaced_alone_and_reported_once(tmp_path: Path) -> None:
    m = manager(tmp_path)
    m.add({"role": "user", "content": "go", "extra": object()})
    first = m.before_model_call().errors
    later = turn(m, 1)
    errors = m.before_model_call().errors

    other = resumed(tmp_path)

    assert [type(e) for e in first] == [MessageError]
    assert "object" in str(first[0])
    assert errors == []
    assert other.messages == [
        {"role": "user", "content": "go", "extra": "[object, which has no JSON]"},
        *later,
    ]


def test_a_message_is_stored_redacted_once_redact_works(tmp_path: Path) -> None:
    is_broken = True

    def redact(text: str) -> str:
        if is_broken and "s3cret" in text:
            raise RuntimeError("no service")
        return text.replace("s3cret", "[cut]")

    m = manager(tmp_path, redact=redact)
    m.add({"role": "user", "content": "the key is s3cret"})
    errors = m.before_model_call().errors
    later = turn(m, 1)
    size = written(tmp_path)
    again = m.before_model_call().errors
    unchanged = written(tmp_path)
    while_broken = resumed(tmp_path).messages
    is_broken = False
    healed = m.before_model_call().errors

    assert ["no service" in str(e) for e in (*errors, *again)] == [True, True]
    assert unchanged - size < 400
    assert "could not be stored" in while_broken[0]["content"]
    assert while_broken[1:] == later
    assert healed == []
    assert m.messages == [{"role": "user", "content": "the key is s3cret"}, *later]
    assert resumed(tmp_path).messages == [{"role": "user", "content": "the key is [cut]"}, *later]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "flipped": lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:],
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_entry_is_reported(tmp_path: Path, harm: str) -> None:
    m = manager(tmp_path)
    turn(m, 1)
    m.before_model_call()
    last = max((tmp_path / "j" / "s").iterdir())
    last.write_bytes(HARMS[harm](last.read_bytes()))

    with pytest.raises(CorruptError, match="j/s/00000000"):
        resumed(tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        "null",
        "[]",
        '{"ratios": []}',
        '{"ratios": {"m": "x"}}',
        '{"ratios": {"m": NaN}}',
        '{"edits": 3}',
        '{"edits": [[1, 2]]}',
        '{"edits": [[-1, 0, 0]]}',
        '{"edits": [["a", 1, 2]]}',
        '{"compactions": "x"}',
        '{}\n["user_message", ' + "[" * 100_000,
    ],
)
def test_an_entry_with_other_values_than_an_agent_stores_is_damaged(head: str) -> None:
    store = MemoryStore()
    manager(store).before_model_call()
    key = JOURNAL.key(session="s", number="000000000", kind="begun", bytes=len(head), letters="abcdefghij")
    store.put(key, zstandard.ZstdCompressor(write_checksum=True).compress(head.encode()))

    with pytest.raises(CorruptError, match=key):
        resumed(store)
    assert Html(visitor(store).get("/").text).text.count("unknown") == 1


def test_an_encrypted_journal_is_said_to_be_encrypted() -> None:
    store = MemoryStore()
    turn(manager(EncryptingStore(store, secrets.token_bytes(32))), 1)

    with pytest.raises(
        EncryptionError, match=r"it is encrypted; open the store as EncryptingStore\(store, key\)"
    ):
        resumed(store)


def test_an_entry_that_claims_too_many_bytes_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    m = manager(tmp_path)
    turn(m, 1)
    last = max((tmp_path / "j" / "s").iterdir())
    number, kind, _, letters = last.name.split("~")
    last.rename(last.with_name(f"{number}~{kind}~999999999~{letters}"))

    with pytest.raises(CorruptError):
        resumed(tmp_path)
