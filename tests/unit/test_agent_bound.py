"""The context of an agent whose model binds its thinking to what was sent before it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sdk_errors
from binding import MISSING, MODEL, REFUSAL, Binding, BoundError, Requiring
from kit.conversation import from_model, from_user, tool_result, tool_use
from strength import some, thinned

from offload import (
    AgentConfig,
    ContextManager,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Request,
    Rule,
    thinking_refusal,
)
from offload.agent.compaction import CompactionResult, RoundCompactor, RoundConfig, SelectiveCompaction
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.agent.presets.tool_results import offload_tool_results
from offload.errors import StoreError, ThinkingRemovedError
from offload.messages.context import ContextIR, EventType, ItemType

Message = dict[str, Any]

SYSTEM = "You write code."
RNG = random.Random(2)  # noqa: S311 # reproducible
NOT_DURABLE = {"durability": "none"}
PRESETS: dict[str, Callable[[Path], Offloader]] = {
    "plain": lambda root: Offloader(root, session="s", model=MODEL, storage_options=NOT_DURABLE),
    "context_fs": lambda root: ContextFileSystem(root, "s", model=MODEL).offloader,
    "context_refs": lambda root: ContextRefs(root, "s", model=MODEL, storage_options=NOT_DURABLE).offloader,
}
TOOLS = ("Read", "Bash", "Fetch")
TASKS = len([*some(range(4), 2)])


def words(rng: random.Random, tokens: int) -> str:
    return "\n".join(f"{n}: value {rng.randrange(10**6)} of {rng.choice(TOOLS)}" for n in range(tokens // 10))


def has_thinking(message: Message) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(block["type"] == "thinking" for block in content)


class Model:
    """A scripted model behind a provider that binds thinking; `sent` is what it was sent, in order."""

    def __init__(self, seed: int, provider: Binding | None = None) -> None:
        self.rng = random.Random(seed)  # noqa: S311 # reproducible
        self.provider = provider or Binding()
        self.sent: list[list[Message]] = []
        self._calls = 0

    def reply(self, messages: list[Message], calls: int) -> Message:
        """Return a reply with so many tool calls, mostly after thinking; raise what the provider refuses."""
        self.provider.check(messages, system=SYSTEM)
        self.sent.append(messages)
        blocks = self.rng.choice((0, 1, 1, 2))
        signatures = self.provider.sign(messages, system=SYSTEM, blocks=blocks)
        content: list[Any] = [
            {"type": "thinking", "thinking": words(self.rng, 30), "signature": s} for s in signatures
        ]
        content.append({"type": "text", "text": f"Step {len(self.sent)}."})
        for _ in range(calls):
            self._calls += 1
            name = self.rng.choice(TOOLS)
            arguments = {"path": f"/src/{self._calls}.py", "note": words(self.rng, self.rng.choice((5, 400)))}
            content.append(tool_use(f"toolu_{self._calls}", name, arguments))
        return {"role": "assistant", "content": content}

    def results(self, reply: Message) -> Message:
        sizes = (20, 200, 800, 1500)
        made = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
        blocks = [tool_result(call, words(self.rng, self.rng.choice(sizes))) for call in made]
        return {"role": "user", "content": blocks}


class Loop:
    """An agent's loop: every so many turns another process goes on."""

    def __init__(self, open_manager: Callable[[], ContextManager], model: Model) -> None:
        self.open = open_manager
        self.manager = open_manager()
        self.model = model
        self.added: list[Message] = []
        self.requests: list[Request] = []

    def add(self, message: Message) -> None:
        self.manager.add(message)
        self.added.append(message)

    def turn(self, calls: int) -> Message:
        def ask(request: Request) -> Message:
            self.requests.append(request)
            return self.model.reply(request.messages, calls)

        reply = self.manager.call(ask, system_prompt=SYSTEM)
        assert self.manager.after_model_call(reply) == []
        self.added.append(reply)
        return reply

    def restart(self) -> None:
        before = self.manager.messages
        self.manager = self.open()
        self.manager.resume()
        assert self.manager.messages == before

    def run(self, tasks: int, steps: int, restart_every: int = 0) -> None:
        for task in range(tasks):
            self.add({"role": "user", "content": f"Task {task}: {words(self.model.rng, 40)}"})
            for _ in range(steps):
                reply = self.turn(self.model.rng.choice((1, 1, 3)))
                if restart_every and len(self.requests) % restart_every == 0:
                    self.restart()
                self.add(self.model.results(reply))
            self.turn(0)


