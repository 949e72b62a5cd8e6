"""A provider that refuses a request for its length: its error is recognised, the request is made smaller."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from langchain_core.exceptions import ContextOverflowError
from loop import call, result, said, talk
from sdk_errors import (
    of_anthropic,
    of_bedrock,
    of_google,
    of_litellm,
    of_openai,
    of_openai_stream,
    wrapped,
)

from offload import (
    AgentConfig,
    ConfigError,
    ContextFullError,
    ContextManager,
    Offloader,
    OffloadPolicy,
    is_too_long,
)
from offload.messages.context import EventType
from offload.messages.context.tokens import MessageCounter
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

ANTHROPIC = "prompt is too long: 213462 tokens > 200000 maximum"
OPENAI = (
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130012 tokens. "
    "Please reduce the length of the messages."
)
RESPONSES = "Your input exceeds the context window of this model. Please adjust your input and try again."
GOOGLE = "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
BEDROCK = "Input is too long for requested model."


TOO_LONG = {
    "anthropic": of_anthropic(400, "invalid_request_error", ANTHROPIC),
    "anthropic with the answer": of_anthropic(
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
    ),
    "anthropic, bytes": of_anthropic(413, "request_too_large", "Request exceeds the maximum size"),
    "openai chat": of_openai(400, "context_length_exceeded", OPENAI),
    "openai chat, 2026": of_openai(
        400,
        "context_length_exceeded",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 318569 tokens.",
    ),
    "openai responses": of_openai(400, "context_length_exceeded", RESPONSES),
    "openai responses, while streaming": of_openai_stream("context_length_exceeded", RESPONSES),
    "openai, one text": of_openai(
        400,
        "string_above_max_length",
        "Invalid 'input[3].content': string too long. Expected a string with …",
    ),
    "google": of_google(400, GOOGLE),
    "bedrock": of_bedrock(400, "ValidationException", BEDROCK),
    "claude on bedrock": of_bedrock(
        400, "ValidationException", f"The model returned the following errors: {ANTHROPIC}"
    ),
    "litellm": of_litellm(),
    "langchain": ContextOverflowError("no words"),
    "wrapped": wrapped(of_anthropic(400, "invalid_request_error", ANTHROPIC)),
    "a group": ExceptionGroup("tasks", [ValueError("x"), of_bedrock(400, "ValidationException", BEDROCK)]),
    "vllm": of_openai(
        400, "", "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
    ),
    "xai": RuntimeError("maximum prompt length is 131072 but the request contains 537812 tokens."),
    "groq": RuntimeError("Please reduce the length of the messages or completion."),
    "openrouter": RuntimeError(
        "This endpoint's maximum context length is 32768 tokens. However, you requested"
    ),
    "mistral": RuntimeError(
        "Prompt contains 40001 tokens, too large for model with 32768 maximum context length"
    ),
    "llama.cpp": RuntimeError("request (5000 tokens) exceeds the available context size (4096 tokens)"),
}


class OddError(Exception):
    """Cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("closed")


