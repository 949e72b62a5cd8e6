"""Whether offloading changes what a model does next: replies with it, and replies to original requests.

report = shadow(Offloader("./context", session="research-42"), ask)
print(report.verdict)
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offload import Offloader
from offload.errors import ConfigError, OffloadError, check_number
from offload.messages.anthropic import AnthropicAdapter
from offload.messages.formats import adapter_for, scan_of
from offload.messages.openai_chat import OpenAIChatAdapter
from offload.messages.openai_responses import OpenAIResponsesAdapter
from offload.replay._actions import action_of, hidden_items
from offload.replay._agreement import LEAST_PAIRS, Agreement, agreement_of
from offload.replay._pairs import ShadowPair, name_of_policy
from offload.replay._senders import Answered, exchange

# A message list → the reply: its text, its message, or its messages.
ShadowClient = Callable[[list[Any]], Any]
# After more read-backs in a row, none is answered.
MOST_ROUNDS = 20
_AGES = ((1, "up to 1 reply"), (5, "2 to 5 replies"), (20, "6 to 20 replies"))
_OLDEST = "more than 20 replies"
_FORMATS = (AnthropicAdapter.name, OpenAIChatAdapter.name, OpenAIResponsesAdapter.name)


class _NoActionError(Exception):
    """A reply after which no action follows."""


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The pairs of some requests, and how often they agree.

    Attributes:
        found: all requests that were drawn, also those without a pair.
    """

    found: Sequence[ShadowPair]

    @property
    def pairs(self) -> list[ShadowPair]:
        """The requests with three replies."""
        return [pair for pair in self.found if pair.same is not None]

    @property
    def lost(self) -> dict[str, int]:
        """The number of requests without a pair, by the reason."""
        return dict(Counter(pair.lost for pair in self.found if pair.same is None).most_common())

    @property
    def dollars(self) -> float:
        """The price of what was sent in addition, where it is known."""
        return sum(pair.dollars for pair in self.found)

    @property
    def agreement(self) -> Agreement:
        """The agreement of all pairs."""
        return _agreement(self.pairs)

    @property
    def disagreements(self) -> list[ShadowPair]:
        """The pairs whose reply with offloading has another action than both originals."""
        return [pair for pair in self.pairs if pair.same and not (pair.same.original or pair.same.again)]

    @property
    def groups(self) -> dict[str, dict[str, Agreement]]:
        """The agreement by policy, by hidden tool, and by the age of the youngest hidden item.

        In addition that of pairs whose originals have no thinking, see `ShadowPair.is_bare`.

        A pair counts for each tool of which it hides an item.
        """
        names: dict[str, Callable[[ShadowPair], Iterable[str]]] = {
            "policy": lambda pair: [pair.policy],
            "tool": lambda pair: {item.tool for item in pair.hidden},
            "age": lambda pair: [_age(min((item.age for item in pair.hidden), default=0))],
            "thinking": lambda pair: ["not in the originals"] if pair.is_bare else [],
        }
        groups = {kind: _grouped(self.pairs, of) for kind, of in names.items()}
        return {kind: some for kind, some in groups.items() if some}

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        found = self.agreement
        if not found.is_enough:
            return f"too few pairs to say: {found.pairs} of at least {LEAST_PAIRS}"
        if found.low > 0:
            return f"offloading changes the next action in {found.low:.1%} to {found.high:.1%} of requests"
        most = max(0.0, found.high)
        return f"no change shown: offloading changes the next action in at most {most:.1%} of requests"


