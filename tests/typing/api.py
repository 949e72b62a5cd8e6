"""The types of the public surface, checked in the sources and against an installed release; never run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from offload import (
    AgentConfig,
    CacheModel,
    CacheReport,
    CompactResult,
    ContextFileSystem,
    ContextIR,
    ContextManager,
    ContextRefs,
    Damage,
    Decision,
    DefaultRenderer,
    EventBus,
    GcReport,
    Missing,
    Offloader,
    OffloadError,
    OffloadPolicy,
    OffloadResult,
    OffloadStore,
    PlaceholderFacts,
    RecordInfo,
    Restored,
    Retention,
    RoundCompactor,
    RoundConfig,
    Rule,
    RuleStrategy,
    SelectiveCompaction,
    SelectiveResult,
    Sink,
    Stats,
    StoredObject,
    Sweep,
    TemplateRenderer,
    Tools,
    TypeRule,
    Usage,
    collect,
    delete,
    estimate_tokens,
    explain,
    load_config,
    open_store,
    preview_of,
)


async def check(store: OffloadStore, messages: list[dict[str, Any]]) -> None:
    """Hold each type of the surface."""
    off = Offloader("s3://bucket/prefix", session="s", storage_options={"key": "k"}, on_error="raise")
    Offloader(Path("folder"), token_counter=len)
    Offloader(store, policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=1)}, exclude_tools=("x",)))
    out = off.offload(messages)
    assert_type(out, OffloadResult)
    assert_type(out.messages, list[Any])
    assert_type(out.records, list[RecordInfo])
    assert_type(out.decisions, list[Decision])
    assert_type(out.errors, list[OffloadError])
    assert_type(out.tokens_before, int)
    assert_type(off.restore(out.messages), Restored)
    assert_type(off.offload_text("x", tool_name="Bash"), str)
    assert_type(await off.aoffload(messages), OffloadResult)
    assert_type(await off.aoffload(messages, cache="cold"), OffloadResult)
    off.offload(messages, cache="hot")  # type: ignore[arg-type]
    assert_type(off.report_usage(out), Usage | None)
    assert_type(out.cache, CacheReport | None)
    assert_type(off.records(), list[RecordInfo])
    assert_type(off.stats(), Stats)
    assert_type(off.tools.call("context_list", {}), str)
    assert_type(off.tools.grep("x", id="abcdefghij", mode="regex"), str)
    assert_type(off.prompt(), str)
    assert_type(explain(out.decisions), str)
    assert_type(open_store("memory://"), OffloadStore)


async def check_offloader(off: Offloader, messages: list[dict[str, Any]]) -> None:
    """Hold the types of attributes and of what was stored."""
    assert_type(Offloader.from_config(store="memory://"), Offloader)
    assert_type(load_config().settings.storage_options, dict[str, Any])
    assert_type(off.store, OffloadStore)
    assert_type(off.session, str)
    assert_type(off.policy, OffloadPolicy)
    assert_type(off.policy.min_saving, int)
    assert_type(off.events, EventBus)
    assert_type(off.tools, Tools)
    assert_type(off.tools.read("abcdefghij", offset=0, limit=8192), str)
    assert_type(off.tools.definitions("anthropic"), list[dict[str, Any]])
    assert_type(off.fork("other"), Offloader)
    assert_type(off.content("abcdefghij"), Iterator[bytes])
    assert_type(off.records()[0].ref, str)
    assert_type(off.records()[0].key, str)
    assert_type(off.records()[0].tokens, int)
    assert_type(await off.arestore(messages), Restored)
    assert_type(off.restore(messages, on_missing="keep").missing, list[Missing])


def check_maintenance(off: Offloader) -> None:
    """Hold verification, retention and sinks."""
    assert_type(off.verify(), list[Damage])
    assert_type(off.gc(dry_run=True), GcReport)
    assert_type(collect(off.store, Retention(session_records=3, live_for="1d", grace="1h")), GcReport)
    assert_type(delete(off.store, "s", dry_run=True), GcReport)
    with off.open_sink(tool_name="Bash") as sink:
        assert_type(sink, Sink)
        assert_type(sink.write(b"chunk"), int)
    assert_type(sink.placeholder, str)
    assert_type(sink.error, OffloadError | None)
    assert_type(sink.info, RecordInfo | None)


def check_store(store: OffloadStore) -> None:
    """Hold the four verbs of a store."""
    assert_type(store.put("k", b"data", overwrite=True), None)
    assert_type(store.get("k", start=-3), bytes)
    assert_type(list(store.keys("prefix", after="k")), list[StoredObject])
    assert_type(store.delete("k"), None)
    assert_type(store.has_atomic_create, bool)


def check_policy(facts: PlaceholderFacts) -> None:
    """Hold policies, placeholders and previews."""
    assert_type(OffloadPolicy.preset("balanced"), OffloadPolicy)
    OffloadPolicy(tools={"Bash": Rule(min_bytes=5120)}, sweep=Sweep(trigger_tokens=1), cache=CacheModel())
    OffloadPolicy(tool_media=Rule(enabled=False), min_saving=0, cache="gpt-5.5")
    OffloadPolicy(cache=CacheModel(ttl="5m"), retention=Retention(grace="1h", live_for=60))
    assert_type(Rule(ttl=timedelta(days=7)).ttl, int | None)
    Rule(ttl=1.5)  # type: ignore[arg-type] # refused at run time too
    Rule(tl="7d")  # type: ignore[call-arg]
    OffloadPolicy(min_savings=0)  # type: ignore[call-arg]
    assert_type(DefaultRenderer().render(facts), str)
    assert_type(TemplateRenderer("{ref}").render(facts), str)
    assert_type(facts.ref, str)
    assert_type(preview_of("text", 100).text, str)
    assert_type(estimate_tokens("text"), int)


def check_loop(off: Offloader, messages: list[dict[str, Any]], context: ContextIR) -> None:
    """Hold the agent loop, compaction and the presets."""
    config = AgentConfig(
        rules={"tool_result": TypeRule(strategy=RuleStrategy.DROP)}, trigger_ratio=0.8, target_ratio=0.5
    )
    manager = ContextManager(off, config, summarizer=lambda _: "summary")
    assert_type(manager.restore(), list[Any])
    rounds = RoundCompactor(off, lambda _: "summary", RoundConfig(), events=off.events)
    assert_type(rounds.compact(messages), CompactResult)
    selective = SelectiveCompaction(off, lambda _: "summary", threshold_tokens=1000)
    assert_type(selective.compact(context), SelectiveResult)
    assert_type(selective.restore(messages), list[Any])
    files = ContextFileSystem("folder", "s", offload_token_threshold=2000)
    assert_type(files.offloader, Offloader)
    assert_type(files.offload(messages), OffloadResult)
    refs = ContextRefs("folder", "s")
    assert_type(refs.tool_output("text", tool_name="Bash"), str)
    assert_type(refs.call("read", {"ref": "abcde"}), str)
    assert_type(refs.clean_up(1000, messages), list[RecordInfo])
    assert_type(refs.offload_history(messages), OffloadResult)
    assert_type(refs.restore(messages), Restored)
