"""Definitions for the code of docs/frameworks/claude_agent_sdk.md: a scripted Messages API, an empty home."""

import os
import threading
from pathlib import Path

from frameworks import claude_code

api = claude_code.Api([claude_code.tool("Bash", command="seq 1 6000"), claude_code.text("They went well.")])
threading.Thread(target=api.serve_forever, daemon=True).start()
Path(os.environ["HOME"]).mkdir(exist_ok=True)
os.environ |= {
    "ANTHROPIC_API_KEY": "dummy",
    "ANTHROPIC_BASE_URL": api.url,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
