"""Pairs of replies, with and without offloading, as objects of a session: deleted and encrypted with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, get_args

from offload.engine.policy import OffloadPolicy
from offload.engine.policy.facts import PolicyName
from offload.errors import CorruptError, NotFoundError, OffloadError
from offload.records.record.digested import check_digest, undigested, with_digest
from offload.replay._actions import HiddenItem
from offload.replay._agreement import Same
from offload.storage.layout import CALLS, SHADOW, encode_part, name_of, random_letters
from offload.storage.store import OffloadStore, check_plain, get_many

_NOT_OF_RULES = {"cache", "retention"}


@dataclass(frozen=True, slots=True)
class ShadowPair:
    """A request with offloading, compared with the original one, which was sent twice.

    Attributes:
        time: when, in seconds since the epoch.
        model: the model; empty if it is not known.
        policy: the name of the policy; "custom" for one without a name.
        hidden: the items that the request has as placeholders; of more than 100, the youngest.
        offload: the next action with offloading, in its normal form; `original` and `again` those without.
        same: which of them are the same; None if there is no pair.
        dollars: the price of the two original requests and their replies; of one that was asked for and did
            not arrive, its estimate.
        lost: why there is no pair; empty if there is one.
        is_bare: whether the originals were sent without the model's signed thinking, since the provider
            refuses thinking that was made behind a placeholder.
    """

    time: float
    model: str
    policy: str
    hidden: Sequence[HiddenItem] = ()
    offload: str = ""
    original: str = ""
    again: str = ""
    same: Same | None = None
    dollars: float = 0.0
    lost: str = ""
    is_bare: bool = False

    def compared(self, offload: str, original: str, again: str) -> ShadowPair:
        """Return the pair with its actions, which are compared here."""
        same = Same(offload == original, offload == again, original == again)
        return replace(self.showing(offload, original, again), same=same)

    def showing(self, offload: str, original: str, again: str) -> ShadowPair:
        """Return the pair with what may be shown of its actions."""
        return replace(self, offload=offload, original=original, again=again)


def put_pair(store: OffloadStore, session: str, pair: ShadowPair) -> None:
    """Store a pair, whose texts were redacted. Raises `StoreError`."""
    key = SHADOW.key(session=encode_part(session), letters=random_letters())
    body = undigested(json.dumps(asdict(pair), separators=(",", ":")).encode())
    store.put(key, with_digest(body, name_of(key)))


def pairs_in(store: OffloadStore, session: str | None = None) -> Iterator[ShadowPair]:
    """Yield the pairs of a session, or of all; of a damaged one only that it is lost. Raises `StoreError`."""
    listed = store.keys(CALLS.prefix("" if session is None else encode_part(session)))
    keys = [stored.key for stored in listed if SHADOW.match(stored.key)]
    for key, data in zip(keys, get_many(store, keys), strict=True):
        if isinstance(data, NotFoundError):
            # It was deleted after it was listed.
            continue
        if isinstance(data, OffloadError) and not isinstance(data, CorruptError):
            raise data
        yield _parsed(key, data) if isinstance(data, bytes) else _DAMAGED


def _parsed(key: str, data: bytes) -> ShadowPair:
    check_plain(data, key)
    try:
        check_digest(data, name_of(key))
        fields = json.loads(data)
        del fields["sha256"]
        hidden = [HiddenItem(*one) for one in fields.pop("hidden")]
        same = fields.pop("same")
        return ShadowPair(**fields, hidden=hidden, same=None if same is None else Same(*same))
    except (CorruptError, ValueError, LookupError, TypeError):
        return _DAMAGED


_DAMAGED = ShadowPair(0.0, "", "", lost="its object is damaged")


def name_of_policy(policy: OffloadPolicy) -> str:
    """Return the name of a policy; "custom" if no preset has its rules."""
    rules = policy.model_dump(exclude=_NOT_OF_RULES)
    return next((name for name, known in _presets().items() if known == rules), "custom")


@cache
def _presets() -> dict[str, dict[str, Any]]:
    names = get_args(PolicyName)
    return {name: OffloadPolicy.preset(name).model_dump(exclude=_NOT_OF_RULES) for name in names}