OTHER = {
    "an error that raises when it is read": OddError(),
    "a rate limit of tokens": of_bedrock(
        429, "ThrottlingException", "Too many tokens, please wait before trying"
    ),
    "a rate limit of long prompts": of_anthropic(429, "rate_limit_error", "prompt is too long for your plan"),
    "a key": of_anthropic(401, "authentication_error", "invalid x-api-key"),
    "a limit of the answer": of_anthropic(
        400,
        "invalid_request_error",
        "max_tokens: 50000 > 8192, which is the maximum allowed number of output",
    ),
    "a limit of another field": of_openai(
        400,
        "string_above_max_length",
        "Invalid 'user': string too long. Expected a string with maximum length 64",
    ),
    "a timeout": TimeoutError("timed out"),
    "google's quota": of_google(429, "The input token count exceeds the maximum of your quota"),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_the_error_of_each_provider_is_recognised(name):
    assert is_too_long(TOO_LONG[name])


@pytest.mark.parametrize("name", OTHER)
def test_another_error_is_not_one_of_length(name):
    assert not is_too_long(OTHER[name])


# --- relief ------------------------------------------------------------------------------------------


def manager(store: Any = None, window: int = 100_000, **options: Any) -> ContextManager:
    # Small results are kept until the window is full.
    chosen = {"policy": OffloadPolicy(cost_plan="none"), **options.pop("offloader", {})}
    off = Offloader(store or MemoryStore(), session="s", **chosen)
    return ContextManager(off, AgentConfig(model="m", window_tokens=window), **options)


class Model:
    """A provider that takes `window` tokens, four characters each, and says what it is told to say."""

    def __init__(self, window: int, words: str) -> None:
        self.window, self.words = window, words
        self.requests: list[Any] = []
        self.counted = 0

    def __call__(self, request: Any) -> str:
        self.requests.append(request)
        self.counted = len(str(request.messages)) // 4
        if self.counted > self.window:
            text = self.words.format(counted=self.counted, window=self.window)
            raise of_anthropic(400, "invalid_request_error", text)
        return "done"

    async def ask(self, request: Any) -> str:
        return self(request)


def test_a_refused_request_is_made_smaller_and_its_window_holds_for_later_requests():
    m = manager()
    messages = talk(m, 40)
    model = Model(15_000, "prompt is too long: {counted} tokens > {window} maximum")

    assert m.call(model) == "done"

    assert [len(str(r.messages)) // 4 > 15_000 for r in model.requests] == [True, False]
    assert m.restore() == messages
    for n in range(40, 70):
        m.after_model_call(call(n), usage=model.counted)
        m.add(result(n))
        assert m.call(model) == "done"
    assert m.config.window == 15_000
    assert len(model.requests) == 32


def test_the_count_in_an_error_corrects_the_estimate_unless_no_estimate_can_have_it():
    m, other = manager(), manager()
    for one in (m, other):
        talk(one, 40)
        tokens = one.before_model_call().tokens

    request = m.make_room(RuntimeError(f"prompt is too long: {2 * tokens} tokens > {2 * tokens - 1} maximum"))
    other.make_room(RuntimeError("prompt is too long: 99999999 tokens > 90000 maximum"))

    estimated = MessageCounter().total(request.messages)
    assert request.tokens == pytest.approx(2 * estimated, abs=2)
    assert other.before_model_call().tokens < tokens


def test_an_async_function_is_asked_by_the_async_form_and_refused_by_the_other():
    m = manager()
    messages = talk(m, 40)
    # It says no figures.
    model = Model(15_000, "prompt is too long")
    function: Any = model.ask

    assert asyncio.run(m.acall(function)) == "done"
    assert [len(str(r.messages)) // 4 > 15_000 for r in model.requests] == [True, False]
    assert m.restore() == messages
    with pytest.raises(ConfigError, match="acall"):
        m.call(function)


def test_another_error_is_raised_and_nothing_changes():
    m = manager()
    talk(m, 40)
    before = m.before_model_call().messages

    def model(request: Any) -> str:
        raise OTHER["a key"]

    with pytest.raises(anthropic.AuthenticationError):
        m.call(model)
    with pytest.raises(ConfigError, match="AuthenticationError does not say"):
        m.make_room(OTHER["a key"])
    with pytest.raises(ConfigError, match="error must be the provider's exception, got str"):
        m.make_room("prompt is too long")  # type: ignore[arg-type]

    assert m.before_model_call().messages == before


def test_a_second_refusal_is_the_provider_s_own_and_one_for_bytes_leaves_the_window_alone():
    m = manager()
    talk(m, 40)
    model = Model(10, "prompt is too long")

    with pytest.raises(anthropic.BadRequestError):
        m.call(model)

    assert len(model.requests) == 2
    other = manager()
    talk(other, 6)
    other.make_room(of_anthropic(413, "request_too_large", "Request exceeds the maximum size"))
    assert other.config.window == 100_000


def test_it_is_said_clearly_that_nothing_could_be_freed():
    m = manager()
    m.add(said(0))
    error = TOO_LONG["bedrock"]

    def model(request: Any) -> str:
        raise error

    with pytest.raises(
        ContextFullError, match="nothing more can be offloaded or removed: system prompt"
    ) as raised:
        m.call(model, system_prompt="careful " * 400)

    assert raised.value.__cause__ is error
    assert "messages[0] (user_message)" in str(raised.value)
    assert m.before_model_call().messages == [said(0)]


def test_a_failing_store_is_named_when_nothing_could_be_freed():
    m = manager(FaultyStore(MemoryStore(), is_lasting=True))
    messages = talk(m, 40)

    with pytest.raises(ContextFullError, match=r"; .*failed as requested"):
        m.make_room(TOO_LONG["bedrock"])

    assert m.before_model_call().messages == messages


@pytest.mark.parametrize("messages", [[], [said(1)]])
def test_a_refusal_of_more_than_the_messages_says_so_and_leaves_the_window(messages):
    m = manager()
    for message in messages:
        m.add(message)
    window = m.config.window

    for error in [None, TOO_LONG["bedrock"]] * 2:
        with pytest.raises(ContextFullError, match="nothing more can be offloaded or removed: system prompt"):
            m.make_room(error)

    assert m.config.window == window
    assert m.before_model_call().messages == messages


def test_a_message_added_meanwhile_is_in_the_smaller_request_which_is_resumed(tmp_path):
    m, other = manager(tmp_path), manager(tmp_path)
    messages = talk(m, 40)
    m.before_model_call()
    m.add(said(1))
    request = m.make_room(TOO_LONG["bedrock"])
    other.resume()

    assert request.messages[-1] == said(1)
    assert other.messages == request.messages
    assert other.restore() == [*messages, said(1)]


# --- what else leaves above the window ------------------------------------------------------------------


def shown(m: ContextManager) -> str:
    request = m.before_model_call()
    assert request.errors == []
    assert request.tokens <= m.config.window
    return str(request.messages)


def with_one_result(m: ContextManager, **fields: Any) -> ContextManager:
    """Have the model make its first call, whose result is larger than a window of 3,000 tokens."""
    m.add(said(0))
    m.before_model_call()
    m.after_model_call(call(0))
    m.add(result(0, lines=600, **fields))
    return m


@pytest.mark.parametrize(("window", "is_kept"), [(3000, False), (8000, True)])
def test_an_error_leaves_only_when_nothing_else_helps(window, is_kept):
    m = with_one_result(manager(window=window), is_error=True)

    text = shown(m)

    assert "'is_error': True" in text
    assert ("row 0.300 of" in text) is is_kept
    assert m.restore() == [said(0), call(0), result(0, lines=600, is_error=True)]


@pytest.mark.parametrize("words", [3000, 100_000])
def test_the_first_lines_of_a_giant_request_of_the_user_stay(words):
    m = manager(window=2000)
    task = {"role": "user", "content": "Find the one line that differs.\n" + "the same line\n" * words}
    m.add(task)

    assert "Find the one line that differs." in shown(m)
    m.after_model_call(call(0))
    m.add(result(0))
    assert "Find the one line that differs." in shown(m)
    assert m.restore() == [task, call(0), result(0)]


def test_many_small_results_of_one_turn_leave_together():
    m = manager(window=12_000)
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {}} for n in range(80)]
    results = [result(n, lines=22)["content"][0] for n in range(80)]
    m.add(said(0))
    m.before_model_call()
    m.after_model_call({"role": "assistant", "content": calls})
    m.add({"role": "user", "content": results})

    assert shown(m).count("[Offloaded: Bash result") > 40


def test_a_result_that_the_policy_excludes_leaves_above_the_window():
    excluding = {"policy": OffloadPolicy(exclude_tools=("Bash",))}

    assert "[Offloaded: Bash result" in shown(with_one_result(manager(window=3000, offloader=excluding)))


def test_what_the_hook_keeps_stays_and_the_error_names_it():
    m = manager(window=3000, offloader={"should_offload": lambda item: item.tool_use_id != "t0"})
    failures: list[Any] = []
    m.events.subscribe(failures.append, EventType.CONTEXT_FAILED)

    request = with_one_result(m).before_model_call()

    assert request.messages[-1] == result(0, lines=600)
    [error] = request.errors
    assert isinstance(error, ContextFullError)
    assert "messages[2] (tool_result)" in str(error)
    assert [event.data for event in failures] == [{"kind": "context_full"}]


def test_an_image_leaves_above_the_window():
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 30_000}
    m = manager(window=3000)
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    messages += [{"role": "user", "content": [{"type": "image", "source": source}]}, said(1)]
    for message in messages:
        m.add(message)

    assert "iVBORw0KGgo" not in shown(m)
    assert m.restore() == messages
