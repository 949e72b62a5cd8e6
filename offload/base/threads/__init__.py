"""Threads, event loops and forks: calls that wait without deadlock, and locks that a fork frees."""

__all__ = []
