"""Errors of providers that refuse thinking because a message before it changed."""

from __future__ import annotations

from offload.agent._errors import chain_of, status_of, text_of
from offload.engine.refusals import BoundRefusal, bound_refusal

# The statuses of a request that can never succeed as it is; an error may have none.
_REFUSED = (None, 400, 422)


def is_bound_refusal(error: BaseException) -> bool:
    """Return whether a provider refused thinking that "is bound to a different conversation".

    It knows the errors of the SDKs of Anthropic, AWS Bedrock, OpenAI and of compatible servers, also inside
    those of LiteLLM, LangChain and others that wrap them. Then remove the thinking with
    `Offloader.remove_thinking` and send the request again; `ContextManager.call` does this itself.
    """
    return refused_thinking(error) is not None


def refused_thinking(error: BaseException) -> BoundRefusal | None:
    """Return the text of an error about refused thinking; None if it is another error."""
    for one in chain_of(error):
        found = bound_refusal(text_of(one)) if status_of(one) in _REFUSED else None
        if found is not None:
            return found
    return None
