"""Answers to the events of Claude Code: large results become placeholders, our tools need no permission."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from offload.errors import ConfigError, StoreError
from offload.integrations._sessions import agent_named
from offload.integrations.claude_code import _shapes as shapes
from offload.messages.calls import main_argument
from offload.offloader import Offloader
from offload.placeholder import DefaultRenderer, PlaceholderFacts
from offload.placeholder.default import tool_label
from offload.policy import ItemFacts, OffloadPolicy, Rule
from offload.policy.policy import with_rules
from offload.preview import Preview
from offload.settings.loader import Settings
from offload.store import OffloadStore

_log = logging.getLogger("offload")

# The program waits for `_plugin.TIMEOUT` seconds.
SECONDS = 15.0
# A store that failed or was too slow is not asked again for so long: each large result would wait for it.
REST_SECONDS = 60.0
KEEP = "{}"
# A text of this length is too long for a placeholder; one with such a preview of plain text is shorter.
_TOO_LONG, _PREVIEW_CHARS = 3000, 1500
_MOST_REASON = 300
# More than any threshold.
_HUGE = 1 << 60
_COMPACTION = (
    "Placeholders such as [Offloaded: ..., id kqzmwpxhva] name stored content by its id. Keep in the summary "
    "every id that may be needed later, and what it is of: context_read and context_grep find it by the id."
)


def offloader_for(settings: Settings, session: str, readers: int | None = None) -> Offloader:
    """Return the offloader of a project's tool results.

    Args:
        settings: where they are stored, and the policy: what it offloads at any time is offloaded at once.
        session: name of the session, unless the settings have one.
        readers: offload results of `Read` of at least so many tokens; None keeps them all.

    Raises:
        ConfigError: an invalid setting, or a store that no other process can read.
    """
    store = settings.open_store()
    check_lasting(store)
    arguments = settings.arguments()
    arguments["session"] = arguments["session"] or session
    arguments["policy"] = at_append(settings.policy, readers)
    arguments["placeholder"] = _ShortRenderer()
    return Offloader(store, **arguments)


def check_lasting(store: OffloadStore) -> None:
    """Raise `ConfigError` for a store that ends with its process: a resumed conversation needs its items."""
    if store.url.startswith("memory://"):
        raise ConfigError(
            f"{store.url} is lost when its process ends; set OFFLOAD_STORE to a folder or the URL of a store"
        )


def at_append(policy: OffloadPolicy, readers: int | None) -> OffloadPolicy:
    """Return a policy for results that can be replaced only before the model sees them."""
    now = policy.at_once()
    read = Rule(enabled=False) if readers is None else Rule(min_tokens=readers)
    return with_rules(now.model_copy(update={"tools": {shapes.READER: read, **now.tools}}), _short)


def _short(rule: Rule) -> Rule:
    return rule.model_copy(update={"preview_chars": min(rule.preview_chars, _PREVIEW_CHARS)})


class _ShortRenderer(DefaultRenderer):
    """Placeholders without a preview if it is too long, as that of binary output, which has many escapes."""

    def render(self, facts: PlaceholderFacts) -> str:
        text = super().render(facts)
        if len(text) < _TOO_LONG:
            return text
        return super().render(replace(facts, preview=Preview("", 0), table=""))


class Hook:
    """Answers the events of conversations in one session; after any failure the original result is kept."""

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self._rests_until = 0.0

    def answer(self, fields: Mapping[str, Any]) -> str:
        """Return the text that answers an event, given its fields; values may be JSON texts."""
        try:
            return self._answer(shapes.event_of(fields))
        except StoreError as error:
            return json.dumps(_failed(error))
        except Exception as error:  # noqa: BLE001 # no failure reaches the conversation
            # Without the error's text, which may quote the result.
            _log.warning("a result is kept in full: %s", type(error).__name__)
            return KEEP

    def _answer(self, event: Mapping[str, Any]) -> str:
        match event.get("hook_event_name"):
            case shapes.EVENT:
                return json.dumps(self._of_result(event))
            case "PreToolUse":
                return json.dumps(_allowed(str(event.get("tool_name"))))
            case "PreCompact":
                return _COMPACTION
        return KEEP

    def _of_result(self, event: Mapping[str, Any]) -> dict[str, Any]:
        tool = str(event["tool_name"])
        result = shapes.result_of(tool, event["tool_response"])
        if result is None or self._is_kept(tool) or time.monotonic() < self._rests_until:
            return {}
        with shapes.chunks_of(result, str(event.get("transcript_path"))) as chunks:
            if chunks is None:
                return {}
            title = main_argument(tool, event.get("tool_input"))
            call_id = str(event["tool_use_id"])
            with (
                self._watched(),
                self._offloader.open_sink(
                    tool_name=tool,
                    tool_use_id=call_id,
                    title=title,
                    # Events of the main agent have none.
                    agent=agent_named(self._offloader, event.get("agent_type")),
                ) as sink,
            ):
                for chunk in _in_time(chunks):
                    sink.write(chunk)
        if isinstance(sink.error, StoreError):
            self._rest()
            return _failed(sink.error)
        if sink.info is None:
            return {}
        name = tool_label(tool)
        said = f"offload stored {sink.info.chars:,} characters of {name}: offload show {sink.info.ref}"
        return shapes.answer(result, sink.placeholder, said)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let the store rest if it fails in the block, or if the block takes too long."""
        late = threading.Timer(SECONDS, self._rest)
        late.daemon = True
        late.start()
        try:
            yield
        except StoreError:
            self._rest()
            raise
        finally:
            late.cancel()

    def _rest(self) -> None:
        self._rests_until = time.monotonic() + REST_SECONDS
        _log.warning("the store failed or is too slow: for %d seconds results are kept in full", REST_SECONDS)

    def _is_kept(self, tool: str) -> bool:
        """Return whether the policy keeps what a tool returns at any size; a sink offloads any long text."""
        facts = ItemFacts(0, None, "tool_result", tool, None, _HUGE, _HUGE, _HUGE)
        return self._offloader.policy.decide(facts, readers="offload").action == "keep"


def _in_time(chunks: Iterator[str | bytes]) -> Iterator[str | bytes]:
    """Yield the chunks; raise `TimeoutError` if it takes too long."""
    until = time.monotonic() + SECONDS
    for chunk in chunks:
        if time.monotonic() > until:
            raise TimeoutError
        yield chunk


def _failed(error: StoreError) -> dict[str, Any]:
    """Return a message for the user alone: nothing else shows that results remain in the context."""
    why = " ".join(str(error).split())[:_MOST_REASON]
    return {"systemMessage": f"offload kept a large result in the context, since the store failed: {why}"}


def _allowed(tool: str) -> dict[str, Any]:
    """Return the permission for a tool of the plugin's own that reads; no decision for any other."""
    if not shapes.is_plugin_tool(tool):
        return {}
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "allow"}
    return {"hookSpecificOutput": {**decision, "permissionDecisionReason": "It only reads stored content."}}
