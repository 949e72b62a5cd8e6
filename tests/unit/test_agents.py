"""The name of the agent that stored a record, where several share a session."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pages import Html, path_of, visitor
from typer.testing import CliRunner

from offload import ConfigError, Offloader, OffloadPolicy, Rule, open_store
from offload.cli.app import app
from offload.records.index import derived
from offload.records.session.reader import SessionReader
from offload.records.session.titles import with_titles
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=20)}, min_saving=0)
TEXT = "a line of the output\n" * 100


def opened(store: Any, agent: str | None = None) -> Offloader:
    return Offloader(store, session="s", policy=POLICY, agent_name=agent)


def agents(store: Any) -> dict[str | None, str | None]:
    """Return the agent of each record by its title, as a process finds them that knows nothing else."""
    reader = SessionReader(store, "s")
    return {info.title: info.agent_name for info in with_titles(reader, reader.infos())}


def test_lists_of_records_show_who_stored_them(store: MemoryStore) -> None:
    opened(store, "the researcher").offload_text(TEXT, title="one")
    opened(store).offload_text(TEXT, title="two", tool_use_id="2")
    # An item of two agents is one record of the first.
    opened(store, "another").offload_text(TEXT, title="one")

    assert agents(store) == {"one": "the researcher", "two": None}
    one, two = (
        next(line for line in opened(store).tools.list().split("\n") if f": {n}" in line)
        for n in ("one", "two")
    )
    assert "tool_result by the researcher, 2100 characters" in one
    assert "tool_result, 2100 characters" in two
    page = Html(visitor(store).get(path_of("s")).text).text
    assert page.count("by the researcher") == 1


def test_a_call_may_name_its_agent(store: MemoryStore) -> None:
    off = opened(store, "writer")
    result = {"role": "tool", "tool_call_id": "1", "content": f"offload\n{TEXT}"}
    off.offload([result], agent_name="critic")
    off.offload_text(f"text\n{TEXT}", agent_name="critic")
    with off.open_sink(agent_name="critic") as sink:
        sink.write(f"sink\n{TEXT}")
    off.offload([result, {**result, "tool_call_id": "2", "content": f"default\n{TEXT}"}])

    assert agents(store) == {"offload": "critic", "text": "critic", "sink": "critic", "default": "writer"}


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_the_agent_changes_no_placeholder_and_no_other_byte(codec: str) -> None:
    stores = [MemoryStore(), MemoryStore()]
    texts = [
        Offloader(store, session="s", policy=POLICY, codec=codec, agent_name=agent).offload_text(
            TEXT, tool_use_id="1"
        )
        for store, agent in zip(stores, (None, "writer"), strict=True)
    ]

    assert texts[0] == texts[1]
    assert [found.key for found in stores[0].keys("r/")] == [found.key for found in stores[1].keys("r/")]
    assert b"agent" not in b"".join(stores[0].get(found.key) for found in stores[0].keys("r/"))
    assert [*agents(stores[1]).values()] == ["writer"]


def test_a_listing_in_the_index_has_the_agents(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "_LEAST_LISTED", 1)
    monkeypatch.setattr(derived, "is_fresh", lambda _age, _took: True)
    for number, agent in enumerate(["writer", None]):
        opened(store, agent).offload_text(TEXT, tool_use_id=str(number), title=f"{number}")
    reader = SessionReader(store, "s")
    with_titles(reader, reader.infos())
    catalog, labels = reader.catalog, reader.catalog._labels
    catalog.load()
    assert catalog._loaded is not None
    derived.write_snapshot(store, "s", catalog._loaded, time.time(), labels)
    found: dict[str, Any] = {}

    assert derived.read_snapshot(store, "s", time.time(), found) is not None
    assert found == labels


@pytest.mark.parametrize("name", ["", "x" * 81, "two\nlines", "bidi \u202e", 7])
def test_a_name_that_is_not_one_line_is_refused(store: MemoryStore, name: Any) -> None:
    with pytest.raises(ConfigError, match="agent_name must be one line"):
        opened(store, name)
    with pytest.raises(ConfigError, match="agent_name must be"):
        opened(store).offload_text(TEXT, agent_name=name)


def test_the_setting_of_the_agent_loop_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "offload.toml").write_text("[agent]\nwindow_tokens = 5000\n")

    off = Offloader.from_config(folder=tmp_path, store=MemoryStore(), agent_name="writer")

    assert off.options.agent_name == "writer"
    assert off.with_options(session="t").options.agent_name == "writer"
    with pytest.raises(ConfigError, match="no option 'agent'; did you mean 'agent_name'"):
        Offloader.from_config(folder=tmp_path, store=MemoryStore(), agent="writer")  # type: ignore[call-arg]


def test_ls_has_a_column_of_agents_if_any_is_known(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))

    def listed(*options: str) -> str:
        return CliRunner().invoke(app, ["ls", "--store", str(tmp_path), "--session", "s", *options]).stdout

    opened(store).offload_text(TEXT, title="one")
    assert "agent" not in listed().split()
    opened(store, "writer").offload_text(TEXT, title="two", tool_use_id="2")
    assert {"agent", "writer"} <= {*listed().split()}
    assert [row["agent"] for row in json.loads(listed("--json"))["records"]] == ["writer", None]
