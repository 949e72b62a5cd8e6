"""Ranked search over the texts of a session's records: passages by BM25, from an index in memory."""

from offload.reading.search._results import Passage as Passage, SearchResult as SearchResult
from offload.reading.search._words import split_at_words as split_at_words
