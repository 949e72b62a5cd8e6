"""`offload doctor`: tests of a store's guarantees and speed, and its index rebuilt."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from offload import ConfigError, OffloadError
from offload.cli.listing import extent_of
from offload.cli.options import JsonOption, SessionOption, StoreOption
from offload.cli.stores import existing_store, place_of, store_for_tests
from offload.cli.tables import print_report
from offload.cli.terminal import PROBLEMS, progress, working
from offload.cli.workers import OnOption, WorkersOption, check_failures, check_shared, executor_of
from offload.maintenance.doctor import diagnose
from offload.records import index
from offload.records.index.objects import session_parts


def doctor(
    *,
    reindex: Annotated[
        bool, typer.Option("--reindex", help="Rebuild the index from the records, and test nothing.")
    ] = False,
    store: StoreOption = None,
    session: SessionOption = None,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test a store's guarantees and speed and suggest fixes; exit with 3 if a check fails.

    All trial objects are deleted afterwards, and a folder that did not exist is removed again.

    --reindex is needed only if a listing seems wrong: the index is a cache, and records are not changed. In a
    layout of files for an agent it rebuilds the documents and the lists of them too. It may be limited to one
    --session.

    Example: offload doctor s3://bucket/prefix
    """
    if reindex:
        _reindex(store, session, workers, on, as_json=as_json)
        return
    if (session, workers, on) != (None, None, None):
        raise ConfigError(
            "--session, --workers and --on are for --reindex: the tests have a session of theirs"
        )
    tested = store_for_tests(store)
    with working("testing the store"):
        findings = [asdict(finding) for finding in diagnose(tested)]
    print_report(findings, as_json=as_json, document={"store": tested.url, "checks": findings})
    if any(finding["outcome"] == "failed" for finding in findings):
        raise typer.Exit(PROBLEMS)


def _reindex(
    store: str | None, session: str | None, workers: int | None, on: str | None, *, as_json: bool
) -> None:
    """Rebuild the index of one session, or of all sessions, from their records."""
    from offload.agent.presets.context_fs._tree import TreeStore  # noqa: PLC0415 # slow to load
    from offload.agent.presets.context_refs._tree import ContextTree  # noqa: PLC0415

    opened = existing_store(store, session)
    found: list[tuple[str, int | OffloadError]]
    if session is None:
        from offload.maintenance import jobs  # noqa: PLC0415 # slow to load

        with executor_of([opened], workers, on) as executor:
            steps = jobs.reindex(opened, executor=executor)
            found = [*progress(steps, "sessions", lambda: sum(1 for _ in session_parts(opened)))]
    else:
        check_shared(session, workers, on)
        found = [(session, index.reindex(opened, session))]
    if isinstance(opened, TreeStore | ContextTree):
        opened.reindex()
    rows = [{"session": name, "records": records} for name, records in found if isinstance(records, int)]
    document = {"store": opened.url, "sessions": rows}
    print_report(rows, f"indexed: {extent_of(rows)} {place_of(opened)}", as_json=as_json, document=document)
    check_failures(
        "doctor --reindex", [(name, error) for name, error in found if isinstance(error, OffloadError)]
    )
