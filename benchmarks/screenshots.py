"""Screenshots of the web pages and the command line for the docs, in `docs/assets/`.

It needs the dependency group `browser` and the system's Chromium. `python benchmarks/screenshots.py`
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from offload import AgentConfig, ContextManager, Offloader
from offload.replay.sample import conversation

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
SESSION, MODEL = "research-42", "claude-opus-5-5"
_WIDTH, _HEIGHT = 1100, 760
# rich names fonts of a server.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Store a conversation, and write the screenshots."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/context"
        talk(Offloader(store, session=SESSION))
        draw_command(store)
        draw_pages(store)


def talk(off: Offloader) -> None:
    """Send the conversation as an agent loop does, and let the model read a record back."""
    context = ContextManager(off, AgentConfig(window_tokens=200_000, model=MODEL))

    def say(message: Any) -> None:
        if message["role"] == "assistant":
            tokens = context.before_model_call().tokens
            context.after_model_call(message, usage=tokens)
        else:
            context.add(message)

    for message in conversation():
        say(message)
    arguments = {"id": off.records()[-1].ref, "limit": 2000}
    use = {"type": "tool_use", "id": "toolu_read", "name": "context_read", "input": arguments}
    answer = off.tools.call("context_read", arguments)
    say({"role": "assistant", "content": [use]})
    say(
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_read", "content": answer}]}
    )
    say({"role": "assistant", "content": "The long lines break in the help of nested groups."})


def draw_command(store: str) -> None:
    """Write the list of the session's records as a terminal shows it."""
    command = [sys.executable, "-m", "offload", "ls", "--store", store, "--session", SESSION]
    shown = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "110"}
    listed = subprocess.run(command, env=shown, stdout=subprocess.PIPE, text=True, check=True).stdout
    terminal = Console(record=True, width=110, file=io.StringIO())
    terminal.print(Text.from_ansi(listed.rstrip()))
    drawn = terminal.export_svg(title=f"offload ls --session {SESSION}")
    (ASSETS / "terminal.svg").write_text(_FONTS.sub("", drawn), encoding="utf-8")


def draw_pages(store: str) -> None:
    """Write the page of the session, in light and dark, and that of its conversation."""
    command = [sys.executable, "-u", "-m", "offload", "serve", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            [url] = re.findall(r"http://\S+", server.stdout.readline() if server.stdout else "")
            with sync_playwright() as driver:
                shoot_pages(driver, url)
        finally:
            server.terminate()


def shoot_pages(driver: Any, url: str) -> None:
    """Sign in, and write what the pages show."""
    # As root, as in a container, Chromium does not start with its sandbox.
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
    page.goto(url, wait_until="commit")
    session = f"{url.partition('?')[0]}s/{SESSION}"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shoot(page, session, f"page-{scheme}")
    page.emulate_media(color_scheme="light")
    shoot(page, f"{session}/conversation", "page-conversation")
    browser.close()


def shoot(page: Any, url: str, name: str) -> None:
    """Write what a browser shows of a page, as a PNG."""
    page.goto(url)
    page.screenshot(path=ASSETS / f"{name}.png")


if __name__ == "__main__":
    main()
