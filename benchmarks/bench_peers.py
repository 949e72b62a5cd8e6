"""Other libraries on the same work: offload, read back, and what is lost when something goes wrong.

Each candidate is a program in `peers/` that runs in an environment of its own, made by uv from the packages'
plain names. Candidates take turns in every round; a cell is the median, with the lowest and the highest in
brackets. `[--quick] [--json FILE] [NAME …]`: a NAME restricts the comparison to candidates that it begins.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import boto3
from _content import json_line, output
from _s3_server import S3Server
from peers._conversations import large_results
from peers._environments import CANDIDATES, ENVIRONMENTS, Candidate, make_environments, versions
from peers._tables import Results, rows_of, tables

_HERE = Path(__file__).resolve().parent
_BUCKET = "bench"
_ITEM_CHARS, _BLOCK_CHARS = 10_000, 4_000_000
_LISTING_CHARS, _LINE_CHARS, _LONG_LINE_CHARS = 5_000_000, 5_000_000, 10_000_000
_MARK, _LAST, _ROW = "needle-7f3a-here", "the-very-last-line", 20_000
# Nothing in the text matches the second: no candidate may stop at a match before the hostile line.
_PATTERNS = ("(a+)+$", "(a|a)*§")
# Beyond the ten seconds after which one candidate stops its own search; of a whole process.
_REGEX_SECONDS, _SECONDS = 12, 180
_REGEXES_AT_ONCE = 4

Task = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """The sizes of the full or the quick comparison."""

    rounds: int = 2
    transcripts: int | None = None
    session: int = 1_000
    writers: int = 8
    per_writer: int = 25
    large_blocks: int = 50
    kills: int = 12


_QUICK = Effort(rounds=1, transcripts=60, session=200, writers=4, per_writer=20, large_blocks=5, kills=4)


@dataclass
class Lab:
    """The working folder, and the calls to a candidate."""

    folder: Path
    endpoint: str
    effort: Effort = field(default_factory=Effort)
    results: Results = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def store(self, candidate: Candidate) -> str:
        """Return a new, empty store for a candidate."""
        number = next(self.numbers)
        return candidate.store.format(folder=self.folder / f"store-{number}", bucket=f"{_BUCKET}/{number}")

    def ask(self, candidate: Candidate, *tasks: Task, is_served: bool = True) -> list[Any]:
        """Return what a candidate answers to each task, done in turn by one process of its own.

        Where it did not get so far the answer is the state in which it was left.
        """
        number = next(self.numbers)
        question, answer = (self.folder / f"{word}-{number}.json" for word in ("tasks", "answers"))
        item = output(_ITEM_CHARS // 2)
        asked = [{"store": self.store(candidate), "item": item, **task} for task in tasks]
        question.write_text(json.dumps(asked), encoding="utf-8")
        command = [str(candidate.python), "-m", f"peers.{candidate.program}", str(question), str(answer)]
        state = _run(command, self._environment(is_served=is_served))
        answers = json.loads(answer.read_text("utf-8")) if answer.exists() else []
        answers += [{"state": state}] * (len(tasks) - len(answers))
        return [
            {**given, "stored": self._stored(task["store"])}
            for given, task in zip(answers, asked, strict=True)
        ]

    def note(self, candidate: Candidate, name: str, answer: Any) -> None:
        """Keep an answer for the tables."""
        self.results.setdefault(candidate.name, {}).setdefault(name, []).append(answer)

    def _environment(self, *, is_served: bool) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        # Nothing listens on port 9 of the loopback interface; metadata would be asked for elsewhere.
        endpoint = self.endpoint if is_served else "http://127.0.0.1:9"
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **keys,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYTHONPATH": str(_HERE),
            "PYTHONPYCACHEPREFIX": str(ENVIRONMENTS / "compiled"),
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def _stored(self, store: str) -> int:
        if not store.startswith("s3://"):
            files = Path(store.removeprefix("unsynced:")).rglob("*")
            return sum(file.stat().st_size for file in files if file.is_file())
        pages = (
            _s3(self.endpoint)
            .get_paginator("list_objects_v2")
            .paginate(Bucket=_BUCKET, Prefix=store.split("/", 3)[3])
        )
        return sum(entry["Size"] for page in pages for entry in page.get("Contents", []))

    def time_import(self, candidate: Candidate, source: str) -> Any:
        """Return the seconds of a process of a candidate's environment that runs `source`."""
        command, environment = [str(candidate.python), "-c", source], self._environment(is_served=True)
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, check=False, capture_output=True)
        seconds = time.perf_counter() - start
        return {"seconds": seconds} if done.returncode == 0 else {"state": "cannot be imported"}


