"""What a backend found out about its medium, kept at `<root>/offload.json` for the next process.

The descriptor saves a probe and holds nothing else: where it is missing, damaged or of a later format, the
medium is asked again.
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

# Whether the medium refuses a create-only write to a key that is taken: it does; it writes all the same;
# it knows no such write.
Creates = Literal["enforced", "ignored", "unsupported"]

# A reader asks for no more than this: whatever stands at the name, its size is not trusted.
MAX_BYTES = 4096
_FORMAT = 1


def encode(creates: Creates, *, is_sorted: bool | None = None) -> bytes:
    """Return the bytes of a descriptor, a JSON object in UTF-8.

    Args:
        creates: what the medium does with creates.
        is_sorted: whether it lists in key order, None to say nothing of that.
    """
    said = {"format": _FORMAT, "create": creates}
    if is_sorted is not None:
        said["sorted"] = is_sorted
    return json.dumps(said).encode() + b"\n"


def decode(data: bytes) -> Creates | None:
    """Return what the descriptor `data` says of creates, None if it cannot be read or says nothing known."""
    said = _fields(data).get("create")
    return next((known for known in get_args(Creates) if known == said), None)


def decode_sorted(data: bytes) -> bool:
    """Return whether the descriptor `data` says that the medium lists in key order."""
    return _fields(data).get("sorted") is True


def _fields(data: bytes) -> dict[str, Any]:
    """Return what stands in the descriptor `data`, nothing if it is none or of another format."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) and said.get("format") == _FORMAT else {}
