"""Settings of compaction by rounds."""

from __future__ import annotations

import os
from typing import Any, Literal, Self

from offload.errors import ConfigError
from offload.settings import Flag, Fraction, SettingsModel, Size, read_file

Refusal = Literal["drop_oldest", "new_session", "error"]

_TABLE = "context_compaction"


class RoundConfig(SettingsModel):
    """Settings of compaction by rounds.

    Attributes:
        enabled: whether `should_compact` may return True.
        max_context_tokens: the context window, in tokens.
        trigger_ratio: a compaction is due at this part of the window or more.
        keep_recent_rounds: how many of the latest rounds are kept.
        require_confirmation: whether `confirm` is called first.
        summary_max_length: the maximum length of a summary, in characters; a longer one is cut.
        on_refusal: the effect of a refusal: "drop_oldest" removes as few rounds as possible, without a
            summary; "new_session" keeps the current round only; "error" raises.
    """

    enabled: Flag = True
    max_context_tokens: Size = 80_000
    trigger_ratio: Fraction = 0.8
    keep_recent_rounds: Size = 2
    require_confirmation: Flag = False
    summary_max_length: Size = 1000
    on_refusal: Refusal = "error"

    @property
    def trigger_tokens(self) -> int:
        """The number of tokens at which a compaction is due."""
        return int(self.max_context_tokens * self.trigger_ratio)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the settings in the table `context_compaction` of a YAML, TOML or JSON file.

        Raises:
            ConfigError: the file cannot be read, has no such table, or has an invalid value.
            MissingExtraError: a YAML file, and the package that reads it is not installed.
        """
        data: dict[str, Any] = read_file(path)
        if not isinstance(data.get(_TABLE), dict):
            raise ConfigError(f"{path} holds no table {_TABLE}")
        return cls.model_validate(data[_TABLE])
