"""The journal of a session: the state that another process needs to continue its conversation.

It is kept next to the records of its session, under keys that no listing of sessions or records shows.
`FORMAT.md` describes its entries: each is an object that is written once, with all messages or the changes
since the entry before.
"""
