"""The catalog of a large session: pages, a cold open from a snapshot, and what a full listing costs.

The records are 100,000 empty files under names of records, in a local folder: a listing reads no content.
"""

from __future__ import annotations

import os
import random
import string
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from _measure import Figure, duration, repeat, require, run, seconds

from offload import open_store
from offload.records.index.catalog import Catalog
from offload.records.index.entries import record_key
from offload.records.record import Header
from offload.records.record.header import Counts
from offload.storage.store import OffloadStore

_RECORDS, _QUICK_RECORDS = 100_000, 10_000
_PAGE = 50
_PAGE_MS, _OPEN_SECONDS = 5.0, 1.0
_ROUNDS, _OPEN_ROUNDS = 50, 5
_TYPES = ("tool_result",) * 9 + ("user_message",)
_TOOLS = ("Bash", "Read", "Grep", "Glob", "WebFetch", *(f"mcp__server__tool_{n}" for n in range(30)))


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    count = _QUICK_RECORDS if is_quick else _RECORDS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "store")
        _make_records(root, count)
        store = open_store(str(root))
        yield from _listings(store, count)
        yield from _opened(store, count)
        yield from _pages(store, count)


def _listings(store: OffloadStore, count: int) -> Iterator[Figure]:
    raw = seconds(lambda: list(store.keys("r/")))
    yield Figure(f"the store lists {count:,} files", raw, "s")
    catalog = Catalog(store, "large")
    first = seconds(catalog.load)
    require(len(catalog.entries()) == count, "the listing is not whole")
    require(len(list(store.keys("i/"))) == 1, "no snapshot was written")
    [snapshot] = store.keys("i/")
    yield Figure(
        f"the first listing of {count:,}, snapshot written",
        first,
        "s",
        detail=f"snapshot of {snapshot.size / count:.1f} bytes a record",
    )
    yield Figure(f"another listing of {count:,}", seconds(Catalog(store, "large").load), "s")


def _opened(store: OffloadStore, count: int) -> Iterator[Figure]:
    """Open as a new process does, until the first page is there."""
    took = [seconds(lambda: _check(Catalog(store, "large"), count)) for _ in range(_OPEN_ROUNDS)]
    budget = _OPEN_SECONDS if count == _RECORDS else None
    detail = f"{duration(min(took))} to {duration(max(took))}"
    yield Figure(f"cold open of {count:,} from a snapshot", median(took), "s", at_most=budget, detail=detail)


def _pages(store: OffloadStore, count: int) -> Iterator[Figure]:
    catalog = Catalog(store, "large")
    middle = catalog.recent()[count // 2].ref
    pages = {
        "the newest": {},
        "after the middle": {"after": middle},
        "of one tool": {"tool": _TOOLS[-1]},
        "of one type": {"item_type": "user_message"},
    }
    for name, query in pages.items():
        took = repeat(partial(catalog.page, limit=_PAGE, **query), _ROUNDS)
        yield Figure(f"a page of {_PAGE} of {count:,}, {name}", took * 1000, "ms", at_most=_PAGE_MS)


def _check(catalog: Catalog, count: int) -> None:
    page = catalog.page(limit=_PAGE)
    require((len(page.infos), page.total) == (_PAGE, count), "the page is not whole")


def _make_records(root: Path, count: int) -> None:
    """Make the files past the store, which would sync each."""
    drawn = random.Random(1)  # noqa: S311 # reproducible files
    folder = root / "r" / "large"
    folder.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    for number in range(count):
        header = Header(
            ref="".join(drawn.choices(string.ascii_lowercase, k=10)),
            session="large",
            item_type=drawn.choice(_TYPES),
            tool_name=drawn.choice(_TOOLS),
            created_at=0.0,
            sha256=b"",
            placeholder="",
        )
        chars = drawn.randrange(8_000, 80_000)
        counts = Counts(bytes=chars, chars=chars, lines=1, tokens=chars // 4, sha256=b"")
        file = root / record_key(header, counts, ".zst")
        file.touch()
        os.utime(file, (number, number))


if __name__ == "__main__":
    run(__doc__, figures)
