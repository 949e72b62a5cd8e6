"""Listings of a bucket in key order, on servers with any sort order.

S3 sorts by the code points of the whole key. Servers that store objects in folders sort by one part of the
path after another: "a/x" comes before "a-b", and a listing that starts after "a-b" does not show it. On
such a server, a listing that crosses folders lists them one by one; a listing of one folder is equal on
every server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from offload.base.threads.locks import cached
from offload.errors import StoreError
from offload.storage.store import StoredObject
from offload_backends._checks import is_key, may_hold

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client
    from offload_backends._bucket.conditions import Conditions

PAGE = 1000
# Characters inside a name that sort before a slash.
_BEFORE_SLASH = re.compile(r"(?<=.)[-.]")


class Listing:
    """One listing."""

    def __init__(self, client: Client, conditions: Conditions) -> None:
        self._client = client
        self._conditions = conditions
        self._root = client.prefix

    def keys(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield objects in key order, a request for each 1,000; see `OffloadStore.keys`."""
        inside = prefix.rfind("/") + 1
        # For a prefix with empty parts, some servers list another folder endlessly; others fail at a NUL.
        if not (_may_start_keys(prefix) and may_hold(prefix, prefix, after)):
            return
        last = after
        # A server that sorts by folders would also start after them.
        if not after or self._is_sorted:
            pages = self._pages(prefix, after)
            for entry in chain.from_iterable(self._objects(page, prefix, after) for page in pages):
                if "/" in entry.key[inside:] and not self._is_sorted:
                    break
                yield entry
                last = entry.key
            else:
                return
        yield from self._walk(prefix, last)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the folders of `prefix` in key order; see `SupportsFolders.folders`."""
        if prefix and not _may_hold_keys(prefix):
            return
        pages = self._pages(prefix, "", Delimiter="/")
        found = (
            item["Prefix"].removeprefix(self._root)
            for page in pages
            for item in page.get("CommonPrefixes", ())
        )
        names = (inner.removeprefix(prefix)[:-1] for inner in found if _may_hold_keys(inner))
        # Servers that sort by folders list "a" before "a-b", whose keys sort before those of "a/".
        yield from names if self._is_sorted else sorted(names, key=lambda name: f"{name}/")

    @cached
    def _is_sorted(self) -> bool:
        return self._client.run(self._conditions.is_sorted)

    def _walk(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield matching objects in key order, for servers that list a folder "a" before or after "a-b"."""
        folder = prefix[: prefix.rfind("/") + 1]
        # The name in the folder that contains `after`.
        name = after.removeprefix(folder).partition("/")[0] if after.startswith(folder) else ""
        # Folders that sort after `after` with their slash and before it without.
        waiting = [folder + name[: place.start()] + "/" for place in _BEFORE_SLASH.finditer(name)]
        waiting = [inner for inner in waiting if may_hold(inner, prefix, after)]
        heapify(waiting)
        # Without its last character, to list the folder of that name too.
        start = name[:-1] and folder + name[:-1]
        for listed, entry in self._entries(prefix, after, start):
            while waiting and waiting[0] < listed:
                yield from self._walk(heappop(waiting), after)
            if entry:
                yield entry
            elif f"{listed}/" not in waiting:
                heappush(waiting, f"{listed}/")
        while waiting:
            yield from self._walk(heappop(waiting), after)

    def _entries(self, prefix: str, after: str, start: str) -> Iterator[tuple[str, StoredObject | None]]:
        """Yield the objects and, with None, the folders of one folder by name, those after `start`."""
        for page in self._pages(prefix, start, Delimiter="/"):
            listed = (item["Prefix"].removeprefix(self._root) for item in page.get("CommonPrefixes", ()))
            folders = [inner for inner in listed if _may_hold_keys(inner) and may_hold(inner, prefix, after)]
            entries: list[tuple[str, StoredObject | None]] = [(inner[:-1], None) for inner in folders]
            entries += [(entry.key, entry) for entry in self._objects(page, prefix, after)]
            yield from sorted(entries, key=itemgetter(0))

    def _objects(self, page: dict[str, Any], prefix: str, after: str) -> Iterator[StoredObject]:
        for item in page.get("Contents", ()):
            key = item["Key"].removeprefix(self._root)
            if key.startswith(prefix) and key > after and is_key(key):
                yield StoredObject(key, item["Size"], item["LastModified"].timestamp())

    def _pages(self, prefix: str, start: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        position: dict[str, Any] = {"StartAfter": self._root + start} if start else {}
        while True:
            ask = partial(self._client.call, "list_objects_v2", prefix, MaxKeys=PAGE, **arguments, **position)
            page = self._client.run(ask)
            yield page
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            came_from, position = position, {"ContinuationToken": token}
            if not token or position == came_from:
                raise StoreError(f"{self._root + prefix!r}: the server repeats the same page of a listing")


def _may_start_keys(prefix: str) -> bool:
    return is_key(prefix) or is_key(f"{prefix}k")


def _may_hold_keys(folder: str) -> bool:
    return is_key(f"{folder}k")