def shadow(
    session: Offloader, client: ShadowClient, *, share: float = 1.0, most: int = 100, seed: int = 0
) -> ShadowReport:
    """Compare the replies to the requests of a session's journal with those to the original requests.

    Each request in which items are replaced is sent three times: as it was sent, and twice with its original
    messages, in an order that is drawn. If the model reads items back, it gets the answers, and its next
    reply counts. Nothing is stored.

    Args:
        session: has the journal.
        client: sends messages to the model, with the tools of the agent and of `session`, and returns its
            reply: the text, the message, or the messages. An error that it raises costs a pair.
        share: the share of the requests that is drawn.
        most: the largest number of requests that is drawn.
        seed: of the draw.

    Raises:
        ConfigError: an argument is out of its range, or the session has no journal.
        StoreError: the store failed.
    """
    check_number("share", share, 0, is_whole=False)
    if not 0 < share <= 1:
        raise ConfigError(f"share must be above 0 and at most 1, got {share!r:.40}")
    check_number("most", most, 1)
    drawn, found, timeline = random.Random(seed), list[ShadowPair](), session.timeline()  # noqa: S311 # a draw
    if not timeline:
        raise ConfigError(f"session {session.session!r} has no requests: Offloader(journal=True) keeps them")
    policy = name_of_policy(session.policy)
    for request in timeline:
        if len(found) == most:
            break
        pair = ShadowPair(request.time.timestamp(), request.model or "", policy)
        try:
            sent = timeline.at(request.number)
            original = session.restore(sent)
        except OffloadError as error:
            found.append(replace(pair, lost=type(error).__name__))
            continue
        if original != sent and drawn.random() < share:
            pair = replace(pair, hidden=hidden_items(original, sent))
            found.append(_compared(session, client, pair, [sent, original, original], drawn))
    return ShadowReport(found)


def _compared(
    session: Offloader,
    client: ShadowClient,
    pair: ShadowPair,
    lists: Sequence[list[Any]],
    drawn: random.Random,
) -> ShadowPair:
    actions = ["", "", ""]
    try:
        for place in drawn.sample(range(3), 3):
            actions[place] = _played(session, client, [*lists[place]])
    except Exception as error:  # noqa: BLE001 # a client may raise anything
        return replace(pair, lost=str(error) if isinstance(error, _NoActionError) else type(error).__name__)
    return pair.compared(*actions)


def _played(session: Offloader, client: ShadowClient, messages: list[Any]) -> str:
    """Return the next action after messages; reads of items are answered until one follows."""
    for _ in range(MOST_ROUNDS):
        reply = client(messages)
        said = reply if isinstance(reply, list | tuple) else [reply]
        if not (isinstance(reply, str) or any(scan_of(message).is_reply for message in said)):
            raise _NoActionError(f"the client returned no reply, but {type(reply).__name__}")
        if (action := action_of(reply)) is not None:
            return action
        messages = [*messages, *_answered(session, reply)]
    raise _NoActionError("the model reads back without end")


def _answered(session: Offloader, reply: Any) -> list[Any]:
    """Return the messages of a reply that reads items back, and the answers to its calls."""
    said = [*reply] if isinstance(reply, list | tuple) else [reply]
    kind = adapter_for(said[-1]).name
    if kind not in _FORMATS:
        raise _NoActionError(f"read-backs are not followed in the format {kind}")
    calls = [made for message in said for made in scan_of(message).calls]
    answers = [
        Answered(call_id, call.name, call.fields, session.tools.call(_own_name(call.name), dict(call.fields)))
        for call_id, call in calls
    ]
    made = exchange(kind, *answers)
    return [*said, *made[len(calls) if kind == OpenAIResponsesAdapter.name else 1 :]]


def _own_name(name: str) -> str:
    """Return the name of a retrieval tool without the prefix of a client."""
    return f"context_{name.rpartition('context_')[2]}"


def _agreement(pairs: Iterable[ShadowPair]) -> Agreement:
    return agreement_of(pair.same for pair in pairs if pair.same is not None)


def _grouped(
    pairs: Sequence[ShadowPair], names: Callable[[ShadowPair], Iterable[str]]
) -> dict[str, Agreement]:
    by_name: Mapping[str, list[ShadowPair]] = defaultdict(list)
    for pair in pairs:
        for name in names(pair):
            by_name[name].append(pair)
    return {name: _agreement(some) for name, some in sorted(by_name.items(), key=lambda one: -len(one[1]))}


def _age(replies: int) -> str:
    return next((name for most, name in _AGES if replies <= most), _OLDEST)
