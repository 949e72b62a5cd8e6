"""The types of the public surface, checked by mypy and never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

from offload import (
    CacheReport,
    Decision,
    Offloader,
    OffloadError,
    OffloadPolicy,
    OffloadResult,
    OffloadStore,
    RecordInfo,
    Restored,
    Rule,
    Stats,
    explain,
    open_store,
)
from offload.messages import Usage


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
