"""`offload doctor`: tests of a store's guarantees and speed."""

from __future__ import annotations

from dataclasses import asdict

import typer

from offload.cli.options import JsonOption, UrlArgument
from offload.cli.stores import store_for_tests
from offload.cli.tables import print_report
from offload.cli.terminal import PROBLEMS, working
from offload.doctor import diagnose


def doctor(url: UrlArgument = None, *, as_json: JsonOption = False) -> None:
    """Test a store's guarantees and speed and suggest fixes; exit with 3 if a check fails.

    All trial objects are deleted afterwards, and a folder that did not exist is removed again.

    Example: offload doctor s3://bucket/prefix
    """
    store = store_for_tests(url)
    with working("testing the store"):
        findings = [asdict(finding) for finding in diagnose(store)]
    print_report(findings, as_json=as_json, document={"store": store.url, "checks": findings})
    if any(finding["outcome"] == "failed" for finding in findings):
        raise typer.Exit(PROBLEMS)
