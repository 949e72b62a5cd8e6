"""The five systems as one: each preset in a loop, with each compaction, across a restart, and all of it back.

| statement | test |
|---|---|
| A loop over any preset stays within its window, and parts no call from its result | test_a_session_… |
| Another process goes on in the middle, from the store and the session's name | test_a_session_… |
| A provider that binds thinking to what was sent before it refuses no request | test_a_session_… |
| One `restore` of the last request gives the whole conversation | test_a_session_… |
| The index of the preset lists the records of the session, however they left | test_a_session_… |
| No placeholder, notice or summary is offloaded again | test_a_session_… |
| `offload ls`, `show` and `verify` open the tree by its path | test_the_command_line_… |
| One `restore` undoes both compactors and `offload` on a list, in any order | test_a_list_… |
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recorded
from binding import MODEL, Binding
from command import runner
from kit.conversation import tool_turn
from recorded import FILES

from offload import AgentConfig, ContextFullError, ContextManager, Offloader
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.messages.context import ContextIR

WINDOW = 20_000
SESSION = "s"

Message = dict[str, Any]
NOT_DURABLE = {"durability": "none"}


def plain(root: Path) -> Offloader:
    return Offloader(root, session=SESSION, model=MODEL, storage_options=NOT_DURABLE)


def context_fs(root: Path) -> Offloader:
    return ContextFileSystem(root, SESSION, model=MODEL).offloader


def context_refs(root: Path) -> Offloader:
    return ContextRefs(root, SESSION, model=MODEL, storage_options=NOT_DURABLE).offloader


PRESETS: dict[str, Callable[[Path], Offloader]] = {
    "plain": plain,
    "context_fs": context_fs,
    "context_refs": context_refs,
}
COMPACTIONS = tuple(itertools.product(("selective", "rounds"), (True, False)))


def runs() -> Iterator[Any]:
    """Yield each session with each preset and compaction; in `make test`, six sessions with a pair each."""
    every = list(itertools.product(PRESETS, COMPACTIONS))
    some = itertools.islice(zip(itertools.cycle(PRESETS), itertools.cycle(COMPACTIONS), strict=False), 6)
    filling = (path for path in FILES if path.stat().st_size > 6 * WINDOW)
    now = list(zip(sorted(filling, key=lambda path: path.stat().st_size), some, strict=False))
    for path in FILES:
        for preset, (strategy, is_summarized) in every:
            name = f"{recorded.name_of(path)}-{preset}-{strategy}{'-summary' * is_summarized}"
            marks = () if (path, (preset, (strategy, is_summarized))) in now else (pytest.mark.slow,)
            yield pytest.param(path, preset, strategy, is_summarized, id=name, marks=marks)


def summarize(request: list[Message]) -> str:
    return "<summary>Work went on.</summary>"


def loop(off: Offloader, strategy: str, *, is_summarized: bool) -> ContextManager:
    config = AgentConfig(window_tokens=WINDOW, strategy=strategy)
    return ContextManager(off, config, summarizer=summarize if is_summarized else None)


def go_on(
    m: ContextManager,
    messages: list[Message],
    beside: dict[str, Any],
    provider: Binding,
    *,
    may_lack_room: bool,
) -> None:
    for message in messages:
        if message["role"] == "assistant":
            request = m.before_model_call(**beside)
            provider.check(request.messages)
            provider.learn(recorded.signatures_in(message), request.messages)
            # Without a summary the latest texts of the model may be more than the aim.
            assert {*map(type, request.errors)} <= ({ContextFullError} if may_lack_room else set())
            assert request.tokens <= WINDOW
            assert m.after_model_call(message) == []
        else:
            m.add(message)


def restart_in(messages: list[Message]) -> int:
    """Return the place after the first answer of the second half: all before it is in the journal."""
    middle = len(messages) // 2
    return 1 + next(i for i in range(middle, len(messages)) if messages[i]["role"] == "assistant")


INDEX = {
    "context_fs": ("index.json", "item_id"),
    "context_refs": (f"{SESSION}/manifest.json", "id"),
}


def indexed(preset: str, root: Path) -> list[str]:
    """Return the ids in the preset's index, read as a file; there is none before the first record."""
    name, field = INDEX[preset]
    file = root / name
    return [item[field] for item in json.loads(file.read_text("utf-8"))["items"]] if file.exists() else []


