"""Offloaders of an integration: one per conversation of its framework, or one for all."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Unpack

from offload.engine.policy import OffloadPolicy, Rule
from offload.engine.policy.policy import with_rules
from offload.engine.settings.options import OptionArguments
from offload.errors import ConfigError
from offload.offloader import Offloader
from offload.records.record.titles import title_of
from offload.storage.registry import open_store

# Offloaders, with their histories, kept open; a session beyond these is opened again from the store.
OPEN = 256
_PREVIEW_CHARS = 1500


class Sessions:
    """The sessions of one store, opened on demand; arguments and errors are those of `Offloader`.

    Without a `session` for all conversations, each has its own, and `own` is the offloader of a new one.
    Frameworks pass any arguments of a model on to its tools, which explain the wrong ones. Unless the
    integration `resolves` references in the calls of tools, that option raises `ConfigError`.
    """

    def __init__(
        self,
        store: Any,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        resolves: bool = False,
        **options: Unpack[OptionArguments],
    ) -> None:
        if not resolves:
            refuse_references(options)
        self._open = partial(Offloader, open_store(store, storage_options=storage_options), **options)
        self.session = session
        self.own = self.open(session)
        self._named = lru_cache(OPEN)(lambda name, _list: self.open(name))

    def open(self, session: str | None) -> Offloader:
        """Return a new offloader; its model keeps the tools that its agent was made with."""
        offloader = self._open(session=session)
        offloader.tools.definitions()
        return offloader

    def named(self, name: str | None, messages: str = "") -> Offloader:
        """Return the offloader of the conversation `name`, one for each name of a list of `messages`."""
        if self.session is not None and messages:
            return self._named(self.session, messages)
        return self.own if name is None or self.session is not None else self._named(name, messages)


def model_named(offloader: Offloader, *names: Any) -> str | None:
    """Return the first name of a model that a framework gives, for `offload(model=)`.

    None if it gives none, or if the host named the model of the offloader itself.
    """
    if offloader.options.model is not None:
        return None
    return next((name for name in names if isinstance(name, str) and name), None)


def agent_named(offloader: Offloader, name: Any) -> str | None:
    """Return the name of an agent that a framework gives, for `offload(agent_name=)`, as one line.

    None if it gives none, or if the host named the agent of the offloader itself.
    """
    if offloader.options.agent_name is not None or not isinstance(name, str):
        return None
    title = title_of(name)
    return title if title and title.isprintable() else None


def refuse_references(options: OptionArguments) -> None:
    """Raise `ConfigError` for the option `reference_fields`: a tool would get the reference, not the text."""
    if options.get("reference_fields"):
        raise ConfigError(
            "this integration does not resolve references in the calls of tools: omit reference_fields=, and "
            "call off.resolve(arguments, name) in a loop of your own, or use LangChain's OffloadMiddleware"
        )


def refuse_journal(options: OptionArguments) -> None:
    """Raise `ConfigError` for the option `journal`: the framework shows its hooks no request."""
    if options.get("journal"):
        raise ConfigError(
            "the framework shows no requests to its extensions, so no journal can be kept: omit journal=, or "
            "run the gateway, which keeps one for each conversation"
        )


def at_append(policy: OffloadPolicy) -> OffloadPolicy:
    """Return a policy for results that can be replaced only before the model sees them."""
    return with_rules(policy.at_once(), _short)


def _short(rule: Rule) -> Rule:
    return rule.model_copy(update={"preview_chars": min(rule.preview_chars, _PREVIEW_CHARS)})


def folder_session() -> str:
    """Return a session name derived from the project's folder: a resumed conversation finds its items.

    Claude Code names that folder to its programs; else it is the working folder.
    """
    folder = Path(os.environ.get("CLAUDE_PROJECT_DIR") or Path.cwd()).resolve()
    readable = re.sub(r"[^a-z0-9._-]+", "-", folder.name.lower())[:40]
    return f"{readable}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def is_error(answer: str) -> bool:
    """Return whether a retrieval tool's answer is an error."""
    return answer.startswith("Error: ")
