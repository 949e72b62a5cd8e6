"""Runs another program for a command, with the signals that end it and the exit code that a shell reports."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

# A terminal sends them to the child as well.
_OF_TERMINAL = ("SIGINT", "SIGQUIT", "SIGBREAK")
# They end no program, stop it or report a fault in its own code; the last two cannot be caught.
_NOT_FORWARDED = (
    *("SIGCHLD", "SIGCLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGINFO", "SIGTSTP", "SIGTTIN", "SIGTTOU"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSTOP"),
)
# By their meaning for shells: the program cannot be run, there is none, a signal ended it.
_NOT_RUNNABLE, _NOT_FOUND, _SIGNALLED = 126, 127, 128


def run_child(
    command: Sequence[str], *, output: IO[bytes] | None = None, environ: Mapping[str, str] | None = None
) -> int:
    """Run a program and return its exit code; if it cannot be run, stderr says so.

    Args:
        command: the program and its arguments.
        output: takes both of its streams; by default they are those of this process. A file, not a pipe:
            nobody waits for a process in the background that has it open.
        environ: its variables; by default those of this process.
    """
    with _forwarding() as forward_to:
        errors = None if output is None else subprocess.STDOUT
        try:
            child = subprocess.Popen(command, stdout=output, stderr=errors, env=environ)  # noqa: S603 # the user's own
        except FileNotFoundError:
            hint = "; for a pipe or a list of commands, use sh -c" if " " in command[0] else ""
            warn(f"no program {command[0]!r:.200}{hint}")
            return _NOT_FOUND
        except (OSError, ValueError) as error:
            warn(f"cannot run {command[0]!r:.200}: {getattr(error, 'strerror', None) or error}")
            return _NOT_RUNNABLE
        forward_to(child)
        code = child.wait()
    return code if code >= 0 else _SIGNALLED - code


def warn(text: str) -> None:
    """Print a line to stderr that begins with `offload:`."""
    from offload.cli.terminal import err, one_line  # noqa: PLC0415 # a tenth of the time of `offload exec`

    err.print(one_line(f"offload: {text}"), soft_wrap=True)


@contextmanager
def unlogged() -> Iterator[None]:
    """Turn the log of the library off: the command prints its own messages."""
    log = logging.getLogger("offload")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass the signals that end a program on to a child, so that its output is still printed.

    Yields a function that names the child; it also gets the signals that came while it was started.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if not children:
            early.append(number)
        elif number not in of_terminal or not _is_in_foreground():
            children[0].send_signal(number)

    def forward_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            forward(number, None)

    of_terminal, not_forwarded = _numbers_of(_OF_TERMINAL), _numbers_of(_NOT_FORWARDED)
    numbers = signal.valid_signals() - not_forwarded
    # A signal that is ignored, as by nohup, is ignored by the child too.
    # None is a handler of another language, as those of fault handlers.
    before = {n: old for n in numbers if (old := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, forward)
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _numbers_of(names: Sequence[str]) -> set[int]:
    """Return the numbers of the signals that this system has."""
    return {getattr(signal, name) for name in names if hasattr(signal, name)}


def _is_in_foreground() -> bool:
    """Return whether the signals of a terminal reach this process, and with it the child."""
    if not hasattr(os, "tcgetpgrp"):
        return any(os.isatty(number) for number in (0, 2))
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
