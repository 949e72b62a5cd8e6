"""What integrations that make their own offloaders share, without a framework."""

from __future__ import annotations

import pytest

from offload.errors import ConfigError
from offload.integrations._sessions import Sessions

FIELDS = ["write_file.content"]


def test_references_are_refused_where_nothing_resolves_them() -> None:
    with pytest.raises(ConfigError, match=r"does not resolve references.*off\.resolve"):
        Sessions("memory://", references=FIELDS)


def test_references_reach_the_offloaders_of_an_integration_that_resolves_them() -> None:
    sessions = Sessions("memory://", resolves=True, references=FIELDS)

    assert "write_file.content" in sessions.named("a conversation").prompt()
