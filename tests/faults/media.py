"""File systems made for a test and unmounted after it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_IMAGE_BYTES = 16 * 1024 * 1024


def administer(*command: str | Path) -> None:
    """Run a command of the administrator; skip the test, with the reason, where this machine cannot."""
    if os.geteuid() != 0:
        pytest.skip(f"only root may {command[0]}")
    program = shutil.which(str(command[0]))
    if program is None:
        pytest.skip(f"{command[0]} is not installed; tests/faults/install_tools.sh does it")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} is refused here: {done.stderr.strip()}")


@contextmanager
def mounted(at: Path, *arguments: str | Path) -> Iterator[Path]:
    """Mount what `arguments` of mount(8) say on the folder `at` for the block."""
    at.mkdir(exist_ok=True)
    administer("mount", *arguments, at)
    try:
        yield at
    finally:
        subprocess.run([_found("umount"), at], check=True)


class Disk:
    """An ext4 file system in a file: whoever copies the file sees what a power cut would leave."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._image, self._copy = folder / "image", folder / "copy"
        self.path = folder / "disk"

    @contextmanager
    def running(self) -> Iterator[Disk]:
        """Make the file system and keep it mounted for the block."""
        with self._image.open("wb") as image:
            image.truncate(_IMAGE_BYTES)
        administer("mkfs.ext4", "-q", "-F", self._image)
        # The journal is written when a file is synced, not by the clock: no cut depends on luck.
        with mounted(self.path, "-o", "loop,commit=300", self._image):
            yield self

    def settle(self) -> None:
        """Bring everything written so far to the disk."""
        administer("sync", "-f", self.path)

    def cut_power(self) -> None:
        """Keep what the disk holds at this moment, without what the kernel has yet to write."""
        shutil.copyfile(self._image, self._copy)

    @contextmanager
    def after_the_cut(self) -> Iterator[Path]:
        """Mount what was kept, which replays its journal."""
        with mounted(self._folder / "after", "-o", "loop", self._copy) as path:
            yield path


def _found(program: str) -> str:
    path = shutil.which(program)
    assert path is not None
    return path
