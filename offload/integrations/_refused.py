"""A request whose thinking a provider refused: what the next one has to omit, or to have again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.agent._refusals import thinking_refusal
from offload.errors import OffloadError
from offload.offloader import Offloader


def repairs(offloader: Offloader, messages: Sequence[Any], error: BaseException) -> bool:
    """Remove thinking that a provider refused, or return what it lacks; return whether there is any.

    Then offload the messages again, and send the request once more: a second refusal is another fault. If
    the store fails, `error` gets a note that says so.

    Args:
        offloader: that of the conversation.
        messages: the messages that were passed to `offload` for the request.
        error: that of the request, of any SDK.
    """
    refusal = thinking_refusal(error)
    if refusal is None:
        return False
    try:
        if refusal.kind == "missing":
            return offloader.return_thinking(messages) is not None
        return offloader.remove_thinking(messages) > 0
    except OffloadError as failed:
        error.add_note(f"offload could not store which thinking is sent: {failed}")
        return False
