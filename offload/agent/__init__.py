"""The agent loop: keeps a conversation within the context window of its model.

`ContextManager` runs it; `compaction/` has the strategies, and `presets/` the layouts of other systems.
"""
