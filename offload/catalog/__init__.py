"""The catalog of a store as Arrow batches and Parquet files, for questions in SQL."""

from offload.catalog.batches import batches, request_batches
from offload.catalog.export import ExportReport, export, views
from offload.catalog.inventory import open_inventory

__all__ = [
    "ExportReport",
    "batches",
    "export",
    "open_inventory",
    "request_batches",
    "views",
]
