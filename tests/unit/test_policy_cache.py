"""The model of a provider's cache: names, files, variables, and wrong values."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from offload import CacheModel, OffloadPolicy, PolicyError
from offload.engine.policy.cache import CACHES
from offload.engine.settings.loader import load_config

HOUR = CacheModel(read=0.1, write=2.0, ttl=3600)


def test_the_default_is_a_cache_of_five_minutes() -> None:
    assert OffloadPolicy().cache == CacheModel() == CacheModel.preset("anthropic")
    assert OffloadPolicy.preset("economy").cache == CacheModel()
    assert CacheModel().rewrite == pytest.approx(1.15)


@pytest.mark.parametrize("name", CACHES)
def test_a_policy_takes_the_name_of_a_known_cache(name: str) -> None:
    known = CACHES[name]

    cache = OffloadPolicy(cache=name).cache

    assert (cache.read, cache.write, cache.ttl) == (known.read, known.write, known.ttl)
    assert cache == CacheModel.preset(name)
    assert name == "none" or known.source.startswith("https://")


def test_without_a_cache_every_token_costs_one_and_no_pause_matters() -> None:
    assert OffloadPolicy(cache="none").cache == CacheModel(read=1, write=1, ttl=None)


@pytest.mark.parametrize(
    "value",
    [
        HOUR,
        "anthropic-1h",
        {"read": 0.1, "write": 2, "ttl": "1h"},
        {"preset": "anthropic-1h"},
        {"preset": "anthropic", "write": 2.0, "ttl": timedelta(hours=1)},
    ],
)
def test_a_policy_takes_a_model_a_name_or_a_table(value: Any) -> None:
    assert OffloadPolicy(cache=value).cache == HOUR
    assert OffloadPolicy.model_validate({"preset": "archive", "cache": value}).cache == HOUR


@pytest.mark.parametrize(
    "text", ['cache = "anthropic-1h"\n', '[cache]\npreset = "anthropic"\nwrite = 2.0\nttl = "1h"\n']
)
def test_a_file_names_or_describes_a_cache(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)

    assert OffloadPolicy.load(tmp_path / "p.toml") == OffloadPolicy(cache=HOUR)


def test_variables_and_the_settings_of_a_folder_do_too(tmp_path: Path) -> None:
    (tmp_path / "offload.toml").write_text('[policy]\ncache = "anthropic-1h"\n')
    by_name = {"OFFLOAD_POLICY__CACHE": "anthropic-1h"}
    by_field = {"OFFLOAD_POLICY__CACHE__WRITE": "2.0", "OFFLOAD_POLICY__CACHE__TTL": "1h"}

    assert OffloadPolicy.from_env(by_name).cache == HOUR
    assert OffloadPolicy.from_env(by_field).cache == HOUR
    assert load_config(folder=tmp_path, environ={}).settings.policy.cache == HOUR
    archive = load_config(folder=tmp_path, environ=by_name | {"OFFLOAD_POLICY": "archive"}).settings.policy
    assert archive == OffloadPolicy.model_validate({"preset": "archive", "cache": HOUR})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("antropic", ["OffloadPolicy.cache", "anthropic, anthropic-1h", "'antropic'"]),
        ({"preset": 3}, ["OffloadPolicy.cache", "must be one of anthropic", "got 3"]),
        ({"reed": 0.1}, ["cache.reed: no such field", "known fields: read, write, ttl"]),
        ({"read": -0.1}, ["cache.read", "greater than or equal to 0"]),
        ({"read": float("nan")}, ["cache.read", "finite"]),
        ({"write": True}, ["cache.write"]),
        ({"read": 2.0}, ["OffloadPolicy.cache", "read=2.0 must be at most write=1.25"]),
        ({"ttl": 0}, ["cache.ttl", "greater than 0"]),
        ({"ttl": "soon"}, ["cache.ttl", "a duration must be seconds"]),
        (3, ["OffloadPolicy.cache", "got 3"]),
    ],
)
def test_a_wrong_cache_is_refused_by_its_path(value: Any, named: list[str]) -> None:
    with pytest.raises(PolicyError) as caught:
        OffloadPolicy(cache=value)
    for part in named:
        assert part in str(caught.value)


def lifetime(seconds: int | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds // 60} min" if seconds % 3600 else f"{seconds // 3600} h"


def test_the_page_on_costs_lists_every_known_cache_with_its_source() -> None:
    page = (Path(__file__).parents[2] / "docs" / "costs.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 7]

    assert listed == [
        f"| `{name}` | {known.models} | {known.read:g} | {known.write:g} | {lifetime(known.ttl)} | "
        f"{f'[{known.as_of}]({known.source})' if known.source else '-'} |"
        for name, known in CACHES.items()
    ]


def test_caches_of_claude_are_found_within_20_positions() -> None:
    found = {name: known.lookback for name, known in CACHES.items()}

    claude = {name for name in CACHES if name.startswith(("anthropic", "bedrock"))}
    assert {name for name, lookback in found.items() if lookback == 20} == {*claude, "none"}
    assert CacheModel.preset("openai").lookback is None


def test_a_host_says_how_many_ends_it_marks() -> None:
    own = CacheModel.model_validate({"preset": "anthropic", "marks": 2})
    assert own == CacheModel(marks=2)
    assert CacheModel().marks is None
    with pytest.raises(PolicyError, match="marks"):
        CacheModel(marks=0)
