"""Decisions of the default policy, rules, and invalid policies."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from offload.engine.policy import (
    Decision,
    ItemFacts,
    OffloadPolicy,
    Reason,
    ReasonKind,
    Retention,
    Rule,
    explain,
)
from offload.engine.policy.cost import LEFT_ALONE
from offload.engine.policy.groups import excess, over_ceiling
from offload.engine.policy.judging import KEPT_CHARS
from offload.engine.policy.policy import MAX_VIEW_TOKENS, PASTED_CHARS
from offload.errors import PolicyError

DEFAULT = OffloadPolicy()


def item(tokens: int = 5000, **changes: Any) -> ItemFacts:
    facts = ItemFacts(
        message=3,
        block=None,
        item_type="tool_result",
        tool_name="Bash",
        tool_use_id="toolu_1",
        chars=4 * tokens,
        bytes=5 * tokens,
        tokens=tokens,
        is_error=False,
        is_stored=False,
        answers=0,
    )
    return facts._replace(**changes)


def action(policy: OffloadPolicy, facts: ItemFacts) -> str:
    return policy.decide(facts).action


# --- the defaults ---------------------------------------------------------------------------------


def test_a_tool_result_of_1500_tokens_is_offloaded() -> None:
    assert action(DEFAULT, item(1500)) == "offload"
    below = DEFAULT.decide(item(1499))
    assert (below.action, below.reason) == ("keep", Reason(ReasonKind.TOO_SMALL, 1499, 1500, "tokens"))


@pytest.mark.parametrize("item_type", ["user_message", "skill_prompt"])
def test_a_user_message_is_offloaded_once_it_was_left_alone(item_type: str) -> None:
    facts = item(2000, item_type=item_type, tool_name=None)
    assert action(DEFAULT, facts) == "wait"
    assert action(DEFAULT, facts._replace(answers=LEFT_ALONE - 1)) == "wait"
    assert action(DEFAULT, facts._replace(answers=LEFT_ALONE)) == "offload"
    assert action(DEFAULT, facts._replace(answers=LEFT_ALONE, tokens=1999)) == "keep"


@pytest.mark.parametrize(
    "item_type", ["assistant_message", "compaction_summary", "system_prompt", "something_new"]
)
def test_assistant_messages_and_system_prompts_are_never_offloaded(item_type: str) -> None:
    decision = DEFAULT.decide(item(10**6, item_type=item_type, tool_name=None, answers=9))
    assert (decision.action, decision.reason) == ("keep", Reason(ReasonKind.DISABLED, name=item_type))


@pytest.mark.parametrize(
    "tool",
    [
        *("Read", "read_file", "ReadFile", "view", "str_replace_editor", "open_file", "cat", "NotebookRead"),
        *("mcp__browser_browse", "WebFetch", "webfetch", "fetch_url", "VIEW_IMAGE", "readFile", "readURL"),
        *("HTTPFetch", "fs.read", "fs-read-text", "mcp__fs__read_text", "mcp__fs__readText", "read_file2"),
        *("s3read", "browser_snapshot", "pdf_reader", "functions.open:0"),
        *("Write", "Edit", "MultiEdit", "apply_patch", "mcp__fs__write_file", "create_file", "memory"),
    ],
)
def test_the_model_has_the_text_of_a_file_or_page_in_view_for_some_replies(tool: str) -> None:
    assert action(DEFAULT, item(tool_name=tool)) == "wait"
    assert action(DEFAULT, item(tool_name=tool, answers=LEFT_ALONE - 1)) == "wait"
    assert action(DEFAULT, item(tool_name=tool, answers=LEFT_ALONE)) == "offload"


@pytest.mark.parametrize(
    "tool",
    [
        *("Bash", "Grep", "concat", "cat2", "ls", None, ""),
        *("search_threads", "thread_list", "spreadsheet", "SpreadSheet", "ask_clarification"),
        *("review_pr", "overview", "previewImage", "already_done", "reopen_issue", "categories", "newsreels"),
    ],
)
def test_results_of_other_tools_are_offloaded_at_once(tool: str | None) -> None:
    assert action(DEFAULT, item(tool_name=tool)) == "offload"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"is_stored": True}, ReasonKind.PLACEHOLDER),
        ({"is_programmatic": True}, ReasonKind.READ_BY_CODE),
        ({"is_pinned": True}, ReasonKind.PINNED),
        ({"is_pending": True}, ReasonKind.UNFINISHED),
        ({"tool_name": "context_list"}, ReasonKind.RETRIEVAL),
        ({"is_error": True, "tokens": 5000}, ReasonKind.TOOL_ERROR),
    ],
)
def test_protected_items_are_kept_at_any_size_and_errors_below_the_ceiling(
    changes: dict[str, Any], kind: ReasonKind
) -> None:
    eager = OffloadPolicy(types={"tool_result": Rule(min_tokens=1)}, tools={"*": Rule(min_tokens=1)})
    for policy in (DEFAULT, eager):
        decision = policy.decide(item(10**6, answers=9)._replace(**changes))
        assert (decision.action, decision.reason) == ("keep", Reason(kind))


@pytest.mark.parametrize(
    ("tool", "chars", "editable", "append_only"),
    [
        ("Bash", 2000, (800, 0), (500, 500)),
        ("Bash", 10_000, (1000, 0), (1000, 2500)),
        ("Bash", 10**6, (1000, 0), (1000, 10_000)),
        ("Read", 2000, (300, 0), (500, 500)),
        ("Read", 10_000, (300, 0), (2500, 2500)),
        ("Read", 10**6, (300, 0), (3000, 10_000)),
    ],
)
def test_a_preview_and_names_show_most_of_a_text_that_the_model_never_saw(
    tool: str, chars: int, editable: tuple[int, int], append_only: tuple[int, int]
) -> None:
    facts = item(5000, chars=chars, tool_name=tool)
    for preset in ("balanced", "economy"):
        for is_bound, expected in ((False, editable), (True, append_only)):
            decision = OffloadPolicy.preset(preset).decide(facts, is_bound=is_bound)
            assert (decision.preview_chars, decision.names_chars) == expected


@pytest.mark.parametrize(("chars", "preview"), [(500, 62), (2392, 299), (10_000, 300)])
def test_a_preview_shows_at_most_an_eighth_of_the_arguments_that_the_model_wrote(
    chars: int, preview: int
) -> None:
    facts = item(chars // 4, chars=chars, item_type="tool_call")
    for preset in ("balanced", "economy", "verbatim"):
        assert OffloadPolicy.preset(preset).decide(facts).preview_chars == preview


def test_no_names_follow_what_the_model_wrote_or_saw_or_where_the_cost_decides_nothing() -> None:
    policies = (DEFAULT, DEFAULT, OffloadPolicy.preset("archive"))
    seen = (item(tool_name=None, item_type="user_message"), item(100), item())
    assert [policy.decide(facts).names_chars for policy, facts in zip(policies, seen, strict=True)] == [0] * 3


def test_an_offload_saves_100_tokens() -> None:
    assert DEFAULT.min_saving == 100


def test_the_reason_to_wait_counts_the_replies_that_are_left() -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=10, after_replies=3)})
    reasons = [policy.decide(item(answers=n)).reason for n in range(4)]
    waits = [Reason(ReasonKind.LATER, count=left) for left in (3, 2, 1)]
    assert reasons == [*waits, Reason(ReasonKind.LARGE, 5000)]


@pytest.mark.parametrize(("cost_plan", "least"), [("none", 2000), ("small", -(-KEPT_CHARS // 4))])
def test_in_an_append_only_conversation_the_cost_decides_about_results_of_a_size(
    cost_plan: Any, least: int
) -> None:
    rule = Rule(min_tokens=2000, after_replies=1)
    policy = OffloadPolicy(types={"tool_result": rule}, cost_plan=cost_plan)
    for tokens in (least - 1, least):
        assert policy.decide(item(tokens), is_bound=True).is_by_cost == (tokens == least)


def test_the_cost_decides_about_errors_of_any_size_and_about_no_stored_item() -> None:
    policy = OffloadPolicy.preset("economy")
    assert policy.decide(item()).is_by_cost
    for tokens in (100, 5000):
        error = item(tokens)._replace(is_error=True)
        assert all(DEFAULT.decide(error, is_bound=is_bound).is_by_cost for is_bound in (False, True))
        assert not OffloadPolicy(cost_plan="none").decide(error).is_by_cost
    kept: list[dict[str, Any]] = [{"was_stored": True}, {"is_report": True}]
    for changes in kept:
        assert not policy.decide(item()._replace(**changes)).is_by_cost


def test_types_that_a_policy_does_not_name_keep_their_default() -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=10)})
    assert action(policy, item(10)) == "offload"
    assert action(policy, item(2000, item_type="user_message", tool_name=None)) == "wait"
    assert action(policy, item(10**6, item_type="system_prompt", tool_name=None)) == "keep"


def test_a_policy_with_types_or_tools_has_no_rule_for_readers() -> None:
    by_type = OffloadPolicy(types={"tool_result": Rule(min_tokens=10)})
    by_tool = OffloadPolicy(tools={"Bash": Rule(min_tokens=10)})
    for policy in (by_type, by_tool, OffloadPolicy(tools={})):
        assert action(policy, item(tool_name="Read")) == "offload"
        assert policy.file_readers is None
    assert action(OffloadPolicy(min_saving=5), item(tool_name="Read")) == "wait"


# --- readers --------------------------------------------------------------------------------------


def test_globs_ignore_case_and_match_the_whole_name_or_parts_of_words() -> None:
    policy = OffloadPolicy(exclude_tools=("READ_*", "b?sh"))
    kept = [action(policy, item(tool_name=t)) for t in ("read_file", "Read_File", "bash", "BASH")]
    assert kept == ["keep"] * 4
    others = [action(policy, item(tool_name=t)) for t in ("rebash", "bash2", "brush")]
    assert others == ["offload"] * 3
    policy = OffloadPolicy(tools={"*read*": Rule(after_replies=1)}, exclude_tools=("*sheet*",))
    assert [action(policy, item(tool_name=t)) for t in ("search_threads", "spreadsheet")] == ["wait", "keep"]


def test_a_rule_for_a_tool_wins_over_the_one_for_readers() -> None:
    policy = OffloadPolicy.model_validate({"preset": "balanced", "tools": {"read_*": {"min_tokens": 10}}})
    assert action(policy, item(tool_name="read_log")) == "offload"
    assert action(policy, item(tool_name="view_log")) == "wait"


def test_the_rule_for_readers_can_be_set() -> None:
    policy = OffloadPolicy(types={"tool_result": Rule()}, file_readers=Rule(after_replies=2))
    assert [action(policy, item(tool_name="Read", answers=n)) for n in (0, 1, 2)] == [
        "wait",
        "wait",
        "offload",
    ]
    in_bytes = OffloadPolicy(file_readers=Rule(min_bytes=50))
    assert in_bytes.counts_bytes
    assert not DEFAULT.counts_bytes


def test_readers_offload_applies_no_rule_for_readers() -> None:
    facts = item(tool_name="read_rows")
    assert DEFAULT.decide(facts, file_readers="offload").action == "offload"
    assert DEFAULT.decide(facts, file_readers="keep").action == "wait"
    given = OffloadPolicy(tools={"read_*": Rule(after_replies=1)})
    assert given.decide(facts, file_readers="offload").action == "wait"
    assert OffloadPolicy(exclude_tools=("read_*",)).decide(facts, file_readers="offload").action == "keep"


# --- the ceiling of a view ------------------------------------------------------------------------

ABOVE = MAX_VIEW_TOKENS + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"tool_name": "Read"},
        {"is_error": True},
        {"is_error": True, "tool_name": "Read"},
        {"item_type": "user_message", "tool_name": None, "chars": ABOVE},
        {"item_type": "skill_prompt", "tool_name": None},
        {"item_type": "tool_call"},
    ],
)
def test_texts_above_the_ceiling_are_offloaded_before_the_model_sees_them(changes: dict[str, Any]) -> None:
    decision = DEFAULT.decide(item(ABOVE, **changes))
    assert decision.action == "offload"
    assert decision.reason == Reason(ReasonKind.ABOVE_CEILING, ABOVE, MAX_VIEW_TOKENS)
    assert action(DEFAULT, item(MAX_VIEW_TOKENS, **changes)) != "offload"
    assert action(OffloadPolicy(max_view_tokens=None), item(ABOVE, **changes)) != "offload"


def test_the_ceiling_overrides_after_replies_and_keep_recent() -> None:
    for rule in (Rule(min_chars=10**9), Rule(after_replies=3), Rule(keep_recent=3)):
        policy = OffloadPolicy(tools={"*": rule}, max_view_tokens=3000)
        assert [action(policy, item(n)) for n in (3000, 3001)][1] == "offload"
        assert action(policy, item(3000)) != "offload"


@pytest.mark.parametrize(
    "changes",
    [
        {"is_pinned": True},
        {"is_pending": True},
        {"is_programmatic": True},
        {"is_stored": True},
        {"item_type": "system_prompt", "tool_name": None},
        {"item_type": "assistant_message", "tool_name": None},
        {"tool_name": "context_list"},
        {"tool_name": "get_plan"},
        {"item_type": "user_message", "tool_name": None, "media_type": "application/pdf"},
    ],
)
def test_protected_items_are_kept_above_the_ceiling(changes: dict[str, Any]) -> None:
    policy = OffloadPolicy.model_validate({"preset": "balanced", "exclude_tools": ["get_plan"]})
    decision = policy.decide(item(ABOVE, **changes))
    assert decision.action == "keep"
    assert decision.is_exempt


def turn(*sizes: int, **changes: Any) -> list[Decision]:
    return [DEFAULT.decide(item(size, tool_name="Read", **changes)) for size in sizes]


def test_the_largest_texts_of_a_turn_above_the_ceiling_are_offloaded_first() -> None:
    leaving = over_ceiling(turn(1000, 4000, 3000, 4000), 8000)
    assert list(leaving) == [1]
    assert leaving[1].action == "offload"
    assert leaving[1].reason == Reason(ReasonKind.TURN_TOO_LARGE, 12_000, 8000)
    assert list(over_ceiling(turn(1000, 4000, 3000, 4000), 7999)) == [1, 3]
    assert over_ceiling(turn(1000, 4000, 3000, 4000), 12_000) == {}


def test_errors_count_for_the_turn_above_the_ceiling_and_exempt_and_offloaded_items_do_not() -> None:
    others = [*turn(9000, is_pinned=True), *turn(9000, is_programmatic=True), *turn(9000, answers=LEFT_ALONE)]
    assert over_ceiling([*others, *turn(4000, 4000)], 8000) == {}
    assert list(over_ceiling([*others, *turn(4000, 4001)], 8000)) == [4]
    assert list(over_ceiling([*turn(3000, 4000, is_error=True), *turn(2000)], 5000)) == [1]


def test_each_item_kept_above_the_ceiling_is_reported() -> None:
    assert excess([*turn(9000, 100, is_pinned=True), *turn(9000, is_programmatic=True)], 8000) == [
        "messages[3]: tool_result of 9000 tokens is kept above max_view_tokens (8000): pinned",
        "messages[3]: tool_result of 9000 tokens is kept above max_view_tokens (8000): read by code",
    ]
    assert excess(turn(9000, is_pending=True), 8000) == []


def test_a_turn_kept_above_the_ceiling_is_reported_without_what_is_exempt_or_reported_alone() -> None:
    for sizes, total in (((5000, 4000), 9000), ((8000, 1), 8001)):
        [message] = excess(turn(*sizes), 8000)
        assert message.startswith(f"messages[3] and later: 2 texts with {total} tokens in total are kept")
    for fitting in (turn(4000, 4000), turn(8000), [*turn(5000, is_pinned=True), *turn(5000)]):
        assert excess(fitting, 8000) == []
    [alone] = excess(turn(9000, 5000), 8000)
    assert "of 9000 tokens" in alone


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "enough", "short"),
    [
        (Rule(min_tokens=50), {"tokens": 50}, {"tokens": 49}),
        (Rule(min_chars=50), {"chars": 50}, {"chars": 49}),
        (Rule(min_bytes=50), {"bytes": 50}, {"bytes": 49}),
        (Rule(), {"tokens": 2000}, {"tokens": 1999}),
    ],
)
def test_a_threshold_counts_its_own_unit(rule: Rule, enough: dict[str, Any], short: dict[str, Any]) -> None:
    policy = OffloadPolicy(tools={"*": rule})
    assert action(policy, item(1, chars=1, bytes=1)._replace(**enough)) == "offload"
    assert action(policy, item(10**4)._replace(**short)) == "keep"


def test_the_first_glob_that_matches_wins_and_a_tool_wins_over_a_type() -> None:
    first, second = Rule(min_tokens=10, preview_chars=1), Rule(enabled=False, preview_chars=2)
    policy = OffloadPolicy(
        types={"tool_result": Rule(preview_chars=3)}, tools={"mcp__*": first, "mcp__x": second}
    )
    assert policy.decide(item(tool_name="mcp__x")).preview_chars == 1
    swapped = OffloadPolicy(tools={"mcp__x": second, "mcp__*": first})
    assert [action(swapped, item(tool_name=t)) for t in ("mcp__x", "mcp__y")] == ["keep", "offload"]
    assert policy.decide(item(tool_name="Bash")).preview_chars == 3


def test_an_excluded_tool_wins_over_its_rule_which_applies_to_no_user_message() -> None:
    policy = OffloadPolicy(tools={"*": Rule(min_tokens=1)}, exclude_tools=("Bash",))
    decision = policy.decide(item())
    assert (decision.action, decision.reason) == ("keep", Reason(ReasonKind.EXCLUDED, name="Bash"))
    assert action(policy, item(10, item_type="user_message", answers=1)) == "keep"
    off = OffloadPolicy(types={"tool_result": Rule(enabled=False)})
    assert action(off, item(10**9, answers=9)) == "keep"


def test_an_item_waits_for_the_replies_that_its_rule_requires() -> None:
    policy = OffloadPolicy(tools={"*": Rule(after_replies=3)})
    waited = [action(policy, item(answers=n)) for n in range(5)]
    assert waited == ["wait", "wait", "wait", "offload", "offload"]


# --- how long it is kept --------------------------------------------------------------------------

DURATIONS = [
    (90, 90),
    ("90s", 90),
    ("15m", 900),
    (" 2 h ", 7200),
    ("7d", 604_800),
    ("90", 90),
    (timedelta(minutes=1, milliseconds=900), 60),
]


@pytest.mark.parametrize(("given", "seconds"), DURATIONS)
def test_a_duration_is_seconds_or_a_text_or_a_timedelta(given: Any, seconds: int) -> None:
    assert Rule(ttl=given).ttl == seconds
    rules = Retention(grace=given, live_for=given)
    assert (rules.grace, rules.live_for) == (seconds, seconds)


def test_a_decision_has_the_ttl_of_its_rule() -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(ttl="7d")}, tools={"Bash": Rule(ttl=60)})
    assert [policy.decide(item(tool_name=t)).ttl for t in ("Bash", "Grep")] == [60, 604_800]
    assert DEFAULT.decide(item()).ttl is None


def test_default_retention_has_no_quota_and_it_is_loaded_with_the_policy() -> None:
    rules = DEFAULT.retention
    quotas = (rules.session_bytes, rules.session_records, rules.store_bytes, rules.store_records)
    assert (quotas, rules.grace, rules.live_for) == ((None,) * 4, 3600, 86_400)
    data = {"retention": {"session_bytes": 10**9, "grace": "10m"}}
    assert OffloadPolicy.model_validate(data).retention == Retention(session_bytes=10**9, grace=600)


# --- invalid policies -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (Retention, "session_bytes", 0),
        (Retention, "session_records", -1),
        (Retention, "store_bytes", "1XB"),
        (Retention, "store_records", 1.5),
        (Retention, "grace", -1),
        (Retention, "grace", "an hour"),
        (Retention, "grace", None),
        (Retention, "live_for", 10**10),
        (Retention, "live_for", 0.5),
        (Retention, "max_bytes", 5),
        *(
            (Rule, field, value)
            for field in ("min_tokens", "min_chars", "min_bytes")
            for value in (0, 1.5, "2000", True, float("nan"), float("inf"), [1])
        ),
        (Rule, "after_replies", -1),
        (Rule, "after_replies", "1"),
        (Rule, "preview_chars", -1),
        (Rule, "preview_chars", 20_001),
        (Rule, "preview_chars", None),
        (Rule, "enabled", 1),
        (Rule, "enabled", "yes"),
        (Rule, "min_token", 5),
        (Rule, "ttl", "1 hour"),
        (Rule, "ttl", 0),
        (Rule, "ttl", 1.5),
    ],
)
def test_an_invalid_rule_or_retention_names_the_field_and_the_value(
    model: type[Rule | Retention], field: str, value: Any
) -> None:
    with pytest.raises(PolicyError) as caught:
        model(**{field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"types": {"tool_result": {"min_tokens": -1}}}, ["types.tool_result", "min_tokens", "-1"]),
        ({"tools": {"Bash": {"min_bytes": "5kB"}}}, ["tools.Bash", "min_bytes", "'5kB'"]),
        ({"tools": {"Bash": {"min_byte": 5}}}, ["tools.Bash", "min_byte", "5"]),
        ({"tools": {"Bash": 7}}, ["tools.Bash", "7"]),
        ({"types": {"tool_results": {}}}, ["types.tool_results", "'tool_results'", "tool_result"]),
        ({"types": []}, ["types", "[]"]),
        ({"tools": "Bash"}, ["tools", "'Bash'"]),
        ({"exclude_tools": "Bash"}, ["exclude_tools", "'Bash'"]),
        ({"exclude_tools": (1,)}, ["exclude_tools.0", "1"]),
        ({"min_saving": -1}, ["min_saving", "-1"]),
        ({"retention": {"grace": "soon"}}, ["retention.grace", "'soon'"]),
        ({"exclude": ("Bash",)}, ["exclude", "('Bash',)"]),
    ],
    ids=lambda v: str(v)[:40] if isinstance(v, dict) else "",
)
def test_an_invalid_policy_names_the_path_and_the_value(data: dict[str, Any], named: list[str]) -> None:
    for make in (lambda: OffloadPolicy(**data), lambda: OffloadPolicy.model_validate(data)):
        with pytest.raises(PolicyError) as caught:
            make()
        assert all(part in str(caught.value) for part in named), str(caught.value)


def test_two_thresholds_are_refused_and_no_policy_can_be_changed_also_by_the_next() -> None:
    with pytest.raises(PolicyError, match="set one threshold, got min_tokens and min_bytes"):
        Rule(min_tokens=1, min_bytes=1)
    with pytest.raises(ValidationError):
        DEFAULT.min_saving = 5  # type: ignore[misc] # what is refused
    with pytest.raises(ValidationError):
        Rule().min_tokens = 5  # type: ignore[misc] # what is refused
    OffloadPolicy(types={"tool_result": Rule(min_tokens=1)}, tools={"*": Rule(enabled=False)})
    assert OffloadPolicy() == DEFAULT
    assert action(OffloadPolicy(), item(1499)) == "keep"


# --- decisions ------------------------------------------------------------------------------------


def test_the_same_facts_always_give_the_same_decision_with_these_facts() -> None:
    policy = OffloadPolicy(exclude_tools=("x",))
    before = copy.deepcopy(policy)
    decisions = [policy.decide(item(n)) for n in (100, 5000, 100, 5000)]
    assert decisions[:2] == decisions[2:]
    assert policy == before
    expected = Decision(item(), "offload", Reason(ReasonKind.LARGE, 5000), 1000, None, 5000)
    assert DEFAULT.decide(item()) == expected


def test_decisions_are_explained_one_per_line() -> None:
    lines = explain([DEFAULT.decide(item(block=2)), DEFAULT.decide(item(100, tool_name=None))]).split("\n")
    assert len(lines) == 3
    assert lines[0].split() == ["item", "type", "tool", "tokens", "after", "decision"]
    assert lines[1].split() == ["3.2", "tool_result", "Bash", "5000", "5000", "offload:", "5000", "tokens"]
    assert lines[2].split()[:3] == ["3", "tool_result", "-"]


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_text_of_the_user_leaves_at_once_if_it_is_too_long_to_be_a_task(is_bound: bool) -> None:
    least = PASTED_CHARS * LEFT_ALONE
    by_size = OffloadPolicy(types={"user_message": Rule(min_tokens=2000, after_replies=LEFT_ALONE)})

    for policy, chars, expected in (
        (DEFAULT, least, True),
        (DEFAULT, least - 1, False),
        (by_size, least, False),
    ):
        pasted = item(chars // 4, item_type="user_message", tool_name=None, chars=chars)
        assert (policy.decide(pasted, is_bound=is_bound).action == "offload") is expected
