"""offload: take the large parts of an agent's messages out to a store, and read them back.

from offload import Offloader

off = Offloader("s3://bucket/prefix", session="research-42")
out = off.offload(messages)
off.restore(out.messages) == messages
"""

import logging

from offload.errors import (
    CollisionError,
    ConfigError,
    CorruptError,
    ExistsError,
    ExpiredError,
    InvalidKeyError,
    MessageError,
    MissingExtraError,
    NotFoundError,
    OffloadError,
    PolicyError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
    UnknownSchemeError,
)
from offload.offloader import Offloader, OffloadResult, Stats
from offload.placeholder import PlaceholderFacts, PlaceholderRenderer
from offload.policy import Decision, OffloadPolicy, Rule, explain
from offload.record import RecordInfo
from offload.registry import open_store
from offload.store import OffloadStore, StoredObject
from offload.tokens import TokenCounter, estimate_tokens

# Where logging is not set up a library is silent.
logging.getLogger("offload").addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "CollisionError",
    "ConfigError",
    "CorruptError",
    "Decision",
    "ExistsError",
    "ExpiredError",
    "InvalidKeyError",
    "MessageError",
    "MissingExtraError",
    "NotFoundError",
    "OffloadError",
    "OffloadPolicy",
    "OffloadResult",
    "OffloadStore",
    "Offloader",
    "PlaceholderFacts",
    "PlaceholderRenderer",
    "PolicyError",
    "RecordInfo",
    "Rule",
    "Stats",
    "StoreError",
    "StoreMissingError",
    "StorePermissionError",
    "StoreUnavailableError",
    "StoredObject",
    "TokenCounter",
    "UnknownSchemeError",
    "estimate_tokens",
    "explain",
    "open_store",
]
