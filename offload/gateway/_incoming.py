"""Requests of clients before they are read: the API that the path names, the session, the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Behind the path of a request, to count its tokens; the provider checks its thinking too.
COUNT = "/count_tokens"
# Seconds that a request waits for the store by default if only that knows what was sent before.
MAX_WAIT = 30.0
# Headers that name a session, and the header of a subagent in it.
SESSION_HEADERS = ("x-claude-code-session-id", "thread-id", "session-id", "session_id", "x-session-affinity")
AGENT_HEADER = "x-claude-code-agent-id"


class Api(NamedTuple):
    """An API of a model.

    Attributes:
        end: the end of its path.
        messages: the field of a request with the messages.
        like: a model with the prompt cache of one whose price is not known.
        streams: whether each reply is a stream, in any form.
        signs_calls: whether a call has a signature, which may be of its arguments.
        model: the model, if the path names it.
        compacts: whether a reply is a shorter conversation, and none in it.
    """

    name: str
    end: str
    messages: str
    like: str
    streams: bool = False
    signs_calls: bool = False
    model: str | None = None
    compacts: bool = False


APIS = (
    Api("Anthropic Messages", "/v1/messages", "messages", "claude-sonnet-4-6"),
    Api("OpenAI chat", "/chat/completions", "messages", "gpt-6-sol"),
    Api("OpenAI Responses", "/responses", "input", "gpt-6-sol"),
    Api("OpenAI Responses", "/responses/compact", "input", "gpt-6-sol", compacts=True),
    Api("Gemini", ":generateContent", "contents", "gemini-3.1-pro-preview", signs_calls=True),
    Api(
        "Gemini",
        ":streamGenerateContent",
        "contents",
        "gemini-3.1-pro-preview",
        streams=True,
        signs_calls=True,
    ),
    Api("Gemini Interactions", "/interactions", "input", "gemini-3.1-pro-preview", signs_calls=True),
)


class Incoming(NamedTuple):
    """A request of a client before it is read.

    Attributes:
        session: the session with the records of its conversation.
        left_out: digests of thinking that cannot be sent any more.
        lacks_tools: whether it cannot get the tools of the gateway, which its conversation began with.
    """

    session: str
    api: Api
    headers: Mapping[str, str]
    body: bytes
    left_out: frozenset[str] = frozenset()
    lacks_tools: bool = False

    @property
    def hint(self) -> tuple[str | None, ...]:
        """A key that the unread requests of a conversation have in common, and few others of its session."""
        names = (*SESSION_HEADERS, AGENT_HEADER)
        return (self.session, self.api.name, *map(self.headers.get, names))


def api_of(path: str) -> Api | None:
    """Return the API of a path by its end."""
    api = next((api for api in APIS if path.endswith(api.end)), None)
    if api is None or not api.end.startswith(":"):
        return api
    return api._replace(model=path.removesuffix(api.end).rpartition("/")[2])
