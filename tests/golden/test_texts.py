"""Placeholders of the library's own form: found, kept, restored, and written byte for byte.

`texts_messages.json` is a conversation. The folder `texts` has a store, and the conversation as it was
offloaded there, once with previews and once redacted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offload import Offloader, OffloadPolicy, Rule
from offload.engine.placeholder import DefaultRenderer
from offload.engine.placeholder.default import escape_placeholders
from offload.messages.media import media_ref

HERE = Path(__file__).parent
TYPES = ("tool_result", "user_message", "tool_call")
ADDRESS = "10.0.29.1"
SESSIONS = ("previews", "redacted")


def original() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads((HERE / "texts_messages.json").read_text())
    return messages


def offloaded(session: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads((HERE / "texts" / f"{session}.json").read_text())
    return messages


def opened(store: Path, session: str) -> Offloader:
    """Return an offloader with the settings that the golden conversations were offloaded with."""
    is_redacted = session == "redacted"
    return Offloader(
        store,
        session=session,
        policy=OffloadPolicy(
            types={t: Rule(min_chars=1000, preview_chars=0 if is_redacted else 700) for t in TYPES},
            exclude_tools=(),
            tool_media=Rule(min_tokens=1),
        ),
        redact=(lambda text: text.replace(ADDRESS, "[secret]")) if is_redacted else None,
        summarizer=(lambda text: "A log of an API." if "exit status" in text else "")
        if is_redacted
        else None,
    )


def texts(value: Any) -> Iterator[str]:
    """Yield every string of a message that begins like a placeholder."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)
    elif isinstance(value, str) and value.startswith("[Offloaded: "):
        yield value


@pytest.mark.parametrize("session", SESSIONS)
def test_placeholders_are_found_kept_and_restored(session: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / "texts" / "store", tmp_path / "store")
    before = offloaded(session)
    off = opened(tmp_path / "store", session)

    stored = {info.ref for info in off.records()}
    placeholders = list(texts(before))
    assert {media_ref(text) or DefaultRenderer().find_ref(text) for text in placeholders} == stored
    assert all(escape_placeholders(text).startswith("\\[Offloaded: ") for text in placeholders)
    expected = json.loads(
        json.dumps(original()).replace(ADDRESS, "[secret]" if session == "redacted" else ADDRESS)
    )
    assert off.restore(before) == expected
    assert opened(tmp_path / "store", session).offload(original()).messages == before
    assert opened(tmp_path / "store", session).offload(before).messages == before
    assert {info.ref for info in off.records()} == stored


@pytest.mark.parametrize("session", SESSIONS)
def test_the_form_is_written_byte_for_byte(session: str, tmp_path: Path) -> None:
    assert opened(tmp_path, session).offload(original()).messages == offloaded(session)
