"""offload: store the large parts of an agent's messages, and read them back on demand.

from offload import Offloader

off = Offloader("s3://bucket/prefix", session="research-42")
out = off.offload(messages)
off.restore(out.messages) == messages

Every public name is imported from here; frameworks from `offload.integrations.NAME`, the tests of a store
from `offload.testing`, the gateway and the replay of recordings from `offload.gateway` and `offload.replay`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload.agent._config import AgentConfig as AgentConfig
    from offload.agent._manager import ContextManager as ContextManager, Request as Request
    from offload.agent._refusals import is_too_long as is_too_long, thinking_refusal as thinking_refusal
    from offload.agent._summarizers import (
        AnthropicSummarizer as AnthropicSummarizer,
        OpenAISummarizer as OpenAISummarizer,
    )
    from offload.agent.compaction import (
        CompactionResult as CompactionResult,
        CompactionStrategy as CompactionStrategy,
        CompactResult as CompactResult,
        MessageArchive as MessageArchive,
        Proposal as Proposal,
        RoundCompactor as RoundCompactor,
        RoundConfig as RoundConfig,
        RoundStrategy as RoundStrategy,
        RuleStrategy as RuleStrategy,
        SelectiveCompaction as SelectiveCompaction,
        SelectiveResult as SelectiveResult,
        Summarizer as Summarizer,
        TypeRule as TypeRule,
        threshold_for as threshold_for,
    )
    from offload.agent.presets.context_fs import (
        ContextFileSystem as ContextFileSystem,
        Document as Document,
        ItemState as ItemState,
    )
    from offload.agent.presets.context_refs import ContextRefs as ContextRefs
    from offload.agent.presets.tool_results import (
        ContentBlock as ContentBlock,
        OffloadedToolResults as OffloadedToolResults,
        TextBlock as TextBlock,
        ToolResultBlock as ToolResultBlock,
        ToolResultMessage as ToolResultMessage,
        ToolUseBlock as ToolUseBlock,
        offload_tool_results as offload_tool_results,
    )
    from offload.base.events import ContextEvent as ContextEvent, EventBus as EventBus, EventType as EventType
    from offload.base.tokens import TokenCounter as TokenCounter, estimate_tokens as estimate_tokens
    from offload.engine.placeholder import (
        Categorizes as Categorizes,
        DefaultRenderer as DefaultRenderer,
        Notice as Notice,
        NoticeRenderer as NoticeRenderer,
        PlaceholderFacts as PlaceholderFacts,
        PlaceholderRenderer as PlaceholderRenderer,
        TemplateRenderer as TemplateRenderer,
    )
    from offload.engine.policy import (
        CacheModel as CacheModel,
        Decision as Decision,
        ItemFacts as ItemFacts,
        OffloadPolicy as OffloadPolicy,
        Reason as Reason,
        ReasonKind as ReasonKind,
        Retention as Retention,
        Rule as Rule,
        Sweep as Sweep,
        explain as explain,
    )
    from offload.engine.preview import Preview as Preview, preview_of as preview_of
    from offload.engine.results import (
        CacheReport as CacheReport,
        Missing as Missing,
        OffloadResult as OffloadResult,
        Restored as Restored,
        Stats as Stats,
    )
    from offload.engine.settings.loader import load_config as load_config
    from offload.engine.sink import Sink as Sink
    from offload.errors import (
        CollisionError as CollisionError,
        ConfigError as ConfigError,
        ContextFullError as ContextFullError,
        CorruptError as CorruptError,
        EncryptionError as EncryptionError,
        ExistsError as ExistsError,
        ExpiredError as ExpiredError,
        HookTimeoutError as HookTimeoutError,
        InvalidKeyError as InvalidKeyError,
        MessageError as MessageError,
        MissingExtraError as MissingExtraError,
        NotFoundError as NotFoundError,
        OffloadError as OffloadError,
        PolicyError as PolicyError,
        ReferenceRefusedError as ReferenceRefusedError,
        RefusedError as RefusedError,
        StoreError as StoreError,
        StoreMissingError as StoreMissingError,
        StorePermissionError as StorePermissionError,
        StoreUnavailableError as StoreUnavailableError,
        ThinkingRemovedError as ThinkingRemovedError,
        UnknownSchemeError as UnknownSchemeError,
    )
    from offload.maintenance.catalog import (
        ExportReport as ExportReport,
        export_catalog as export_catalog,
        record_batches as record_batches,
        request_batches as request_batches,
    )
    from offload.maintenance.doctor import Finding as Finding, diagnose as diagnose
    from offload.maintenance.jobs.reindex import reindex as reindex
    from offload.maintenance.jobs.verify import VerifyReport as VerifyReport, verify as verify
    from offload.maintenance.retention import (
        GcReport as GcReport,
        StoreUsage as StoreUsage,
        collect as collect,
        delete as delete,
        pin as pin,
        store_usage as store_usage,
        touch as touch,
        undelete as undelete,
        unpin as unpin,
    )
    from offload.maintenance.transfer import (
        CopyFailure as CopyFailure,
        CopyProgress as CopyProgress,
        CopyReport as CopyReport,
        copy_session as copy_session,
        copy_sessions as copy_sessions,
        export_session as export_session,
        fork as fork,
        import_session as import_session,
        revoke as revoke,
        rewind as rewind,
        share as share,
        share_each as share_each,
    )
    from offload.messages import Usage as Usage
    from offload.messages.context import (
        ContextIR as ContextIR,
        ContextItem as ContextItem,
        ItemType as ItemType,
        Segment as Segment,
        SegmentName as SegmentName,
    )
    from offload.offloader import Offloader as Offloader
    from offload.reading.evidence import Evidence as Evidence
    from offload.reading.search import Passage as Passage, SearchResult as SearchResult
    from offload.reading.timeline import SentRequest as SentRequest, Timeline as Timeline
    from offload.reading.tools import Tools as Tools
    from offload.records.record import RecordInfo as RecordInfo
    from offload.records.session import Damage as Damage
    from offload.storage.layout import check_key as check_key, encode_part as encode_part
    from offload.storage.registry import (
        open_store as open_store,
        open_with_key as open_with_key,
        with_layout as with_layout,
    )
    from offload.storage.store import (
        OffloadStore as OffloadStore,
        StoredObject as StoredObject,
        SupportsBulk as SupportsBulk,
        SupportsFolders as SupportsFolders,
        SupportsIdentity as SupportsIdentity,
        SupportsIndex as SupportsIndex,
        SupportsPaths as SupportsPaths,
        SupportsStreams as SupportsStreams,
        SupportsTimes as SupportsTimes,
        check_range as check_range,
        delete_many as delete_many,
        get_many as get_many,
        put_many as put_many,
        put_stream as put_stream,
    )
    from offload.storage.wrappers import (
        CachingStore as CachingStore,
        EncryptingStore as EncryptingStore,
        ReadOnlyStore as ReadOnlyStore,
        RetryingStore as RetryingStore,
        WrapperStore as WrapperStore,
    )

__version__ = "0.1.0"

# Each name is loaded on first use: a backend that needs only the contract, or a program that passes a store
# on, loads no policy and no codec.
_MODULES = {
    "agent._config": ("AgentConfig",),
    "agent._manager": ("ContextManager", "Request"),
    "agent._refusals": ("is_too_long", "thinking_refusal"),
    "agent._summarizers": ("AnthropicSummarizer", "OpenAISummarizer"),
    "agent.compaction": (
        "CompactResult",
        "CompactionResult",
        "CompactionStrategy",
        "MessageArchive",
        "Proposal",
        "RoundCompactor",
        "RoundConfig",
        "RoundStrategy",
        "RuleStrategy",
        "SelectiveCompaction",
        "SelectiveResult",
        "Summarizer",
        "TypeRule",
        "threshold_for",
    ),
    "agent.presets.context_fs": ("ContextFileSystem", "Document", "ItemState"),
    "agent.presets.context_refs": ("ContextRefs",),
    "agent.presets.tool_results": (
        "ContentBlock",
        "OffloadedToolResults",
        "TextBlock",
        "ToolResultBlock",
        "ToolResultMessage",
        "ToolUseBlock",
        "offload_tool_results",
    ),
    "base.events": ("ContextEvent", "EventBus", "EventType"),
    "base.tokens": ("TokenCounter", "estimate_tokens"),
    "engine.placeholder": (
        "Categorizes",
        "DefaultRenderer",
        "Notice",
        "NoticeRenderer",
        "PlaceholderFacts",
        "PlaceholderRenderer",
        "TemplateRenderer",
    ),
    "engine.policy": (
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
    "engine.preview": ("Preview", "preview_of"),
    "engine.results": ("CacheReport", "Missing", "OffloadResult", "Restored", "Stats"),
    "engine.settings.loader": ("load_config",),
    "engine.sink": ("Sink",),
    "errors": (
        "CollisionError",
        "ConfigError",
        "ContextFullError",
        "CorruptError",
        "EncryptionError",
        "ExistsError",
        "ExpiredError",
        "HookTimeoutError",
        "InvalidKeyError",
        "MessageError",
        "MissingExtraError",
        "NotFoundError",
        "OffloadError",
        "PolicyError",
        "ReferenceRefusedError",
        "RefusedError",
        "StoreError",
        "StoreMissingError",
        "StorePermissionError",
        "StoreUnavailableError",
        "ThinkingRemovedError",
        "UnknownSchemeError",
    ),
    "maintenance.catalog": ("ExportReport", "export_catalog", "record_batches", "request_batches"),
    "maintenance.doctor": ("Finding", "diagnose"),
    "maintenance.jobs.reindex": ("reindex",),
    "maintenance.jobs.verify": ("VerifyReport", "verify"),
    "maintenance.retention": (
        "GcReport",
        "StoreUsage",
        "collect",
        "delete",
        "pin",
        "store_usage",
        "touch",
        "undelete",
        "unpin",
    ),
    "maintenance.transfer": (
        "CopyFailure",
        "CopyProgress",
        "CopyReport",
        "copy_session",
        "copy_sessions",
        "export_session",
        "fork",
        "import_session",
        "revoke",
        "rewind",
        "share",
        "share_each",
    ),
    "messages": ("Usage",),
    "messages.context": ("ContextIR", "ContextItem", "ItemType", "Segment", "SegmentName"),
    "offloader": ("Offloader",),
    "reading.evidence": ("Evidence",),
    "reading.search": ("Passage", "SearchResult"),
    "reading.timeline": ("SentRequest", "Timeline"),
    "reading.tools": ("Tools",),
    "records.record": ("RecordInfo",),
    "records.session": ("Damage",),
    "storage.layout": ("check_key", "encode_part"),
    "storage.registry": ("open_store", "open_with_key", "with_layout"),
    "storage.store": (
        "OffloadStore",
        "StoredObject",
        "SupportsBulk",
        "SupportsFolders",
        "SupportsIdentity",
        "SupportsIndex",
        "SupportsPaths",
        "SupportsStreams",
        "SupportsTimes",
        "check_range",
        "delete_many",
        "get_many",
        "put_many",
        "put_stream",
    ),
    "storage.wrappers": ("CachingStore", "EncryptingStore", "ReadOnlyStore", "RetryingStore", "WrapperStore"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'offload' has no attribute {name!r}")
    value = getattr(import_module(f"offload.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
