"""Parts of the library that meet the operating system, as other systems would have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from offload.agent.presets.context_fs._layout import PathRenderer
from offload.cli import shell
from offload.engine.placeholder import PlaceholderFacts
from offload.engine.placeholder.forms import known_refs
from offload.engine.preview import Preview

PROGRAM = Path(__file__).parents[1] / "without_posix.py"
REF = "kqzmwpxhva"


def test_the_library_and_the_command_line_work_without_what_windows_lacks(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path],
        env={**os.environ, "HOME": str(tmp_path), "NO_COLOR": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    parts = re.findall(r"^works: (\w+)$", done.stderr, re.MULTILINE)
    assert parts == ["imports", "session", "commands", "presets"], done.stderr
    assert "All 14 messages restored: identical." in done.stdout


@pytest.mark.parametrize(
    "root",
    [
        PurePosixPath("/home/a b/context"),
        PureWindowsPath(r"C:\Users\a b\context"),
        PureWindowsPath(r"\\server\share\context"),
    ],
)
def test_a_placeholder_with_a_path_is_recognized_on_every_system(root):
    renderer = PathRenderer(root)
    facts = PlaceholderFacts(REF, "tool_result", "Bash", chars=9, lines=1, preview=Preview("", 0))

    text = renderer.render(facts)

    assert f"Path: {root}" in text
    assert list(known_refs(text)) == [REF]
    assert renderer.find_path(text) == str(root / "tool_result" / "Bash" / f"call_{REF}.json")


@pytest.mark.parametrize(
    ("word", "posix", "windows"),
    [
        ("plain", "plain", "plain"),
        (r"C:\data\x~y", r"'C:\data\x~y'", r"C:\data\x~y"),
        (r"C:\my data", r"'C:\my data'", r'"C:\my data"'),
        ("a&b", "'a&b'", '"a&b"'),
        ("", "''", '""'),
    ],
)
def test_a_word_is_quoted_for_the_shell_of_the_system(monkeypatch, word, posix, windows):
    monkeypatch.setattr(shell, "_IS_POSIX", True)
    assert shell.quoted(word) == posix
    assert shell.words_of(shell.quoted(word)) == [word]

    monkeypatch.setattr(shell, "_IS_POSIX", False)
    assert shell.quoted(word) == windows
    assert shell.words_of(f"run {shell.quoted(word)}") == ["run", word]
