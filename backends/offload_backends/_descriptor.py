"""The descriptor: the probed features of a medium, stored at `<root>/offload.json` for later processes.

If the descriptor is missing, damaged or of a later format, the backend probes the medium again.
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

# The effect of a create-only write on a taken key: the medium refuses it, ignores the condition, or does not
# support it.
Creates = Literal["enforced", "ignored", "unsupported"]

# A reader fetches at most this: a foreign object at the key may have any size.
MAX_BYTES = 4096
_FORMAT = 1


def encode(creates: Creates, *, is_sorted: bool | None = None) -> bytes:
    """Return the bytes of a descriptor, a JSON object in UTF-8.

    Args:
        creates: the effect of a create on a taken key.
        is_sorted: whether the medium lists in key order; None if unknown.
    """
    fields = {"format": _FORMAT, "create": creates}
    if is_sorted is not None:
        fields["sorted"] = is_sorted
    return json.dumps(fields).encode() + b"\n"


def decode(data: bytes) -> Creates | None:
    """Return the effect of creates in the descriptor `data`; None if it is unreadable or unknown."""
    creates = _fields(data).get("create")
    return next((known for known in get_args(Creates) if known == creates), None)


def decode_sorted(data: bytes) -> bool:
    """Return whether the medium lists in key order, by the descriptor `data`."""
    return _fields(data).get("sorted") is True


def _fields(data: bytes) -> dict[str, Any]:
    """Return the fields of the descriptor `data`; none if it is invalid or of another format."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) and fields.get("format") == _FORMAT else {}
