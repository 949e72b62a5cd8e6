"""Whether stored objects are encrypted with the key of the store, or in clear as the store is."""

from __future__ import annotations

from collections.abc import Mapping

from offload.errors import EncryptionError, OffloadError, result_or_error
from offload.storage.layout import JOURNAL, RECORD
from offload.storage.store import SEALED_FOOTER, OffloadStore, check_plain, get_many

# The most objects that are read as samples, and their largest size.
_SAMPLES, _SAMPLE_BYTES = 100, 256 * 1024


def check_object(store: OffloadStore, key: str) -> None:
    """Raise `EncryptionError` if an object does not fit the key of the store; only its end is read.

    Raises `NotFoundError` if there is none, `CorruptError` for damage at its end, and `StoreError`.
    """
    check_plain(store.get(key, start=-SEALED_FOOTER), key)


def check_session(store: OffloadStore, part: str) -> bool:
    """Return whether the session with a key part has an object; the first must fit the key of the store.

    Call it before the session is written to: a session that is partly in clear cannot be read as a whole.
    Raises `EncryptionError` if the object does not fit, and the errors of `check_object`.
    """
    for family in (JOURNAL, RECORD):
        first = next((stored.key for stored in store.keys(family.prefix(part)) if stored.size), None)
        if first is not None:
            check_object(store, first)
            return True
    return False


def unfit_objects(store: OffloadStore, sizes: Mapping[str, int]) -> list[EncryptionError]:
    """Return the errors of objects, given by key and size, that do not fit the key of the store.

    At most 100 of the small ones are read, all at once; an object with another error fits.
    """
    keys = [key for key, size in sizes.items() if 0 < size <= _SAMPLE_BYTES]
    keys = keys[:: len(keys) // _SAMPLES + 1]
    found = [_checked(key, data) for key, data in zip(keys, get_many(store, keys), strict=True)]
    return [error for error in found if isinstance(error, EncryptionError)]


def _checked(key: str, data: bytes | OffloadError) -> OffloadError | None:
    return data if isinstance(data, OffloadError) else result_or_error(check_plain, data, key)
