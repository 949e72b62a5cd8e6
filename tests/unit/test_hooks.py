"""The caller's own functions: what may leave, what is cut out, what sums it up; plain and async."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kit.conversation import last_results
from kit.store import CountedStore

from offload import ConfigError, ContextManager, Offloader, OffloadPolicy, ReasonKind, Rule, estimate_tokens

SECRET = "AKIA" + "A1B2C3D4" * 2
LOG = "".join(f"line {n}: the key is {SECRET} and the number {n * n}\n" for n in range(600))
OTHER = "".join(f"row {n} of another result\n" for n in range(900))

Messages = list[dict[str, Any]]


def conversation(*texts: str) -> Messages:
    calls = [{"type": "tool_use", "id": f"c{n}", "name": f"Tool{n}", "input": {}} for n in range(len(texts))]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": t} for n, t in enumerate(texts)]
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


def stored(root: Path) -> str:
    texts = []
    for path in root.rglob("*.zst"):
        with path.open("rb") as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            texts.append(reader.read().decode())
    return "".join(texts)


# Which items leave


def test_what_the_caller_keeps_stays_and_is_not_asked_about_again(tmp_path: Path) -> None:
    asked = []

    def should_offload(item: Any) -> bool:
        asked.append((item.tool_name, item.tool_use_id, item.tokens > 1500))
        return str(item.tool_name) != "Tool0"

    off = Offloader(tmp_path, should_offload=should_offload)
    messages = conversation(LOG, OTHER, "small")

    out, again = off.offload(messages), off.offload(messages)

    assert last_results(out.messages)[0] == LOG
    assert last_results(out.messages)[1].startswith("[Offloaded:")
    assert asked == [("Tool0", "c0", True), ("Tool1", "c1", True)]
    assert again.messages == out.messages
    assert ReasonKind.VETOED in {d.reason.kind for d in out.decisions}


def test_a_text_that_a_tool_hands_in_is_asked_about_too(tmp_path: Path) -> None:
    assert Offloader(tmp_path, should_offload=lambda _: False).offload_text(LOG) == LOG


# What is cut out


def redact(text: str) -> str:
    return text.replace(SECRET, "(key)")


def test_what_is_cut_out_stands_neither_in_the_placeholder_nor_in_the_store(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s", redact=redact)

    out = off.offload(conversation(LOG))

    assert SECRET not in last_results(out.messages)[0]
    assert ", redacted, id " in last_results(out.messages)[0].splitlines()[0]
    assert "(key)" in stored(tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert SECRET not in stored(tmp_path)
    assert last_results(off.restore(out.messages)) == [redact(LOG)]


NOTICE = "[Redacted: some content was removed before storage. Do not write this text back.]"
ROWS = json.dumps({"rows": [f"row {n}: {SECRET}" for n in range(2000)]})
ASKED: Any = (
    ("context_read", {}),
    ("context_read", {"offset": 100, "limit": 50}),
    ("context_read", {"start_line": 1, "end_line": 1}),
    ("context_read", {"pointer": ""}),
    ("context_read", {"pointer": "/rows/7"}),
    ("context_read", {"pointer": "/rows", "offset": 5}),
    ("context_tail", {}),
    ("context_grep", {"pattern": SECRET}),
    ("context_grep", {"pattern": "rows", "max_matches": 100}),
)


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_every_answer_on_what_was_redacted_says_so_in_its_footer(tmp_path: Path, codec: str) -> None:
    first = Offloader(tmp_path, session="s", redact=redact, codec=codec)
    cut, whole = (record.ref for record in first.offload(conversation(ROWS, OTHER)).records)
    off = Offloader(tmp_path, session="s")

    for tool, arguments in ASKED:
        answer = off.tools.call(tool, {"id": cut, **arguments})
        assert answer.split("\n")[-2] == NOTICE
        assert answer.split("\n")[-1].startswith("[")
        assert len(answer) <= 8192
        assert NOTICE not in off.tools.call(tool, {"id": whole, **arguments})
        assert tool != "context_grep" or NOTICE in off.tools.call(tool, arguments)


@pytest.mark.parametrize("size", [200_000, 9 * 1024 * 1024])
def test_a_long_record_tells_that_it_is_redacted_without_another_request(size: int) -> None:
    text = LOG + random.Random(1).randbytes(size // 2).hex()  # noqa: S311 # reproducible
    store = CountedStore()
    ref = Offloader(store, session="s", redact=redact).offload(conversation(text)).records[0].ref
    store.requests.clear()

    answer = Offloader(store, session="s").tools.call("context_tail", {"id": ref})

    assert NOTICE in answer
    assert store.count("get") <= 2


def test_a_second_process_knows_what_it_redacted_before_and_what_had_nothing_to_cut_out(
    tmp_path: Path,
) -> None:
    messages = conversation(LOG, OTHER)
    first = Offloader(tmp_path, session="s", redact=redact).offload(messages)
    again = Offloader(tmp_path, session="s", redact=redact).offload(messages)

    assert again.messages == first.messages
    assert len(list(tmp_path.rglob("*.zst"))) == 2
    assert ["redacted" in text for text in last_results(first.messages)] == [True, False]
    assert last_results(Offloader(tmp_path, session="s").restore(first.messages)) == [redact(LOG), OTHER]


def test_what_cannot_be_cut_out_is_not_stored(tmp_path: Path) -> None:
    def broken(_: str) -> str:
        raise RuntimeError("no pattern")

    for function in (broken, lambda _: None):
        out = Offloader(tmp_path, redact=function).offload(conversation(LOG))  # type: ignore[arg-type] # on purpose
        assert out.messages == conversation(LOG)
        assert len(out.errors) == 1
    assert stored(tmp_path) == ""


@pytest.mark.parametrize(
    "secret", [{"text": LOG}, {"text": OTHER, "title": f"with {SECRET}"}], ids=["text", "title"]
)
def test_a_result_of_several_parts_that_would_be_redacted_stays_in_its_message(
    tmp_path: Path, secret: dict[str, str]
) -> None:
    messages = conversation("x")
    messages[1]["content"][0]["content"] = [{"type": "text", "text": OTHER}, {"type": "text", **secret}]

    out = Offloader(tmp_path, redact=redact).offload(messages)

    assert out.messages == messages
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_long_output_of_a_sink_is_redacted_as_a_whole(tmp_path: Path) -> None:
    off = Offloader(tmp_path, redact=redact)
    with off.open_sink(tool_name="Bash") as sink:
        for _ in range(9 * 1024 * 1024 // len(LOG) + 2):
            sink.write(LOG)

    assert "redacted" in sink.placeholder.splitlines()[0]
    assert SECRET not in stored(tmp_path)


# What sums it up


def test_a_summary_stands_in_the_placeholder_and_only_new_items_are_summed_up(tmp_path: Path) -> None:
    given = []

    def summarizer(text: str) -> str:
        given.append(text)
        return f"  {len(text)} characters [Offloaded: of lines  "

    off = Offloader(tmp_path, session="s", summarizer=summarizer)
    out = off.offload(conversation(LOG))
    second = Offloader(tmp_path, session="s", summarizer=summarizer).offload(conversation(LOG))

    assert (
        last_results(out.messages)[0].splitlines()[1]
        == f"[Summary: {len(LOG)} characters \\[Offloaded: of lines]"
    )
    assert given == [LOG]
    assert second.messages == out.messages
    assert off.restore(out.messages) == conversation(LOG)


@pytest.mark.parametrize("chars", [100, 300, 600, 1000])
def test_a_placeholder_with_its_summary_pays_or_goes_without(chars: int) -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=1, preview_chars=0)}, tools={})
    summary = ("It says row after row. " * 50)[:chars].strip()
    for lines in range(20, 120, 7):
        text = "".join(OTHER.splitlines(keepends=True)[:lines])
        plain = Offloader("memory://", session="s", policy=policy).offload(conversation(text))
        off = Offloader("memory://", session="s", policy=policy, summarizer=lambda _: summary)

        out = off.offload(conversation(text))

        [placeholder], [without] = last_results(out.messages), last_results(plain.messages)
        with_it = without.replace("]\n", f"]\n[Summary: {summary}]\n", 1)
        saved = estimate_tokens(text) - estimate_tokens(with_it)
        pays = saved >= policy.min_saving and len(with_it) < len(text)
        assert placeholder == (with_it if pays else without)
        assert off.restore(out.messages) == conversation(text)


def test_without_a_usable_summary_the_item_leaves_without_one() -> None:
    answers: list[Any] = [None, 5, "", "   "]
    for number in range(len(answers)):
        off = Offloader("memory://", session=f"{number}", summarizer=lambda _: answers.pop())
        out = off.offload(conversation(LOG))

        assert "Summary" not in last_results(out.messages)[0]
        assert out.errors == []
        assert len(out.records) == 1


def test_a_summarizer_sees_the_text_as_it_is_stored_and_may_say_any_text(tmp_path: Path) -> None:
    given = []

    def summarizer(text: str) -> str:
        given.append(text)
        return "half a pair \ud83d"

    out = Offloader(tmp_path, redact=redact, summarizer=summarizer).offload(conversation(LOG))

    assert given == [redact(LOG)]
    assert len(out.records) == 1
    assert "half a pair \\ud83d" in last_results(out.messages)[0]


# Async functions


async def keep_first(item: Any) -> bool:
    await asyncio.sleep(0)
    return str(item.tool_name) != "Tool0"


def test_async_functions_run_on_the_callers_own_loop(tmp_path: Path) -> None:
    loops = []

    async def summarizer(_: str) -> str:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return "summed up"

    async def main() -> Messages:
        off = Offloader(tmp_path, should_offload=keep_first, summarizer=summarizer)
        messages = (await off.aoffload(conversation(LOG, OTHER))).messages
        assert loops == [asyncio.get_running_loop()]
        return messages

    first, second = last_results(asyncio.run(main()))
    assert first == LOG
    assert "[Summary: summed up]" in second


def test_async_functions_run_where_no_loop_does_and_are_refused_in_the_thread_of_one(tmp_path: Path) -> None:
    out = Offloader(tmp_path, should_offload=keep_first).offload(conversation(LOG, OTHER))
    assert [t.startswith("[Offloaded:") for t in last_results(out.messages)] == [False, True]

    async def main() -> tuple[Any, str]:
        off = Offloader(tmp_path, should_offload=keep_first)
        refused = off.offload(conversation(LOG))
        await off.aoffload(conversation("small", OTHER))
        # In the task of an async turn too, without waiting.
        return refused, off.offload_text(LOG, tool_name="Tool5")

    refused, text = asyncio.run(asyncio.wait_for(main(), 20))
    assert refused.messages == conversation(LOG)
    assert "await the async method, such as aoffload() or" in str(refused.errors[0])
    assert text == LOG


@pytest.mark.parametrize("name", ["should_offload", "redact", "summarizer"])
def test_what_is_no_function_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a function"):
        Offloader("memory://", **{name: "yes"})  # type: ignore[arg-type] # on purpose


# One that fails


def test_a_redaction_that_fails_for_one_item_keeps_that_one_alone(tmp_path: Path) -> None:
    def picky(text: str) -> str:
        if text != OTHER:
            raise RuntimeError("no pattern for this")
        return text

    off = Offloader(tmp_path, session="s", redact=picky)
    for messages in (conversation(LOG, OTHER), [*conversation(LOG, OTHER), *conversation("small" * 300)]):
        out = off.offload(messages)
        assert [b["content"].startswith("[Offloaded:") for b in out.messages[1]["content"]] == [False, True]


def test_a_restore_does_not_wait_for_a_turn_whose_hook_waits_for_the_loop(tmp_path: Path) -> None:
    async def main() -> Messages:
        off = Offloader(tmp_path, session="s")
        sent = off.offload(conversation(LOG)).messages
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def slow(_: Any) -> bool:
            is_asked.set()
            await may_answer.wait()
            return True

        other = Offloader(tmp_path, session="s", should_offload=slow)
        turn = asyncio.create_task(other.aoffload(conversation("small", OTHER)))
        await is_asked.wait()
        restored: Messages = other.restore(sent)
        may_answer.set()
        await turn
        return restored

    assert asyncio.run(asyncio.wait_for(main(), 20)) == conversation(LOG)


def test_an_offloader_with_its_own_prompt_passes_it_on():
    off = Offloader("memory://", session="s", prompt="Open the path with the Read tool.")

    assert off.prompt() == "Open the path with the Read tool."
    assert off.with_options(session="t").prompt() == off.prompt()
    assert ContextManager(off).prompt() == off.prompt()
    assert "[Offloaded:" in off.tools.prompt()
    with pytest.raises(ConfigError, match="prompt must be a str or None, got int"):
        Offloader("memory://", prompt=1)  # type: ignore[arg-type] # a wrong type