def summarize(_: Any) -> str:
    return "<summary>Work went on.</summary>"


def manager(
    off: Offloader, window: int, strategy: str, *, is_summarized: bool, **settings: Any
) -> ContextManager:
    config = AgentConfig(window_tokens=window, strategy=strategy, **settings)
    return ContextManager(off, config, summarizer=summarize if is_summarized else None)


class Session(NamedTuple):
    """What is drawn of a session."""

    preset: str
    strategy: str
    is_summarized: bool
    restart_every: int
    ephemeral: dict[str, int]
    window: int

    def manager(self, root: Path) -> ContextManager:
        off = PRESETS[self.preset](root)
        is_summarized, ephemeral = self.is_summarized, self.ephemeral
        return manager(off, self.window, self.strategy, is_summarized=is_summarized, ephemeral=ephemeral)


def drawn() -> Iterator[Any]:
    """Yield each preset with each strategy, with and without a model for summaries; the rest is drawn."""
    rng = random.Random(29)  # noqa: S311 # reproducible
    for number, (preset, strategy) in enumerate(itertools.product(PRESETS, ("selective", "rounds"))):
        for repeat in range(2):
            ephemeral = rng.choice(({}, {"Read": 2}, {"*": 3}))
            rest = rng.choice((0, 7)), ephemeral, rng.choice((9_000, 16_000))
            session = Session(preset, strategy, bool(repeat), *rest)
            marks = () if repeat == number % 2 else pytest.mark.slow
            yield pytest.param(session, 2 * number + repeat, id="-".join(map(str, session)), marks=marks)


@pytest.mark.parametrize(("session", "seed"), [*drawn()])
def test_no_drawn_session_is_refused_or_loses_anything(session: Session, seed: int, tmp_path: Path) -> None:
    loop = Loop(lambda: session.manager(tmp_path), Model(seed))
    loop.run(tasks=TASKS, steps=9, restart_every=session.restart_every)
    assert loop.model.provider.checked == len(loop.requests) == 10 * TASKS
    assert all(request.errors == [] and request.tokens <= session.window for request in loop.requests)
    assert loop.manager.restore() == loop.added
    assert PRESETS[session.preset](tmp_path).restore(loop.manager.messages) == loop.added


@pytest.mark.parametrize("strategy", ["selective", "rounds"])
def test_a_new_process_for_each_request_sends_the_same(strategy: str, tmp_path: Path) -> None:
    sent = []
    for restart_every in (0, 1):
        root = tmp_path / str(restart_every)
        session = Session("plain", strategy, False, restart_every, {}, 5_000)  # noqa: FBT003 # a field
        loop = Loop(partial(session.manager, root), Model(3))
        loop.run(tasks=1, steps=9, restart_every=restart_every)
        sent.append(loop.model.sent)
        assert any(map(has_thinking, sent[-1][-1])), "what came after the last change is sent"
        assert loop.manager.compaction_count > 0
    assert sent[0] == sent[1]


def one_turn(tmp_path: Path, window: int = 12_000) -> Loop:
    """Return a loop in which the model has one task."""
    off = PRESETS["plain"](tmp_path)
    loop = Loop(lambda: manager(off, window, "rounds", is_summarized=False), Model(1))
    loop.add({"role": "user", "content": "Go on until all is done."})
    return loop


def step(loop: Loop) -> Message:
    """Have the model make one call, with nothing cut before its result is there; return its reply."""
    reply = loop.turn(1)
    assert loop.manager.messages == [*loop.requests[-1].messages, reply]
    loop.add(from_user([tool_result(reply["content"][-1]["id"], words(RNG, 250))]))
    return reply


def test_within_a_turn_of_the_model_an_edit_waits_for_the_midpoint_between_trigger_and_window(
    tmp_path: Path,
) -> None:
    loop = one_turn(tmp_path)
    seen: list[EventType] = []
    loop.manager.events.subscribe(lambda event: seen.append(event.event_type))
    for _ in range(40):
        step(loop)
    assert loop.manager.compaction_count > 0
    assert 0.8 * 12_000 < max(request.tokens for request in loop.requests) < 0.9 * 12_000
    assert EventType.THINKING_REMOVED in seen


