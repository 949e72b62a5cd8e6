"""The catalog of a store as Arrow batches and Parquet files, for questions in SQL."""

from offload.maintenance.catalog.batches import record_batches, request_batches
from offload.maintenance.catalog.export import ExportReport, export_catalog, views

__all__ = [
    "ExportReport",
    "export_catalog",
    "record_batches",
    "request_batches",
    "views",
]
