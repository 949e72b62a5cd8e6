"""The checks in their order, and the findings that their results and errors are."""

from __future__ import annotations

import re
from collections.abc import Callable

from offload import errors
from offload.maintenance.doctor import _behavior, _facts, _speed
from offload.maintenance.doctor._trial import BrokenError, CheckResult, Finding, Trial, require
from offload.storage.registry import leaving_no_folder
from offload.storage.store import OffloadStore

_CONTRACT_BROKEN = (
    "the store breaks its contract; for details run: "
    "pytest -p offload.testing.plugin --pyargs offload.testing.test_store"
)
_USER = re.compile(r"(?<=://)[^/\s]*@")

_Check = Callable[[Trial], CheckResult]


def diagnose(store: OffloadStore) -> list[Finding]:
    """Test the guarantees of `store` and return one finding per check, in the order of the checks.

    A failed check does not prevent the next one. The diagnosis ends early only if the store is
    unreachable, missing or not writable, because every further check would fail too. About 15 MB are
    transferred.

    Store errors become findings; user names and passwords of URLs are removed.
    """
    trial = Trial(store)
    findings: list[Finding] = []
    with leaving_no_folder(store):
        try:
            for name, check in _CHECKS.items():
                finding, error = _run(name, check, trial)
                findings.append(finding)
                # Every further check would raise the same error.
                is_read_only = check is _behavior.write and isinstance(error, errors.StorePermissionError)
                if is_read_only or isinstance(error, _HOPELESS):
                    findings.append(Finding("other checks", "warning", "skipped", "fix this first"))
                    break
        finally:
            if trial.used:
                findings.append(_run("clean-up", _clean_up, trial)[0])
    return findings


def _run(name: str, check: _Check, trial: Trial) -> tuple[Finding, Exception | None]:
    error: Exception | None = None
    try:
        result = check(trial)
    except Exception as caught:  # noqa: BLE001  # a foreign store may raise anything; it is the finding
        raised = _foreign_in(caught)
        # The text of a foreign error may contain anything, a password included.
        has_safe_text = isinstance(raised, errors.OffloadError | BrokenError)
        foreign = f"raised {type(raised).__name__}, which is not an OffloadError"
        fix = next(fix for kind, fix in _FIXES if isinstance(raised, kind))
        result, error = CheckResult(str(raised) if has_safe_text else foreign, fix, "failed"), raised
    return Finding(name, result.outcome, _USER.sub("", result.details), _USER.sub("", result.fix)), error


def _foreign_in(error: Exception) -> Exception:
    """Return the exception that an error of no kind of its own wraps, else the error."""
    cause = error.__cause__
    return cause if type(error) is errors.OffloadError and isinstance(cause, Exception) else error


_HOPELESS = (errors.StoreUnavailableError, errors.StoreMissingError, errors.MissingExtraError)
# The first match counts.
_FIXES: tuple[tuple[type[Exception], str], ...] = (
    (errors.StoreUnavailableError, "check address, network and credentials, then try again"),
    (errors.StoreMissingError, "create the bucket or folder, or correct the URL"),
    (errors.EncryptionError, "open the store with the key that wrote the object"),
    (errors.StorePermissionError, "grant this user, or these credentials, the permission"),
    (errors.NotFoundError, _CONTRACT_BROKEN),
    (errors.OffloadError, "see the message"),
    (Exception, _CONTRACT_BROKEN),
)


def _clean_up(trial: Trial) -> CheckResult:
    try:
        for key in sorted(trial.used):
            trial.store.delete(key)
        require(not any(trial.store.keys(trial.prefix)), "objects are listed after their deletion")
    except (errors.OffloadError, BrokenError) as error:
        fix = f"delete the objects whose keys start with {trial.prefix!r}"
        return CheckResult(f"some trial objects could not be deleted: {error}", fix, "failed")
    return CheckResult("all trial objects were deleted")


_CHECKS: dict[str, _Check] = {
    "durability": lambda trial: _facts.DURABILITY[trial.store.durability],
    "sharing": lambda trial: _facts.SHARING[trial.store.is_shared],
    "folder": _facts.folder,
    "access": _facts.reading,
    "write and read": _behavior.write,
    "listing": _behavior.listing,
    "creates": _behavior.create,
    "overwrite": _behavior.overwrite,
    "delete": _behavior.delete,
    "clock": _behavior.clock,
    "speed": _speed.speed,
    "large objects": _speed.throughput,
    "bulk": _behavior.bulk,
    "streams": _behavior.streams,
}