def test_at_the_end_of_a_turn_an_edit_does_not_wait(tmp_path: Path) -> None:
    loop = one_turn(tmp_path)
    step(loop)
    while loop.requests[-1].tokens < 0.8 * 12_000:
        step(loop)
    loop.turn(0)
    assert loop.requests[-1].tokens >= 0.8 * 12_000
    assert loop.manager.before_model_call(system_prompt=SYSTEM).tokens < 0.8 * 12_000


def test_no_thinking_is_removed_when_nothing_was_cut(tmp_path: Path) -> None:
    loop = one_turn(tmp_path, window=100_000)
    for _ in range(8):
        step(loop)
    thinking = [message for message in loop.added if has_thinking(message)]
    assert [message for message in loop.manager.messages if has_thinking(message)] == thinking


# By the model, and by what its provider requires: how many refusals tell it.
ANSWERS: list[tuple[str | None, type[Binding], int]] = [
    (MODEL, Binding, 0),
    (None, Binding, 1),
    ("house-model", Binding, 1),
    ("claude-opus-6", Binding, 0),
    ("kimi-k3", Binding, 1),
    ("claude-opus-4-6", Binding, 1),
    (MODEL, Requiring, 1),
    (None, Requiring, 0),
    ("house-model", Requiring, 0),
    ("claude-opus-6", Requiring, 1),
    *((name, Requiring, 0) for name in ("kimi-for-coding", "minimax-m3", "z-ai/glm-5.3", "deepseek-v4-pro")),
]


def answers() -> Iterator[Any]:
    """Yield each answer with one strategy, and as slow ones with the other."""
    for number, (answer, strategy) in enumerate(itertools.product(ANSWERS, ("rounds", "selective"))):
        yield pytest.param(*answer, strategy, marks=() if number % 4 in (0, 3) else pytest.mark.slow)


@pytest.mark.parametrize(("model", "provider", "refusals", "strategy"), [*answers()])
def test_an_agent_learns_the_answer_of_its_provider_from_one_refusal(
    model: str | None, provider: type[Binding], refusals: int, strategy: str, tmp_path: Path
) -> None:
    def opened() -> ContextManager:
        off = Offloader(tmp_path, session="s", model=model, storage_options=NOT_DURABLE)
        return manager(off, 5_000, strategy, is_summarized=False)

    loop = Loop(opened, Model(3, provider()))
    loop.run(1, steps=24, restart_every=5)
    assert loop.manager.compaction_count > 1
    assert len(loop.requests) - loop.model.provider.checked == refusals
    assert loop.manager.restore() == loop.added


def test_a_model_that_allows_edits_keeps_its_thinking(tmp_path: Path) -> None:
    off = PRESETS["plain"](tmp_path)
    config = AgentConfig(window_tokens=4_000, strategy="rounds", model="claude-opus-4-6")
    m = ContextManager(off, config)
    rng, thinking = random.Random(0), {"type": "thinking", "thinking": "so", "signature": "x" * 20}  # noqa: S311 # reproducible
    for number in range(12):
        m.add({"role": "user", "content": words(rng, 500)})
        m.before_model_call()
        m.after_model_call(from_model([thinking, {"type": "text", "text": str(number)}]))
    assert m.compaction_count > 0
    assert all(has_thinking(message) for message in m.messages if message["role"] == "assistant")


