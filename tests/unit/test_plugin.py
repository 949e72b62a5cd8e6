"""The pytest plug-in, in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offload.testing import StoreConformance

if TYPE_CHECKING:
    from conftest import Bucket

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SUITE = ("--pyargs", "offload.testing.test_store", "-p", "offload.testing.plugin")
TESTS = {name for name in dir(StoreConformance) if name.startswith("test_")}

FAULTY_STORE = """
from offload_backends.memory import MemoryStore

class Faulty(MemoryStore):
    def __init__(self, url, *, storage_options=None):
        super().__init__(url.replace("faulty", "memory"))

    def put(self, key, data, *, overwrite=False):
        super().put(key, data, overwrite=True)
"""

ONE_FIXTURE = """
import pytest
from offload.testing import StoreConformance
from offload_backends.memory import MemoryStore

class TestMine(StoreConformance):
    @pytest.fixture
    def store(self):
        return MemoryStore()
"""


@pytest.fixture
def run_pytest(tmp_path: Path) -> Run:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rfEs",
            "-c",
            "pytest.ini",
            "-p",
            "no:cacheprovider",
        ]
        return subprocess.run(
            [*command, *map(str, arguments)],
            cwd=tmp_path,
            # The plug-ins of this environment take longer to load than all the rest.
            env=os.environ
            | {"PYTHONPATH": str(tmp_path), "COLUMNS": "1000", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return run


def failed_tests(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^(?:FAILED|ERROR) .*::(test_\w+)", done.stdout, re.MULTILINE))


def count_of(word: str, done: subprocess.CompletedProcess[str]) -> int:
    found = re.search(rf"(\d+) {word}", done.stdout)
    return int(found[1]) if found else 0


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def add_faulty_backend(folder: Path) -> None:
    (folder / "faulty.py").write_text(FAULTY_STORE)
    info = folder / "faulty-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[offload.backends]\nfaulty = faulty:Faulty\n")


@pytest.mark.parametrize(
    "url",
    ["folder/", *(pytest.param(u, marks=pytest.mark.slow) for u in ("memory://", "memory://name/path"))],
)
def test_a_sound_store_passes_from_the_command_line_alone(run_pytest: Run, url: str) -> None:
    options = ("--offload-option", "durability=none") if url == "folder/" else ()

    done = run_pytest(*SUITE, "--offload-store", url, *options)

    assert done.returncode == 0, done.stdout
    assert count_of("passed", done) > len(TESTS) // 2


def test_a_faulty_store_of_a_third_party_fails_by_the_sentence_that_it_breaks(
    run_pytest: Run, tmp_path: Path
) -> None:
    add_faulty_backend(tmp_path)

    done = run_pytest(*SUITE, "--offload-store", "faulty://name")

    assert done.returncode == 1
    assert "test_a_put_of_a_taken_key_is_refused_and_keeps_its_bytes" in failed_tests(done)
    assert not any(re.search("range|sort|prefix|reader", name) for name in failed_tests(done))


@pytest.mark.slow
def test_what_was_there_is_left_alone_and_nothing_is_left_beside_it(run_pytest: Run, tmp_path: Path) -> None:
    mine = tmp_path / "folder" / "r" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"kept")

    done = run_pytest(*SUITE, "--offload-store", "folder")

    assert done.returncode == 0, done.stdout
    assert files_in(tmp_path / "folder") == ["r", "r/mine"]
    assert mine.read_bytes() == b"kept"


@pytest.mark.slow
def test_a_bucket_is_as_it_was(run_pytest: Run, s3_bucket: Bucket) -> None:
    s3_bucket.write("mine", b"kept")
    options = [f"--offload-option={name}={value}" for name, value in s3_bucket.storage_options.items()]

    done = run_pytest(*SUITE, "--offload-store", s3_bucket.url, *options, "-k", "overwrite or deleted")

    listed = s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name)["Contents"]
    assert done.returncode == 0, done.stdout
    assert count_of("passed", done) > 1
    # What a store found out about its medium is kept for the next who opens it.
    assert {item["Key"] for item in listed} - {"prefix/offload.json"} == {"prefix/mine"}


@pytest.mark.parametrize("arguments", [SUITE, pytest.param(SUITE[:2], marks=pytest.mark.slow)])
def test_without_a_store_the_tests_are_skipped_and_say_what_is_missing(run_pytest: Run, arguments) -> None:
    done = run_pytest(*arguments)

    assert done.returncode == 0
    assert count_of("skipped", done) >= len(TESTS)
    assert count_of("passed", done) == 0
    assert "--offload-store URL" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--offload-store", "folder", "--offload-option", "durability=perhaps"), "perhaps"),
        (("--offload-store", "folder", "--offload-option", "=s3cret"), "NAME=VALUE"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_once_and_before_any_test(
    run_pytest: Run, arguments: tuple[str, ...], said: str
) -> None:
    done = run_pytest(*SUITE, *arguments)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert done.stderr.count("ERROR") == 1
    assert "s3cret" not in done.stderr + done.stdout


def test_one_fixture_is_enough_for_a_store_without_a_url(run_pytest: Run, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(ONE_FIXTURE)

    done = run_pytest("test_mine.py")

    assert done.returncode == 0, done.stdout
    assert count_of("passed", done) > len(TESTS) // 2


def test_a_pytest_that_does_not_ask_for_the_plug_in_loads_nothing(run_pytest: Run, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_loaded():\n"
        "    assert not {n for n in sys.modules if n.partition('.')[0] in ('offload', 'offload_backends')}\n"
    )

    done = run_pytest("test_other.py")

    assert done.returncode == 0, done.stdout
