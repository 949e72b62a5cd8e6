"""`offload doctor`: whether a store keeps what it promises, tried on the store itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from offload.cli.stores import opened
from offload.cli.terminal import UNSOUND, JsonOption, print_json, print_table, working
from offload.doctor import diagnose


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A path or URL; the default is that of the settings.", show_default=False
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Test a store's guarantees and speed and suggest fixes; exit with 3 if a check fails.

    All trial objects are deleted afterwards, and a folder that did not exist is removed again.
    """
    with working("testing the store"):
        findings = [asdict(finding) for finding in diagnose(opened(url))]
    if as_json:
        print_json(findings)
    else:
        print_table(findings, whole="check")
    if any(finding["outcome"] == "failed" for finding in findings):
        raise typer.Exit(UNSOUND)
