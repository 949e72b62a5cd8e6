"""Concurrent threads, coroutines and hooks: nobody waits for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.store import ActingStore
from strength import some

from offload import AgentConfig, ConfigError, ContextManager, Offloader, OffloadError
from offload.base.events import ContextEvent, EventBus, EventType
from offload_backends.memory import MemoryStore

LOG = "".join(f"line {n} of a log that is long enough to leave\n" for n in range(600))

Messages = list[dict[str, Any]]


def result(text: str = LOG, call: str = "c1") -> Messages:
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}]


def shown(messages: Messages) -> str:
    text: str = messages[0]["content"][0]["content"]
    return text


def has_left(messages: Messages) -> bool:
    return shown(messages).startswith("[Offloaded:")


def run(main: Any) -> Any:
    """Run a coroutine; one that waits for ever fails here."""
    return asyncio.run(asyncio.wait_for(main, 60))


def in_threads(count: int, function: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, range(count)))


@pytest.fixture
def _switches_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# Async callers


def test_calls_leave_the_threads_of_the_loop_to_their_hooks():
    async def lets_go(_: Any) -> bool:
        # As resolving a host's name, this takes a thread of the loop's own.
        return await asyncio.get_running_loop().run_in_executor(None, lambda: True)

    async def main() -> list[bool]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        offs = [Offloader(MemoryStore(), should_offload=lets_go) for _ in range(40)]
        outs = await asyncio.gather(*(off.aoffload(result()) for off in offs))
        return [has_left(out.messages) for out in outs]

    assert run(main()) == [True] * 40
    assert "Offloader.aoffload" in repr(Offloader("memory://").aoffload)


def test_calls_that_wait_for_each_other_do_not_keep_what_their_hooks_call_waiting():
    other = Offloader(MemoryStore())

    async def lets_go(item: Any) -> bool:
        return has_left((await other.aoffload(result(LOG + item.tool_use_id))).messages)

    async def main() -> list[bool]:
        off = Offloader(MemoryStore(), should_offload=lets_go)
        outs = await asyncio.gather(*(off.aoffload(result(call=f"c{n}")) for n in range(120)))
        return [has_left(out.messages) for out in outs]

    assert run(main()) == [True] * 120


def test_a_hook_may_await_another_offloader_many_deep():
    offs: list[Offloader] = [Offloader(MemoryStore())]

    def above(inner: Offloader) -> Offloader:
        async def lets_go(_: Any) -> bool:
            return has_left((await inner.aoffload(result())).messages)

        return Offloader(MemoryStore(), should_offload=lets_go)

    for _ in range(5):
        offs.append(above(offs[-1]))

    assert has_left(run(offs[-1].aoffload(result())).messages)


# A call that would wait for itself


def with_a_hook_that_waits() -> tuple[Offloader, list[str], asyncio.Event, asyncio.Event]:
    """Return an offloader, the calls that its hook was asked of, and events: it is asked, it may answer."""
    asked, is_asked, may_answer = [], asyncio.Event(), asyncio.Event()

    async def lets_go(item: Any) -> bool:
        asked.append(item.tool_use_id)
        is_asked.set()
        await may_answer.wait()
        return True

    return Offloader(MemoryStore(), should_offload=lets_go), asked, is_asked, may_answer


@pytest.mark.parametrize("call", [lambda off: off.offload(result(call="c2")), lambda off: off.fork("other")])
def test_a_plain_call_on_the_loop_that_a_hook_runs_on_is_refused(call: Callable[[Offloader], Any]):
    async def main() -> tuple[Any, Any]:
        off, _, is_asked, may_answer = with_a_hook_that_waits()
        turn = asyncio.create_task(off.aoffload(result()))
        await is_asked.wait()
        with pytest.raises(ConfigError, match="await the async form"):
            call(off)
        may_answer.set()
        return await turn, await off.aoffload([*result(), *result(call="c2")])

    first, second = run(main())
    assert has_left(first.messages)
    assert first.errors == second.errors == []
    assert len(second.records) == 2


def test_a_plain_call_on_the_loop_that_begins_before_the_hook_does_is_refused_too():
    is_asked, may_go_on = threading.Event(), threading.Event()

    async def says_yes() -> bool:
        return True

    def lets_go(item: Any) -> Any:
        if item.tool_use_id == "c1":
            is_asked.set()
            assert may_go_on.wait(30)
        return says_yes()

    def pinned() -> Iterator[str]:
        may_go_on.set()
        yield "c3"

    async def main() -> Any:
        off = Offloader(MemoryStore(), should_offload=lets_go)
        turn = asyncio.create_task(off.aoffload(result()))
        await asyncio.to_thread(is_asked.wait)
        with pytest.raises(ConfigError, match="await the async form"):
            off.offload(result(call="c2"), pinned=pinned())
        return await turn

    assert has_left(run(main()).messages)


def uses_it(off: Offloader) -> list[Callable[[], Any]]:
    def sink() -> None:
        with off.open_sink() as opened:
            opened.write(LOG)

    return [
        lambda: off.offload(result("x" * 20_000, "c2")),
        lambda: off.offload_text("y" * 20_000),
        lambda: off.fork("other"),
        sink,
        lambda: asyncio.run(off.aoffload(result("z" * 20_000, "c3"))),
    ]


@pytest.mark.parametrize("hook", ["should_offload", "redact", "summarizer", "token_counter", "events"])
@pytest.mark.parametrize("way", range(5))
def test_a_function_that_uses_the_offloader_that_calls_it_is_refused(hook: str, way: int):
    refused: list[ConfigError] = []

    def function(given: Any) -> Any:
        if off is not None and not refused:
            with pytest.raises(ConfigError, match="have it note") as raised:
                uses_it(off)[way]()
            refused.append(raised.value)
        answers = {"redact": given, "summarizer": "short", "token_counter": len(str(given)) // 3}
        return answers.get(hook, True)

    off: Offloader | None = None
    if hook == "events":
        bus = EventBus()
        bus.subscribe(function)
        off = Offloader(MemoryStore(), events=bus)
    else:
        hooks: Any = {hook: function}
        off = Offloader(MemoryStore(), **hooks)

    assert off.offload(result()).errors == []
    assert len(refused) == 1
    assert has_left(off.offload([*result(), *result(call="c2")]).messages)
    assert off.fork("after").records() != []


@pytest.mark.parametrize("is_in_thread", [False, True])
def test_an_async_hook_that_uses_the_offloader_that_calls_it_is_refused(is_in_thread: bool):
    refused: list[Any] = []

    async def lets_go(_: Any) -> bool:
        with pytest.raises(ConfigError, match="have it note") as raised:
            await (asyncio.to_thread(off.offload, result()) if is_in_thread else off.aoffload(result()))
        refused.append(raised.value)
        return True

    off = Offloader(MemoryStore(), should_offload=lets_go)

    assert has_left(run(off.aoffload(result())).messages)
    assert len(refused) == 1


def test_what_a_hook_started_may_use_the_offloader_once_the_call_is_over():
    tasks: list[Any] = []

    async def lets_go(_: Any) -> bool:
        if not tasks:
            tasks.append(asyncio.create_task(after()))
        return True

    async def after() -> bool:
        await is_over.wait()
        return has_left((await off.aoffload(result(call="c2"))).messages)

    off = Offloader(MemoryStore(), should_offload=lets_go)
    is_over = asyncio.Event()

    async def main() -> bool:
        await off.aoffload(result())
        is_over.set()
        return bool(await tasks[0])

    assert run(main())


def test_a_hook_may_read_through_the_offloader_that_calls_it():
    seen = []

    def lets_go(_: Any) -> bool:
        seen.extend(off.records())
        off.restore(result("small"))
        return "nothing" in off.tools.grep("nothing") or True

    off = Offloader(MemoryStore(), should_offload=lets_go)

    assert has_left(off.offload(result()).messages)
    assert seen == []


def test_two_offloaders_whose_hooks_use_each_other_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offload.engine.settings.hooks.HOOK_SECONDS", 0.5)
    both_inside = threading.Barrier(2, timeout=30)
    offs: list[Offloader] = []

    def hook_of(number: int) -> Callable[[Any], bool]:
        def lets_go(item: Any) -> bool:
            if item.tool_use_id == "c1":
                both_inside.wait()
                offs[1 - number].offload(result(call="c2"))
            return True

        return lets_go

    offs += [Offloader(MemoryStore(), should_offload=hook_of(n)) for n in range(2)]
    outs = in_threads(2, lambda n: offs[n].offload(result()))

    assert any(out.errors for out in outs)
    assert all(has_left(off.offload(result(call="c3")).messages) for off in offs)


def test_an_agent_whose_hook_is_awaited_refuses_a_plain_call_on_the_loop():
    async def main() -> list[Any]:
        off, _, is_asked, may_answer = with_a_hook_that_waits()
        agent = ContextManager(off, AgentConfig(window_tokens=50_000))
        agent.add(result()[0])
        turn = asyncio.create_task(agent.abefore_model_call())
        await is_asked.wait()
        with pytest.raises(ConfigError, match="await the async form"):
            agent.before_model_call()
        agent.add({"role": "user", "content": "and more"})
        may_answer.set()
        await turn
        return (await agent.abefore_model_call()).messages

    messages = run(main())
    assert has_left(messages)
    assert messages[-1]["content"] == "and more"


# Deadlines


async def _never(_: Any) -> Any:
    await asyncio.Event().wait()


async def _stubborn(_: Any) -> Any:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if asyncio.get_running_loop().is_closed():
                raise
            await asyncio.sleep(0)
            return True


@pytest.mark.parametrize("hook", ["should_offload", "redact", "summarizer"])
@pytest.mark.parametrize("function", [_never, _stubborn])
def test_a_hook_that_never_ends_leaves_its_item_with_an_error_and_a_summary_is_left_out(
    monkeypatch: pytest.MonkeyPatch, hook: str, function: Any
):
    monkeypatch.setattr("offload.engine.settings.hooks.HOOK_SECONDS", 0.3)
    off = Offloader(MemoryStore(), **{hook: function})

    outs = [run(off.aoffload(result()))]
    if hook == "summarizer":
        assert has_left(outs[0].messages)
        assert outs[0].errors == []
        return
    if function is _never:
        outs.append(off.offload(result(call="c2")))
    for out in outs:
        assert shown(out.messages) == LOG
        assert "did not return within 0.3 s" in str(out.errors[0])


def test_a_thread_that_a_hook_waits_for_does_not_wait_for_the_hook(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offload.engine.settings.hooks.HOOK_SECONDS", 0.3)
    refused: list[Any] = []

    def use() -> None:
        with pytest.raises(ConfigError, match="time limit") as raised:
            off.offload(result(call="c2"))
        refused.append(raised.value)

    def lets_go(_: Any) -> bool:
        if not refused:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        return True

    off = Offloader(MemoryStore(), should_offload=lets_go)

    assert has_left(off.offload(result()).messages)
    assert len(refused) == 1


@pytest.mark.parametrize("function", [_never, _stubborn])
@pytest.mark.parametrize("hook", ["should_offload", "redact", "summarizer"])
def test_a_cancelled_call_frees_its_session(hook: str, function: Any):
    is_asked = asyncio.Event()

    async def first_waits(given: Any) -> Any:
        if not is_asked.is_set():
            is_asked.set()
            await function(given)
        return given if hook == "redact" else "yes"

    async def main() -> Any:
        hooks: Any = {hook: first_waits}
        off = Offloader(MemoryStore(), **hooks)
        turn = asyncio.create_task(off.aoffload(result()))
        await is_asked.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        return await off.aoffload(result())

    out = run(main())
    assert has_left(out.messages)
    assert out.errors == []


def test_a_call_that_is_cancelled_while_it_waits_for_another_never_begins():
    async def main() -> list[str]:
        off, asked, is_asked, may_answer = with_a_hook_that_waits()
        turns = [asyncio.create_task(off.aoffload(result(call="c1")))]
        await is_asked.wait()
        turns.append(asyncio.create_task(off.aoffload(result(call="c2"))))
        await asyncio.sleep(0)
        turns[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await turns[1]
        may_answer.set()
        assert has_left((await turns[0]).messages)
        assert has_left((await off.aoffload(result(call="c3"))).messages)
        return asked

    assert run(main()) == ["c1", "c3"]


# Errors of the library


class ForeignError(Exception):
    """Not an OffloadError."""


def _fails(*_: Any) -> Any:
    raise ForeignError("boom")


class _FailingRenderer:
    def render(self, _: Any) -> str:
        raise ForeignError("boom")

    def find_ref(self, _: str) -> str | None:
        return None


@pytest.mark.parametrize(
    "setup",
    [
        {"should_offload": _fails},
        {"redact": _fails},
        {"token_counter": _fails},
        {"placeholder": _FailingRenderer()},
    ],
)
def test_what_a_function_of_the_callers_raises_is_raised_as_an_error_of_ours(setup: dict[str, Any]):
    off = Offloader(MemoryStore(), on_error="raise", **setup)

    for call in (lambda: off.offload(result()), lambda: off.offload_text(LOG)):
        with pytest.raises(OffloadError, match="boom") as raised:
            call()
        assert isinstance(raised.value.__cause__, ForeignError)


@pytest.mark.parametrize(
    ("raised", "seen"), [(KeyboardInterrupt, KeyboardInterrupt), (ForeignError, OffloadError)]
)
def test_an_item_that_a_hook_raised_on_is_asked_about_again_by_the_next_call(raised: Any, seen: Any):
    answers = iter([raised, False])

    def lets_go(_: Any) -> bool:
        answer = next(answers)
        if answer is raised:
            raise raised
        return answer is True

    off = Offloader(MemoryStore(), should_offload=lets_go, on_error="raise")
    with pytest.raises(seen):
        off.offload(result())

    assert shown(off.offload(result()).messages) == LOG


@pytest.mark.parametrize("pinned", ["toolu_1", b"toolu_1", None, 5, [None], [1, "c1"], [{"id": "c1"}]])
def test_what_pins_nothing_is_refused(pinned: Any):
    off = Offloader(MemoryStore())

    for call in (
        lambda: off.offload(result(), pinned=pinned),
        lambda: asyncio.run(off.aoffload(result(), pinned=pinned)),
    ):
        with pytest.raises(ConfigError, match="collection of tool call ids"):
            call()
    for pins in (["c1"], {"c1"}, ("c1",), {"c1": 1}.keys(), iter(["c1"])):
        assert shown(Offloader(MemoryStore()).offload(result(), pinned=pins).messages) == LOG


# Listeners


@pytest.mark.parametrize("error", [ForeignError, asyncio.CancelledError, GeneratorExit, AssertionError])
def test_a_listener_that_raises_stops_nothing(error: type[BaseException]):
    heard = []

    def listener(event: ContextEvent) -> None:
        heard.append(event)
        raise error

    off = Offloader(MemoryStore())
    off.events.subscribe(listener)

    assert has_left(off.offload(result()).messages)
    assert has_left([{"content": [{"content": off.offload_text(LOG + "more")}]}])
    assert len(heard) > 2


def test_a_listener_that_blocks_holds_up_no_other_call():
    is_blocked, may_go_on = threading.Event(), threading.Event()

    def listener(event: ContextEvent) -> None:
        if event.event_type is EventType.ITEM_STORED and event.data["tool_use_id"] == "c1":
            is_blocked.set()
            assert may_go_on.wait(30)

    off = Offloader(MemoryStore())
    off.events.subscribe(listener)
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(off.offload, result())
        assert is_blocked.wait(30)
        other = off.offload(result(call="c2"))
        may_go_on.set()

    assert has_left(other.messages)
    assert has_left(blocked.result().messages)


def test_a_listener_is_not_told_of_what_it_causes():
    heard = []

    def listener(event: ContextEvent) -> None:
        heard.append(event.data.get("operation"))
        off.tools.list()
        off.tools.list()

    off = Offloader(MemoryStore())
    off.events.subscribe(listener, EventType.CALL_ENDED)
    off.offload(result())

    assert heard == ["offload"]


def test_an_async_listener_is_refused_and_one_of_two_subscriptions_ends_alone():
    async def listener(_: ContextEvent) -> None:
        pass

    heard: list[ContextEvent] = []
    bus = EventBus()
    with pytest.raises(ConfigError, match="plain function"):
        bus.subscribe(listener)
    end = bus.subscribe(heard.append)
    bus.subscribe(heard.append)
    end()
    end()
    bus.emit(ContextEvent(EventType.ITEM_ADDED, ""))

    assert len(heard) == 1


# Side by side


@pytest.mark.parametrize("way", ["text", "sink", "one text"])
def test_texts_and_sinks_of_one_session_are_written_side_by_side(way: str):
    meeting = threading.Barrier(4, timeout=30)

    def meet(verb: str, key: str) -> None:
        """Hold the first puts of records until all threads are inside together."""
        if verb == "put" and key.startswith("r/"):
            meeting.wait()

    off = Offloader(ActingStore(MemoryStore(), meet))

    def write(number: int) -> str:
        if way == "one text":
            return off.offload_text(LOG, tool_use_id="c1")
        if way == "text":
            return off.offload_text(f"{LOG}{number}")
        with off.open_sink() as sink:
            sink.write(f"{LOG}{number}")
        return sink.placeholder

    texts = in_threads(4, write)

    assert len(set(texts)) == len(off.records()) == (1 if way == "one text" else 4)
    assert all(text.startswith("[Offloaded:") for text in texts)
    assert way != "one text" or off.restore(result(texts[0])) == result()


def test_a_text_does_not_wait_for_a_turn():
    is_inside, may_go_on = threading.Event(), threading.Event()

    def hold(verb: str, _key: str) -> None:
        if verb == "put":
            is_inside.set()
            assert may_go_on.wait(30)

    off = Offloader(ActingStore(MemoryStore(), hold))
    with ThreadPoolExecutor(2) as pool:
        turn = pool.submit(off.offload, result())
        assert is_inside.wait(30)
        is_inside.clear()
        text = pool.submit(off.offload_text, LOG + "more")
        is_inside_too = is_inside.wait(30)
        may_go_on.set()

    assert is_inside_too
    assert has_left(turn.result().messages)
    assert text.result().startswith("[Offloaded:")


@pytest.mark.usefixtures("_switches_often")
@pytest.mark.parametrize("pointer", [None, "/a/{}"])
def test_many_threads_read_one_session(pointer: str | None):
    off = Offloader(MemoryStore())
    numbers = ",".join(map(str, range(4000)))
    for n in range(40):
        off.offload_text(f'{{"a": [{numbers}], "b": {n}}}')
    refs = [info.ref for info in off.records()]

    def read(number: int) -> None:
        for turn in some(range(500), 5):
            chosen = (number * 31 + turn * 7) % 40
            if pointer is None:
                off.tools.read(refs[chosen], limit=20)
            else:
                assert f"\n{chosen}\n" in off.tools.read(refs[0], pointer=pointer.format(chosen))

    in_threads(8, read)


@pytest.mark.usefixtures("_switches_often")
def test_many_threads_write_and_list_one_session():
    off = Offloader(MemoryStore())
    turns = [*some(range(30), 3)]

    def work(number: int) -> None:
        for count, turn in enumerate(turns):
            text = off.offload_text(f"{LOG}{number} {turn}")
            assert "stored" in off.tools.list(limit=5)
            assert text == off.offload_text(f"{LOG}{number} {turn}")
            assert len(off.records()) > count

    in_threads(8, work)
    assert len(off.records()) == 8 * len(turns)


# msgspec reads the annotations of a type, in Python, when it meets the type for the first time.
PREPARED = """
import contextlib, importlib, inspect, pkgutil, re, sys
import msgspec, offload, offload_backends

# They take seconds to load, and what imports them decodes nothing.
sys.modules.update(dict.fromkeys(("anthropic", "hypothesis", "openai", "pytest", "s3fs")))
for package in (offload, offload_backends):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__") and ".testing" not in module.name:
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)

modules = [module for name, module in sys.modules.items() if name.startswith("offload")]
named = re.compile(r"(?:Decoder\\(|convert\\(.*, |type=)(\\w+)")
decoded = {name for module in modules for name in named.findall(inspect.getsource(module))}
structs = [t for t in msgspec.Struct.__subclasses__() if t.__module__.startswith("offload")]
types = [t for t in structs if t.__name__ in decoded]
for each in types:
    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    msgspec.json.Decoder(each)
    sys.setprofile(None)
    if "call" in calls:
        print(each.__name__)
assert len(types) > 5
"""


def test_types_that_are_decoded_are_prepared_at_import_because_two_first_decodes_at_once_crash() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PREPARED], check=False, capture_output=True, text=True, timeout=90
    )

    assert ran.stderr == ""
    assert ran.stdout.split() == []
