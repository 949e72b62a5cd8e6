"""Run the public test suites of other projects against the implementations of their protocols here.

    python tests/peers/run.py [NAME...]

A suite is fetched for the installed version: from the package's source archive, or from a tag of the public
repository. Nothing of it is kept here. The folder PEERS_MIRROR may hold clones, as OWNER/NAME or
OWNER+NAME/repo; a clone without the tag gives its newest commit. A suite that cannot be fetched is skipped.
Fails if a test fails that `differences.py` does not explain.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from peers.differences import DIFFERENCES  # noqa: E402 # the script runs without an installed package

SUITES = ROOT / ".venv-frameworks" / "suites"


class Peer(NamedTuple):
    """A suite of a package, and the name of its environment.

    `only` selects tests as `pytest -k` does. `repository` is None if the source archive has the suite, and
    empty if the package itself has it, for subclasses in the files named here.
    """

    name: str
    package: str
    files: tuple[str, ...]
    only: str = ""
    repository: str | None = None
    tag: str = "v{}"


PEERS = (
    Peer("anthropic", "anthropic", ("tests/lib/tools/memory_tools/test_filesystem.py",)),
    Peer(
        "deepagents",
        "deepagents",
        tuple(
            f"libs/deepagents/tests/unit_tests/backends/test_{name}.py"
            for name in ("store_backend", "glob_semantics")
        ),
        only="test_store_backend or TestStoreBackend",
        repository="langchain-ai/deepagents",
        tag="deepagents=={}",
    ),
    Peer(
        "google-adk",
        "google-adk",
        ("tests/unittests/artifacts/test_artifact_service.py",),
        only="IN_MEMORY or in_memory",
        repository="google/adk-python",
    ),
    Peer(
        "langchain",
        "langchain-tests",
        ("tests/frameworks/test_langchain_store.py",),
        only="TestSync or TestAsync",
        repository="",
    ),
    Peer("strands", "strands-agents", ("tests/strands/storage/test_in_memory_storage.py",)),
)


class UnavailableError(Exception):
    """A suite that cannot be fetched."""


def main(names: list[str]) -> int:
    """Run the suites, or those of the named peers; return the exit code."""
    unknown = {*names} - {peer.name for peer in PEERS}
    if unknown:
        sys.exit(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
    return max([run(peer) for peer in PEERS if not names or peer.name in names])


def run(peer: Peer) -> int:
    """Run one suite and print its counts; return 1 if a failure has no explanation."""
    python = ROOT / ".venv-frameworks" / peer.name / "bin" / "python"
    version = output(python, "-c", f"import importlib.metadata as m; print(m.version({peer.package!r}))")
    folder = ROOT if peer.repository == "" else SUITES / f"{peer.name}-{version}"
    try:
        revision = fetch(peer, version, folder, python)
    except (UnavailableError, subprocess.CalledProcessError) as error:
        print(f"{peer.name} {version}: skipped, its suite cannot be fetched: {reason_of(error)}")
        return 0
    report = SUITES / f"{peer.name}.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-c", os.devnull, "--rootdir", str(folder), "--import-mode=importlib", "-k", peer.only]
    plugins = ["-p", "peers.substitutes", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [
            *(str(python), "-m", "pytest", *options, *plugins, f"--junit-xml={report}"),
            *(str(folder / name) for name in peer.files),
        ],
        cwd=SUITES,  # a test of a peer may write beside its temporary folder
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PEER": peer.name},
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.exists():
        print(f"{peer.name} {version}: pytest failed\n{done.stdout}{done.stderr}")
        return 1
    return summed_up(f"{peer.name} {revision}", peer.name, outcomes(report))


def summed_up(title: str, peer: str, found: list[tuple[str, str, str]]) -> int:
    """Print the counts and every failed test; return 1 if one has no explanation or none ran."""
    failed = [(name, detail) for name, outcome, detail in found if outcome == "failed"]
    explained = Counter[str]()
    unexplained = []
    for name, detail in failed:
        reason = next((why for glob, why in DIFFERENCES[peer] if fnmatchcase(name, glob)), None)
        if reason is None:
            unexplained.append(f"  FAILED {name}: {detail}")
        else:
            explained[reason] += 1
    skipped = sum(outcome == "skipped" for _, outcome, _ in found)
    passed = len(found) - len(failed) - skipped
    print(
        f"{title}: {passed} passed, {len(unexplained)} failed, {explained.total()} differ as known, "
        f"{skipped} skipped"
    )
    for reason, count in explained.most_common():
        print(f"  {count} differ: {reason}")
    print(*unexplained, sep="\n", end="\n" if unexplained else "")
    return int(bool(unexplained) or not passed)


def outcomes(report: Path) -> list[tuple[str, str, str]]:
    """Return name, outcome and the first line of the detail of every test."""
    return list(_outcomes(ET.parse(report)))  # noqa: S314 # written by the pytest above


def _outcomes(tree: ET.ElementTree[Any]) -> Iterator[tuple[str, str, str]]:
    for case in tree.iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            yield name, "failed", (problem.get("message") or "").split("\n")[0][:200]
        else:
            yield name, "passed" if case.find("skipped") is None else "skipped", ""


def fetch(peer: Peer, version: str, folder: Path, python: Path) -> str:
    """Bring the files of a suite into `folder`; return the version it is of."""
    SUITES.mkdir(parents=True, exist_ok=True)
    if peer.repository is None:
        from_archive(peer, version, folder, python)
    elif peer.repository:
        return from_repository(peer, version, folder)
    return version


def from_archive(peer: Peer, version: str, folder: Path, python: Path) -> None:
    """Take the suite from the source archive of the installed version."""
    archives = SUITES / "archives"
    stem = f"{peer.package.replace('-', '_')}-{version}"
    if not (archives / f"{stem}.tar.gz").exists():
        what = ["--no-deps", "--no-binary", peer.package, f"{peer.package}=={version}"]
        output(python, "-m", "pip", "download", "-q", *what, "--dest", archives)
    with tarfile.open(archives / f"{stem}.tar.gz") as archive:
        for name in peer.files:
            member = archive.extractfile(f"{stem}/{name}")
            assert member is not None  # a file, or KeyError
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(member.read())


def from_repository(peer: Peer, version: str, folder: Path) -> str:
    """Check the files of a suite out; return its version, or the commit of a mirror without the tag."""
    assert peer.repository is not None  # the caller has checked it
    tag, source = peer.tag.format(version), f"https://github.com/{peer.repository}"
    mirror = os.environ.get("PEERS_MIRROR")
    if mirror is not None:
        found = [Path(mirror, peer.repository), Path(mirror, peer.repository.replace("/", "+"), "repo")]
        source = str(next(filter(Path.exists, found), None) or "")
        if not source:
            raise UnavailableError(f"PEERS_MIRROR has no {peer.repository}")
    clone = folder / "clone"
    if not clone.exists():
        clone.parent.mkdir(parents=True, exist_ok=True)
        partial = (
            ["--no-checkout", "--filter=blob:none", "--no-local"]
            if mirror is None
            else ["--no-checkout", "--shared"]
        )
        output("git", "clone", "--quiet", *partial, source, clone)
    tags = output("git", "-C", clone, "tag", "--list", tag)
    revision = tag if tags else output("git", "-C", clone, "rev-parse", "--short=10", "HEAD")
    output("git", "-C", clone, "checkout", "--quiet", revision, "--", *peer.files)
    for name in peer.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clone / name, folder / name)
    return version if tags else f"{version} (suite of commit {revision})"


def output(*command: str | Path) -> str:
    """Return what a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def reason_of(error: Exception) -> str:
    """Return the last line that a failed command wrote, else the error."""
    text = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    return (text.strip().splitlines() or [str(error)])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
