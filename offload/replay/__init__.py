"""Recorded conversations under a policy, offline: tokens, read-backs, and cost of the input.

    for file in find([Path("~/.claude/projects").expanduser()]):
        for transcript in load(file):
            found = replay(transcript, OffloadPolicy.preset("economy"))
            print(found.transcript.name, found.dollars_plain, found.dollars, found.bill.quotes_gone)

`measure` gives the price of any way to send a conversation, a `Sender`; `replay_journal` the price of a
session that an agent had, from its journal. `shadow` asks a model whether offloading changes what it does.
"""

from offload.replay._actions import HiddenItem as HiddenItem
from offload.replay._agreement import Agreement as Agreement, Same as Same
from offload.replay._bill import Bill as Bill, SentTexts as SentTexts, measure as measure
from offload.replay._counts import Cause as Cause, CountCheck as CountCheck, check_counts as check_counts
from offload.replay._files import find as find, load as load
from offload.replay._journal import Account as Account, replay_journal as replay_journal
from offload.replay._names import tokens_of as tokens_of
from offload.replay._needs import Need as Need
from offload.replay._pairs import ShadowPair as ShadowPair, pairs_in as pairs_in
from offload.replay._prices import (
    DEFAULT_MODEL as DEFAULT_MODEL,
    PriceCard as PriceCard,
    PriceFile as PriceFile,
    Prices as Prices,
)
from offload.replay._recording import Recording as Recording, Request as Request
from offload.replay._replay import Replay as Replay, replay as replay
from offload.replay._requests import RequestCost as RequestCost, costs_of as costs_of
from offload.replay._senders import Offloading as Offloading, Sender as Sender, Untouched as Untouched
from offload.replay._shadow import ShadowReport as ShadowReport, shadow as shadow
from offload.replay._transcripts import Answer as Answer, Transcript as Transcript
