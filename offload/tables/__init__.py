"""Texts as tables: the columns of JSON, CSV, tables, grep output and logs, and SQL over them.

One reader for each kind of text is in `_json` and `_lines`; `_forms` lists them in order. SQLite is imported
when the first query runs.
"""

from offload.tables._survey import schema_line

__all__ = ["schema_line"]
