"""The conversation of an agent on the pages, and the way in."""

from __future__ import annotations

from typing import Any

import pytest
from kit.conversation import tool_turn
from pages import Html, path_of, stranger, visitor
from retained import opened

from offload import AgentConfig, ContextManager, Offloader
from offload.messages.context import ItemType
from offload.records.journal.reader import JournalState, SentList
from offload.records.journal.writer import JournalWriter
from offload.records.session.reader import SessionReader
from offload.storage.layout import JOURNAL
from offload.web import _timeline
from offload_backends.memory import MemoryStore

PATH = path_of("s") + "/conversation"


def call(number: int, text: str, tool: str = "Bash") -> list[dict[str, Any]]:
    """Return a tool call and its result."""
    return tool_turn(f"t{number}", text, tool, {"command": f"cat part_{number}"})


def talk(store: Any, *messages: dict[str, Any], **options: Any) -> Offloader:
    """Run an agent loop over messages up to its next request."""
    off = Offloader(store, session="s", **options)
    context = ContextManager(off, AgentConfig(window_tokens=200_000))
    for message in messages:
        context.add(message)
    assert context.before_model_call().errors == []
    return off


def question(text: str = "Why does it fail?") -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_messages_are_shown_in_order_with_placeholders_that_open_their_records(
    store: MemoryStore,
) -> None:
    large = "".join(f"line {n} of the log\n" for n in range(5000))
    blank = {"role": "assistant", "content": [{"type": "text", "text": "\n\n"}]}
    off = talk(store, question(), blank, *call(1, large), *call(2, "short result"))
    [info] = off.records()
    page = visitor(store).get(PATH).text

    places = [
        page.index(text)
        for text in ("Why does it fail?", "cat part_1", info.ref, "cat part_2", "short result")
    ]
    assert places == sorted(places)
    assert path_of("s", info.ref) in Html(page).links
    assert "line 4000 of the log" not in page
    assert "An empty message." in page
    assert path_of("s") + "/conversation" in Html(visitor(store).get(path_of("s")).text).links


def test_a_text_that_only_looks_like_a_placeholder_opens_nothing(store: MemoryStore) -> None:
    off = talk(store, question(), *call(1, "a line of the log\n" * 5000))
    [info] = off.records()
    placeholder = SessionReader(store, "s").read(info.ref).header.placeholder
    forged = [{"type": "tool_result", "tool_use_id": "t9", "content": placeholder.replace("line", "crime")}]
    message = {"role": "user", "content": forged}
    messages = SentList(0, lambda _: [message], lambda _: (ItemType.TOOL_RESULT, message))
    JournalWriter(store, "s", str).write("a test", messages, JournalState())

    page = visitor(store).get(PATH).text

    assert info.ref in page
    assert "part out" not in page


def test_a_redacted_journal_is_shown_redacted(store: MemoryStore) -> None:
    talk(store, question("The key is sk-123."), redact=lambda text: text.replace("sk-123", "[key]"))
    page = visitor(store).get(PATH).text

    assert "The key is [key]." in page
    assert "sk-123" not in page


def test_an_encrypted_journal_is_shown_with_the_key_and_explained_without() -> None:
    from offload.storage.wrappers import EncryptingStore  # noqa: PLC0415 # the extra crypto

    inner = MemoryStore()
    store = EncryptingStore(inner, key=bytes(32))
    talk(store, question("A secret question"))

    assert "A secret question" in visitor(store).get(PATH).text
    answer = visitor(inner).get(PATH)
    assert "alert" in answer.text
    assert "A secret question" not in answer.text


def test_a_long_conversation_is_shown_in_parts_and_a_long_message_is_cut(store: MemoryStore) -> None:
    talk(store, *(question(f"question {n}. " + "word " * 2000 * (n == 0)) for n in range(60)))
    client = visitor(store)
    first, second = (client.get(PATH, params={"page": n}).text for n in (1, 2))

    assert "further characters not shown" in first
    assert "question 49." in first
    assert "question 50." not in first
    assert "question 59." in second
    assert 'id="M60"' in second


def test_a_session_without_a_conversation_says_so(store: MemoryStore) -> None:
    opened(store).offload_text("a line\n" * 500, tool_name="Bash")

    answer = visitor(store).get(PATH)

    assert answer.status_code == 404
    assert "no conversation" in Html(answer.text).text
    assert PATH not in visitor(store).get(path_of("s")).text


def test_a_journal_that_is_too_large_or_damaged_is_explained(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(store, question())
    with monkeypatch.context() as patch:
        patch.setattr(_timeline, "_MOST_BYTES", 10)
        assert "at most 10" in Html(visitor(store).get(PATH).text).text
    [key] = [found.key for found in store.keys(JOURNAL.prefix("s"))]
    store.put(key, b"damaged", overwrite=True)

    page = Html(visitor(store).get(PATH).text)

    assert [attrs for _, attrs in page.tags if attrs.get("role") == "alert"]
    assert key in page.text


def test_who_is_not_let_in_is_told_what_to_run(store: MemoryStore) -> None:
    client, _ = stranger(store)

    answer = client.get("/")

    assert answer.status_code == 401
    assert "offload serve --open" in answer.text
    assert "Ctrl-C" in answer.text
