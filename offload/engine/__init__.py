"""The engine: one turn of a conversation, and the way back.

`conversation` runs the turns of a session. `turn` scans the messages, decides, stores and replaces. `history`
holds what earlier turns found, `judge` decides about one item, `recognition` finds placeholders and stored
items, `writer` turns an item into a record, `restorer` turns placeholders back into items. `sink` is a text
in parts, `hooks` are the caller's functions, `results` are what calls return.
"""
