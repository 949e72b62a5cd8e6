"""What providers refuse besides changed thinking, written without the library.

- Bedrock Converse: roles alternate, the first is the user's, no content is empty, each tool call is answered
  by the next message. https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html
- OpenAI Responses: an item of reasoning is followed by the item that it was made with, and that item comes
  with it; calls and outputs are pairs. https://developers.openai.com/api/docs/guides/reasoning
- Gemini: in the current turn, the first call of each step has its signature; each call is answered.
  https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RefusedError(Exception):
    """A refusal, with status 400 as an SDK's error has it."""

    status_code = 400


def check_converse(messages: Sequence[Any]) -> None:
    """Raise `RefusedError` for messages that Bedrock Converse would refuse."""
    for index, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[index % 2]:
            raise RefusedError("A conversation must alternate between user and assistant roles.")
        if not message["content"]:
            raise RefusedError(f"messages.{index}: content is empty")
        if any(not str(block.get("text", "x")).strip() for block in message["content"]):
            raise RefusedError(f"messages.{index}: a text is blank")
        results = {b["toolResult"]["toolUseId"] for b in message["content"] if "toolResult" in b}
        before = messages[index - 1]["content"] if index else []
        uses = {b["toolUse"]["toolUseId"] for b in before if "toolUse" in b}
        if message["role"] == "user" and results != uses:
            raise RefusedError(f"messages.{index}: tool results {results} do not answer {uses}")


def check_responses(items: Sequence[Any], followers: dict[str, str]) -> None:
    """Raise `RefusedError` for items that OpenAI would refuse; `followers` has each reasoning's next item."""
    leaders = {follower: reasoning for reasoning, follower in followers.items()}
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else {}
        kind, name = item.get("type"), item.get("id")
        if kind == "reasoning" and following.get("id") != followers[name]:
            raise RefusedError(
                f"Item '{name}' of type 'reasoning' was provided without its required following item."
            )
        leader = leaders.get(name)
        if leader and (not index or items[index - 1].get("id") != leader):
            raise RefusedError(
                f"Item '{name}' of type '{kind}' was provided without its required 'reasoning' item."
            )
    called = {item["call_id"] for item in items if item.get("type") == "function_call"}
    answered = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
    if called != answered:
        raise RefusedError(f"No tool output found for function call {sorted(called ^ answered)}.")


def check_gemini(contents: Sequence[Any], signatures: dict[str, str]) -> None:
    """Raise `RefusedError` for contents that Gemini would refuse; `signatures` has those of calls by id."""
    asked = [i for i, content in enumerate(contents) if _is_question(content)]
    for index, content in enumerate(contents):
        if not content["parts"]:
            raise RefusedError(f"contents.{index}: parts must not be empty")
        calls = [part for part in content["parts"] if "functionCall" in part]
        for place, part in enumerate(calls):
            call, signature = part["functionCall"], part.get("thoughtSignature")
            is_current = index > asked[-1]
            if signature is None and place == 0 and is_current and call["id"] in signatures:
                raise RefusedError("Function call is missing a thought_signature in functionCall parts.")
            if signature not in (None, signatures.get(call["id"])):
                raise RefusedError("Corrupted thought signature.")
        following = contents[index + 1]["parts"] if index + 1 < len(contents) else ()
        answered = [p["functionResponse"]["id"] for p in following if "functionResponse" in p]
        if calls and answered != [part["functionCall"]["id"] for part in calls]:
            raise RefusedError(
                "Please ensure that the number of function response parts is equal to the number of calls."
            )


def _is_question(content: Any) -> bool:
    return content["role"] == "user" and any("text" in part for part in content["parts"])
