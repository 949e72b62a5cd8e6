"""`python -m offload` and the console script `offload`."""

from __future__ import annotations

import sys

_PACKAGES = {"rich", "typer"}
_NEEDS_EXTRA = "the command line needs the extra `cli`: pip install 'offload[cli]'"
_INTERRUPTED = 130


def main() -> None:
    """Run the command line on `sys.argv` and exit with one of the codes that its help names."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _run() -> None:
    try:
        from offload.cli.app import run  # noqa: PLC0415  # its packages are an extra

        run()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _PACKAGES:
            raise
        sys.stderr.write(_NEEDS_EXTRA + "\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
