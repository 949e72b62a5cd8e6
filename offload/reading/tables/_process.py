"""Processes that run SQL: started at the first query, kept for the next ones, ended when they are idle.

SQLite cannot be stopped while it prepares a statement, and a process can. Content reaches it through a pipe,
so none of it is on disk. It ends with this process.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, Any, Generic, TypeVar, cast

from offload.base.threads.locks import renew_in_child
from offload.errors import ConfigError

T = TypeVar("T")

# Bytes that SQLite may take in a process: its tables, and as much again for a query.
HEAP_BYTES = 512 * 1024 * 1024
_MOST_WORKERS = 4
_WAIT_SECONDS = 30.0
# A process ends itself after a minute without a request; one that is about to is not used.
_IDLE_SECONDS = 50.0
_MOST_ANSWER_BYTES = 64 * 1024 * 1024
_INTERPRETERS = ("python", "pypy", "graalpy")
_WORKER = "offload.reading.tables._worker"
# Runs the code that it reads first. It may come from a file, an archive or a cache.
_START = "import marshal,sys;i=sys.stdin.buffer;exec(marshal.loads(i.read(int.from_bytes(i.read(4),'big'))))"
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "PATH")
_INSTEAD = "use context_grep or context_read"


class WorkerError(Exception):  # an answer
    """The answer to a request that failed: its kind, and what is said about it."""

    def __init__(self, kind: str, *details: Any) -> None:
        super().__init__(kind, *details)
        self.kind = kind
        self.details = details


class LateError(Exception):
    """A process was ended because its time was over."""


class Worker(Generic[T]):
    """A process that runs SQL; one thread at a time uses it.

    Attributes:
        kept: what the process holds for later queries, by key; the least recently used first.
        used_at: when it was used last.
    """

    def __init__(self) -> None:
        self.kept: dict[Hashable, T] = {}
        self.used_at = time.monotonic()
        self._process = _started()
        # Both are pipes.
        self._requests, self._answers = cast(
            "tuple[IO[bytes], IO[bytes]]", (self._process.stdin, self._process.stdout)
        )
        self._bases = 0
        self._is_late = False
        # Its first answer comes without a request.
        self._pending = 1
        self._is_broken = False
        self.version: tuple[int, ...] | None = None
        self._send(marshal.dumps(_code()))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs and can be asked."""
        return not self._is_broken and self._process.poll() is None

    @property
    def is_usable(self) -> bool:
        """Whether it waits for a request."""
        return self.is_alive and self._pending == (self.version is None)

    def new_base(self) -> int:
        """Return the number of one more database."""
        self._bases += 1
        return self._bases

    def post(self, *request: Any) -> None:
        """Send a request; wait for the answer to the one before. Raises `WorkerError`."""
        self._send(marshal.dumps(request))
        self._pending += 1
        self._receive(leave=1)

    def ask(self, *request: Any) -> dict[str, Any]:
        """Return the answer to a request. Raises `WorkerError`."""
        self._send(marshal.dumps(request))
        self._pending += 1
        return self._receive()

    def settle(self) -> None:
        """Wait for all answers, also if they are failures."""
        try:
            self._receive()
        except WorkerError:
            return

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End the process if a block takes longer. Raises `LateError`."""
        timer = threading.Timer(seconds, self._stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        self._is_broken = True
        self._process.kill()
        self._requests.close()
        self._answers.close()
        self._process.wait()

    def abandon(self) -> None:
        """Forget the process in a forked child, whose parent it serves."""
        self._is_broken = True
        self._requests.close()
        self._answers.close()
        # It is not the child's to wait for.
        self._process.returncode = 0

    def _stop(self) -> None:
        self._is_late = True
        self._process.kill()

    def _receive(self, leave: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        failed: list[Any] = []
        while self._pending > leave:
            answer = json.loads(self._frame())
            self._pending -= 1
            if self.version is None:
                self.version = tuple(answer["version"])
            failed = failed or answer.get("failed", [])
        if failed:
            raise WorkerError(*failed)
        return answer

    def _send(self, data: bytes) -> None:
        is_broken, self._is_broken = self._is_broken, True
        frame = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while frame:
                frame = frame[self._requests.write(frame) :]
        except (OSError, ValueError):
            raise self._death() from None
        self._is_broken = is_broken

    def _frame(self) -> bytes:
        is_broken, self._is_broken = self._is_broken, True
        size = int.from_bytes(self._exactly(4), "big")
        if size > _MOST_ANSWER_BYTES:
            raise ConfigError("the answer is too large; name fewer columns")
        data = self._exactly(size)
        self._is_broken = is_broken
        return data

    def _exactly(self, size: int) -> bytes:
        parts = []
        try:
            while size:
                parts.append(self._answers.read(size))
                size -= len(parts[-1])
                if not parts[-1]:
                    raise self._death()
        except (OSError, ValueError):
            raise self._death() from None
        return b"".join(parts)

    def _death(self) -> Exception:
        self.close()
        code = self._process.returncode
        if self._is_late or code == -getattr(signal, "SIGXCPU", 0):
            return LateError()
        if self.version is None:
            return ConfigError(f"the query process {sys.executable} ended with code {code}; {_INSTEAD}")
        return ConfigError(f"the query process ended with code {code}; the next query starts a new one")


def _code() -> Any:
    return find_spec(_WORKER).loader.get_code(_WORKER)  # type: ignore[union-attr] # it is there


def _started() -> subprocess.Popen[bytes]:
    """Start the process. Raises `ConfigError` if that is not possible."""
    name = os.path.basename(sys.executable or "").lower()  # noqa: PTH119 # pathlib is slow, and gains nothing
    if getattr(sys, "frozen", False) or not any(each in name for each in _INTERPRETERS):
        raise ConfigError(
            f"queries run in a Python process, and {sys.executable!r} is not a Python interpreter; {_INSTEAD}"
        )
    try:
        return subprocess.Popen(  # noqa: S603 # this interpreter alone
            [sys.executable, "-I", "-S", "-c", _START, str(HEAP_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd=os.path.abspath(os.sep),  # noqa: PTH100 # see above
            env=_environment(os.environ),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError as error:
        raise ConfigError(f"the query process could not be started: {error}; {_INSTEAD}") from None


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what an interpreter needs to start: no keys of the host."""
    return {name: variables[name] for name in _KEPT_VARIABLES if name in variables}


