"""Output of commands: what `offload exec` prints, what rtk prints, and what the agent needs of it later.

The outputs are those of recorded conversations (OFFLOAD_TRANSCRIPTS). A fact is a distinctive name that
enters a conversation with an output and that the assistant writes later. It is named if the printed text has
it, and in context if half of the words around it are there too. A fact is lost if it is not named and nothing
that was printed leads to it: `offload exec` stores the output, and each record is read and compared.

rtk (https://github.com/rtk-ai/rtk) is the program `rtk` on the PATH; without one its rows are missing. Its
hook rewrites a command, as it does for Claude Code, and the command then runs with a program that prints the
recorded output in place of the real one. Its commands for any output get the output from `cat`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from _measure import Figure, require, run
from peers._conversations import conversations, folder
from peers._tables import markdown

from offload import Offloader, estimate_tokens
from offload.cli.exec import _ShellRenderer
from offload.engine.policy.defaults import DEFAULT_MIN_TOKENS
from offload.engine.preview import preview_of
from offload.engine.preview.preview import head_tail
from offload.messages.calls import Calls
from offload.messages.formats import role_of, scan_next
from offload.replay import Transcript
from offload.replay._names import hidden_names, names_in

_SHELLS = frozenset(["bash", "execute_bash"])
_LEAST_CHARS = 1_000
_SECONDS = 20
_ANY_OUTPUT = ("summary", "err", "test", "log")
_READ = re.compile(r"^rtk read (\S+)")
# It looks at the files of the machine, not at the output of a program.
_WALKS = ("rtk find", "rtk tree", "rtk diff")


class Output(NamedTuple):
    """A recorded output.

    Attributes:
        command: the command.
        text: its output.
        facts: the names that it brings and the assistant writes later.
    """

    command: str
    text: str
    facts: frozenset[str]


class Score(NamedTuple):
    """What is printed in place of outputs, all of them together or as a mean over those with facts.

    Attributes:
        outputs: their number.
        shorter: how many are printed shorter than they are.
        chars: characters printed, relative to the outputs.
        named: facts that are named.
        in_context: facts that are in context.
        ours: facts in context in a preview of as many characters.
        lost: facts that cannot be found any more.
    """

    outputs: int
    shorter: int
    chars: float
    named: float
    in_context: float
    ours: float
    lost: float


Printer = Callable[[Output], str]


def figures(_is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    found = [output for transcript in conversations() for output in _outputs(transcript)]
    found = [output for output in found if len(output.text) >= _LEAST_CHARS]
    if not found:
        print(f"no transcripts in {folder()}: set OFFLOAD_TRANSCRIPTS to a folder of them")
        return
    large = [output for output in found if estimate_tokens(output.text) >= DEFAULT_MIN_TOKENS]
    with tempfile.TemporaryDirectory() as place:
        for name, outputs in {
            f"{_LEAST_CHARS:,} characters": found,
            f"{DEFAULT_MIN_TOKENS:,} tokens": large,
        }.items():
            yield from _compared(name, outputs, Path(place))


def _compared(name: str, outputs: list[Output], place: Path) -> Iterator[Figure]:
    ours = _Ours()
    rows = {"offload exec": _score(outputs, ours, loses=False)}
    rows["beginning and end, as many characters"] = _score(
        outputs, lambda output: head_tail(output.text, len(ours(output))).text
    )
    if shutil.which("rtk"):
        rtk = _Rtk(place / name.partition(" ")[0])
        rows["rtk, by its hook"] = _score(outputs, rtk.hooked)
        for command in _ANY_OUTPUT:
            rows[f"rtk {command}"] = _score(outputs, partial(rtk.piped, command))
    else:
        print("rtk is not on the PATH")
    header = ["", "outputs", "shorter", "characters", "named", "in context", "a preview of that size", "lost"]
    print(f"\noutputs of {name} or more\n")
    print(markdown(header, [[way, *map(_cell, score)] for way, score in rows.items()]), flush=True)
    exec_, plain = rows["offload exec"], rows["beginning and end, as many characters"]
    detail = f"{exec_.chars:.3f} of the characters, {exec_.outputs} outputs"
    yield Figure(
        f"outputs of {name} or more: facts in context",
        exec_.in_context,
        "",
        at_least=plain.in_context,
        detail=detail,
    )
    yield Figure(f"outputs of {name} or more: facts that are lost", exec_.lost, "", at_most=0)


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


# Outputs


def _outputs(transcript: Transcript) -> Iterator[Output]:
    """Yield the outputs of commands in a conversation."""
    calls = Calls()
    scans = [scan_next(message, calls) for message in transcript.messages]
    texts = [[*(part.text for part in s.fixed), *(i.text for i in (*s.documents, *s.items))] for s in scans]
    roles = [role_of(message, "message") for message in transcript.messages]
    later, written = list[frozenset[str]](), frozenset[str]()
    for role, of_message in zip(reversed(roles), reversed(texts), strict=True):
        later.append(written)
        written |= _names(of_message) if role == "assistant" else frozenset()
    seen = names_in(json.dumps(transcript.system or ""))
    for scan, of_message, used in zip(scans, texts, reversed(later), strict=True):
        for item in scan.items:
            if item.item_type == "tool_result" and item.call and item.call.name.lower() in _SHELLS:
                facts = (names_in(item.text) - seen) & used
                yield Output(str(item.call.fields.get("command", "")), item.text, facts)
        seen |= _names(of_message)


def _names(texts: Sequence[str]) -> frozenset[str]:
    return frozenset().union(*map(names_in, texts))


# Ways


class _Ours:
    """Prints what `offload exec` does; each record is compared with its output."""

    def __init__(self) -> None:
        self._off = Offloader("memory://", placeholder=_ShellRenderer(""), on_error="raise")
        self._printed: dict[Output, str] = {}

    def __call__(self, output: Output) -> str:
        if output not in self._printed:
            self._printed[output] = self._print(output)
        return self._printed[output]

    def _print(self, output: Output) -> str:
        with self._off.open_sink(tool_name="Bash", title=output.command) as sink:
            sink.write(output.text)
        if sink.info is None:
            return output.text
        stored = b"".join(self._off.content(sink.info.ref)).decode("utf-8", "surrogatepass")
        require(stored == output.text, "a record differs from its output")
        return sink.placeholder


class _Rtk:
    """Runs rtk on recorded outputs, in a folder of its own."""

    def __init__(self, place: Path) -> None:
        self._home, self._stubs, self._file = place / "home", place / "stubs", place / "output"
        for made in (self._home, self._stubs):
            made.mkdir(parents=True)
        path = f"{self._stubs}{os.pathsep}{os.environ['PATH']}"
        self._environ = {"HOME": str(self._home), "PATH": path, "LC_ALL": "C.UTF-8"}
        self._call(["rtk", "init", "--global", "--hook-only", "--no-patch"])
        self._hook = str(self._home / ".claude" / "hooks" / "rtk-rewrite.sh")

    def piped(self, command: str, output: Output) -> str:
        """Print by a command for any output."""
        self._file.write_text(output.text)
        arguments = ["log", str(self._file)] if command == "log" else [command, "cat", str(self._file)]
        return self._call(["rtk", *arguments])

    def hooked(self, output: Output) -> str:
        """Print what the hook makes of the command; the output if it leaves it alone."""
        said = self._call([self._hook], json.dumps({"tool_input": {"command": output.command}}))
        if not said:
            return output.text
        command = json.loads(said)["hookSpecificOutput"]["updatedInput"]["command"]
        if command.startswith(_WALKS):
            return output.text
        self._file.write_text(output.text)
        if read := _READ.match(command):
            copy = self._file.with_suffix(Path(read[1].strip("'\"")).suffix)
            copy.write_text(output.text)
            command = f"rtk read {shlex.quote(str(copy))}{command[read.end() :]}"
        names = {output.command.split()[0], "rg"}
        for name in names:
            stub = self._stubs / name
            stub.write_text(f"#!/bin/sh\nexec cat {shlex.quote(str(self._file))}\n")
            stub.chmod(0o755)
        try:
            return self._call(["sh", "-c", command]) or output.text
        finally:
            for name in names:
                (self._stubs / name).unlink()

    def _call(self, command: list[str], given: str = "") -> str:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env=self._environ,
            cwd=self._home,
        )
        return done.stdout


# Figures


def _score(outputs: Sequence[Output], printer: Printer, *, loses: bool = True) -> Score:
    rows, sizes, chars, shorter = list[tuple[float, float, float]](), 0, 0, 0
    for output in outputs:
        printed = printer(output)
        sizes, chars = sizes + len(output.text), chars + len(printed)
        shorter += len(printed) < len(output.text)
        if output.facts:
            preview = preview_of(output.text, len(printed), query=output.command).text
            named = len(output.facts & names_in(printed)) / len(output.facts)
            rows.append((named, _in_context(output, printed), _in_context(output, preview)))
    named, in_context, ours = map(fmean, zip(*rows, strict=True))
    return Score(len(outputs), shorter, chars / sizes, named, in_context, ours, 1 - named if loses else 0.0)


def _in_context(output: Output, printed: str) -> float:
    if printed == output.text:
        return 1.0
    return 1 - len(hidden_names(output.text, output.facts, printed)) / len(output.facts)


if __name__ == "__main__":
    run(__doc__, figures)
