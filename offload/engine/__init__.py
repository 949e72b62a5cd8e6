"""One turn of a conversation: scan the messages, decide, store, replace; and restore.

`turn` is the way of a message, `history` what earlier turns found, `recognition` which texts are
placeholders, `writer` the way of an item to its record, `restorer` the way back, `sink` a text that comes
in parts, `hooks` the caller's functions, `results` what a call returns.
"""
