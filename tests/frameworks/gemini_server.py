"""The API of Gemini on the loopback interface, answering as a script says."""

from __future__ import annotations

from typing import Any

from frameworks.openai_server import texts_of
from frameworks.scenario import Script
from provider import Api


class Gemini(Api):
    """Answers as `script` says, never as a stream; for `provider.serving`."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.requests.append((path, body))
        said = self._script.reply(texts_of(body["contents"]))
        parts: list[Any] = [{"text": said}]
        if not isinstance(said, str):
            parts = [{"functionCall": {"name": call.name, "args": call.arguments}} for call in said]
        content = {"role": "model", "parts": parts}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return 200, {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}
