"""Facts of a record in lists that its key lacks: its title, and the agent that stored it."""

from __future__ import annotations

from typing import NamedTuple

from offload.errors import ConfigError
from offload.record.titles import MAX_TITLE_CHARS, checked_title


class Label(NamedTuple):
    """Title and agent of a record; "" for none."""

    title: str = ""
    agent: str = ""

    @classmethod
    def of(cls, title: str | None, agent: str | None) -> Label:
        """Return the label of a record that comes from a store."""
        return cls(checked_title(title or ""), checked_title(agent or ""))


def checked_agent(agent: object) -> str | None:
    """Return a name of an agent, or None. Raises `ConfigError` unless it is a line of 1 to 80 characters."""
    is_name = isinstance(agent, str) and 1 <= len(agent) <= MAX_TITLE_CHARS and agent.isprintable()
    if agent is not None and not is_name:
        raise ConfigError(
            f"agent must be a name on one line of 1 to {MAX_TITLE_CHARS} characters, got {agent!r:.60}"
        )
    return agent if isinstance(agent, str) else None
