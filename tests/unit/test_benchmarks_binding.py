"""The provider of the benchmarks binds signed thinking as Anthropic's API says that it does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from _binding import HEADER, Binding, RefusedError

from offload.engine.binding import refusal_in

DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def conversation(model: str = "claude-opus-5-5") -> tuple[Binding, dict[str, Any]]:
    """Return a provider and a request with three of its signed replies."""
    provider = Binding()
    user = {"role": "user", "content": [{"type": "text", "text": "Build it."}]}
    request = {"model": model, "system": "s", "tools": [{"name": "a"}, {"name": "b"}], "messages": [user]}
    for n in range(3):
        said = [{"type": "thinking", "thinking": ""}, {"type": "text", "text": f"reply {n}"}]
        reply = {"role": "assistant", "content": provider.sign(request, said)}
        request = {**request, "messages": [*request["messages"], reply, copy.deepcopy(user)]}
    return provider, copy.deepcopy(request)


def unthink(request: dict[str, Any], *indexes: int) -> Any:
    for index in indexes:
        del request["messages"][index]["content"][0]


def change(request: dict[str, Any], index: int) -> Any:
    request["messages"][index]["content"][-1]["text"] = "changed"


VALID = {
    "a cache mark": lambda r: r["messages"][0]["content"][0].update(cache_control={"type": "ephemeral"}),
    "a text for its block": lambda r: r["messages"][0].update(content="Build it."),
    "the order of the tools": lambda r: r["tools"].reverse(),
    "no thinking at the beginning": lambda r: unthink(r, 1),
    "no thinking at the end": lambda r: unthink(r, 5),
    "a change with no thinking behind it": lambda r: unthink(r, 3, 5) or change(r, 2),
}
REFUSED = {
    "the system prompt": (1, lambda r: r.update(system="t")),
    "a tool": (1, lambda r: r["tools"].pop()),
    "a message": (3, lambda r: change(r, 2)),
    "a visible reply": (5, lambda r: change(r, 3)),
    "a gap in the thinking": (5, lambda r: unthink(r, 3)),
}


@pytest.mark.parametrize("name", VALID)
def test_what_may_change_is_accepted(name: str) -> None:
    provider, request = conversation()
    VALID[name](request)
    assert provider.checked(request, {}) == (request, [])


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_change_is_refused_with_the_first_block_behind_it(name: str) -> None:
    first, edit = REFUSED[name]
    provider, request = conversation()
    edit(request)
    with pytest.raises(RefusedError) as caught:
        provider.checked(request, {})
    refusal = refusal_in(str(caught.value))
    assert refusal is not None
    assert refusal.first == first


def test_wrong_thinking_is_dropped_where_the_client_asks_for_it() -> None:
    provider, request = conversation()
    change(request, 2)
    request["thinking"] = DROP
    read, dropped = provider.checked(request, {"anthropic-beta": HEADER})
    assert [one["path"] for one in dropped] == ["messages.3.content.0", "messages.5.content.0"]
    assert [len(message["content"]) for message in read["messages"]] == [1, 2, 1, 1, 1, 1, 1]
    with pytest.raises(RefusedError, match="Extra inputs are not permitted"):
        provider.checked(request, {})


def test_a_forged_signature_is_another_error_and_a_model_that_does_not_check_accepts_all() -> None:
    provider, request = conversation("claude-opus-5")
    change(request, 2)
    assert provider.checked(request, {}) == (request, [])
    provider, request = conversation()
    request["messages"][3]["content"][0]["signature"] = "forged"
    with pytest.raises(RefusedError) as caught:
        provider.checked(request, {})
    assert str(caught.value) == "messages.3.content.0: Invalid `signature` in `thinking` block."
