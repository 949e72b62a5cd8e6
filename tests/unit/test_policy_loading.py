"""Policies from names, files and variables; errors name the path of the value."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from offload import ConfigError, OffloadPolicy, PolicyError, Retention, Rule, Sweep
from offload.engine.policy import ItemFacts
from offload.engine.policy.cost import LEFT_ALONE
from offload.engine.settings.loader import load_config

TOML = """
min_saving = 200
exclude_tools = ["TodoRead"]
[types.tool_result]
min_tokens = 3000
ttl = "7d"
[tools.Bash]
min_bytes = 5120
[sweep]
trigger_tokens = 100000
[retention]
store_bytes = 1000000
grace = "2h"
"""
MEANT = OffloadPolicy(
    min_saving=200,
    exclude_tools=("TodoRead",),
    types={"tool_result": Rule(min_tokens=3000, ttl="7d")},
    tools={"Bash": Rule(min_bytes=5120)},
    sweep=Sweep(trigger_tokens=100_000),
    retention=Retention(store_bytes=1_000_000, grace="2h"),
)
YAML = json.dumps(
    {
        "min_saving": 200,
        "exclude_tools": ["TodoRead"],
        "types": {"tool_result": {"min_tokens": 3000, "ttl": "7d"}},
        "tools": {"Bash": {"min_bytes": 5120}},
        "sweep": {"trigger_tokens": 100_000},
        "retention": {"store_bytes": 1_000_000, "grace": "2h"},
    }
)


@pytest.mark.parametrize(
    ("name", "text"), [("p.toml", TOML), ("p.yaml", YAML), ("p.yml", YAML), ("p.json", YAML)]
)
def test_a_file_of_any_kind_describes_the_same_policy(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert OffloadPolicy.load(tmp_path / name) == MEANT


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize("text", [BOMB, MERGES, "a: &a [*a]\n", "a: &a {<<: *a}\n"])
@pytest.mark.parametrize("name", ["offload.yaml", "policy.yml"])
def test_aliases_that_expand_a_file_too_much_are_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    tracemalloc.start()
    try:
        with pytest.raises(
            ConfigError, match=rf"{name} cannot be read: its aliases \(\*name\) expand to too much"
        ):
            OffloadPolicy.load(path) if name == "policy.yml" else load_config(folder=tmp_path, environ={})
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_aliases_and_merges_of_normal_size_are_expanded(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "types:\n  tool_result: &large {min_tokens: 3000}\n  user_message: *large\n"
        "  skill_prompt: {<<: *large, ttl: 7d}\n"
    )
    policy = OffloadPolicy.load(path)
    assert policy.types["user_message"] == Rule(min_tokens=3000)
    assert policy.types["skill_prompt"] == Rule(min_tokens=3000, ttl="7d")


def test_variables_name_a_preset_and_change_single_fields_of_it() -> None:
    environ = {
        "OFFLOAD_POLICY": "archive",
        "OFFLOAD_POLICY__TYPES__TOOL_RESULT__MIN_TOKENS": "300",
        "OFFLOAD_POLICY__EXCLUDE_TOOLS": '["a", "b"]',
        "OFFLOAD_POLICY__RETENTION__GRACE": "2h",
        "OTHER": "x",
    }
    policy, preset = OffloadPolicy.from_env(environ), OffloadPolicy.preset("archive")

    assert policy.types["tool_result"].min_tokens == 300
    assert policy.types["tool_result"].preview_chars == preset.types["tool_result"].preview_chars
    assert policy.types["user_message"] == preset.types["user_message"]
    assert policy.exclude_tools == ("a", "b")
    assert policy.retention.grace == 7200


def test_without_variables_it_is_the_default_which_has_a_name() -> None:
    assert OffloadPolicy.from_env({}) == OffloadPolicy() == OffloadPolicy.preset("balanced")


def test_a_variable_may_name_a_file_and_a_pyproject_holds_a_policy_in_its_own_table(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(TOML)
    nested = TOML.replace("[", "[tool.offload.policy.").replace('= [tool.offload.policy."', '= ["')
    (tmp_path / "pyproject.toml").write_text("[tool.offload.policy]\n" + nested)

    assert OffloadPolicy.from_env({"OFFLOAD_POLICY": str(tmp_path / "p.toml")}) == MEANT
    assert OffloadPolicy.load(tmp_path / "pyproject.toml") == MEANT


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"OFFLOAD_POLICY": "frugal"}, ["one of balanced, economy, verbatim, archive", "'frugal'"]),
        ({"OFFLOAD_POLICY__MIN_SAVING": "much"}, ["OffloadPolicy.min_saving", "'much'"]),
        ({"OFFLOAD_POLICY__MIN_SAVING__X": "1"}, ["OffloadPolicy.min_saving"]),
        ({"OFFLOAD_POLICY__SWEEP__KEEP": "1"}, ["sweep.keep", "no such field", "keep_recent"]),
        ({"OFFLOAD_POLICY__SWEEP__KEEP_RECENT": "1"}, ["OffloadPolicy.sweep", "trigger_tokens"]),
        ({"OFFLOAD_POLICY__MAX_VIEW_TOKENS": "0"}, ["max_view_tokens", "greater than 0"]),
        ({"OFFLOAD_POLICY__MAX_TOKENS": "9"}, ["max_tokens", "no such field"]),
    ],
)
def test_an_invalid_value_is_reported_with_its_path(environ: dict[str, str], named: list[str]) -> None:
    with pytest.raises(PolicyError) as caught:
        OffloadPolicy.from_env(environ)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OFFLOAD_POLICY": "none.toml"}, "none.toml cannot be read"),
        ({"OFFLOAD_POLICY": "p.txt"}, "p.txt: a settings file must have the suffix .json, .toml"),
        ({"OFFLOAD_POLICY__A": "1", "OFFLOAD_POLICY__A__B": "2"}, "OFFLOAD_POLICY__A__B: a has no fields"),
    ],
)
def test_variables_that_name_no_readable_file_or_field_are_refused(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        OffloadPolicy.from_env(environ)


@pytest.mark.parametrize("text", ["[", "5", '"a"', "a: [", ""])
def test_a_file_that_holds_no_fields_is_refused_by_name(tmp_path: Path, text: str) -> None:
    for name in ("p.toml", "p.yaml", "p.json"):
        (tmp_path / name).write_text(text)
        if name == "p.toml" and text == "":
            continue  # An empty TOML file is an empty table.
        with pytest.raises(ConfigError, match=name):
            OffloadPolicy.load(tmp_path / name)


def facts(**fields: Any) -> ItemFacts:
    known = {"message": 0, "block": None, "item_type": "tool_result", "tool_name": "Bash", "tool_use_id": "c"}
    sizes = {"chars": 4000, "bytes": None, "tokens": 1200}
    return ItemFacts(**{**known, **sizes, "is_error": False, "is_stored": False, "answers": 5, **fields})


@pytest.mark.parametrize("name", ["balanced", "economy", "verbatim", "archive"])
def test_a_rule_by_type_changes_that_rule_of_a_preset_and_no_other(name: Any) -> None:
    preset = OffloadPolicy.preset(name)
    policy = OffloadPolicy.model_validate({"preset": name, "types": {"skill_prompt": {"min_tokens": 77}}})
    assert policy.types["skill_prompt"].min_tokens == 77
    assert policy.tools == preset.tools
    assert policy.tool_media == preset.tool_media


def test_presets_differ_in_what_they_keep_and_for_how_long_they_show_a_file() -> None:
    actions = {name: OffloadPolicy.preset(name).decide(facts()).action for name in ("balanced", "archive")}
    assert actions == {"balanced": "keep", "archive": "offload"}
    reply = facts(item_type="assistant_message", tool_name=None)
    assert OffloadPolicy.preset("archive").decide(reply).action == "offload"
    assert OffloadPolicy.preset("balanced").decide(reply).action == "keep"
    replies: dict[Any, int] = {"economy": 5, "balanced": LEFT_ALONE, "verbatim": 40, "archive": 0}
    for name, least in replies.items():
        read = [facts(tool_name="read_file", answers=n, tokens=9000) for n in range(50)]
        decided = [OffloadPolicy.preset(name).decide(each).action for each in read]
        assert decided == ["wait"] * least + ["offload"] * (50 - least)
