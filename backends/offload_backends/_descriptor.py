"""The descriptor: the probed features of a medium, stored at `<root>/offload.json` for later processes.

If the descriptor is missing, damaged or of a later format, the backend probes the medium again.
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec

# The effect of a create-only write on a taken key: the medium refuses it, ignores the condition, or does not
# support it.
Creates = Literal["enforced", "ignored", "unsupported"]

# A reader fetches at most this: a foreign object at the key may have any size.
MAX_BYTES = 4096
FORMAT: Literal[1] = 1


class Descriptor(
    msgspec.Struct, frozen=True, omit_defaults=True, rename={"creates": "create", "is_sorted": "sorted"}
):
    """The features of a medium; `is_sorted`: it lists in key order, None if this is unknown."""

    format: Literal[1]
    creates: Creates
    is_sorted: bool | None = None

    def encode(self) -> bytes:
        """Return the bytes of the descriptor, a JSON object in UTF-8."""
        return json.dumps(msgspec.to_builtins(self)).encode() + b"\n"


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_DESCRIPTORS = msgspec.json.Decoder(Descriptor)


def decode(data: bytes) -> Descriptor | None:
    """Return the descriptor `data`; None if it is unreadable or unknown."""
    try:
        return _DESCRIPTORS.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