@recorded.needed
@pytest.mark.parametrize(("path", "preset", "strategy", "is_summarized"), [*runs()])
def test_a_session_goes_on_after_a_restart_and_one_restore_undoes_all_of_it(
    path: Path, preset: str, strategy: str, is_summarized: bool, tmp_path: Path
) -> None:
    session = recorded.load(path)
    messages = session["messages"]
    beside: dict[str, Any] = {"system_prompt": session["system"] or "", "tools": session.get("tools") or ()}
    half = restart_in(messages)
    provider = Binding()
    first = loop(PRESETS[preset](tmp_path), strategy, is_summarized=is_summarized)
    go_on(first, messages[:half], beside, provider, may_lack_room=not is_summarized)

    m = loop(PRESETS[preset](tmp_path), strategy, is_summarized=is_summarized)
    assert m.resume() > 0
    go_on(m, messages[half:], beside, provider, may_lack_room=not is_summarized)
    sent = m.before_model_call(**beside).messages

    restorer = PRESETS[preset](tmp_path)
    assert restorer.restore(sent) == messages
    assert m.restore() == messages
    if preset in INDEX:
        assert sorted(indexed(preset, tmp_path)) == sorted(record.ref for record in restorer.records())
    again = restorer.offload(sent)
    assert again.errors == []
    placeholders = [text for text in map(str, sent) if "[Compacted " in text]
    assert [text for text in map(str, again.messages) if "[Compacted " in text] == placeholders
    assert restorer.restore(again.messages) == messages


LOG = "".join(f"{n}: compiled module {n * 7919 % 1009}, no warnings\n" for n in range(300))


def conversation() -> list[Message]:
    """Return rounds with one large result each."""
    out: list[Message] = []
    for n in range(8):
        out += [
            {"role": "user", "content": f"Build module {n}."},
            *tool_turn(f"c{n}", f"round {n}\n{LOG}", "Bash", {"command": f"make m{n}"}),
            {"role": "assistant", "content": f"Module {n} is built."},
        ]
    return out


def by_turn(off: Offloader, messages: list[Message]) -> list[Message]:
    return off.offload(messages).messages


def by_rounds(off: Offloader, messages: list[Message]) -> list[Message]:
    config = RoundConfig(max_context_tokens=1000, keep_recent_rounds=2)
    return RoundCompactor(off, summarize, config).compact(messages).new_messages


def by_type(off: Offloader, messages: list[Message]) -> list[Message]:
    context = ContextIR()
    for message in messages:
        context.add_message(message)
    SelectiveCompaction(off, threshold_tokens=400).compact(context)
    return context.lower()


Step = Callable[[Offloader, list[Message]], list[Message]]


def named(steps: tuple[Any, ...]) -> str:
    return "-".join(step.__name__ for step in steps)


STEPS: tuple[Step, ...] = (by_turn, by_turn, by_rounds, by_type)
ORDERS = sorted(set(itertools.permutations(STEPS)), key=named)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("steps", ORDERS, ids=named)
def test_a_list_is_offloaded_and_compacted_in_any_order_and_one_restore_undoes_it(
    preset: str, steps: tuple[Step, ...], tmp_path: Path
) -> None:
    off = PRESETS[preset](tmp_path)
    messages: list[Message] = []
    seen: list[Message] = []
    for place, step in enumerate(steps):
        # The conversation goes on between the steps.
        new = conversation()[place * 8 : (place + 1) * 8]
        seen += new
        messages = step(off, [*messages, *new])

    assert len(str(messages)) < len(str(seen)) / 2
    assert PRESETS[preset](tmp_path).restore(messages) == seen


@pytest.mark.parametrize("preset", PRESETS)
def test_the_command_line_opens_each_tree_by_its_path(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    off = PRESETS[preset](tmp_path)
    out = off.offload(conversation())
    ref = out.records[0].ref

    def run(*arguments: str) -> str:
        done = runner(capsys, monkeypatch)(*arguments, "--store", tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert SESSION in run("ls")
    assert ref in run("ls", "--session", SESSION)
    assert "compiled module" in run("show", ref, "--session", SESSION)
    assert "compiled module 1001" in run("grep", "module 1001", "--session", SESSION)
    assert str(len(out.records)) in run("verify", "--session", SESSION)
