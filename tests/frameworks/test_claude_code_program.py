"""Claude Code alone, as other tests use it."""

from __future__ import annotations

from pathlib import Path

from frameworks.claude_code import ClaudeCode, serving, text, thinking, tool

ALLOWED = ("--allowedTools", "Bash")


def test_a_run_sends_the_output_of_a_command_and_ends_with_the_last_answer(tmp_path: Path) -> None:
    with serving([tool("Bash", command="seq 1 3"), thinking("hm") + text("three")]) as api:
        ran = ClaudeCode(tmp_path, api.url).run("count", *ALLOWED)

    assert (ran.returncode, ran.result, ran.stderr) == (0, "three", "")
    assert api.last.results == ["1\n2\n3"]


def test_an_overloaded_request_is_sent_again_as_it_was(tmp_path: Path) -> None:
    with serving([text("at last", overloaded=1)]) as api:
        ran = ClaudeCode(tmp_path, api.url).run("go")

    assert ran.result == "at last"
    assert [request.step for request in api.requests] == [0, 0]
    assert len({request.body for request in api.requests}) == 1


def test_a_resumed_session_sends_what_was_said_before(tmp_path: Path) -> None:
    with serving([text("one"), text("two")]) as api:
        program = ClaudeCode(tmp_path, api.url)
        first = program.run("first prompt")
        second = program.run("second prompt", resume=first.session)

    assert (second.session, second.result) == (first.session, "two")
    assert "first prompt" in api.last.texts


def test_clear_starts_a_new_session_in_the_same_process(tmp_path: Path) -> None:
    with serving([text("one")]) as api:
        ran = ClaudeCode(tmp_path, api.url).talk("first prompt", "/clear", "second prompt")

    first, second = api.requests
    assert (ran.returncode, second.step) == (0, 0)
    assert "first prompt" not in second.texts
    assert second.headers["x-claude-code-session-id"] != first.headers["x-claude-code-session-id"]


def test_a_sub_agent_is_answered_by_a_script_of_its_own(tmp_path: Path) -> None:
    task = tool(
        "Agent", description="count", prompt="count", subagent_type="general-purpose", run_in_background=False
    )
    agents = [tool("Bash", command="seq 1 3"), text("the report")]
    with serving([task], agents) as api:
        ClaudeCode(tmp_path, api.url).run("go", *ALLOWED)

    assert [request.results for request in api.requests if request.is_of_agent] == [[], ["1\n2\n3"]]
    assert "the report" in api.last.results[0]