@pytest.mark.parametrize("replied", [["claude-opus-4-6"], ["claude-opus-5-5", "claude-opus-4-6"]])
def test_a_resumed_agent_knows_the_model_that_replied(replied: list[str], tmp_path: Path) -> None:
    def opened() -> ContextManager:
        policy = OffloadPolicy(file_readers=Rule(min_tokens=1500, after_replies=1), cost_plan="none")
        return ContextManager(PRESETS["plain"](tmp_path), AgentConfig(model="claude-opus-5-5", policy=policy))

    m, resumed = opened(), opened()
    m.add({"role": "user", "content": "Go on."})
    for number, model in enumerate(replied):
        m.before_model_call()
        thinking = {"type": "thinking", "thinking": "so", "signature": f"{number}{'x' * 20}"}
        call = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {"path": f"{number}.py"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": words(RNG, 3000)}
        m.after_model_call({"role": "assistant", "content": [thinking, call]}, model=model)
        m.add({"role": "user", "content": [result]})
    sent = m.before_model_call()
    m.after_model_call({"role": "assistant", "content": [{"type": "text", "text": "Done."}]})
    resumed.resume()
    for each in (m, resumed):
        each.add({"role": "user", "content": "Go on."})

    # The running one comes last: what it stores would be known to the other.
    now = resumed.before_model_call().messages
    assert now[:-2] != sent.messages, "the model that replied allows edits"
    assert m.before_model_call().messages == now


class Uncompacted:
    """A strategy that removes nothing."""

    def compact(self, _: Any, *, current_total_tokens: int | None = None) -> CompactionResult:
        return CompactionResult(current_total_tokens or 0, current_total_tokens or 0)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        return [*messages]


def test_an_image_that_was_offloaded_before_leaves_with_the_thinking_behind_it() -> None:
    m = ContextManager(
        Offloader("memory://", session="s", model=MODEL),
        AgentConfig(window_tokens=5_000),
        strategy=Uncompacted(),
    )
    loop = Loop(lambda: m, Model(4))
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 3_000}
    # The second is sent in full, although the store has it.
    for number in range(2):
        loop.add({"role": "user", "content": [{"type": "image", "source": source}]})
        loop.turn(0)
        assert source["data"] in str(loop.requests[-1].messages)
        while source["data"] in str(m.messages):
            loop.add({"role": "user", "content": f"{number}: {words(RNG, 100)}"})
            loop.turn(0)
    assert loop.model.provider.checked == len(loop.requests)
    assert m.restore() == loop.added


def turns(provider: Binding, count: int) -> list[Message]:
    """Return a conversation of so many turns, each with thinking, sent as it is."""
    rng, messages = random.Random(5), list[Message]()  # noqa: S311 # reproducible
    for number in range(count):
        messages.append({"role": "user", "content": f"{number}: {words(rng, 300)}"})
        [signature] = provider.sign(messages)
        thinking = {"type": "thinking", "thinking": f"think {number}", "signature": signature}
        messages.append({"role": "assistant", "content": [thinking, {"type": "text", "text": "Done."}]})
    return messages


def test_rounds_compacted_by_hand_can_be_sent_and_restored_twice() -> None:
    provider = Binding()
    off = Offloader("memory://", session="s", model=MODEL)
    seen: list[EventType] = []
    off.events.subscribe(lambda e: seen.append(e.event_type))
    compactor = RoundCompactor(off, summarize, RoundConfig(max_context_tokens=1000, keep_recent_rounds=2))
    whole = messages = turns(provider, 6)
    for _ in range(2):
        messages = compactor.compact(messages).new_messages
        provider.check(messages)
        whole = [*whole, {"role": "user", "content": "and now?"}]
        messages = [*messages, whole[-1]]
        [signature] = provider.sign(messages)
        thinking = {"type": "thinking", "thinking": "hm", "signature": signature}
        reply = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Done."}]}
        whole, messages = [*whole, reply], [*messages, reply]
        provider.check(messages)
    assert EventType.THINKING_REMOVED in seen
    assert off.restore(messages) == whole
    assert Offloader(off.store, session="s", model=MODEL).restore(messages) == whole


@pytest.mark.parametrize("is_offloaded_first", [True, False])
def test_thinking_that_comes_after_a_compaction_by_hand_is_sent(is_offloaded_first: bool) -> None:
    provider = Binding()
    off = Offloader("memory://", session="s", model=MODEL)
    compactor = RoundCompactor(off, summarize, RoundConfig(max_context_tokens=1000, keep_recent_rounds=2))
    messages = turns(provider, 6)
    off.offload(messages)
    messages.append({"role": "user", "content": "and now?"})
    messages = off.offload(messages).messages if is_offloaded_first else messages
    messages = compactor.compact(messages).new_messages
    sent = messages if is_offloaded_first else off.offload(messages).messages
    assert not any(map(has_thinking, sent))
    thinking = {"type": "thinking", "thinking": "hm", "signature": provider.sign(sent)[0]}
    reply = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Done."}]}

    later = off.offload([*messages, reply, {"role": "user", "content": "go on"}]).messages

    provider.check(later)
    assert later[-2] == reply


