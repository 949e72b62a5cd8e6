"""The contents of a session, derived from the keys of its store."""

from offload.records.index.catalog import reindex as reindex
from offload.records.index.objects import sessions as sessions