class Pool(Generic[T]):
    """The processes of this process: at most four, each used by one thread at a time.

    A forked child begins without any.
    """

    def __init__(self) -> None:
        self._workers: list[Worker[T]] = []
        self._leased: list[Worker[T]] = []
        self._changed = threading.Condition()
        renew_in_child(self)
        atexit.register(self.close)

    def renew(self) -> None:
        """Begin again without any process."""
        for worker in self._workers:
            worker.abandon()
        self._workers, self._leased, self._changed = [], [], threading.Condition()

    def close(self) -> None:
        with self._changed:
            for worker in self._workers:
                worker.close()
            self._workers = []

    @contextmanager
    def lease(self, key: Hashable) -> Iterator[Worker[T]]:
        """Yield a process, if possible the one that keeps `key`.

        Raises `ConfigError` if none can be started, or all are in use for half a minute.
        """
        worker = self._taken(key)
        try:
            yield worker
        finally:
            worker.used_at = time.monotonic()
            with self._changed:
                self._leased.remove(worker)
                self._changed.notify()

    def _taken(self, key: Hashable) -> Worker[T]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._leased) < _MOST_WORKERS, _WAIT_SECONDS):
                raise ConfigError(f"{_MOST_WORKERS} queries are already running; try again later")
            self._end_unusable()
            idle = [worker for worker in self._workers if worker not in self._leased]
            keeping = [worker for worker in idle if key in worker.kept]
            worker = max(keeping or idle, key=lambda each: each.used_at, default=None) or self._started()
            self._leased.append(worker)
            return worker

    def _started(self) -> Worker[T]:
        worker: Worker[T] = Worker()
        self._workers.append(worker)
        return worker

    def _end_unusable(self) -> None:
        latest = time.monotonic() - _IDLE_SECONDS
        for worker in [*self._workers]:
            if worker not in self._leased and (worker.used_at < latest or not worker.is_usable):
                worker.close()
                self._workers.remove(worker)
