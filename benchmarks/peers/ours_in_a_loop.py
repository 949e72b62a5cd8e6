"""This library in an agent's loop: the whole list passes through it before each request.

The last argument of the command is one of `VARIANTS`: a policy, a preset, or a part that is left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from peers._peer import Peer, Step
from peers._tasks import main
from peers.ours import Ours

from offload import Offloader, OffloadPolicy
from offload.agent.compaction import _strategy
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs

_SHORT_REF = re.compile(r"(?:in context|Offloaded): (\w+)\]|context_\w+\(id=\"(\w+)\"")
_PATH = re.compile(r"^Path: (.+)$", re.MULTILINE)
# Read tools cut a line there.
_LINE_CHARS = 2_000


class InALoop(Ours):
    """An `Offloader` with its default policy."""

    def __init__(self, store: str, session: str, least_chars: int | None) -> None:  # noqa: ARG002 # its own
        """See `Peer`."""
        self._off = self.opened(store, session)

    def opened(self, store: str, session: str) -> Offloader:
        """Return the offloader of a session."""
        return Offloader(store, session=session)

    def offload(self, text: str, call_id: str) -> str:  # noqa: ARG002 # `fit` offloads
        """See `Peer`."""
        return text

    def fit(self, steps: list[Step]) -> list[str]:
        """See `Peer`."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Do the steps."}]
        for step in steps:
            messages += self.exchange(step)
        sent = self._off.offload(messages).messages
        return [str(message["content"][0]["content"]) for message in sent[2::2]]


class Economy(InALoop):
    """The policy "economy"."""

    def opened(self, store: str, session: str) -> Offloader:
        """See `InALoop`."""
        return Offloader(store, session=session, policy="economy")


class Verbatim(InALoop):
    """The policy "verbatim"."""

    def opened(self, store: str, session: str) -> Offloader:
        """See `InALoop`."""
        return Offloader(store, session=session, policy="verbatim")


class WithoutPreviews(InALoop):
    """Placeholders that show nothing of what they replace."""

    def opened(self, store: str, session: str) -> Offloader:
        """See `InALoop`."""
        rule = {"preview_chars": 0}
        policy = {"preset": "balanced", "types": {"tool_result": rule}, "cost_plan": "small"}
        return Offloader(store, session=session, policy=OffloadPolicy.model_validate(policy))


class WithoutTitles(InALoop):
    """Calls that say nothing of what they are of."""

    def arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 # nothing of them
        """See `Ours`."""
        return {}


class WithoutLedger(InALoop):
    """Notices of compactions with the summary alone."""

    def compact(self, before: str, steps: list[Step], done: int, stored: dict[int, str]) -> str:
        """See `Peer`."""
        with patch.object(_strategy, "_LEDGER_TOKENS", 0):
            return super().compact(before, steps, done, stored)


class Refs(InALoop):
    """The preset `context_refs`."""

    def opened(self, store: str, session: str) -> Offloader:
        """See `InALoop`."""
        return ContextRefs(store, session).offloader

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        found = _SHORT_REF.search(shown)
        if found is None:
            raise LookupError(f"no id in {shown[-200:]!r}")
        return found[1] or found[2]


class Files(InALoop):
    """The preset `context_fs`: documents, and a tool that reads files by line, as most agents have one."""

    find = Peer.find
    find_all = Peer.find_all
    chars = Peer.chars
    query = Peer.query
    diff = Peer.diff

    def opened(self, store: str, session: str) -> Offloader:
        """See `InALoop`."""
        return ContextFileSystem(store, session).offloader

    def ref(self, shown: str) -> str:
        """See `Peer`."""
        found = _PATH.search(shown)
        if found is None:
            raise LookupError(f"no path in {shown[:200]!r}")
        return found[1]

    def lines(self, ref: str, first: int, count: int) -> str:
        """See `Peer`."""
        lines = Path(ref).read_text(encoding="utf-8").splitlines()
        return "\n".join(line[:_LINE_CHARS] for line in lines[first - 1 : first - 1 + count])

    def session_for(self, agent: str, ref: str) -> str | None:
        """See `Peer`: a path can be read by any agent of the machine."""
        return Peer.session_for(self, agent, ref)

    def instructions(self) -> str:
        """See `Peer`."""
        return self._off.prompt()


VARIANTS: dict[str, type[InALoop]] = {
    "default": InALoop,
    "economy": Economy,
    "verbatim": Verbatim,
    "context_refs": Refs,
    "context_fs": Files,
    "previews": WithoutPreviews,
    "titles": WithoutTitles,
    "ledger": WithoutLedger,
}

if __name__ == "__main__":
    main(VARIANTS[sys.argv[3]])
