"""Provider messages: one adapter per format finds the items of a message, replaces and restores them.

Items are tool results, arguments of tool calls, user messages, assistant messages and system prompts; the
texts of documents and search results, and images and other files, in tool results and user messages, if the
message holds their bytes and a text may replace them. Everything else is counted, never offloaded: reasoning,
results of a provider's own tools, sound, video, and parts that are unknown or could not be restored exactly.
The API accepts each placeholder: it replaces an object by an object.
"""

from offload.messages._access import block_count
from offload.messages._base import SYSTEM_ROLES, Block, Item, MessageAdapter, Scan
from offload.messages._calls import COMMAND_FIELDS, PATH_FIELDS, Call, CallId, Subject, main_argument
from offload.messages._files import (
    FileCall,
    file_call,
    file_name,
    may_be_same,
    may_change,
    may_write,
    reads_files,
    request_of,
)
from offload.messages._formats import (
    FORMATS,
    adapter_for,
    answered_calls,
    is_result,
    role_of,
    role_or_none,
    scan_of,
)
from offload.messages._media import MediaFacts, media_facts, media_ref
from offload.messages._reports import reports_in
from offload.messages._rest import Fixed
from offload.messages._stored import as_data, from_json, map_texts, to_json
from offload.messages._thinking import (
    Removed,
    Thinking,
    bare_of,
    content_digest,
    signed_thinking,
    thinking_key,
    with_thinking,
    without_thinking,
)
from offload.messages._usage import Usage, is_same_reply, usage_of

__all__ = [
    "COMMAND_FIELDS",
    "FORMATS",
    "PATH_FIELDS",
    "SYSTEM_ROLES",
    "Block",
    "Call",
    "CallId",
    "FileCall",
    "Fixed",
    "Item",
    "MediaFacts",
    "MessageAdapter",
    "Removed",
    "Scan",
    "Subject",
    "Thinking",
    "Usage",
    "adapter_for",
    "answered_calls",
    "as_data",
    "bare_of",
    "block_count",
    "content_digest",
    "file_call",
    "file_name",
    "from_json",
    "is_result",
    "is_same_reply",
    "main_argument",
    "map_texts",
    "may_be_same",
    "may_change",
    "may_write",
    "media_facts",
    "media_ref",
    "reads_files",
    "reports_in",
    "request_of",
    "role_of",
    "role_or_none",
    "scan_of",
    "signed_thinking",
    "thinking_key",
    "to_json",
    "usage_of",
    "with_thinking",
    "without_thinking",
]
