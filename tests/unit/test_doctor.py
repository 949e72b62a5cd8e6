from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import Run
from kit.store import CutsSuffixes, OverwritesAlways

from offload.errors import ExistsError, StoreError, StorePermissionError, StoreUnavailableError
from offload.maintenance.doctor import Finding, diagnose
from offload.storage.store import OffloadStore, StoredObject
from offload.storage.wrappers import CachingStore, EncryptingStore, ReadOnlyStore, RetryingStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends._fsspec import FsspecStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket

CHECKS = [
    *("durability", "sharing", "folder", "access", "write and read", "listing", "creates", "overwrite"),
    *("delete", "clock", "speed", "large objects", "bulk", "streams", "clean-up"),
]


def outcomes_of(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.outcome for finding in findings}


def failures_of(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.outcome == "failed"]


def finding_of(store: OffloadStore, check: str) -> Finding:
    return next(finding for finding in diagnose(store) if finding.check == check)


# Sound stores


@pytest.fixture(params=["memory", "local", "fsspec", "caching", "encrypting", "retrying", "bulk"])
def sound(request: pytest.FixtureRequest, tmp_path: Path) -> OffloadStore:
    makers: dict[str, Callable[[], OffloadStore]] = {
        "memory": MemoryStore,
        "local": lambda: LocalStore(str(tmp_path / "root")),
        "fsspec": lambda: FsspecStore(f"memory://{uuid.uuid4()}/root"),
        "caching": lambda: CachingStore(MemoryStore(), max_bytes=10**6),
        "encrypting": lambda: EncryptingStore(MemoryStore(), key=bytes(32)),
        "retrying": lambda: RetryingStore(MemoryStore()),
        "bulk": lambda: FaultyBulkStore(MemoryStore(), nth=10**6),
    }
    return makers[request.param]()


def test_a_healthy_store_fails_no_check_and_every_check_is_reported(sound: OffloadStore) -> None:
    findings = diagnose(sound)

    assert failures_of(findings) == []
    assert [finding.check for finding in findings] == CHECKS
    assert all(finding.details for finding in findings)


def test_a_bucket_is_healthy_and_keeps_only_its_own_objects(s3_bucket: Bucket) -> None:
    s3_bucket.write("r/mine", b"kept")
    store = S3Store(s3_bucket.url, storage_options=s3_bucket.storage_options)

    outcomes = outcomes_of(diagnose(store))

    listed = s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name)["Contents"]
    assert "failed" not in outcomes.values()
    assert outcomes["bulk"] == outcomes["clock"] == "ok"
    # What a store found out about its medium is kept for the next who opens it.
    assert {item["Key"] for item in listed} - {"prefix/offload.json"} == {"prefix/r/mine"}
    assert s3_bucket.read("r/mine") == b"kept"


# What is wrong


