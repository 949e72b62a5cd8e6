"""The call of a retrieval tool, as the placeholder of its answer shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from offload.base.patterns import lazy_pattern
from offload.engine.placeholder.default import safe_for_model
from offload.records.record.retrieval import RETRIEVAL_TOOLS, reads_of

# A longer call is not shown: the answer is then read by its own id.
_MOST_CHARS = 160
# Other arguments follow in the order of their names, since a framework may send them in any order.
_ORDER = (
    "id",
    "ids",
    "old",
    "new",
    "pattern",
    "sql",
    "mode",
    "part",
    "pointer",
    "offset",
    "limit",
    "start_line",
    "end_line",
)
_NAME = lazy_pattern(r"[a-z_]{1,20}", re.ASCII)


def call_text(tool: str, fields: Mapping[str, object]) -> str:
    """Return a call as text, "" if it is too long, or its arguments are unknown or of another form.

    A client's prefix of the tool's name is left out, as in other placeholders.
    """
    name = next((name for name in RETRIEVAL_TOOLS if tool.endswith(name)), "")
    given = {key: value for key, value in fields.items() if value is not None}
    is_shown = all(map(_NAME.fullmatch, given)) and all(map(_is_plain, given.values()))
    if not (name and is_shown and reads_of(given)):
        return ""
    keys = sorted(given, key=lambda key: (_ORDER.index(key) if key in _ORDER else len(_ORDER), key))
    arguments = (f"{key}={json.dumps(given[key], ensure_ascii=False)}" for key in keys)
    text = f"{name}({', '.join(arguments)})"
    return text if len(text) <= _MOST_CHARS and safe_for_model(text) == text else ""


def _is_plain(value: object) -> bool:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return all(isinstance(item, str | int | float) for item in items)
