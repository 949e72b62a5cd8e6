"""What a backend found out about its medium, kept at `<root>/offload.json` for the next process.

The descriptor saves a probe and holds nothing else: where it is missing, damaged or of a later format, the
medium is asked again.
"""

from __future__ import annotations

import json
from typing import Literal, get_args

# Whether the medium refuses a create-only write to a key that is taken: it does; it writes all the same;
# it knows no such write.
Creates = Literal["enforced", "ignored", "unsupported"]

# A reader asks for no more than this: whatever stands at the name, its size is not trusted.
MAX_BYTES = 4096
_FORMAT = 1


def encode(creates: Creates) -> bytes:
    """Return the bytes of a descriptor, a JSON object in UTF-8, that says what `creates` says."""
    return json.dumps({"format": _FORMAT, "create": creates}).encode() + b"\n"


def decode(data: bytes) -> Creates | None:
    """Return what the descriptor `data` says of creates, None if it cannot be read or says nothing known."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("format") != _FORMAT:
        return None
    return next((known for known in get_args(Creates) if known == said.get("create")), None)
