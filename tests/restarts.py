"""Conversations that a process which never ends and a chain of new processes send: both must send the same.

`POLICIES` has a policy for each field of a policy and of its parts, and one for each named policy; a test
compares its names with the fields, so that a new field fails it until it is here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from offload import Offloader, OffloadPolicy, Rule, Sweep
from offload.engine.policy import CacheModel
from offload.engine.policy.facts import PolicyName
from offload.errors import OffloadError
from offload_backends.memory import MemoryStore

Json = dict[str, Any]

_RESULTS = {"tool_result": Rule(min_tokens=200)}
_SMALL: dict[str, Any] = {"min_tokens": 200, "preview_chars": 100}


def _rule(**fields: Any) -> OffloadPolicy:
    """Return a policy with one rule for all results."""
    if not fields.keys() & {"min_chars", "min_bytes"}:
        fields = {"min_tokens": 200, **fields}
    return OffloadPolicy(tools={"*": Rule(**fields)})


def _sweep(**fields: Any) -> OffloadPolicy:
    return OffloadPolicy(sweep=Sweep(**{"trigger_tokens": 2000, "keep_recent": 1, **fields}))


def _cache(**fields: Any) -> OffloadPolicy:
    return OffloadPolicy.model_validate({"preset": "economy", "cache": fields})


def _late(**fields: Any) -> OffloadPolicy:
    """Return a policy whose results leave late."""
    return OffloadPolicy(
        types={"tool_result": Rule(min_tokens=900, after_replies=1, preview_chars=100)}, **fields
    )


POLICIES: dict[str, list[OffloadPolicy]] = {
    "OffloadPolicy.types": [
        OffloadPolicy(types={name: Rule(**_SMALL, after_replies=1) for name in ("tool_result", "tool_call")}),
        OffloadPolicy(
            types={name: Rule(**_SMALL) for name in ("user_message", "assistant_message", "system_prompt")}
        ),
    ],
    "OffloadPolicy.tools": [_rule(), OffloadPolicy(tools={"B*": Rule(**_SMALL, after_replies=1)})],
    "OffloadPolicy.exclude_tools": [OffloadPolicy(types=_RESULTS, exclude_tools=("Bash",))],
    "OffloadPolicy.file_readers": [
        OffloadPolicy(types=_RESULTS, file_readers=Rule(min_tokens=100, after_replies=2))
    ],
    "OffloadPolicy.answers": [
        OffloadPolicy(types=_RESULTS, answers=Rule(**_SMALL, after_replies=n)) for n in (1, 2)
    ],
    "OffloadPolicy.max_view_tokens": [
        OffloadPolicy(max_view_tokens=700),
        _late(max_view_tokens=1000),
        _late(max_view_tokens=None),
    ],
    "OffloadPolicy.tool_media": [OffloadPolicy(tool_media=Rule(min_tokens=10, after_replies=1))],
    "OffloadPolicy.user_media": [OffloadPolicy(user_media=Rule(min_tokens=10, after_replies=1))],
    "OffloadPolicy.min_saving": [OffloadPolicy(types=_RESULTS, min_saving=0), _late(min_saving=400)],
    "OffloadPolicy.sweep": [_sweep()],
    "OffloadPolicy.retention": [OffloadPolicy.model_validate({"retention": {"session_records": 2}})],
    "OffloadPolicy.cache": [OffloadPolicy.model_validate({"cache": "gpt-6-sol"})],
    "OffloadPolicy.history": [
        OffloadPolicy.model_validate({"history": name, "file_readers": {**_SMALL, "after_replies": 1}})
        for name in ("auto", "append_only", "editable", "rewrite")
    ],
    "OffloadPolicy.cost_plan": [
        OffloadPolicy(types=_RESULTS, cost_plan=name) for name in ("none", "small", "all")
    ],
    "Rule.enabled": [_rule(enabled=False)],
    "Rule.min_tokens": [_rule(min_tokens=100)],
    "Rule.min_chars": [_rule(min_chars=700)],
    "Rule.min_bytes": [_rule(min_bytes=700)],
    "Rule.after_replies": [_rule(after_replies=n) for n in (1, 2, 3)],
    "Rule.keep_recent": [_rule(keep_recent=1), _rule(keep_recent=2, after_replies=1)],
    "Rule.preview_chars": [_rule(preview_chars=n) for n in (0, 3000)],
    "Rule.ttl": [_rule(ttl=3600)],
    "Sweep.trigger_tokens": [_sweep(trigger_tokens=4000)],
    "Sweep.trigger_fraction": [_sweep(trigger_tokens=None, trigger_fraction=0.5, context_tokens=3000)],
    "Sweep.context_tokens": [_sweep(trigger_tokens=None, trigger_fraction=0.1, context_tokens=20_000)],
    "Sweep.target_tokens": [_sweep(target_tokens=n) for n in (1000, 1800)],
    "Sweep.keep_recent": [_sweep(keep_recent=n) for n in (0, 2)],
    "Sweep.clear_at_least": [_sweep(clear_at_least=n) for n in (600, 2000)],
    "CacheModel.read": [_cache(read=0.02), _cache(read=0.5)],
    "CacheModel.write": [_cache(write=1.0), _cache(write=2.0)],
    "CacheModel.ttl": [_cache(ttl=None)],
    "CacheModel.lookback": [_cache(lookback=3, marks=1)],
    "CacheModel.marks": [_cache(marks=n) for n in (1, 2)],
    **{f"preset {name}": [OffloadPolicy.preset(name)] for name in get_args(PolicyName)},
}
FIELDS = {
    f"{part.__name__}.{name}"
    for part in (OffloadPolicy, Rule, Sweep, CacheModel)
    for name in part.model_fields
} | {f"preset {name}" for name in get_args(PolicyName)}

TOOLS = ("Read", "Bash", "search", "context_read", "Bash")
SIZES = (0, 60, 700, 1500, 3200, 9000, 30_000)
# A picture of one pixel.
_PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Chat:
    """The messages of a host, in the form of Anthropic's API, as drawn steps change them."""

    def __init__(self) -> None:
        self.messages: list[Json] = [{"role": "user", "content": "Please look into it. " * 20}]
        self._texts = self._calls = 0

    def text(self, size: int) -> str:
        self._texts += 1
        return f"{self._texts} " + "\n".join(f"{n}: name_{self._texts}_{n}" for n in range(size // 14))

    def reply(self, calls: int, thinking: int, size: int) -> None:
        content: list[Json] = [
            {"type": "thinking", "thinking": "so", "signature": self.text(0) + "x" * 40}
            for _ in range(thinking)
        ]
        content.append({"type": "text", "text": self.text(size)})
        for _ in range(calls):
            self._calls += 1
            name = TOOLS[self._calls % len(TOOLS)]
            made = {"path": f"src/m{self._calls % 3}.py", "text": self.text(size)}
            content.append({"type": "tool_use", "id": f"toolu_{self._calls}", "name": name, "input": made})
        self.messages.append({"role": "assistant", "content": content})

    def answer(self, sizes: Sequence[int]) -> None:
        """Append results for the calls of the last reply, or a text of the user."""
        last = self.messages[-1]["content"] if self.messages else ""
        made = [b["id"] for b in last if b["type"] == "tool_use"] if isinstance(last, list) else []
        content = [
            {
                "type": "tool_result",
                "tool_use_id": call,
                "content": self.result(size),
                **({"is_error": True} if size % 10 == 5 else {}),
            }
            for call, size in zip(made, sizes, strict=False)
        ]
        self.messages.append({"role": "user", "content": content or self.text(sizes[0])})

    def result(self, size: int) -> Any:
        if size != 61:
            return self.text(size)
        source = {"type": "base64", "media_type": "image/png", "data": _PICTURE}
        return [{"type": "text", "text": self.text(700)}, {"type": "image", "source": source}]

    def roll_back(self, count: int) -> None:
        del self.messages[max(1, len(self.messages) - count) :]

    def trim(self, count: int) -> None:
        """Drop the first messages, calls of results that stay among them."""
        del self.messages[: min(count, len(self.messages) - 1)]


turns = st.tuples(
    st.integers(0, 3),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([40, 40, 900, 5000]),
    st.lists(st.sampled_from((*SIZES, 61, 705, 3205)), min_size=3, max_size=3),
    st.sampled_from(["", "", "again", "back", "trim", "edit"]),
    st.integers(1, 6),
)


def steps(drawn: Sequence[Any], *, thinks: bool) -> Iterator[list[Json]]:
    """Yield the host's list for each request of a drawn conversation."""
    chat = Chat()
    yield [*chat.messages]
    for calls, thinking, size, sizes, event, count in drawn:
        chat.reply(calls, thinking if thinks else 0, size)
        yield [*chat.messages]
        chat.answer(sizes)
        yield [*chat.messages]
        if event == "again":
            for _ in range(count):
                chat.roll_back(1)
                chat.answer(sizes[::-1])
                yield [*chat.messages]
        elif event == "back":
            chat.roll_back(count)
            yield [*chat.messages]
        elif event == "trim" and not thinks:
            chat.trim(count)
            yield [*chat.messages]
        elif event == "edit" and not thinks:
            at = min(count, len(chat.messages) - 1)
            chat.messages[at] = {**chat.messages[at], "content": chat.text(900)}
            yield [*chat.messages]


Open = Callable[[MemoryStore], Offloader]


def compare(opened: Open, lists: Iterator[list[Json]]) -> None:
    """Assert that one process and a new one for each list send the same, and store the same records."""
    one, other = MemoryStore(), MemoryStore()
    lasting = opened(one)
    for at, messages in enumerate(lists):
        sent, again = lasting.offload(messages), opened(other).offload(messages)
        assert _dump(sent.messages) == _dump(again.messages), (
            f"request {at}: a new process sends something else"
        )
        assert again.messages == sent.messages
        assert _problems(sent.errors) == _problems(again.errors)
    assert {k.key for k in one.keys("r/")} == {k.key for k in other.keys("r/")}


def _dump(messages: Sequence[Json]) -> list[str]:
    return [json.dumps(message) for message in messages]


def _problems(errors: Sequence[OffloadError]) -> list[str]:
    return [type(error).__name__ for error in errors if type(error).__name__ != "AboveCeilingError"]
