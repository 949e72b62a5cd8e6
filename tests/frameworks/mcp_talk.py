"""Parts of the tests of the Model Context Protocol: the command, a greeting by hand, readers of answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from offload import Offloader

GREETING: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "by hand", "version": "1"},
    },
}


def offload(*words: object, given: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command `offload` as a program that reads `given`."""
    command = [sys.executable, "-m", "offload", *map(str, words)]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=100, **options
    )


def status_of(url: str, headers: Mapping[str, str] | None = None, message: Any = GREETING) -> int:
    """Return the status of the answer to a message that no client of the SDK sent."""
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    data = json.dumps(message).encode()
    request = urllib.request.Request(url, data, {**accepted, **(headers or {})})  # noqa: S310 # loopback
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 # loopback
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def ref_in(text: str) -> str:
    match = re.match(r"\[Offloaded: .* id ([a-z]{10})\]\n", text)
    assert match is not None, text[:200]
    return match[1]


def records_of(store: Any, session: str = "s") -> dict[str, str]:
    """Return what the store holds by ref, read by nothing of the integration."""
    offloader = Offloader(store, session=session)
    return {i.ref: b"".join(offloader.content(i.ref)).decode() for i in offloader.records()}
