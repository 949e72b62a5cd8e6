"""New files of one folder whose names are synced together: many of them cost one sync of the folder."""

from __future__ import annotations

from collections.abc import Iterable

from offload_backends.local import _files as files
from offload_backends.local._folders import Folder


class Batch:
    """New files in an open folder; threads may add them at once.

    Attributes:
        had_temporary_names: whether a file had a temporary name first, see `files.create`.
    """

    def __init__(self, folder: Folder, *, is_synced: bool) -> None:
        self.folder = folder
        self.had_temporary_names = False
        self._is_synced = is_synced
        self._created: list[str] = []

    def add(self, name: str, pieces: Iterable[files.Buffer]) -> bool:
        """Create a file; return False if an object has the name, whose bytes are synced then.

        Raises `OSError`, also if anything else has the name.
        """
        try:
            self.had_temporary_names |= files.create(self.folder, name, pieces, is_synced=self._is_synced)
        except FileExistsError:
            if not files.is_object(self.folder, name):
                raise
            if self._is_synced:
                files.sync_bytes(self.folder, name)
            return False
        self._created.append(name)
        return True

    def end(self) -> None:
        """Make the names durable. Raises `OSError`; the files that were created are removed then."""
        if self._is_synced:
            files.sync_names(self.folder, self._created)
