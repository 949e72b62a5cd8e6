"""Threads, event loops and forks: calls that wait without deadlock, and locks that a fork frees."""

from offload.threads._calls import Gate, as_async, call_hook, foreign_code, in_thread
from offload.threads._locks import Lock, Recent, cached, renew_in_child

__all__ = [
    "Gate",
    "Lock",
    "Recent",
    "as_async",
    "cached",
    "call_hook",
    "foreign_code",
    "in_thread",
    "renew_in_child",
]
