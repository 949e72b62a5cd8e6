"""The model of a provider's cache: names, files, variables, and wrong values."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from offload import CacheModel, Offloader, OffloadPolicy, PolicyError
from offload.engine.settings.loader import load_config

HOUR = CacheModel(read=0.1, write=2.0, ttl=3600)


def test_the_default_is_a_cache_of_five_minutes() -> None:
    assert OffloadPolicy().cache == CacheModel() == CacheModel.preset("claude-opus-4-5")
    assert OffloadPolicy.preset("economy").cache == CacheModel()
    assert CacheModel().rewrite == pytest.approx(1.15)


@pytest.mark.parametrize(
    ("model", "ttl", "cache"),
    [
        ("claude-opus-5-5", None, CacheModel(read=0.05, write=1.25, ttl=300)),
        ("anthropic/claude-fable-5.1", "1h", CacheModel(read=0.025, write=2, ttl=3600)),
        ("gpt-6.1-sol", None, CacheModel(read=0.05, write=1.25, ttl=1800, lookback=None)),
        ("gpt-6.1-sol", "12h", CacheModel(read=0.05, write=2.5, ttl=43_200, lookback=None)),
        ("gpt-6.1-sol", "1h", CacheModel(read=0.05, write=1.25, ttl=3600, lookback=None)),
        ("gpt-5.5", None, CacheModel(read=0.1, write=1, ttl=300, lookback=None)),
        ("deepseek-v4-pro", None, CacheModel(read=0.0333, write=1, ttl=7200, lookback=None)),
        ("kimi-k3", None, CacheModel(read=0.1, write=1, ttl=None, lookback=None)),
        ("house-model", None, CacheModel()),
    ],
)
def test_an_offloader_has_the_cache_of_its_model_with_the_lifetime_asked_for(
    model: str, ttl: str | None, cache: CacheModel
) -> None:
    if model != "house-model":
        assert OffloadPolicy(cache=model if ttl is None else {"preset": model, "ttl": ttl}).cache == cache
    if ttl is None:
        off = Offloader("memory://", model=model)
        assert off.policy.cache == cache
        assert off.with_options(model="gpt-5.5").policy.cache == CacheModel.preset("gpt-5.5")
        assert Offloader("memory://", model=model, policy=OffloadPolicy(cache=HOUR)).policy.cache == HOUR


@pytest.mark.parametrize(
    ("model", "kept_for", "pause", "found"),
    [
        ("claude-opus-5-5", None, 301, ("pause", 0.05, 1.25)),
        ("gpt-6.1-sol", None, 301, None),
        ("gpt-6.1-sol", None, 1801, ("pause", 0.05, 1.25)),
        ("claude-fable-5-1", 3600, 1801, None),
        ("claude-fable-5-1", 3600, 3601, ("pause", 0.025, 2.0)),
    ],
)
def test_a_call_decides_by_the_cache_of_its_model_and_by_the_lifetime_asked_for(
    model: str, kept_for: int | None, pause: int, found: tuple[str, float, float] | None
) -> None:
    now = [0.0]
    off = Offloader("memory://", clock=lambda: now[0], model="gpt-5.5")
    off.kept_for = kept_for
    talk: list[dict[str, str]] = []
    for seconds in (0, 1, pause):
        now[0] += seconds
        talk.append({"role": "user", "content": f"{len(talk)} " * 900})
        cache = off.offload(talk, model=model).cache
        talk.append({"role": "assistant", "content": "So."})

    assert (cache and (cache.cause, cache.read, cache.write)) == found


@pytest.mark.parametrize(
    "value",
    [
        HOUR,
        {"preset": "claude-opus-4-5", "ttl": "1h"},
        {"read": 0.1, "write": 2, "ttl": "1h"},
        {"preset": "claude-opus-4-5", "ttl": timedelta(hours=1)},
    ],
)
def test_a_policy_takes_a_model_a_name_or_a_table(value: Any) -> None:
    assert OffloadPolicy(cache=value).cache == HOUR
    assert OffloadPolicy.model_validate({"preset": "archive", "cache": value}).cache == HOUR


@pytest.mark.parametrize(
    "text",
    [
        'cache = {preset = "claude-opus-4-5", ttl = "1h"}\n',
        '[cache]\npreset = "us.anthropic.claude-opus-4-5-v1:0"\nttl = "1h"\n',
    ],
)
def test_a_file_names_or_describes_a_cache(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)

    assert OffloadPolicy.load(tmp_path / "p.toml") == OffloadPolicy(cache=HOUR)


def test_variables_and_the_settings_of_a_folder_do_too(tmp_path: Path) -> None:
    (tmp_path / "offload.toml").write_text('[policy]\ncache = {preset = "claude-opus-4-5", ttl = "1h"}\n')
    by_name = {"OFFLOAD_POLICY__CACHE__PRESET": "claude-opus-4-5", "OFFLOAD_POLICY__CACHE__TTL": "1h"}
    by_field = {"OFFLOAD_POLICY__CACHE__WRITE": "2.0", "OFFLOAD_POLICY__CACHE__TTL": "1h"}

    assert OffloadPolicy.from_env(by_name).cache == HOUR
    assert OffloadPolicy.from_env(by_field).cache == HOUR
    assert load_config(folder=tmp_path, environ={}).settings.policy.cache == HOUR
    archive = load_config(folder=tmp_path, environ=by_name | {"OFFLOAD_POLICY": "archive"}).settings.policy
    assert archive == OffloadPolicy.model_validate({"preset": "archive", "cache": HOUR})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("antropic", ["OffloadPolicy.cache", "must be a model with a known price", "'antropic'"]),
        ({"preset": 3}, ["OffloadPolicy.cache", "must be a model with a known price", "got 3"]),
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


def test_a_host_says_how_many_ends_it_marks() -> None:
    own = CacheModel.model_validate({"preset": "claude-opus-4-5", "marks": 2})
    assert own == CacheModel(marks=2)
    assert CacheModel().marks is None
    with pytest.raises(PolicyError, match="marks"):
        CacheModel(marks=0)
