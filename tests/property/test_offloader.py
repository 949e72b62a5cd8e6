"""A conversation that grows, is edited, rolled back, handed back and restarted: what holds at every step."""

from __future__ import annotations

import copy
import json

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from strength import examples

from offload import Offloader, OffloadPolicy, Rule
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(
    types={
        "tool_result": Rule(min_chars=400, preview_chars=80),
        "user_message": Rule(min_chars=600, after_replies=1),
    },
    tools={"read": Rule(min_chars=300, preview_chars=80, after_replies=1)},
    min_saving=0,
)
words = st.text(st.sampled_from("ab1 é\n\ud800[]"), max_size=12)
texts = st.builds(lambda word, n: f"{n}{word}" * n, words, st.sampled_from([1, 20, 90, 300]))
tools = st.sampled_from(["Bash", "read", "context_read"])
call_ids = st.sampled_from(["call_0", "call_1", ""])
IMAGE = {"type": "image", "source": {"type": "base64", "data": "aGk="}}
contents = texts | st.lists(texts.map(lambda t: {"type": "text", "text": t}) | st.just(IMAGE), max_size=3)


class Conversation(RuleBasedStateMachine):
    """One session; `messages` is what the agent keeps, `sent` what it sent last."""

    @initialize()
    def begin(self):
        self.store = MemoryStore("memory://")
        self.off = self.open()
        self.messages = []
        self.sent = []
        self.returned = []
        self.is_rolled_back = False

    def open(self):
        return Offloader(self.store, session="s", policy=POLICY)

    @rule(name=tools, call_id=call_ids, content=contents, is_error=st.booleans())
    def anthropic_result(self, name, call_id, content, is_error):
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        if is_error:
            block["is_error"] = True
        use = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        self.messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]

    @rule(name=tools, call_id=call_ids, content=texts)
    def openai_result(self, name, call_id, content):
        use = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": [use]},
            {"role": "tool", "tool_call_id": call_id, "content": content},
        ]

    @rule(role=st.sampled_from(["user", "assistant"]), text=texts)
    def say(self, role, text):
        self.messages.append({"role": role, "content": text})

    @rule(text=texts)
    def add_a_block_to_the_last_message(self, text):
        if self.messages and isinstance(self.messages[-1]["content"], list):
            self.messages[-1]["content"].append({"type": "text", "text": text})

    @rule(n=st.integers(0, 20))
    def mark_a_block_in_place(self, n):
        lists = [m["content"] for m in self.messages if isinstance(m["content"], list) and m["content"]]
        if lists:
            block = lists[n % len(lists)][-1]
            if block is not IMAGE:
                block["cache_control"] = {"type": "ephemeral", "n": n}

    @rule(n=st.integers(0, 5))
    def roll_back(self, n):
        # What the model had answered to, and so has gone, stays gone here; a new process sees it unanswered.
        self.is_rolled_back = True
        del self.messages[max(0, len(self.messages) - n) :]

    @rule()
    def parse_again(self):
        self.messages = json.loads(json.dumps(self.messages))

    @rule()
    def restart(self):
        self.off, self.returned = self.open(), []

    @precondition(lambda self: self.sent)
    @rule()
    def go_on_with_what_was_sent(self):
        self.messages = list(self.sent)

    @invariant()
    def everything_comes_back(self):
        if not hasattr(self, "off"):
            return
        whole = self.off.restore(self.messages)
        before = copy.deepcopy(self.messages)
        out = self.off.offload(self.messages)
        self.sent = out.messages

        assert out.errors == []
        assert out.messages[: out.unchanged] == self.returned[: out.unchanged]
        self.returned = copy.deepcopy(out.messages)
        assert self.messages == before
        assert all(a is b for a, b in zip(self.messages, out.messages, strict=True) if a == b)
        assert self.off.restore(out.messages) == whole
        assert self.open().restore(out.messages) == whole
        assert out.tokens_after <= out.tokens_before
        if not self.is_rolled_back:
            fresh = self.open().offload(self.messages)
            assert fresh.messages == out.messages
            assert (fresh.tokens_before, fresh.tokens_after) == (out.tokens_before, out.tokens_after)


TestConversation = Conversation.TestCase
TestConversation.settings = examples(60, stateful_step_count=25)
