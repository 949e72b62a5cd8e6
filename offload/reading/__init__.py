"""Reading back: a model's retrieval tools, tables, search, evidence, and the timeline of a session."""
