"""The engine: one turn of a conversation, and restoring it.

`conversation` runs the turns of a session, each a row of `steps`. A `turn` has what its steps share, and
guards each of them and each item. `reading` adds the new messages to `log` and weighs their items,
`finding` asks the store what it knows of them, `deciding` decides, `leaving` offloads. `items` has the states
of an item, and what can follow each; `watching` notices edits of messages. `bound` and `thinking` treat
signed thinking, `cache_state` the provider's prompt cache, and `following` shows the calls to the tools.

`recognition` finds placeholders and stored items, `writer` turns an item into a record, `restorer` turns
placeholders back into items. `sink` is a text in parts, `results` are what calls return.
"""
