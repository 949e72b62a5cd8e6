"""The hook of Claude Code that replaces large tool results by placeholders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from offload.engine.placeholder.default import tool_label
from offload.engine.policy import ItemFacts
from offload.errors import StoreError
from offload.integrations import _claude_results as results
from offload.integrations._sessions import agent_named
from offload.messages.calls import main_argument
from offload.offloader import Offloader

_log = logging.getLogger("offload")

# Seconds that the program waits for a hook, and after which the hook itself ends.
TIMEOUT, SECONDS = 20, 15.0
# A store that failed or was too slow is not asked again for so long: each large result would wait for it.
REST_SECONDS = 60.0
_MOST_REASON = 300
# More than any threshold.
_HUGE = 1 << 60


class Hook:
    """Answers each result of a conversation; after any failure the original result is kept."""

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self._rests_until = 0.0

    def answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to the event `PostToolUse`; an empty one keeps the result."""
        try:
            return self._of_result(event)
        except StoreError as error:
            return _failed(error)
        except Exception as error:  # noqa: BLE001 # no failure reaches the conversation
            # Without the error's text, which may quote the result.
            _log.warning("a result is kept in full: %s", type(error).__name__)
            return {}

    def _of_result(self, event: Mapping[str, Any]) -> dict[str, Any]:
        tool = str(event["tool_name"])
        result = results.result_of(tool, event["tool_response"])
        if result is None or self._is_kept(tool) or time.monotonic() < self._rests_until:
            return {}
        with results.chunks_of(result, str(event.get("transcript_path"))) as chunks:
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
                    agent_name=agent_named(self._offloader, event.get("agent_type")),
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
        return results.answer(result, sink.placeholder, said)

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
        return self._offloader.policy.decide(facts, file_readers="offload").action == "keep"


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
