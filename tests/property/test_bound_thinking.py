"""Drawn conversations with a provider that binds or requires thinking: none is refused, all is restored."""

from __future__ import annotations

import copy
from typing import Any

from binding import MODEL, Binding, Requiring
from hypothesis import example, given, strategies as st
from strength import examples

from offload import Offloader, OffloadPolicy, Rule, Sweep

Json = dict[str, Any]

POLICIES = [
    OffloadPolicy(),
    OffloadPolicy.preset("economy"),
    OffloadPolicy.preset("archive"),
    OffloadPolicy(history="append_only"),
    # Asked for by name: these change what was sent, and remove the thinking behind it.
    OffloadPolicy(tools={"*": Rule(min_tokens=50, after_replies=1, keep_recent=2, preview_chars=0)}),
    OffloadPolicy(sweep=Sweep(trigger_tokens=3000, keep_recent=1)),
    OffloadPolicy(max_view_tokens=2000),
]
PROVIDERS = {MODEL: Binding, "kimi-k3": Requiring}
SIZES = (0, 40, 900, 3000, 9000, 30_000)
TOOLS = ("Read", "Bash", "search")


class Conversation:
    """A host, its messages, and a provider that checks each request."""

    def __init__(self, policy: OffloadPolicy, model: str) -> None:
        self.policy, self.model = policy, model
        self.off = Offloader("memory://", session="s", model=model, policy=policy, journal=True)
        self.provider = PROVIDERS[model]()
        self.messages: list[Json] = []
        self.calls = self.texts = 0

    def text(self, size: int) -> str:
        self.texts += 1
        return f"{self.texts} " + "\n".join(f"{n}: name_{self.texts}_{n}" for n in range(size // 14))

    def opened(self, **options: Any) -> Offloader:
        return Offloader(self.off.store, session="s", model=self.model, policy=self.policy, **options)

    def restart(self) -> None:
        self.off = self.opened(journal=True)

    def ask(self, blocks: int, calls: int) -> None:
        """Send a request and append the reply, with so many blocks of thinking and tool calls."""
        out = self.off.offload(self.messages)
        assert out.errors == [] or all(type(e).__name__ == "AboveCeilingError" for e in out.errors)
        self.provider.check(out.messages)
        new = Offloader(self.off.store, session="s", model=self.model, policy=self.policy).offload(
            self.messages
        )
        assert new.messages == out.messages, "a new process sends the same"
        assert Offloader(self.off.store, session="s", model=self.model).restore(out.messages) == self.messages
        signatures = self.provider.sign(out.messages, blocks=blocks)
        content: list[Json] = [{"type": "thinking", "thinking": "so", "signature": s} for s in signatures]
        content.append({"type": "text", "text": self.text(40)})
        for _ in range(calls):
            self.calls += 1
            tool = TOOLS[self.calls % len(TOOLS)]
            content.append({"type": "tool_use", "id": f"toolu_{self.calls}", "name": tool, "input": {"a": 1}})
        self.messages.append({"role": "assistant", "content": content})

    def answer(self, sizes: list[int]) -> None:
        """Append the results of the last calls, and a text of the user if there are none."""
        last = self.messages[-1]["content"] if self.messages else []
        made = [block["id"] for block in last if block["type"] == "tool_use"]
        content: list[Json] = [
            {"type": "tool_result", "tool_use_id": call, "content": self.text(size)}
            for call, size in zip(made, sizes, strict=False)
        ]
        self.messages.append({"role": "user", "content": content or self.text(sizes[0])})

    def edit(self, place: float) -> None:
        """Change a message of the host's before the last request."""
        self.messages = copy.deepcopy(self.messages)
        users = [m for m in self.messages if m["role"] == "user"][:-2]
        if not users:
            return
        message = users[int(place * (len(users) - 1))]
        if isinstance(message["content"], str):
            message["content"] += " (edited)"
        else:
            message["content"][0]["content"] += " (edited)"

    def trim(self) -> None:
        """Drop the first message, and the messages up to the next text of the user."""
        starts = [at for at, m in enumerate(self.messages) if isinstance(m["content"], str)]
        if starts[1:]:
            self.messages = self.messages[starts[1] :]

    def mark(self) -> None:
        """Move the mark of the cache to the last message."""
        self.messages = copy.deepcopy(self.messages)
        for message in self.messages:
            for block in message["content"] if isinstance(message["content"], list) else ():
                block.pop("cache_control", None)
        last = self.messages[-1]["content"]
        if isinstance(last, list):
            last[-1]["cache_control"] = {"type": "ephemeral"}


turns = st.tuples(
    st.integers(0, 2),
    st.integers(0, 3),
    st.lists(st.sampled_from(SIZES), min_size=3, max_size=3),
    st.sampled_from(["", "", "", "restart", "edit", "mark", "edit restart", "trim restart"]),
    st.floats(0, 1),
)


SWEPT = [
    (0, 1, [3000, 0, 0], "", 0.0),
    (1, 2, [900, 30_000, 0], "", 0.0),
    (0, 0, [0, 0, 0], "edit", 0.0),
    (0, 2, [0, 900, 0], "", 0.0),
    (0, 2, [900, 30_000, 0], "", 0.0),
]


# A sweep nearly due, once the tokens of removed thinking are counted.
@example(policy=POLICIES[6], model=MODEL, drawn=SWEPT)
@examples(40)
@given(
    policy=st.sampled_from(POLICIES),
    model=st.sampled_from([*PROVIDERS]),
    drawn=st.lists(turns, min_size=2, max_size=9),
)
def test_no_request_is_refused_and_everything_is_restored(
    policy: OffloadPolicy, model: str, drawn: list[Any]
) -> None:
    conversation = Conversation(policy, model)
    conversation.answer([3000])
    for blocks, calls, sizes, event, place in drawn:
        conversation.ask(blocks, calls)
        conversation.answer(sizes)
        if "edit" in event:
            conversation.edit(place)
        if "trim" in event:
            conversation.trim()
        if "mark" in event:
            conversation.mark()
        if "restart" in event:
            conversation.restart()
    conversation.ask(0, 0)
