"""Which release of a framework its tests run with, and why it is not the newest one of the index.

    python tests/frameworks/releases.py langchain     # writes .releases into the environment of the tests

A resolver takes an older release in silence if the newest one cannot be installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = ROOT / ".venv/bin/uv"
# By the name of an environment, the packages whose newest releases are meant.
PACKAGES = {
    "agent-framework": ["agent-framework-core"],
    "agno": ["agno"],
    "anthropic": ["anthropic"],
    "catalog": ["pyarrow", "duckdb", "polars"],
    "claude-agent-sdk": ["claude-agent-sdk"],
    "claude-code": ["claude-agent-sdk"],
    "compaction-kit": ["compaction-conformance-kit"],
    "crewai": ["crewai"],
    "dask": ["distributed"],
    "deepagents": ["deepagents", "langchain", "langgraph"],
    "google-adk": ["google-adk"],
    "haystack": ["haystack-ai"],
    "langchain": ["langchain", "langgraph"],
    "litellm": ["litellm"],
    "llama-index": ["llama-index-core"],
    "mcp": ["mcp"],
    "openai-agents": ["openai-agents"],
    "pydantic-ai": ["pydantic-ai-slim"],
    "pydantic-ai-harness": ["pydantic-ai-harness"],
    "ray": ["ray"],
    "smolagents": ["smolagents"],
    "strands": ["strands-agents"],
}
# What the environment's resolver found, beside its packages.
NOTED = ".releases"


def header() -> str:
    """Return the frameworks of this environment, for the header of a test run."""
    noted = Path(sys.prefix) / NOTED
    if noted.is_file():
        return "frameworks: " + noted.read_text(encoding="utf-8").strip()
    found = {name: _installed(name) for names in PACKAGES.values() for name in names}
    named = ", ".join(f"{name} {there}" for name, there in sorted(found.items()) if there)
    return f"frameworks: {named or 'none'} (not compared with the index)"


def told(installed: str, newest: str | None, refusal: str) -> str:
    """Return how an installed release compares with the newest; `refusal` is why uv does not install that."""
    if newest is None:
        return f"{installed} (the index cannot be asked)"
    if installed == newest:
        return f"{installed} (the newest)"
    reason = " ".join(re.sub(r"\s+", " ", refusal).split()) or "it is not resolved together with the others"
    return f"{installed}, NOT the newest {newest}: {reason}"


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _uv(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [UV, "pip", *arguments], input=given, cwd=ROOT, capture_output=True, text=True, check=False
    )


def _newest(name: str) -> str | None:
    """Return the newest release of the index for this Python, whatever it needs."""
    python = f"--python-version={sys.version_info.major}.{sys.version_info.minor}"
    done = _uv("compile", "--quiet", "--no-deps", "--no-header", python, "-", given=name)
    found = re.search(rf"^{re.escape(name)}==(\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else None


def _compared(environment: str, name: str) -> str:
    installed, newest = _installed(name) or "missing", _newest(name)
    if newest in (None, installed):
        return f"{name} {told(installed, newest, '')}"
    group = ["-e", ".", "--group", f"integration-{environment}"]
    tried = _uv("install", "--dry-run", "--python", sys.executable, f"{name}=={newest}", *group)
    return f"{name} {told(installed, newest, tried.stderr if tried.returncode else '')}"


def main(environment: str) -> None:
    lines = [_compared(environment, name) for name in PACKAGES[environment]]
    (Path(sys.prefix) / NOTED).write_text("; ".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
