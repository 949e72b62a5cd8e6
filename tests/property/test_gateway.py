"""Rewriting a request changes the replaced texts and no other character, however it is spelled."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, strategies as st
from strength import examples

from offload import Offloader, OffloadPolicy, Rule, estimate_tokens
from offload.gateway._edits import edited
from offload.gateway._incoming import APIS
from offload.gateway._parsed import read_request
from offload.gateway._spans import Edit, Places, body_of, replaced, text_of
from offload.gateway._threads import policy_for

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
SEEN_ONCE = OffloadPolicy(types={"tool_result": Rule(min_tokens=1500)})
spaces = st.text("\t\n\r ", max_size=2)


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    """One of the spellings of a JSON value."""
    around = draw(spaces)
    if isinstance(value, dict):
        parts = [f"{draw(spelled(name))}:{draw(spelled(part))}" for name, part in value.items()]
        return f"{around}{{{draw(spaces)}{','.join(parts)}}}{around}"
    if isinstance(value, list):
        return f"{around}[{draw(spaces)}{','.join(draw(spelled(part)) for part in value)}]{around}"
    return f"{around}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{around}"


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for step, part in inner for found in paths_in(part, (*path, step)))]


@examples(50)
@given(st.data())
def test_the_place_of_a_value_is_its_text_and_nothing_around_it(data):
    value = data.draw(values)
    text = text_of(data.draw(spelled(value)).encode())
    path = data.draw(st.sampled_from(paths_in(value)))

    start, end, before = Places(text).find(0, path)

    for step in path:
        value = value[step]
    assert json.loads(body_of(text[start:end])) == value
    assert text[start:end].strip("\t\n\r ") == text[start:end]
    assert before <= start
    new = replaced(text, [Edit(start, end, '"new"')])
    assert (new[:start], new[start + 5 :]) == (text[:start], text[end:])


@examples(15)
@given(st.data())
def test_a_request_in_any_spelling_differs_in_the_replaced_results_only(data):
    line = data.draw(st.text(min_size=1, max_size=20))
    logs = [f"{line}\n" * 1200 + str(n) for n in range(2)]
    # Runs of some characters are few tokens.
    assume(min(map(estimate_tokens, logs)) > 2000)
    messages: list[Any] = [{"role": "user", "content": "go"} | data.draw(extra_fields)]
    for n, log in enumerate(logs):
        use = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": data.draw(values)}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": log} | data.draw(extra_fields)
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    whole = {"messages": messages, "tools": [{"name": "Bash"}]} | data.draw(extra_fields)
    text = text_of(data.draw(spelled(whole)).encode())
    request = read_request(body_of(text), APIS[0])
    assert request is not None
    off = Offloader("memory://", session="s", policy=policy_for(SEEN_ONCE, APIS[0]))

    after = edited(request, off.offload(request.views).messages).body()

    new = json.loads(after)["messages"][2]["content"][0]["content"]
    assert new.startswith("[Offloaded: ")
    start, end, _ = Places(text).find(0, ("messages", 2, "content", 0, "content"))
    assert text_of(after) == text[:start] + json.dumps(new) + text[end:]


@examples(60)
@given(st.data())
def test_a_request_that_repeats_another_is_read_as_if_it_were_alone(data):
    words = st.sampled_from(["a", "b", "<system-reminder>x</system-reminder>"])
    blocks = st.builds(lambda text: {"type": "tool_result", "tool_use_id": "t", "content": text}, words)
    message = st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        words | st.lists(blocks, max_size=2),
    )
    lists = st.lists(message | st.integers(0, 200), max_size=6)
    first, more = data.draw(lists), data.draw(lists)
    kept = first[: data.draw(st.integers(0, len(first)))]
    head = data.draw(st.sampled_from([{}, {"model": "m"}]))
    bodies = [json.dumps(head | {"messages": m, "tools": [{"name": "x"}]}) for m in (first, kept + more)]
    before = read_request(bodies[0].encode(), APIS[0])

    alone = read_request(bodies[1].encode(), APIS[0])
    after = read_request(bodies[1].encode(), APIS[0], [] if before is None else [before])

    assert after == alone


extra_fields = st.dictionaries(texts.map("x-{}".format), values, max_size=2)
