"""Texts as tables: the columns of JSON, CSV, tables, grep output and logs, and SQL over them.

One reader for each kind of text is in `_json` and `_lines`; `_forms` lists them in order. SQLite is imported
when the first query runs.
"""

from offload.tables._form import Remarks
from offload.tables._forms import form_of
from offload.tables._survey import schema_line

__all__ = ["Remarks", "form_of", "schema_line"]