class SwallowsASecondCreate(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        with suppress(ExistsError):
            super().put(key, data, overwrite=overwrite)


class NeverOverwrites(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if not overwrite:
            super().put(key, data)


class DestroysOnRefusal(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        try:
            super().put(key, data, overwrite=overwrite)
        except OSError:
            super().put(key, data, overwrite=True)
            raise


class FlipsABit(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        super().put(key, bytes([data[0] ^ 1, *data[1:]]), overwrite=overwrite)


class IgnoresRanges(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:  # noqa: ARG002  # that is the fault
        return super().get(key)


class ListsBackwards(MemoryStore):
    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return reversed(list(super().keys(prefix, after=after)))


class ListsLate(MemoryStore):
    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return iter(list(super().keys(prefix, after=after))[:-1])


class NeverDeletes(MemoryStore):
    def delete(self, key: str) -> None:
        """Do nothing."""


class LosesOneOfMany(FaultyBulkStore):
    def put_many(self, items: Any, **options: Any) -> Any:
        return super().put_many(items[:-1], **options)


@pytest.mark.parametrize(
    ("store", "failed"),
    [
        (OverwritesAlways(), {"creates"}),
        (SwallowsASecondCreate(), {"creates"}),
        (DestroysOnRefusal(), {"creates"}),
        (NeverOverwrites(), {"overwrite"}),
        (FlipsABit(), {"write and read"}),
        (IgnoresRanges(), {"write and read", "large objects"}),
        (CutsSuffixes(), {"write and read"}),
        (ListsBackwards(), {"listing"}),
        (ListsLate(), {"listing"}),
        (NeverDeletes(), {"delete", "clean-up"}),
        (LosesOneOfMany(MemoryStore(), nth=10**6), {"bulk"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, OffloadStore) else "",
)
def test_a_fault_is_found_by_its_check_and_hides_no_other_check(
    store: OffloadStore, failed: set[str]
) -> None:
    findings = diagnose(store)

    assert failed <= set(failures_of(findings))
    assert [finding.check for finding in findings] == CHECKS
    assert all(finding.fix for finding in findings if finding.outcome == "failed")


def test_a_store_to_read_only_fails_in_writing_and_says_that_reading_works() -> None:
    inner = MemoryStore()
    inner.put("r/mine", b"kept")

    findings = diagnose(ReadOnlyStore(inner))

    assert failures_of(findings) == ["write and read"]
    (refusal,) = (finding for finding in findings if finding.outcome == "failed")
    assert "cannot write" in refusal.details
    assert "lists objects and reads them" in refusal.details
    assert [found.key for found in inner.keys()] == ["r/mine"]


def test_a_store_that_does_not_answer_is_asked_once() -> None:
    store = FaultyStore(MemoryStore(), is_lasting=True, error=StoreUnavailableError)

    findings = diagnose(store)

    assert failures_of(findings) == ["access"]
    assert findings[-1] == Finding("other checks", "warning", "skipped", "fix this first")
    assert store.operations == 1


def test_a_store_that_becomes_unavailable_gets_no_more_requests_and_leftover_objects_are_named() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, nth=12, is_lasting=True, error=StoreUnavailableError)

    findings = diagnose(store)

    assert outcomes_of(findings)["write and read"] == "ok"
    assert len(failures_of(findings)) == 2
    assert failures_of(findings)[-1] == "clean-up"
    assert store.failures == 2
    left = [found.key for found in inner.keys()]
    prefix = findings[-1].fix.split("'")[1]
    assert left
    assert all(key.startswith(prefix) for key in left)


def test_a_missing_bucket_ends_it(s3_bucket: Bucket) -> None:
    store = S3Store("s3://no-such-bucket", storage_options=s3_bucket.storage_options)

    findings = diagnose(store)

    assert [finding.check for finding in findings[-2:]] == ["access", "other checks"]
    assert findings[-2].outcome == "failed"
    assert "no-such-bucket" in findings[-2].details


def test_a_store_that_cannot_list_is_still_written_to_and_cleaned() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, verb="keys", is_lasting=True, error=StorePermissionError)

    outcomes = outcomes_of(diagnose(store))

    assert outcomes["access"] == outcomes["listing"] == "failed"
    assert outcomes["write and read"] == outcomes["creates"] == outcomes["delete"] == "ok"
    assert list(inner.keys()) == []


# What one should know


class Skewed(MemoryStore):
    def __init__(self, told: float) -> None:
        super().__init__()
        self.told = told

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        for found in super().keys(prefix, after=after):
            yield StoredObject(found.key, found.size, self.told)


@pytest.mark.parametrize(
    ("ahead", "outcome", "said"),
    [
        (3600, "warning", "ahead"),
        (-3600, "warning", "behind"),
        (30, "ok", "ahead"),
        (-30, "ok", "behind"),
        (None, "warning", "no times"),
    ],
)
def test_a_clock_more_than_a_minute_off_or_none_is_a_warning(
    ahead: int | None, outcome: str, said: str
) -> None:
    found = finding_of(Skewed(0.0 if ahead is None else time.time() + ahead), "clock")

    assert found.outcome == outcome
    assert said in found.details


def test_durability_is_reported(tmp_path: Path) -> None:
    hasty = LocalStore(str(tmp_path), storage_options={"durability": "none"})

    assert "power cut" in finding_of(LocalStore(str(tmp_path)), "durability").details
    assert finding_of(LocalStore(str(tmp_path)), "durability").outcome == "ok"
    assert finding_of(hasty, "durability").outcome == "warning"
    assert finding_of(MemoryStore(), "durability").outcome == "warning"
    generic = outcomes_of(diagnose(FsspecStore(f"memory://{uuid.uuid4()}/root")))
    assert generic["creates"] == generic["durability"] == "warning"


@pytest.mark.parametrize(
    ("mode", "outcome"), [(0o700, "ok"), (0o755, "warning"), (0o711, "warning"), (None, "ok")]
)
def test_a_folder_keeps_only_its_own_files_and_is_a_warning_if_it_is_open_to_other_users(
    tmp_path: Path, mode: int | None, outcome: str
) -> None:
    folder = tmp_path / "with %20 space"
    if mode is not None:
        folder.mkdir()
        (folder / "mine").write_bytes(b"kept")
        folder.chmod(mode)

    findings = diagnose(LocalStore(str(folder)))

    [found] = [finding for finding in findings if finding.check == "folder"]
    assert failures_of(findings) == []
    assert found.outcome == outcome
    assert ("does not exist yet" if mode is None else f"{mode:04o}") in found.details
    assert [path.name for path in folder.rglob("*")] == ([] if mode is None else ["mine"])


# Speed


class Delayed(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        time.sleep(0.05)
        return super().get(key, start=start, end=end)


def test_measured_latencies_are_shown_with_a_verdict_and_their_limits() -> None:
    speed, large = (finding_of(MemoryStore(), check) for check in ("speed", "large objects"))

    ms = r"\d+\.\d\d ms"
    limits = rf"put {ms} \(good: up to 50\), get {ms} \(good: up to 10\), listing {ms} \(good: up to 20\)"
    assert re.fullmatch(f"1 KiB: {limits}", speed.details)
    assert large.details.count(" MB/s (good: from 5)") == 2


def test_a_store_above_a_limit_is_slow_unless_it_is_over_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = finding_of(Delayed(), "speed")
    monkeypatch.setattr(Delayed, "is_shared", True)

    assert speed.outcome == "slow"
    assert "ms (slow; good: up to 10)" in speed.details
    assert "local disk" in speed.fix
    assert finding_of(Delayed(), "speed").outcome == "ok"


# Secrets


@pytest.mark.parametrize(
    "error",
    [
        StoreError("https://user:s3cret@s3cret@host/x: refused"),
        ValueError("signature of key s3cret does not match"),
    ],
)
def test_no_password_is_shown(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(_key: str, **_range: int | None) -> bytes:
        raise error

    store = MemoryStore()
    monkeypatch.setattr(store, "get", leak)

    findings = diagnose(store)

    assert "write and read" in failures_of(findings)
    assert "s3cret" not in repr(findings)


# The command


def test_the_command_prints_every_finding_and_its_code_says_whether_one_failed(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")

    done, warned = run("doctor", tmp_path / "store"), run("doctor", "memory://", "--json")
    failed, wrong = run("doctor", tmp_path / "file", "--json"), run("doctor", "nosuchscheme://x")

    assert [d.returncode for d in (done, warned, failed, wrong)] == [0, 0, 3, 2], done.stderr
    lines = done.stdout.splitlines()[1:]
    assert all(line.startswith(check) for line, check in zip(lines, CHECKS, strict=True))
    findings = json.loads(warned.stdout)["checks"]
    assert [finding["check"] for finding in findings] == CHECKS
    assert {"ok", "warning"} <= {finding["outcome"] for finding in findings} <= {"ok", "slow", "warning"}
    assert all(set(finding) == {"check", "outcome", "details", "fix"} for finding in findings)
    assert "failed" in [finding["outcome"] for finding in json.loads(failed.stdout)["checks"]]
