"""The catalog of a store as Arrow batches and Parquet files, for questions in SQL."""

from offload.maintenance.catalog.batches import (
    record_batches as record_batches,
    request_batches as request_batches,
)
from offload.maintenance.catalog.export import (
    ExportReport as ExportReport,
    export_catalog as export_catalog,
    views as views,
)
