"""`offload demo`: a conversation made on this machine, offloaded, read back and restored."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from offload import Decision, Offloader
from offload.base.text import escape_controls
from offload.cli.options import StoreOption
from offload.cli.shell import quoted
from offload.cli.stores import store_at
from offload.cli.tables import print_table
from offload.cli.terminal import out
from offload.replay.sample import conversation
from offload.storage.layout import RECORD, encode_part

_PATTERN = "_split_lines"
_LISTING_TOOL = "list_files"
_READ_FROM, _READ_CHARS = 2_000_000, 240


def demo(
    *,
    store: StoreOption = None,
    session: Annotated[str, typer.Option("--session", metavar="NAME", help="Session name.")] = "demo",
) -> None:
    """Run a demo: offload real tool outputs from this machine, read parts back, restore everything.

    Example: offload demo
    """
    messages = conversation()
    off = Offloader(store_at(store), session=session)
    result = off.offload(messages)
    for error in result.errors:
        raise error
    results = [d for d in result.decisions if d.item.item_type == "tool_result"]
    out.print(
        f"An agent surveyed the Python installation of this machine: {len(messages)} messages with "
        f"{len(results)} tool results, all of them real."
    )
    _print_decisions(results, result.tokens_before, result.tokens_after)
    _print_placeholder(result.messages, results)
    _print_reading(off, max(results, key=lambda d: d.item.tokens))
    is_identical = off.restore(result.messages) == messages
    _title("Restored conversation")
    out.print(f"All {len(messages)} messages restored: {'identical' if is_identical else 'NOT identical'}.")
    _print_place(off, store, result.records[-1].ref)
    if not is_identical:
        raise typer.Exit(1)


def _print_decisions(results: list[Decision], before: int, after: int) -> None:
    _title("Decisions")
    print_table(
        [
            {
                "item": f"{d.item.message}.{d.item.block}",
                "tool": d.item.tool_name,
                "chars": d.item.chars,
                "tokens": d.item.tokens,
                "after": d.tokens_after,
                "id_or_reason": d.ref or f"kept: {d.reason}",
            }
            for d in results
        ]
    )
    saved = 1 - after / before
    out.print(f"\nThe whole conversation: {before:,} tokens before, {after:,} after ({saved:.1%} less).")


def _print_placeholder(messages: list[Any], results: list[Decision]) -> None:
    item = next(d.item for d in results if d.item.tool_name == _LISTING_TOOL)
    _title(f"Placeholder of the {item.tokens:,} tokens of {_LISTING_TOOL}")
    lines = messages[item.message]["content"][item.block]["content"].splitlines()
    _quote("\n".join([*lines[:5], f"... ({len(lines) - 10} more lines of preview)", *lines[-5:]]))


def _print_reading(off: Offloader, largest: Decision) -> None:
    ref, chars = largest.ref or "", largest.item.chars
    _title(f"Parts that the model reads, of {chars:,} characters on one line")
    out.print(f'context_grep(id="{ref}", pattern="{_PATTERN}", max_matches=1)')
    _quote(off.tools.grep(_PATTERN, ref, max_matches=1))
    out.print(f'\ncontext_read(id="{ref}", offset={_READ_FROM}, limit={_READ_CHARS})')
    _quote(off.tools.read(ref, offset=_READ_FROM, limit=_READ_CHARS))


def _print_place(off: Offloader, store: str | None, ref: str) -> None:
    """Print where the records are, and the next commands as they can be called from here."""
    options = f"--session {quoted(off.session)}"
    if store is not None:
        options += f" --store {quoted(store)}"
    _title("Stored records")
    out.print(f"{off.store.url}/{RECORD.prefix(encode_part(off.session))}", soft_wrap=True)
    _title("Next")
    for command in (f"ls {options}", f"show {ref} {options}", f"rm --yes {options}"):
        out.print(f"  {_program()} {command}", soft_wrap=True)


def _program() -> str:
    """Return how this program is called from the working folder."""
    path = Path(sys.argv[0])
    if path.stem != "offload":
        return f"{quoted(sys.executable)} -m offload"
    found = shutil.which("offload")
    # Windows finds offload.exe, which calls itself offload.
    is_found = found is not None and Path(found).with_suffix("") == path.absolute().with_suffix("")
    return "offload" if is_found else quoted(sys.argv[0])


def _title(text: str) -> None:
    out.print(f"\n{text}\n", style="bold")


def _quote(text: str) -> None:
    out.print(Padding(Text(escape_controls(text)), (0, 0, 0, 4)))
