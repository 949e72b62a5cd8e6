"""offload: store the large parts of an agent's messages, and read them back on demand.

from offload import Offloader

off = Offloader("s3://bucket/prefix", session="research-42")
out = off.offload(messages)
off.restore(out.messages) == messages
"""

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
        EncryptionError,
        ExistsError,
        ExpiredError,
        InvalidKeyError,
        MessageError,
        MissingExtraError,
        NotFoundError,
        OffloadError,
        PolicyError,
        ReferenceRefusedError,
        RefusedError,
        StoreError,
        StoreMissingError,
        StorePermissionError,
        StoreUnavailableError,
        ThinkingRemovedError,
        UnknownSchemeError,
    )
    from offload.offloader import Offloader
    from offload.placeholder import PlaceholderFacts, PlaceholderRenderer, TemplateRenderer
    from offload.policy import (
        CacheModel,
        Decision,
        ItemFacts,
        OffloadPolicy,
        Reason,
        ReasonKind,
        Retention,
        Rule,
        Sweep,
        explain,
    )
    from offload.record import RecordInfo
    from offload.registry import open_store
    from offload.retention import GcReport
    from offload.session import Damage
    from offload.store import OffloadStore, StoredObject
    from offload.tokens import TokenCounter, estimate_tokens

__version__ = "0.1.0"

__all__ = [
    "CacheModel",
    "CacheReport",
    "CollisionError",
    "ConfigError",
    "ContextFullError",
    "CorruptError",
    "Damage",
    "Decision",
    "EncryptionError",
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
    "Reason",
    "ReasonKind",
    "RecordInfo",
    "ReferenceRefusedError",
    "RefusedError",
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
    "ThinkingRemovedError",
    "TokenCounter",
    "UnknownSchemeError",
    "estimate_tokens",
    "explain",
    "open_store",
]

# Each name is loaded on first use: a backend that needs only the contract, or a program that passes a store
# on, loads no policy and no codec. Other names are those of errors.
_MODULES = {
    "engine.results": ("CacheReport", "Missing", "OffloadResult", "Restored", "Stats"),
    "engine.sink": ("Sink",),
    "offloader": ("Offloader",),
    "placeholder": ("PlaceholderFacts", "PlaceholderRenderer", "TemplateRenderer"),
    "policy": (
        "CacheModel",
        "Decision",
        "ItemFacts",
        "OffloadPolicy",
        "Reason",
        "ReasonKind",
        "Retention",
        "Rule",
        "Sweep",
        "explain",
    ),
    "record": ("RecordInfo",),
    "registry": ("open_store",),
    "retention": ("GcReport",),
    "session": ("Damage",),
    "store": ("OffloadStore", "StoredObject"),
    "tokens": ("TokenCounter", "estimate_tokens"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'offload' has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "errors")
    value = getattr(import_module(f"offload.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
