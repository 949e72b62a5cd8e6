"""Claude Agent SDK: offloading as hooks of a program's options, retrieval tools, sessions on any store."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from offload.base.threads.calls import in_thread
from offload.engine.policy import OffloadPolicy, Rule
from offload.errors import ConfigError, needs_extra
from offload.integrations._claude_hook import TIMEOUT, Hook
from offload.integrations._claude_results import READER
from offload.integrations._objects import StorageOptions
from offload.integrations._sessions import at_append
from offload.integrations._transcripts import Names, Transcripts, TranscriptTurns
from offload.offloader import Offloader

with needs_extra("claude-agent-sdk"):
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, SessionStore, fold_session_summary, types

    from offload.integrations.mcp import context_server

_SERVER = "offload"
_PREFIX = f"mcp__{_SERVER}__"
_TOOLS = ("Bash", "Agent", "Task", "WebFetch", "WebSearch")
_ALLOWED = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}

__all__ = ["OffloadSessionStore", "offloaded"]


def offloaded(
    options: ClaudeAgentOptions | None, offloader: Offloader, *, file_readers: int | None = None
) -> ClaudeAgentOptions:
    """Return `options` with hooks that offload tool results, and the retrieval tools.

    A placeholder replaces a result of Bash, of an MCP tool, of a web tool or of a subagent before the model
    sees it and before Claude Code writes it to its transcript. What the policy of `offloader` offloads at any
    time is offloaded at once, because a hook sees a result only once. Failed calls, edits, images and other
    results are kept. A result that Claude Code cuts is read whole from the file that it names. If storing
    fails or takes too long, the original is kept.

    Hooks, servers and agents of `options` are kept; an agent with a list of tools gets the retrieval tools
    too. They need no permission.

    Args:
        options: options of `query` or `ClaudeSDKClient`, which are not changed; None for the default.
        offloader: where the results are stored. Use the same session name to resume or fork a conversation.
        file_readers: offload results of `Read` of at least so many tokens; None keeps them all.

    Raises:
        ConfigError: `mcp_servers` is not a dict, or has a server named "offload"; or a wrong `file_readers`.
    """
    options = ClaudeAgentOptions() if options is None else options
    servers = options.mcp_servers
    if not isinstance(servers, dict):
        raise ConfigError(f"mcp_servers must be a dict, got {type(servers).__name__}; load its servers first")
    if _SERVER in servers:
        raise ConfigError(f"mcp_servers has a server {_SERVER!r} already; give it another name")
    hook = Hook(offloader.with_options(policy=_policy(offloader.policy, file_readers)))
    server: Any = {"type": "sdk", "name": _SERVER, "instance": context_server(offloader)}
    return replace(
        options,
        mcp_servers={**servers, _SERVER: server},
        hooks=_with_hooks(options.hooks or {}, hook, has_readers=file_readers is not None),
        agents=options.agents and _with_tools(options.agents, offloader),
    )


def _with_hooks(hooks: dict[Any, Any], hook: Hook, *, has_readers: bool) -> dict[Any, Any]:
    async def replaced(event: Any, _call: Any, _context: Any) -> Any:
        return await in_thread(hook.answer, event)

    async def allowed(_event: Any, _call: Any, _context: Any) -> Any:
        return _ALLOWED

    added = {
        "PostToolUse": HookMatcher(
            matcher=_matcher(has_readers=has_readers), hooks=[replaced], timeout=TIMEOUT
        ),
        "PreToolUse": HookMatcher(matcher=f"^{re.escape(_PREFIX)}.*$", hooks=[allowed]),
    }
    return {**hooks, **{event: [*hooks.get(event, ()), each] for event, each in added.items()}}


def _policy(policy: OffloadPolicy, file_readers: int | None) -> OffloadPolicy:
    now = at_append(policy)
    read = Rule(enabled=False) if file_readers is None else Rule(min_tokens=file_readers)
    return now.model_copy(update={"tools": {READER: read, **now.tools}})


def _matcher(*, has_readers: bool) -> str:
    """Return the pattern of the tools whose results may be offloaded, without the retrieval tools."""
    readers = [READER] if has_readers else []
    return f"^({'|'.join([*_TOOLS, *readers, rf'(?!{_PREFIX})mcp__.*'])})$"


def _with_tools(agents: dict[str, Any], offloader: Offloader) -> dict[str, Any]:
    """Return the agents; those that get only some tools get the retrieval tools too."""
    names = [f"{_PREFIX}{tool['name']}" for tool in offloader.tools.definitions()]
    return {
        name: agent if agent.tools is None else replace(agent, tools=[*agent.tools, *names])
        for name, agent in agents.items()
    }


class OffloadSessionStore(SessionStore):
    """The SDK's `SessionStore` on any store: `ClaudeAgentOptions(session_store=OffloadSessionStore(url))`.

    Each append is one compressed object that is never rewritten, so that no writer loses what another one
    stored. `load` returns the entries in the order of their appends; of those with one `uuid`, the first.

    `store`, `storage_options` and errors are those of `offload.Offloader`.
    """

    def __init__(self, store: Any = None, *, storage_options: StorageOptions = None) -> None:
        self._transcripts = Transcripts(store, storage_options)
        self._turns = TranscriptTurns()

    async def append(self, key: types.SessionKey, entries: list[types.SessionStoreEntry]) -> None:
        """Store a batch of entries. Raises `StoreError`."""
        if not entries:
            return
        names = _names(key)

        def fold(summary: Any, added: Any) -> Any:
            return fold_session_summary(summary, key, added)

        append, folded = self._transcripts.append, None if names.transcript else fold
        await self._turns.take(names, append, names, entries, folded)

    async def load(self, key: types.SessionKey) -> list[types.SessionStoreEntry] | None:
        """Return the entries of a transcript; None without any.

        Raises `CorruptError` with the key of a batch that is damaged or missing, and `StoreError`.
        """
        return await in_thread(self._transcripts.load, _names(key))

    async def list_sessions(self, project_key: str) -> list[types.SessionStoreListEntry]:
        """Return the sessions of a project, by one listing. Raises `StoreError`."""
        found = await in_thread(self._transcripts.sessions, project_key)
        return [{"session_id": session, "mtime": modified} for session, modified, _ in found]

    async def list_session_summaries(self, project_key: str) -> list[types.SessionSummaryEntry]:
        """Return the summaries of the sessions of a project, without those that the SDK must derive itself.

        These are damaged ones, and those to which two processes wrote last at once. Raises `StoreError`.
        """
        found = await in_thread(lambda: [*self._transcripts.summaries(project_key)])
        return [{**summary, "mtime": each.modified} for each, summary in found]

    async def delete(self, key: types.SessionKey) -> None:
        """Delete a transcript; without a subpath the whole session. Raises `StoreError`."""
        await in_thread(self._transcripts.delete, _names(key))

    async def list_subkeys(self, key: types.SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session. Raises `StoreError`."""
        return await in_thread(self._transcripts.transcripts, _names(key))


def _names(key: Any) -> Names:
    return Names(key["project_key"], key["session_id"], key.get("subpath") or "")
