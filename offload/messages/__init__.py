"""Provider messages: one adapter per format finds the items of a message, replaces and restores them.

Items are tool results, arguments of tool calls, user messages, assistant messages and system prompts; the
texts of documents and search results, and images and other files, in tool results and user messages, if the
message holds their bytes and a text may replace them. Everything else is counted, never offloaded: reasoning,
results of a provider's own tools, sound, video, and parts that are unknown or could not be restored exactly.
The API accepts each placeholder: it replaces an object by an object.
"""

from offload.messages.calls import Call as Call
from offload.messages.stored import from_json as from_json, to_json as to_json
from offload.messages.thinking import Removed as Removed, Thinking as Thinking
from offload.messages.usage import Usage as Usage
