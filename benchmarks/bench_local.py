"""Local folder: offload, put, restore and a growing session, against the irreducible work.

The folder is made where temporary files are made (TMPDIR); on a memory file system fsync costs nothing
and the ratios of small items mean little.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import _raw
from _content import output, wide_output
from _measure import Figure, compare, repeat, require, run, size

from offload import Offloader, OffloadPolicy, Rule, open_store
from offload.agent.presets.context_refs import ContextRefs
from offload.storage.store import put_many

_SMALL, _LARGE = 10_000, 100_000
_SMALL_BUDGET, _LARGE_BUDGET, _GROWTH_BUDGET = 2.0, 1.25, 1.05
_ROUNDS = {1_000: 200, _SMALL: 200, _LARGE: 100, 1_000_000: 40, 10_000_000: 11, 100_000_000: 5}
_QUICK_SHARE, _LEAST_ROUNDS = 4, 5
_PREVIEW_CHARS = 1000
# The limits in the document of context files.
_CONTEXT_FILE_MS = {_SMALL: 50.0, _LARGE: 200.0}
_CONTEXT_FILES = 50
_AT_ONCE = 100
_SESSION_ITEMS, _COMPARED_ITEMS, _SESSIONS = 1000, 100, 4


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    share = _QUICK_SHARE if is_quick else 1
    rounds = {chars: max(_LEAST_ROUNDS, count // share) for chars, count in _ROUNDS.items()}
    sizes = list(_ROUNDS)[: -1 if is_quick else None]
    for chars in sizes:
        yield in_folder(partial(_offload, chars, rounds[chars], output))
    yield in_folder(partial(_offload, 1_000_000, rounds[1_000_000], wide_output))
    for chars in sizes[2:5]:
        yield in_folder(partial(_offload, chars, rounds[chars], output, preview_chars=0))
    for chars in sizes[:5]:
        yield in_folder(partial(_put, chars, rounds[chars]))
    yield in_folder(partial(_put_many, rounds[1_000_000]))
    for chars in sizes:
        yield in_folder(partial(_restore, chars, min(50, rounds[chars])))
    yield in_folder(partial(_growth, _SESSIONS // share))
    for chars, most in _CONTEXT_FILE_MS.items():
        yield in_folder(partial(_context_file, chars, most))


def in_folder(measure: Callable[[Path], Figure]) -> Figure:
    """Return what `measure` finds in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


def offloader(
    folder: Path, session: str, preview_chars: int = _PREVIEW_CHARS, durability: str = "fsync"
) -> Offloader:
    """Return an offloader that offloads every item."""
    rule = Rule(min_chars=1, preview_chars=preview_chars)
    policy = OffloadPolicy(types={"tool_result": rule}, min_saving=0)
    options = {"durability": durability}
    return Offloader(folder / "ours", session=session, policy=policy, storage_options=options)


def offload_one(off: Offloader, text: str) -> str:
    """Offload one tool result and return its placeholder."""
    placeholder = off.offload_text(text, tool_name="Bash", tool_use_id="toolu_01")
    require(placeholder != text, f"a text of {len(text)} characters was kept")
    return placeholder


