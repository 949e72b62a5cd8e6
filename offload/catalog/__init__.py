"""The catalog of a store as Arrow batches and Parquet files, for questions in SQL."""

from offload.catalog.batches import batches, request_batches
from offload.catalog.export import ExportReport, export, views

__all__ = [
    "ExportReport",
    "batches",
    "export",
    "request_batches",
    "views",
]
