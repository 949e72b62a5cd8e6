"""The hook of Claude Code as a command, for versions whose hooks call no MCP tools.

`python -m offload.integrations.claude_code` reads an event from stdin and prints the answer. Results under
1,500 tokens are kept under every policy: until the size is known, little but the standard library is loaded.
After any failure, and after 15 seconds, nothing is printed and the original result is kept; the exit code is
always 0.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from offload.errors import OffloadError
from offload.integrations.claude_code import _shapes as shapes
from offload.tokens import estimate_tokens

MIN_TOKENS = 1500
SECONDS = 15.0


def main() -> None:
    """Answer the event on stdin."""
    try:
        event = json.load(sys.stdin.buffer)
        if _concerns(event):
            sys.stdout.write(_answer(event))
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 # no failure reaches the conversation
        # The model is not shown this line. The text of another error may quote the result.
        reason = error if isinstance(error, OffloadError) else type(error).__name__
        sys.stderr.write(f"offload: a result is kept in full: {reason}\n")


def _concerns(event: Mapping[str, Any]) -> bool:
    """Return whether an event may have an answer, which takes the library to find."""
    tool = str(event.get("tool_name"))
    match event["hook_event_name"]:
        case shapes.EVENT:
            result = shapes.result_of(tool, event["tool_response"])
            if result is None or tool == shapes.READER:
                return False
            return result.path is not None or estimate_tokens(result.text) >= MIN_TOKENS
        case "PreToolUse":
            return shapes.is_plugin_tool(tool)
        case other:
            return bool(other == "PreCompact")


def _answer(event: Mapping[str, Any]) -> str:
    late = threading.Timer(SECONDS, os._exit, (0,))
    late.daemon = True
    late.start()
    # They take long to load: a small result does not wait for them.
    from offload.integrations._sessions import folder_session  # noqa: PLC0415  # the check of the environment comes first
    from offload.integrations.claude_code._environment import leave_out_project  # noqa: PLC0415  # the check of the environment comes first
    from offload.integrations.claude_code._hook import KEEP, Hook, offloader_for  # noqa: PLC0415  # the check of the environment comes first
    from offload.settings.loader import load_config  # noqa: PLC0415  # the check of the environment comes first

    logging.basicConfig(format="offload: %(message)s")
    leave_out_project()
    answer = Hook(offloader_for(load_config().settings, folder_session())).answer(event)
    return "" if answer == KEEP else answer


if __name__ == "__main__":
    main()
