"""`offload catalog`: the records and requests of a store as Parquet files, for questions in SQL."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.help import CONTEXT, HelpfulCommand, group
from offload.cli.options import JsonOption, StoreOption
from offload.cli.stores import existing_store, note_clear, place_of
from offload.cli.tables import print_report
from offload.cli.terminal import count, working
from offload.cli.workers import OnOption, WorkersOption, executor_of
from offload.maintenance.catalog import export_catalog, views as catalog_views
from offload.storage.registry import open_backend

app = group(
    "Export the catalog of a store to Parquet files.",
    "Example: offload catalog export ./catalog --store s3://bucket/prefix",
)
_Target = Annotated[str, typer.Argument(metavar="OUT", help="A folder or its URL.")]


@app.command("export", cls=HelpfulCommand, context_settings=CONTEXT)
def export(
    out: _Target,
    *,
    store: StoreOption = None,
    requests: Annotated[bool, typer.Option("--requests", help="Export requests too.")] = False,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add what changed in a store since the last export to Parquet files; no contents, no titles.

    Example: offload catalog export ./catalog --store s3://bucket/prefix
    """
    opened = existing_store(store)
    target = open_backend(out)
    with working("exporting"), executor_of([opened], workers, on) as executor:
        report = export_catalog(opened, target, requests=requests, executor=executor)
    note_clear(opened, "the files are")
    files = [{"file": name} for name in report.files]
    document = {"run": report.run, "records": report.records, "requests": report.requests}
    rows = f"{count(report.records, 'row')} of records"
    if requests:
        rows += f" and {count(report.requests, 'row')} of requests"
    print_report(
        files,
        f"run {report.run}: {rows} in {count(len(files), 'file')} of {place_of(target)}",
        as_json=as_json,
        document=document | {"files": report.files},
    )


@app.command("views", cls=HelpfulCommand, context_settings=CONTEXT)
def views(out: _Target) -> None:
    """Print SQL that defines views of the newest rows in DuckDB.

    Example: offload catalog views ./catalog > views.sql
    """
    typer.echo(catalog_views(open_backend(out)))
