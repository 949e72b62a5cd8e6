"""The properties that a store declares, its folder, and whether it responds."""

from __future__ import annotations

import os
from itertools import islice

from offload.base.system import HAS_USERS, is_own
from offload.errors import EncryptionError, NotFoundError, StoreError
from offload.maintenance.doctor._trial import CheckResult, Trial
from offload.records.session.encryption import unfit_objects
from offload.storage.layout import JOURNAL, RECORD
from offload.storage.registry import folder_of
from offload.storage.store import KEY_VARIABLE, Durability, OffloadStore
from offload.storage.wrappers import encryption_of

_OTHERS_MODE = 0o077
# Objects of a kind that are listed for a sample.
_LISTED = 1000


DURABILITY: dict[Durability, CheckResult] = {
    "power": CheckResult("the store declares that objects survive a power cut"),
    "process": CheckResult(
        "objects survive the death of the process, but perhaps not a power cut",
        'set the storage option durability="fsync"; a folder on Windows offers no more',
        "warning",
    ),
    "memory": CheckResult(
        "objects are lost when this process ends", "for durable sessions use a path or s3://", "warning"
    ),
    "unknown": CheckResult(
        "the store does not declare whether objects survive a power cut or a crash, nor whether a put is "
        "atomic",
        "damaged records are detected and never returned; for guaranteed durability use a path or s3://",
        "warning",
    ),
}
SHARING = {
    True: CheckResult("every machine that opens the URL sees the same objects"),
    False: CheckResult("no other machine sees these objects", "to share sessions use s3://bucket/prefix"),
}


def folder(trial: Trial) -> CheckResult:
    """Check who can read the folder of a local store."""
    path = folder_of(trial.store)
    if path is None:
        return CheckResult("not a local folder")
    try:
        info = path.stat()
    except FileNotFoundError:
        return CheckResult(f"{path} does not exist yet: the first put creates it, private to its owner")
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if not HAS_USERS:
        return CheckResult(f"{path}: the folder's access list, which is not checked, decides who can read it")
    mode = f"{path} has mode {info.st_mode & 0o777:04o} and owner {info.st_uid}"
    if not is_own(info):
        fix = f"you are user {os.geteuid()}: its owner can read and change all records; use your own folder"
        return CheckResult(mode, fix, "warning")
    if info.st_mode & _OTHERS_MODE:
        return CheckResult(mode, "other users of this machine can list the records: chmod 700", "warning")
    return CheckResult(mode)


def reading(trial: Trial) -> CheckResult:
    """Check which reads work, and whether a sample of the stored objects fits the key of the store."""
    store = trial.store
    details = f"{store.url} {access(store)}"
    listed = [one for family in (RECORD, JOURNAL) for one in islice(store.keys(family.prefix()), _LISTED)]
    unfit = unfit_objects(store, {one.key: one.size for one in listed})
    if unfit:
        return CheckResult(
            f"of a sample of the objects, {len(unfit):,} do not fit the key of the store: {unfit[0]}",
            f"set {KEY_VARIABLE} to the key that wrote them; offload verify names their sessions",
            "failed",
        )
    encrypted = encryption_of(store)
    way = "" if encrypted is None else f"; they are encrypted with the key of id {encrypted.key_id}"
    return CheckResult(f"{details}{way}")


def access(store: OffloadStore) -> str:
    """Return which reads work, as the predicate of a sentence, or raise."""
    first = next(iter(store.keys()), None)
    if first is None:
        return "responds and lists no objects"
    try:
        store.get(first.key, end=1)
    except NotFoundError:
        return "responds and lists objects"  # another process deleted this one in the meantime
    except EncryptionError:
        pass  # it was read
    return "responds, lists objects and reads them"
