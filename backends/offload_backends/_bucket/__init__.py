"""Shared code of the stores in a bucket or container of a remote service."""