def _offload(
    chars: int,
    rounds: int,
    make: Callable[[int, int], str],
    folder: Path,
    *,
    preview_chars: int = _PREVIEW_CHARS,
) -> Figure:
    raw_folder = folder / "raw"
    raw_folder.mkdir()
    off = offloader(folder, "one", min(preview_chars, chars // 4))

    def work(number: int) -> tuple[str, bytes, str]:
        text = make(chars, number)
        return text, text.encode(), str(number)

    def raw(item: tuple[str, bytes, str]) -> None:
        if chars <= _SMALL:
            _raw.durable_write(raw_folder, item[2], item[1])
        else:
            _raw.offload(raw_folder, item[1])

    paired = compare(lambda item: offload_one(off, item[0]), raw, rounds, work)
    than = "a durable write" if chars <= _SMALL else "SHA-256 + zstd + a durable write"
    return Figure(
        f"offload of {size(chars)}{', not ASCII' * (make is wide_output)}{_bare(preview_chars)} / {than}",
        paired.ratio,
        at_most=_SMALL_BUDGET if chars <= _SMALL else _LARGE_BUDGET,
        detail=paired.cpu_detail,
    )


def _bare(preview_chars: int) -> str:
    return "" if preview_chars else ", no preview"


def _put(chars: int, rounds: int, folder: Path) -> Figure:
    raw_folder = folder / "raw"
    raw_folder.mkdir()
    store = open_store(folder / "ours")
    data, keys = output(chars).encode(), count()
    paired = compare(
        lambda key: store.put(f"r/one/{key}", data),
        lambda key: _raw.durable_write(raw_folder, key, data),
        rounds,
        lambda _: f"key-{next(keys)}",
    )
    return Figure(f"put of {size(chars)} / a durable write", paired.ratio, detail=paired.cpu_detail)


def _put_many(rounds: int, folder: Path) -> Figure:
    """Store objects of one folder at once, which cost it two syncs, and one by one, which cost two each."""
    raw_folder = folder / "raw"
    raw_folder.mkdir()
    store = open_store(folder / "ours")
    data, keys = output(_SMALL).encode(), count()

    def raw(names: list[str]) -> None:
        for name in names:
            _raw.durable_write(raw_folder, name, data)

    paired = compare(
        lambda names: require(not any(put_many(store, [(f"r/one/{n}", data) for n in names])), "not stored"),
        raw,
        rounds,
        lambda _: [f"key-{next(keys)}" for _ in range(_AT_ONCE)],
    )
    return Figure(
        f"put of {_AT_ONCE} times {size(_SMALL)} at once / a durable write of each",
        paired.ratio,
        detail=paired.cpu_detail,
    )


def _restore(chars: int, rounds: int, folder: Path) -> Figure:
    raw_folder = folder / "raw"
    raw_folder.mkdir()
    text = output(chars)
    _raw.offload(raw_folder, text.encode())
    name = next(raw_folder.iterdir()).name
    preview_chars = min(_PREVIEW_CHARS, chars // 4)
    block = {"type": "tool_result", "tool_use_id": "toolu_01"}
    placeholder = offload_one(offloader(folder, "one", preview_chars), text)
    taken_out = [{"role": "user", "content": [{**block, "content": placeholder}]}]
    whole = [{"role": "user", "content": [{**block, "content": text}]}]

    require(offloader(folder, "one").restore(taken_out) == whole, "restore gave back another text")
    paired = compare(
        lambda off: off.restore(taken_out),
        lambda _: _raw.restore(raw_folder, name).decode(),
        rounds,
        lambda _: offloader(folder, "one"),
    )
    return Figure(
        f"restore of {size(chars)} in a new process / read + unzstd + SHA-256",
        paired.ratio,
        detail=paired.cpu_detail,
    )


def _growth(sessions: int, folder: Path) -> Figure:
    """Offload by turns into a session that holds 900 items and into one that holds a single item.

    That compares the last 100 of 1,000 with the first at the same minute on the same disk. Without fsync,
    whose time differs more from folder to folder than the budget allows.
    """
    old = [offloader(folder, f"old-{i}", durability="none") for i in range(sessions)]
    new = [offloader(folder, f"new-{i}", durability="none") for i in range(sessions)]
    filled = _SESSION_ITEMS - _COMPARED_ITEMS
    # ext4 puts a folder that is made later among other files, where it takes another time to make a file.
    for off in new:
        offload_one(off, output(_SMALL))
    for number in range(filled):
        for off in old:
            offload_one(off, output(_SMALL, number))
    paired = compare(
        lambda work: offload_one(old[work[0]], work[1]),
        lambda work: offload_one(new[work[0]], work[1]),
        _COMPARED_ITEMS * sessions,
        lambda number: (number % sessions, output(_SMALL, filled + number)),
    )
    return Figure(
        f"{size(_SMALL)} as items 901-1,000 of a session / as items 2-101",
        paired.ratio,
        at_most=_GROWTH_BUDGET,
        detail=paired.cpu_detail,
    )


def _context_file(chars: int, most: float, folder: Path) -> Figure:
    """Write outputs of `bash` as context files of one conversation, manifest included."""
    refs = ContextRefs(folder, "one")
    numbers = count()

    def write() -> None:
        text = output(chars, next(numbers))
        require(refs.tool_output(text, tool_name="bash") != text, f"a text of {chars} characters was kept")

    taken = 1000 * repeat(write, _CONTEXT_FILES)
    return Figure(
        f"context file of {size(chars)}", taken, "ms", at_most=most, detail=f"median of {_CONTEXT_FILES}"
    )


if __name__ == "__main__":
    run(__doc__, figures)
