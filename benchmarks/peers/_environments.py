"""The candidates, and the environments that they run in: made once by uv, in `.venv-peers`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENTS = REPOSITORY / ".venv-peers"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One column of the comparison.

    Attributes:
        name: what the tables call it.
        program: the module in this folder that drives it.
        imports: what a user's program imports, for the import time.
        packages: the installed packages by plain name; the version of the first is reported.
        environment: the name of its environment; candidates may share one.
        store: how its store is named: "{folder}" and "{bucket}" are filled in.
    """

    name: str
    program: str
    imports: str
    packages: tuple[str, ...]
    environment: str
    store: str = "{folder}"

    @property
    def is_s3(self) -> bool:
        """Return whether the candidate stores in a bucket."""
        return self.store.startswith("s3://")

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.environment / "bin" / "python"


_OURS = ("ours", "from offload import Offloader", ("offload", "-e", f"{REPOSITORY}[s3]"), "offload")
_STRANDS = (
    "strands_agents",
    "import strands; from strands.vended_plugins.context_offloader import ContextOffloader",
    ("strands-agents", "boto3"),
    "strands",
)
CANDIDATES = (
    Candidate("offload", *_OURS),
    Candidate("offload, no fsync", *_OURS, store="unsynced:{folder}"),
    Candidate("offload, S3", *_OURS, store="s3://{bucket}/ours"),
    Candidate("strands", *_STRANDS),
    Candidate("strands, S3", *_STRANDS, store="s3://{bucket}/strands"),
    Candidate(
        "deepagents",
        "deepagents_eviction",
        "from deepagents.middleware.filesystem import FilesystemMiddleware",
        ("deepagents",),
        "deepagents",
    ),
    Candidate(
        "pydantic-ai-harness",
        "pydantic_harness",
        "import pydantic_ai; from pydantic_ai_harness import ToolOutputLimits",
        ("pydantic-ai-harness", "pydantic-ai-slim"),
        "pydantic",
    ),
    Candidate(
        "agno",
        "agno_results",
        "from agno.offload import ResultStore; from agno.db.sqlite import SqliteDb",
        ("agno", "agno[sqlite]"),
        "agno",
    ),
    Candidate(
        "ctxtual",
        "ctxtual_offload",
        "from ctxtual import SQLiteStore; from ctxtual.mcp import Offload",
        ("ctxtual", "ctxtual[mcp]"),
        "ctxtual",
    ),
    Candidate(
        "LangChain clearing",
        "langchain_clearing",
        "from langchain.agents.middleware import ContextEditingMiddleware",
        ("langchain",),
        "langchain",
    ),
    Candidate("json.dump by hand", "by_hand", "import json", (), "by-hand"),
)


def make_environments() -> None:
    """Make every environment that is not there; remove the folder to have all of them new."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n", encoding="ascii")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv makes the environments of the candidates: pip install uv")
    for candidate in {c.environment: c for c in CANDIDATES}.values():
        folder = ENVIRONMENTS / candidate.environment
        made, wanted = folder / "made", " ".join(candidate.packages)
        if made.exists() and made.read_text("utf-8") == wanted:
            continue
        print(f"making {folder.name}: {wanted or 'nothing to install'}", flush=True)
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        _install(uv, candidate)
        made.write_text(wanted, encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the version of what each environment is about."""
    program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    found = {}
    for candidate in CANDIDATES:
        if candidate.packages:
            command = [str(candidate.python), "-c", program, candidate.packages[0]]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[candidate.packages[0]] = done.stdout.strip()
    return found


def _install(uv: str, candidate: Candidate) -> None:
    # An editable install names its folder, not its package.
    packages = candidate.packages[1:] if "-e" in candidate.packages else candidate.packages
    if packages:
        command = [uv, "pip", "install", "--quiet", "--python", str(candidate.python), *packages]
        subprocess.run(command, check=True)
