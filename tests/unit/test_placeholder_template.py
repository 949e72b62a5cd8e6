"""Placeholders from a user's template: what it may hold, what it makes, and that no renderer loses data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from offload import Offloader, OffloadPolicy, PlaceholderFacts, Rule, TemplateRenderer
from offload.engine.preview import Preview
from offload.errors import ConfigError

REF = "kqzmwpxhva"
LONG = "a line of the output\n" * 500
BRIEF = "[{tool} gave {chars} characters, {lines} lines. {preview}\nRead on: {call} id {ref}]"
FRONT = '<offloaded id="{ref}" tool="{tool}">{summary}\n{preview}</offloaded>'
BARE = "{ref}"
BRACES = "{{{ref}}} {tool}{chars} {call}"
TEMPLATES = [BRIEF, FRONT, BARE, BRACES, "{preview} ({ref})", "({ref}) {summary}{preview}"]


def facts(tool: str | None = "Bash", shown: str = "shown", ref: str = REF, **more: Any) -> PlaceholderFacts:
    return PlaceholderFacts(ref, "tool_result", tool, 12_345, 678, Preview(shown, 5), **more)


def message(content: str = LONG) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}


def test_a_template_is_filled_with_the_facts() -> None:
    assert TemplateRenderer(BRIEF).render(facts()) == (
        "[Bash gave 12345 characters, 678 lines. shown\n"
        'Read on: context_read(id="kqzmwpxhva", offset=5) id kqzmwpxhva]'
    )
    assert TemplateRenderer(BRACES).render(facts(None)) == (
        '{kqzmwpxhva} tool_result12345 context_read(id="kqzmwpxhva", offset=5)'
    )


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("[{tool} {chars}]", "must have {ref} exactly once"),
        ("", "must have {ref} exactly once"),
        ("{ref} {ref}", "must have {ref} exactly once"),
        (
            "{ref} {size}",
            "must be one of {ref}, {tool}, {chars}, {lines}, {call}, {preview}, {summary}, got {size}",
        ),
        ("{ref} {}", "got {}"),
        ("{ref} {0}", "got {0}"),
        ("{ref} {tool.name}", "got {tool.name}"),
        ("{ref} {tool[0]}", "got {tool[0]}"),
        ("{ref} {tool!r}", "got {tool!r}"),
        ("{ref} {chars:,}", "got {chars:,}"),
        ("{ref} {", "double a brace"),
        ("{ref} }", "double a brace"),
        ("{preview} {ref} {summary}", "on the same side of {ref}"),
        ("id{ref}", "{ref} must be between"),
        ("{ref}.", "{ref} must be between"),
        ("{tool}{ref}", "{ref} must be between"),
        ("{ref}{preview}", "{ref} must be between"),
        ("\ud800 {ref}", "must be valid Unicode"),
        (7, "must be a string, got int"),
    ],
)
def test_a_template_that_cannot_work_is_refused_with_what_would_be_right(template: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TemplateRenderer(template)
    assert said in str(caught.value)


# Texts that look like parts of the templates, with refs of their own.
LURES = [t.replace("{ref}", "a" * 10).replace("{", "").replace("}", "") for t in TEMPLATES]
hostile = st.lists(
    st.sampled_from([*LURES, "a" * 10, " id ", "]", "\n", '" tool="', "[", "(", ")", " 1 "])
    | st.text(max_size=9)
).map("".join)
refs = st.from_regex("[a-z]{10,20}|[0-9a-z]{5,6}", fullmatch=True)


@pytest.mark.parametrize("template", TEMPLATES)
@given(tool=st.none() | hostile, shown=hostile, summary=st.none() | hostile, ref=refs)
def test_the_ref_is_found_whatever_tools_and_previews_hold(
    template: str, tool: str | None, shown: str, summary: str | None, ref: str
) -> None:
    renderer = TemplateRenderer(template)
    text = renderer.render(facts(tool, shown, ref, summary=summary))
    assert renderer.find_ref(text) == ref
    assert text.encode().decode() == text


@pytest.mark.parametrize("template", [BRIEF, BARE, BRACES])
def test_a_text_that_the_template_did_not_make_has_no_ref(template: str) -> None:
    renderer = TemplateRenderer(template)
    made = renderer.render(facts())
    assert renderer.find_ref(made) == REF
    for text in ("", "Plain", f" {made}", f"{made} ", made.replace(REF, REF.upper()), "x" * 10**6):
        assert renderer.find_ref(text) is None


def test_what_left_under_a_template_comes_back_on_another_machine(tmp_path: Path) -> None:
    renderer = TemplateRenderer(BRIEF)
    out = Offloader(tmp_path, session="s", placeholder=renderer).offload([message()])

    left = out.messages[0]["content"][0]["content"]
    assert left.startswith("[tool_result gave 10500 characters, 500 lines. ")
    assert left.endswith(f" id {out.records[0].ref}]")
    assert Offloader(tmp_path, session="s", placeholder=renderer).restore(out.messages) == [message()]


def test_a_template_that_is_longer_than_the_text_never_replaces_it(tmp_path: Path) -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
    wordy = TemplateRenderer("{ref} " + "words " * 2000)

    out = Offloader(tmp_path, policy=policy, placeholder=wordy).offload([message()])

    assert out.messages == [message()]
    assert out.records == []


class OneWord(TemplateRenderer):
    """Finds no ref that begins with a letter of the first half of the alphabet."""

    def find_ref(self, text: str) -> str | None:
        ref = super().find_ref(text)
        return ref if ref is None or ref[0] > "m" else None


def test_an_item_whose_placeholder_would_not_be_found_stays_and_the_others_leave(tmp_path: Path) -> None:
    results = [message(f"{n}\n{LONG}") for n in range(12)]
    off = Offloader(tmp_path, session="s", placeholder=OneWord("<{ref}>"))

    out = off.offload(results)

    assert 0 < len(out.errors) < 12
    assert len(out.records) == 12 - len(out.errors)
    assert off.restore(out.messages) == results


class Forgetful:
    """Renders a text in which it finds another ref, or none, or fails."""

    def __init__(self, found: str | None) -> None:
        self.found = found

    def render(self, facts: PlaceholderFacts) -> str:
        return f"<{facts.ref}>"

    def find_ref(self, text: str) -> str | None:
        if self.found == "raises":
            raise ValueError(text[:9])
        return self.found if text.startswith("<") else None


@pytest.mark.parametrize("found", [None, "aaaaaaaaaa", "raises"])
def test_a_renderer_that_breaks_its_promise_loses_nothing_and_is_reported(
    tmp_path: Path, found: str | None
) -> None:
    out = Offloader(tmp_path, session="s", placeholder=Forgetful(found)).offload([message()])

    assert out.messages == [message()]
    assert out.records == []
    assert len(out.errors) == 1
    assert not list(tmp_path.rglob("*.zst"))