def test_a_selective_compaction_by_hand_keeps_the_thinking_before_its_notice_alone() -> None:
    provider = Binding()
    off = Offloader("memory://", session="s", model=MODEL)
    context = ContextIR()
    messages = turns(provider, 8)
    for number, message in enumerate(messages):
        # The rules remove skill prompts first: the first two turns stay.
        is_skill = number in (4, 6)
        context.add_message(message, ItemType.SKILL_PROMPT if is_skill else None)
    SelectiveCompaction(off, threshold_tokens=context.total_tokens - 200).compact(context)
    sent = context.lower()
    provider.check(sent)
    assert has_thinking(sent[1])
    assert not any(map(has_thinking, sent[4:]))
    assert off.restore(sent) == messages


def test_chosen_messages_of_context_refs_leave_with_the_thinking_behind_them(tmp_path: Path) -> None:
    provider = Binding()
    refs = ContextRefs(tmp_path, "s", model=MODEL)
    messages = turns(provider, 6)
    out = refs.offload_history(messages, [4])
    provider.check(out.messages)
    assert out.messages[4] != messages[4]
    assert [has_thinking(message) for message in out.messages[1::2]] == [True, True] + [False] * 4
    assert refs.restore(out.messages) == messages
    later = refs.offload([*out.messages, {"role": "user", "content": "next"}])
    provider.check(later.messages)


@pytest.mark.parametrize(
    ("name", "restarts"),
    thinned(
        itertools.product(
            ("context_fs", "context_fs-ephemeral", "context_refs", "tool_results"), (False, True)
        ),
        3,
    ),
)
def test_no_preset_is_refused_in_a_loop_without_a_manager(name: str, restarts: bool, tmp_path: Path) -> None:
    model = Model(7)
    ephemeral = {"Read": 2} if name.endswith("ephemeral") else {}

    def opened() -> Callable[[list[Message]], Any]:
        if name == "tool_results":
            return lambda messages: offload_tool_results(messages, tmp_path)
        if name == "context_refs":
            return ContextRefs(tmp_path, "s", model=MODEL).offload
        return ContextFileSystem(tmp_path, "s", model=MODEL, ephemeral=ephemeral).offload

    offload = opened()
    messages: list[Message] = [{"role": "user", "content": words(model.rng, 3000)}]
    for _ in range(30):
        offload = opened() if restarts else offload
        sent = offload(messages).messages
        reply = model.reply(sent, 2)
        messages += [reply, model.results(reply)]
    assert model.provider.checked == 30
    assert sent != messages[:-2], "something left"
    if name != "tool_results":
        restorer = (
            ContextRefs(tmp_path, "s", model=MODEL)
            if name == "context_refs"
            else ContextFileSystem(tmp_path, "s", model=MODEL)
        )
        assert restorer.restore(sent) == messages[:-2]


class Refusing:
    """A provider that refuses requests with thinking from an index on, as it learned of an unseen change."""

    def __init__(self, first: int, *, says: int | None = None) -> None:
        self.first = first
        self.says = first if says is None else says
        self.asked: list[Request] = []

    def __call__(self, request: Request) -> Message:
        self.asked.append(request)
        if any(has_thinking(message) for message in request.messages[self.first :]):
            raise BoundError(REFUSAL.format(self.says, 0))
        return {"role": "assistant", "content": "fine"}


def loaded(on_error: str = "keep", header: int = 0) -> tuple[ContextManager, list[Message]]:
    m = ContextManager(Offloader("memory://", session="s", model=MODEL, on_error=on_error), AgentConfig())  # type: ignore[arg-type]
    messages = [{"role": "system", "content": "Be brief."}] * header
    messages += [*turns(Binding(), 5), {"role": "user", "content": "next"}]
    for message in messages:
        m.add(message)
    return m, messages


@pytest.mark.parametrize("on_error", ["keep", "raise"])
@pytest.mark.parametrize("header", [0, 1])
def test_refused_thinking_is_removed_once_from_the_first_refused_message_on(
    on_error: str, header: int
) -> None:
    m, messages = loaded(on_error, header)
    ask = Refusing(5 + header)
    assert m.call(ask)["content"] == "fine"
    _, repaired = ask.asked
    assert [has_thinking(message) for message in repaired.messages[header + 1 :: 2]] == [
        True,
        True,
        *[False] * 3,
    ]
    assert [type(error) for error in repaired.errors] == [ThinkingRemovedError]
    assert m.restore() == messages
    m.after_model_call({"role": "assistant", "content": "fine"})
    assert m.before_model_call().errors == []