def main() -> None:
    """Compare, print the tables, and write the cells as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every cell as JSON")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only candidates whose name begins like this"
    )
    options = parser.parse_args()
    make_environments()
    names = tuple(options.names) or ("",)
    candidates = [candidate for candidate in CANDIDATES if candidate.name.startswith(names)]
    with S3Server() as server, tempfile.TemporaryDirectory() as folder:
        _s3(server.url).create_bucket(Bucket=_BUCKET)
        lab = Lab(Path(folder), server.url, _QUICK if options.quick else Effort())
        _measure(lab, candidates)
    print("\n" + tables(lab.results, versions()))
    if options.json:
        options.json.write_text(
            json.dumps(rows_of(lab.results, versions()), indent=2) + "\n", encoding="utf-8"
        )


def _measure(lab: Lab, candidates: Sequence[Candidate]) -> None:
    texts = _prepare(lab)
    for number in range(lab.effort.rounds):
        print(f"round {number + 1} of {lab.effort.rounds}", flush=True)
        _round(lab, candidates if number % 2 else candidates[::-1], texts)
    print("several writers, large results, faults", flush=True)
    for candidate in candidates:
        lab.note(candidate, "writers", _writers(lab, candidate))
        _large_and_faults(lab, candidate)
    _regexes(lab, candidates)


def _prepare(lab: Lab) -> Path:
    """Write the contents that the candidates share; return the file with the transcripts' results."""
    texts = large_results()[: lab.effort.transcripts]
    path = lab.folder / "texts.json"
    path.write_text(json.dumps(texts), encoding="utf-8")
    lab.results["work"] = {
        "texts": [{"count": len(texts), "chars": sum(map(len, texts))}],
        "effort": [asdict(lab.effort)],
        "large": [lab.effort.large_blocks * _BLOCK_CHARS],
    }
    rows = output(_LISTING_CHARS).splitlines()
    rows[_ROW - 1] = f"{rows[_ROW - 1][:40]} {_MARK}"
    contents = {
        "listing": "\n".join([*rows, _LAST]),
        "words": _words(),
        "line": json_line(_LINE_CHARS, _MARK),
        "long": json_line(_LONG_LINE_CHARS, _MARK),
        "block": output(_BLOCK_CHARS),
    }
    for name, content in contents.items():
        (lab.folder / name).write_text(content, encoding="utf-8")
    return path


def _words() -> str:
    text = output(_LINE_CHARS).replace("\n", " ")
    at = len(text) * 9 // 10
    return f"{text[:at]} {_MARK} {text[at:]}"


def _round(lab: Lab, candidates: Iterable[Candidate], texts: Path) -> None:
    contents = {name: str(lab.folder / name) for name in ("listing", "words", "line", "long")}
    tasks: tuple[Task, ...] = (
        {"task": "transcripts", "texts": str(texts)},
        {"task": "session", "count": lab.effort.session},
        {"task": "reading", "row": _ROW, "mark": _MARK, "last": _LAST, **contents},
    )
    for candidate in candidates:
        lab.time_import(candidate, candidate.imports)  # Compiles what is imported for the first time.
        lab.note(candidate, "bare", lab.time_import(candidate, ""))
        lab.note(candidate, "import", lab.time_import(candidate, candidate.imports))
        _ask_and_note(lab, candidate, *tasks)


def _ask_and_note(lab: Lab, candidate: Candidate, *tasks: Task, is_served: bool = True) -> None:
    answers = lab.ask(candidate, *tasks, is_served=is_served)
    for task, answer in zip(tasks, answers, strict=True):
        lab.note(candidate, task["task"], answer)


def _writers(lab: Lab, candidate: Candidate) -> Any:
    """Let processes write into one store at once, and count what a later one finds."""
    store, gate = lab.store(candidate), lab.folder / f"gate-{next(lab.numbers)}"
    gate.mkdir()
    task = {"task": "writer", "store": store, "gate": str(gate), "count": lab.effort.per_writer}
    with ThreadPoolExecutor(lab.effort.writers) as pool:
        asked = [pool.submit(lab.ask, candidate, {**task, "number": n}) for n in range(lab.effort.writers)]
        while len(list(gate.iterdir())) < len(asked) and not any(done.done() for done in asked):
            time.sleep(0.01)
        (gate / "go").touch()
        answers = [done.result()[0] for done in asked]
    if any("refs" not in answer for answer in answers):
        return next(answer for answer in answers if "refs" not in answer)
    refs = {mark: ref for answer in answers for mark, ref in answer["refs"].items()}
    checked = lab.ask(candidate, {"task": "check", "store": store, "refs": refs})[0]
    return {
        "seconds": max(a["end"] for a in answers) - min(a["start"] for a in answers),
        "found": checked.get("found", 0),
        "of": len(asked) * lab.effort.per_writer,
        "errors": [error for answer in answers for error in answer["errors"]],
    }


def _large_and_faults(lab: Lab, candidate: Candidate) -> None:
    block, blocks = str(lab.folder / "block"), lab.effort.large_blocks
    for name in ("stream", "large"):
        _ask_and_note(lab, candidate, {"task": name, "block": block, "blocks": blocks})
    failing: Task = {"task": "failing", "block": block, "is_local": not candidate.is_s3}
    _ask_and_note(lab, candidate, failing, is_served=not candidate.is_s3)
    kill = {"task": "kill", "block": block, "kills": lab.effort.kills}
    _ask_and_note(lab, candidate, {"task": "one_id"}, kill)


def _regexes(lab: Lab, candidates: Sequence[Candidate]) -> None:
    """Search with hostile patterns, some at once: whether they end is the question, not when."""

    def search(work: tuple[Candidate, str]) -> Any:
        candidate, pattern = work
        return lab.ask(candidate, {"task": "regex", "seconds": _REGEX_SECONDS, "pattern": pattern})[0]

    works = [(candidate, pattern) for candidate in candidates for pattern in _PATTERNS]
    with ThreadPoolExecutor(_REGEXES_AT_ONCE) as pool:
        for (candidate, pattern), answer in zip(works, pool.map(search, works), strict=True):
            lab.note(candidate, pattern, answer)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a candidate with its child processes; return a description of how it ended."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            stderr = process.communicate(timeout=_SECONDS)[1].decode(errors="replace")
            state = f"fails: {stderr.strip()[-160:]}"
        except subprocess.TimeoutExpired:
            state = f"not ready after {_SECONDS} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return f"hangs (killed after {_REGEX_SECONDS} s)" if process.returncode == -signal.SIGALRM else state


def _s3(endpoint: str) -> Any:
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **keys)


if __name__ == "__main__":
    main()
