"""`offload doctor`: whether a store keeps what it promises, tried on the store itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from offload import open_store
from offload.cli.terminal import JsonOption, print_json, print_table
from offload.doctor import diagnose


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A path or URL; the default is a local folder.", show_default=False
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Try what a store promises, say what is wrong and what helps; exit with 1 if something fails."""
    findings = [asdict(finding) for finding in diagnose(open_store(url))]
    if as_json:
        print_json(findings)
    else:
        print_table(findings, whole="check")
    if any(finding["outcome"] == "failed" for finding in findings):
        raise typer.Exit(1)
