"""Contents of a release: the wheel has the two complete packages, nothing else, and correct metadata.

The source distribution is installed in an environment of its own, without the network: the packages that it
needs are those of this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from docs.pages import DOCS, ROOT

import offload

PACKAGES = {"offload": ROOT / "offload", "offload_backends": ROOT / "backends" / "offload_backends"}


def built(target: str, into: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", into],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [made] = into.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    ours = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours
    assert {"offload/py.typed", "offload/FORMAT.md", "offload_backends/py.typed"} <= ours


def test_the_wheel_holds_the_licence_the_command_and_the_backends(wheel: zipfile.ZipFile) -> None:
    [folder] = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    entry_points = wheel.read(f"{folder}/entry_points.txt").decode()

    assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "offload = offload.__main__:main" in entry_points
    assert "s3 = offload_backends.s3:S3Store" in entry_points


def test_the_version_of_the_wheel_is_that_of_the_package(metadata: Message) -> None:
    assert metadata["Version"] == offload.__version__


def test_the_page_of_a_package_index_has_whole_links_to_files_that_are_there(metadata: Message) -> None:
    source = "https://offload.example/source/"
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))

    assert len(links) > 30
    assert [link for link in links if not link.startswith("https://")] == []
    named = [link.removeprefix(source).partition("#")[0] for link in links if link.startswith(source)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])} >= {
        "Source",
        "Documentation",
    }


def test_every_extra_that_a_text_tells_to_install_is_there(metadata: Message) -> None:
    texts = [
        ROOT / "README.md",
        *DOCS.rglob("*.md"),
        *(p for f in PACKAGES.values() for p in f.rglob("*.py")),
    ]
    told = {
        extra
        for path in texts
        for extras in re.findall(r"pip install '?offload\[([\w,-]+)\]", path.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }

    assert told
    assert told <= set(metadata.get_all("Provides-Extra", []))


@pytest.mark.parametrize(("command", "extra"), [("savings", "cli"), ("serve", "web")])
def test_the_readme_names_the_extra_before_the_command_that_needs_it(command: str, extra: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert f"pip install 'offload[{extra}]'" in text.partition(f"`offload {command} ")[0]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", tmp_path_factory.mktemp("sdist"))


def test_the_source_distribution_can_be_tested_and_documented(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}

    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "mkdocs.yml"} <= names
    assert {"docs/index.md", "tests/docs/test_docs.py", "offload/__init__.py", "backends/README.md"} <= names
    assert {"Makefile", ".ci/run", "tests/faults/install_tools.sh", "examples/README.md"} <= names


@pytest.fixture(scope="module")
def installed(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the source distribution; return the environment's folder of programs."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=os.name != "nt")
    paths = {name: sysconfig.get_path(name, "venv", {"base": str(folder)}) for name in ("purelib", "scripts")}
    # A plain path: what is installed here for development is not followed.
    (Path(paths["purelib"]) / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    python = Path(paths["scripts"]) / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    run([*pip, "--no-deps", "--no-build-isolation", "--ignore-installed", sdist], folder)
    return Path(paths["scripts"])


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Return what a program printed that ran in `folder`, without the settings of these tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SESSION = """
import offload, offload_backends
from offload import Offloader, OffloadPolicy, Rule
policy = OffloadPolicy(types={"tool_result": Rule(min_chars=100)})
off = Offloader("store", session="s", policy=policy)
messages = [{"role": "tool", "tool_call_id": "c", "content": "a line\\n" * 500}]
out = off.offload(messages)
assert out.messages != messages and not out.errors
assert Offloader("store", session="s").restore(out.messages) == messages
print(offload.__file__, offload_backends.__file__, offload.__version__, out.records[0].ref, sep="\\n")
"""


@pytest.mark.slow
def test_an_installed_source_distribution_offloads_and_its_command_reads_it(
    installed: Path, tmp_path: Path
) -> None:
    *files, version, ref = run([installed / "python", "-c", SESSION], tmp_path).split()

    assert all(Path(file).is_relative_to(installed.parent) for file in files)
    assert run([installed / "offload", "--version"], tmp_path).split() == [version]
    assert version == offload.__version__
    assert ref in run([installed / "offload", "ls", "--store", "store", "--session", "s"], tmp_path)
    assert "a line" in run([installed / "offload", "show", ref, "--store", "store"], tmp_path)


@pytest.mark.slow
def test_a_program_outside_sees_the_types_of_an_installed_release(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "typing" / "api.py", tmp_path)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file="]

    assert "Success" in run([*mypy, "--python-executable", installed / "python", "api.py"], tmp_path)


def test_every_system_can_check_out_the_files_of_the_repository() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("the sources are not a clone")
    listed = subprocess.run([git, "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True)

    assert [name for name in listed.stdout.splitlines() if re.search(r'[<>:"\\|?*]', name)] == []
