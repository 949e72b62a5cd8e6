"""offload: take the large parts of an agent's messages out to a store, and read them back.

from offload import Offloader

off = Offloader("s3://bucket/prefix", session="research-42")
out = off.offload(messages)
off.restore(out.messages) == messages
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload.engine.results import CacheReport, Missing, OffloadResult, Restored, Stats
    from offload.engine.sink import Sink
    from offload.errors import (
        CollisionError,
        ConfigError,
        ContextFullError,
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
    from offload.offloader import Offloader
    from offload.placeholder import PlaceholderFacts, PlaceholderRenderer, TemplateRenderer
    from offload.policy import Decision, ItemFacts, OffloadPolicy, Retention, Rule, Sweep, explain
    from offload.record import RecordInfo
    from offload.registry import open_store
    from offload.retention import GcReport
    from offload.session import Damage
    from offload.store import OffloadStore, StoredObject
    from offload.tokens import TokenCounter, estimate_tokens

__version__ = "0.2.0"

__all__ = [
    "CacheReport",
    "CollisionError",
    "ConfigError",
    "ContextFullError",
    "CorruptError",
    "Damage",
    "Decision",
    "ExistsError",
    "ExpiredError",
    "GcReport",
    "InvalidKeyError",
    "ItemFacts",
    "MessageError",
    "Missing",
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
    "Restored",
    "Retention",
    "Rule",
    "Sink",
    "Stats",
    "StoreError",
    "StoreMissingError",
    "StorePermissionError",
    "StoreUnavailableError",
    "StoredObject",
    "Sweep",
    "TemplateRenderer",
    "TokenCounter",
    "UnknownSchemeError",
    "estimate_tokens",
    "explain",
    "open_store",
]

# A name is loaded when it is first asked for: a backend that needs the contract alone, or a program that
# only passes a store on, pays for no policy and no codec. What is not listed here is an error.
_MODULES = {
    "CacheReport": "engine.results",
    "GcReport": "retention",
    "Damage": "session",
    "Decision": "policy",
    "ItemFacts": "policy",
    "Missing": "engine.results",
    "OffloadPolicy": "policy",
    "OffloadResult": "engine.results",
    "OffloadStore": "store",
    "Offloader": "offloader",
    "PlaceholderFacts": "placeholder",
    "PlaceholderRenderer": "placeholder",
    "RecordInfo": "record",
    "Restored": "engine.results",
    "Retention": "policy",
    "Rule": "policy",
    "Sink": "engine.sink",
    "Stats": "engine.results",
    "StoredObject": "store",
    "Sweep": "policy",
    "TemplateRenderer": "placeholder",
    "TokenCounter": "tokens",
    "estimate_tokens": "tokens",
    "explain": "policy",
    "open_store": "registry",
}

# Where logging is not set up a library is silent.
logging.getLogger("offload").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'offload' has no attribute {name!r}")
    value = getattr(import_module(f"offload.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
