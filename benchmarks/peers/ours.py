"""This library: a folder, `unsynced:` and a folder that is written without fsync, or `s3://`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from peers._editing import PAGE_LINES, PLACE_LINES
from peers._peer import CONTEXT_LINES, PREVIEW_CHARS, READ_CHARS, Peer, Step
from peers._tasks import main

from offload import Offloader, OffloadPolicy, Rule
from offload.agent.compaction import RoundCompactor, RoundConfig

_REF = re.compile(r'context_\w+\(id="([a-z]+)"')
_UNSYNCED = "unsynced:"


class Ours(Peer):
    """An `Offloader` and its tools."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:
        """See `Peer`."""
        policy = None
        if least_chars is not None:
            rule = Rule(min_chars=least_chars, preview_chars=PREVIEW_CHARS)
            policy = OffloadPolicy(types={"tool_result": rule})
        options: dict[str, str] = {}
        if store.startswith("s3://"):
            options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        elif store.startswith(_UNSYNCED):
            options = {"durability": "none"}
        url = store.removeprefix(_UNSYNCED)
        self._off = Offloader(url, session=session, policy=policy, storage_options=options)

    def offload(self, text: str, call_id: str) -> str:
        """See `Peer`."""
        return self._off.offload_text(text, tool_name="Bash", tool_use_id=call_id)

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        found = _REF.search(shown)
        if found is None:
            raise LookupError(f"no ref in {shown[:200]!r}")
        return found[1]

    def stream(self, chunks: Iterable[str], call_id: str) -> str:
        """See `Peer`."""
        with self._off.open_sink(tool_name="Bash", tool_use_id=call_id) as sink:
            for chunk in chunks:
                sink.write(chunk)
        return sink.placeholder

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        return self._off.tools.read(ref, part=f"{first}-{first + count - 1}")

    def chars(self, ref: str, offset: int, count: int) -> str:
        """See `Peer`."""
        return self._off.tools.read(ref, offset=offset, limit=count)

    def tail(self, ref: str, count: int) -> str:
        """See `Peer`."""
        return self._off.tools.read(ref, part=f"-{count}")

    def find(self, ref: str, text: str, more: str = "") -> str:
        """See `Peer`."""
        return self._off.tools.grep(text, ref, cursor=more or None)

    def find_all(self, text: str) -> str:
        """See `Peer`."""
        return self._off.tools.grep(text)

    def near(self, ref: str, text: str) -> str:
        """See `Peer`."""
        return self._off.tools.grep(text, ref, context_lines=CONTEXT_LINES)

    def near_all(self, text: str) -> str:
        """See `Peer`."""
        return self._off.tools.grep(text, context_lines=CONTEXT_LINES)

    def grep(self, ref: str, pattern: str) -> str:
        """See `Peer`."""
        return self._off.tools.grep(pattern, ref, mode="regex")

    def search(self, query: str) -> list[str]:
        """See `Peer`."""
        return [self._off.tools.grep(query, mode="search", max_matches=self.first)]

    def query(self, ref: str, sql: str) -> str:
        """See `Peer`."""
        return self._off.tools.query(ref, sql)

    def diff(self, old: str, new: str) -> str:
        """See `Peer`."""
        return self._off.tools.diff(old, new)

    def compact(self, before: str, steps: list[Step], done: int, stored: dict[int, str]) -> str:  # noqa: ARG002 # the ledger has the names
        """See `Peer`."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": before or "Do the first steps."}]
        for step in steps:
            messages += self.exchange(step)
        config = RoundConfig(keep_recent_rounds=1)
        rounds = RoundCompactor(self._off, lambda _: f"<summary>{done} calls were done.</summary>", config)
        end = {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Do the next steps."}
        compacted = rounds.compact([*messages, *end])
        if not compacted.is_compacted:
            raise RuntimeError(f"not compacted: {compacted.error}")
        return str(compacted.new_messages[0]["content"])

    def exchange(self, step: Step) -> list[dict[str, Any]]:
        """Return the messages of a call and its result."""
        name, arguments = _request(step)
        call = {"type": "tool_use", "id": step.id, "name": name, "input": self.arguments(arguments)}
        result = {"type": "tool_result", "tool_use_id": step.id, "content": step.text}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    def arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that a call in the messages has."""
        return arguments

    def session_for(self, agent: str, ref: str) -> str | None:
        """See `Peer`."""
        self._off.share(ref, to=agent)
        return agent

    def instructions(self) -> str:
        """See `Peer`."""
        return self._off.prompt() + json.dumps(self._off.tools.definitions("anthropic"))


def _request(step: Step) -> tuple[str, dict[str, Any]]:
    """Return the tool and the arguments of a call, as an agent that has these tools makes it."""
    call = step.call
    if call["tool"] == "read":
        page = {"offset": call["first"], "limit": PAGE_LINES} if "first" in call else {}
        return "Read", {"file_path": call["path"], **page}
    if call["tool"] == "edit":
        return "Edit", {"file_path": call["path"], "old_string": call["old"], "new_string": call["new"]}
    if call["tool"] == "read back":
        return _read_back(call)
    return {"call": "Bash", "delegate": "Task"}[call["tool"]], {"command": step.argument}


def _read_back(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    verb, argument = call["verb"], call["argument"]
    if verb == "diff":
        return "context_diff", {"old": call.get("old"), "new": call.get("ref")}
    ref = {"id": call["ref"]} if "ref" in call else {}
    if verb in _ARGUMENTS:
        name, arguments = _ARGUMENTS[verb]
        return name, ref | arguments(argument)
    near = {"context_lines": CONTEXT_LINES} if "near" in verb else {}
    more = {"cursor": call["more"]} if call["more"] else {}
    return "context_grep", {**ref, "pattern": argument, **near, **more}


_ARGUMENTS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "lines": ("context_read", lambda first: {"part": f"{first + 1}-{first + PAGE_LINES}"}),
    "at": ("context_read", lambda first: {"part": f"{first + 1}-{first + PLACE_LINES}"}),
    "chars": ("context_read", lambda first: {"offset": first, "limit": READ_CHARS}),
    "query": ("context_query", lambda sql: {"sql": sql}),
}

if __name__ == "__main__":
    main(Ours)
