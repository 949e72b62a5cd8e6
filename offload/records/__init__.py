"""Records: an item as bytes, the sessions that hold them, the index of their keys, and the journal."""
