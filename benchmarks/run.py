"""All benchmarks, each in its own process, with the rows over budget: `[--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
# Their figures are times: each has the machine to itself.
_TIMED = (
    "import",
    "local",
    "turn",
    "read",
    "sink",
    "catalog",
    "scale",
    "s3",
    "preview",
    "query",
    "growth",
    "gateway_speed",
    "web",
)
# They count tokens, costs and facts, two at a time; the longest is the first.
_COUNTED = ("cost", "compaction", "savings", "bill", "tables", "exec")
# In a full run it takes 15 minutes alone.
_QUICK_COUNTED = ("tasks",)
# They make environments of other packages, or replay every transcript: not in two minutes.
_LONG_TIMED, _LONG_COUNTED = ("peers",), ("gateway", "worth")

_Rows = list[dict[str, Any]]


def main() -> int:
    """Run them all; return 1 if one of them failed, which is not the same as being over a budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes: two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures as JSON")
    options = parser.parse_args()
    timed = _TIMED if options.quick else _TIMED + _LONG_TIMED
    counted = _COUNTED + _QUICK_COUNTED if options.quick else _LONG_COUNTED + _COUNTED
    quick = ["--quick"] * options.quick
    found = {name: _run(name, quick) for name in timed}
    with ThreadPoolExecutor(2) as pool:
        found |= zip(counted, pool.map(lambda name: _run(name, quick, is_alone=False), counted), strict=True)
    if options.json:
        document = {"machine": platform.platform(), "python": platform.python_version(), "figures": found}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _print_summary([row for rows in found.values() if rows for row in rows])
    failed = [name for name, rows in found.items() if rows is None]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def _run(name: str, options: list[str], *, is_alone: bool = True) -> _Rows | None:
    """Return the figures of one benchmark, None if it failed; one of several is printed when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [sys.executable, str(_HERE / f"bench_{name}.py"), *options, "--json", str(file)]
        done = subprocess.run(command, check=False, stdout=None if is_alone else subprocess.PIPE, text=True)
        print(done.stdout or "", end="", flush=True)
        if done.returncode != 0:
            return None
        rows: _Rows = json.loads(file.read_text("utf-8"))
        return rows


def _print_summary(rows: _Rows) -> None:
    over = [row for row in rows if row.get("verdict") == "over"]
    within = sum(row.get("verdict") == "ok" for row in rows)
    print(f"\n{within} within their budgets, {len(over)} over, {len(rows) - within - len(over)} without one")
    for row in over:
        print(f"  over: {row['name'].strip()}: {row['value']:.4g} {row['unit']}")


if __name__ == "__main__":
    sys.exit(main())
