"""Settings of an agent's context from code, files and variables, and their errors."""

from __future__ import annotations

import json

import pytest

from offload import AgentConfig, ConfigError, OffloadPolicy
from offload.agent.compaction import TypeRule

TOML = """
model = "small"
window_tokens = 20000
target_ratio = 0.5
[rules.user_message]
strategy = "truncate"
keep_recent = 9
[policy]
preset = "economy"
"""
DATA = {
    "model": "small",
    "window_tokens": 20_000,
    "target_ratio": 0.5,
    "rules": {"user_message": {"strategy": "truncate", "keep_recent": 9}},
    "policy": {"preset": "economy"},
}
MEANT = AgentConfig(
    model="small",
    window_tokens=20_000,
    target_ratio=0.5,
    rules={"user_message": TypeRule(strategy="truncate", keep_recent=9)},
    policy=OffloadPolicy.preset("economy"),
)


PYPROJECT = "[project]\nname = 'x'\n[tool.offload.agent]\n" + TOML.replace("[", "[tool.offload.agent.")


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", TOML), ("a.yaml", json.dumps(DATA)), ("pyproject.toml", PYPROJECT)]
)
def test_a_file_or_a_table_of_a_pyproject_describes_the_settings(tmp_path, name, text):
    (tmp_path / name).write_text(text)

    assert AgentConfig.load(tmp_path / name) == MEANT


def test_variables_change_fields_of_the_file_that_they_name(tmp_path):
    (tmp_path / "a.toml").write_text(TOML)
    variables = {
        "OFFLOAD_AGENT": str(tmp_path / "a.toml"),
        "OFFLOAD_AGENT__WINDOW_TOKENS": "80000",
        "OFFLOAD_AGENT__RULES__USER_MESSAGE__KEEP_RECENT": "2",
        "OFFLOAD_POLICY__MIN_SAVING": "7",  # another's
    }

    config = AgentConfig.from_env(variables)

    assert config.window == 80_000
    assert config.rules["user_message"].keep_recent == 2
    assert config.policy == OffloadPolicy.preset("economy")
    assert AgentConfig.from_env({}) == AgentConfig()


def test_variables_name_tools_without_regard_to_case_and_set_the_strategy():
    assert AgentConfig.from_env({"OFFLOAD_AGENT__EPHEMERAL__READ": "3"}).ephemeral == {"read": 3}
    variables = {"OFFLOAD_AGENT__STRATEGY": "rounds", "OFFLOAD_AGENT__KEEP_RECENT_ROUNDS": "4"}
    assert AgentConfig.from_env(variables) == AgentConfig(strategy="rounds", keep_recent_rounds=4)


def test_the_default_window_is_that_of_the_model():
    assert AgentConfig(model="claude-sonnet-4-5").window == 200_000
    assert AgentConfig(model="claude-sonnet-4-5", window_tokens=5000).trigger_tokens == 4000
    assert AgentConfig(model="claude-sonnet-4-5", window_tokens=5000).target_tokens == 3000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window_tokens": 0}, "AgentConfig.window_tokens: Input should be greater than 0, got 0"),
        ({"trigger_ratio": 1.5}, "AgentConfig.trigger_ratio: .* got 1.5"),
        ({"trigger_ratio": 0.5}, "target_ratio=0.6 must be at most trigger_ratio=0.5"),
        ({"windw": 1}, "AgentConfig.windw: no such field"),
        (
            {"rules": {"user_message": {"strategy": "eat"}}},
            "AgentConfig.rules.user_message.*strategy: .* got 'eat'",
        ),
        ({"policy": {"min_saving": -1}}, "AgentConfig.policy.*min_saving: .* got -1"),
        ({"ephemeral": {"Read": -1}}, "AgentConfig.ephemeral.Read: .* got -1"),
        ({"ephemeral": "Read"}, "AgentConfig.ephemeral: .* got 'Read'"),
        ({"ephemeral_keep_recent": 2}, "ephemeral_keep_recent needs ephemeral"),
        ({"ephemeral": {"Read": 3}, "ephemeral_keep_recent": 0.5}, "AgentConfig.ephemeral_keep_recent: "),
        ({"strategy": "round"}, "AgentConfig.strategy: .* be 'selective' or 'rounds', got 'round'"),
        ({"strategy": "rounds", "rules": {"user_message": {}}}, 'rules: only with strategy="selective"'),
        ({"keep_recent_rounds": 3}, 'keep_recent_rounds: only with strategy="rounds"'),
        ({"summary_max_length": 10}, 'summary_max_length: only with strategy="rounds"'),
        ({"strategy": "rounds", "keep_recent_rounds": 0}, "keep_recent_rounds: .* got 0"),
        ({"on_refusal": "cry"}, "AgentConfig.on_refusal: .* got 'cry'"),
        ({"require_confirmation": "yes"}, "AgentConfig.require_confirmation: .* got 'yes'"),
    ],
)
def test_an_invalid_value_is_reported(fields, message):
    with pytest.raises(ConfigError, match=message):
        AgentConfig.model_validate(fields)
