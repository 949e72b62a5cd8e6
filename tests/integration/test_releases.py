"""Machines with release 0.1 and with this one share a folder and lose nothing of each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from release import Machine

ROOT = Path(__file__).parents[2]
# The last commit of release 0.1.
RELEASE_0_1 = "3c991ac0a46fc0f03d69142de50fff97556d8cbb"

pytestmark = pytest.mark.slow


class OtherRelease:
    """A machine with another release, in a process of its own."""

    def __init__(self, sources: Path, folder: Path) -> None:
        path = os.pathsep.join(map(str, (sources, sources / "backends")))
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests" / "release.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def serve(self, request: list[Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of release 0.1, from the history of this repository."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is needed to read the sources of release 0.1")
    command = [git, "-C", str(ROOT), "archive", RELEASE_0_1, "offload", "backends"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"release 0.1 is not in the history of {ROOT}: an sdist or a shallow clone")
    folder = tmp_path_factory.mktemp("release_0_1")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


Machines = tuple[Machine | OtherRelease, Machine | OtherRelease]


@pytest.fixture(params=["0.1 first", "0.1 second"])
def machines(request: pytest.FixtureRequest, sources: Path, tmp_path: Path) -> Iterator[Machines]:
    """Both machines on one folder, in either order."""
    old, new = OtherRelease(sources, tmp_path), Machine(str(tmp_path))
    yield (old, new) if request.param == "0.1 first" else (new, old)
    old.stop()


def conversation(name: str) -> list[dict[str, Any]]:
    text = "".join(f"{name}: line {n} of the output\n" for n in range(2000))
    call = {"id": f"call_{name}", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"run {name} " + "please " * 3000},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{name}", "content": text},
        {"role": "assistant", "content": "done"},
    ]


def refs(machine: Machine | OtherRelease) -> list[str]:
    return [row[0] for row in machine.serve(["records", "s"])]


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_each_lists_reads_and_restores_what_the_other_wrote(machines: Machines, codec: str) -> None:
    sent = {}
    for machine, name in zip(machines, "ab", strict=True):
        sent[name] = machine.serve(["offload", "s", codec, conversation(name)])
        assert sent[name] != conversation(name)

    one, other = machines
    assert one.serve(["records", "s"]) == other.serve(["records", "s"])
    for machine in machines:
        for name, messages in sent.items():
            assert machine.serve(["restore", "s", messages]) == conversation(name)
        contents = {machine.serve(["read", "s", ref]) for ref in refs(machine)}
        assert {m["content"] for name in "ab" for m in conversation(name)[::2]} == contents
        assert machine.serve(["damage", "s"]) == []


def test_an_item_of_both_is_one_record_and_either_text_for_it_is_kept_by_both(machines: Machines) -> None:
    one, other = machines
    sent = [one.serve(["offload", "s", "zstd", conversation("a")])]
    stored = one.serve(["records", "s"])
    sent.append(other.serve(["offload", "s", "zstd", conversation("a")]))

    assert one.serve(["records", "s"]) == other.serve(["records", "s"]) == stored
    for machine in machines:
        for messages in sent:
            assert machine.serve(["offload", "s", "zstd", messages]) == messages
            assert machine.serve(["restore", "s", messages]) == conversation("a")


@pytest.mark.parametrize("machines", ["0.1 first"], indirect=True)
def test_this_release_has_the_placeholder_of_0_1_for_an_item_that_0_1_stored(machines: Machines) -> None:
    one, other = machines

    sent = one.serve(["offload", "s", "zstd", conversation("a")])

    assert other.serve(["offload", "s", "zstd", conversation("a")]) == sent


def test_a_deletion_by_one_is_seen_and_completed_by_the_other(machines: Machines) -> None:
    one, other = machines
    one.serve(["offload", "s", "zstd", conversation("a")])
    deleted, kept = refs(one)
    other.serve(["delete", "s", [deleted]])

    for grace in (3600, 0):
        one.serve(["gc", grace])
        for machine in machines:
            assert refs(machine) == [kept]
            assert machine.serve(["read", "s", deleted]) == {"error": "expired"}
            assert machine.serve(["damage", "s"]) == []

    # The item is stored again under its id, with the placeholder of the release that stores it.
    again = other.serve(["offload", "s", "zstd", conversation("a")])
    assert sorted(refs(one)) == sorted([deleted, kept])
    for machine in machines:
        assert machine.serve(["restore", "s", again]) == conversation("a")


def test_a_pin_of_one_protects_from_the_other(machines: Machines) -> None:
    one, other = machines
    one.serve(["offload", "s", "zstd", conversation("a")])
    pinned, deleted = refs(one)
    one.serve(["pin", "s", pinned])

    other.serve(["delete", "s", [pinned, deleted]])
    other.serve(["gc", 0])

    assert refs(one) == refs(other) == [pinned]
