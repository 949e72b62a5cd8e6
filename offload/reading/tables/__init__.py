"""Texts as tables: the columns of JSON, CSV, tables, grep output and logs, and SQL over them.

Each kind of text has a reader; `_forms` lists them. SQLite runs in a separate process, which the first
query starts.
"""

from offload.reading.tables._survey import schema_line as schema_line
