"""Recorded conversations under a policy, offline: tokens, read-backs, and cost of the input.

    for file in find([Path("~/.claude/projects").expanduser()]):
        for transcript in load(file):
            found = replay(transcript, OffloadPolicy.preset("economy"))
            print(found.transcript.name, found.dollars_plain, found.dollars, found.bill.quotes_gone)

`measure` gives the price of any way to send a conversation, a `Sender`; `replay_journal` the price of a
session that an agent had, from its journal. `shadow` asks a model whether offloading changes what it does.
"""

from offload.replay._actions import HiddenItem
from offload.replay._agreement import Agreement, Same
from offload.replay._bill import Bill, SentTexts, measure
from offload.replay._counts import Cause, CountCheck, Prediction, check_counts
from offload.replay._files import find, load
from offload.replay._journal import Account, replay_journal
from offload.replay._needs import EditQuote, Need, tokens_of
from offload.replay._pairs import ShadowPair, pairs_in
from offload.replay._prices import DEFAULT_MODEL, PriceCard, PriceFile, Prices
from offload.replay._recording import Recording, Request
from offload.replay._replay import Replay, replay
from offload.replay._requests import RequestCost, costs_of
from offload.replay._senders import Offloading, Sender, Untouched
from offload.replay._shadow import ShadowReport, shadow
from offload.replay._transcripts import Answer, Transcript

__all__ = [
    "DEFAULT_MODEL",
    "Account",
    "Agreement",
    "Answer",
    "Bill",
    "Cause",
    "CountCheck",
    "EditQuote",
    "HiddenItem",
    "Need",
    "Offloading",
    "Prediction",
    "PriceCard",
    "PriceFile",
    "Prices",
    "Recording",
    "Replay",
    "Request",
    "RequestCost",
    "Same",
    "Sender",
    "SentTexts",
    "ShadowPair",
    "ShadowReport",
    "Transcript",
    "Untouched",
    "check_counts",
    "costs_of",
    "find",
    "load",
    "measure",
    "pairs_in",
    "replay",
    "replay_journal",
    "shadow",
    "tokens_of",
]