def test_all_thinking_is_removed_if_it_is_refused_again_and_then_the_error_is_raised() -> None:
    m, messages = loaded()
    ask = Refusing(1, says=7)
    assert m.call(ask)["content"] == "fine"
    assert [sum(map(has_thinking, request.messages)) for request in ask.asked] == [5, 3, 0]
    assert m.restore() == messages

    def refuse(request: Request) -> Message:
        ask.asked.append(request)
        raise BoundError("messages.1.content.0: The block is bound to a different conversation.")

    with pytest.raises(BoundError):
        m.call(refuse)
    assert len(ask.asked) == 4, "there was no thinking left to remove"


def test_refused_thinking_is_left_out_when_resumed_and_kept_if_it_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    m, messages = loaded()
    m.call(Refusing(5))
    other = ContextManager(Offloader(m._offloader.store, session="s", model=MODEL), AgentConfig())
    other.resume()
    assert other.before_model_call().messages == m.messages
    assert other.restore() == messages

    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")

    m, messages = loaded()
    before = m.messages
    monkeypatch.setattr(m._offloader.store, "put", fail)
    with pytest.raises(OffloadError):
        m.call(Refusing(5))
    assert m.messages == before == messages


def bound_errors() -> Iterator[Any]:
    """Yield the refusal as each SDK raises it, and as others wrap it."""
    for kind, text in (("bound", REFUSAL.format(1, 0)), ("missing", MISSING.format(1))):
        of_anthropic = sdk_errors.of_anthropic(400, "invalid_request_error", text)
        for error in (
            of_anthropic,
            sdk_errors.of_openai(400, "invalid_request_error", text),
            sdk_errors.of_bedrock(400, "ValidationException", text),
            sdk_errors.wrapped(of_anthropic),
        ):
            yield pytest.param(error, kind, id=f"{type(error).__name__}-{kind}")


@pytest.mark.parametrize(("error", "kind"), [*bound_errors()])
def test_the_refusal_is_known_in_the_errors_of_every_sdk(error: Exception, kind: str) -> None:
    refusal = thinking_refusal(error)
    assert refusal is not None
    assert refusal.kind == kind


def test_other_errors_are_no_such_refusal() -> None:
    limited = BoundError("too many requests; a block is bound to a different conversation")
    limited.status_code = 429
    for error in (limited, ValueError("prompt is too long"), BoundError("messages: roles must alternate")):
        assert thinking_refusal(error) is None


def test_a_reply_that_compacts_on_the_server_goes_back_byte_for_byte(tmp_path: Path) -> None:
    provider = Binding()
    off = PRESETS["plain"](tmp_path)
    m = manager(off, 100_000, "rounds", is_summarized=False)
    messages = turns(provider, 3)
    block = {"type": "compaction", "content": "what happened " * 2000, "signature": "s" * 3000}
    messages.append({"role": "user", "content": "next"})
    messages.append({"role": "assistant", "content": [block, {"type": "text", "text": "I go on."}]})
    for message in messages:
        if message["role"] == "assistant":
            m.before_model_call()
            assert m.after_model_call(message) == []
        else:
            m.add(message)
    m.add({"role": "user", "content": "and then?"})
    assert m.before_model_call().messages[-2] == messages[-1]
    other = manager(PRESETS["plain"](tmp_path), 100_000, "rounds", is_summarized=False)
    other.resume()
    assert other.before_model_call().messages[-2] == messages[-1]
    assert other.restore() == [*messages, {"role": "user", "content": "and then?"}]


def test_a_strategy_added_to_the_header_later_removes_the_thinking_behind_it() -> None:
    provider = Binding()
    m = ContextManager(Offloader("memory://", session="s", model=MODEL), AgentConfig())
    messages = turns(provider, 3)
    for message in messages:
        m.add(message)
    m.add({"role": "system", "content": "a skill"}, ItemType.SKILL_STRATEGY)
    m.add({"role": "user", "content": "next"})
    provider.check(m.before_model_call().messages)
