"""The deletion of many keys by one request of S3, whose answer has an error for each key that remains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from offload import errors
from offload_backends._bucket.client import ForeignAnswerError

if TYPE_CHECKING:
    from offload_backends.s3._client import S3Client

# The most keys that one request deletes.
MOST_KEYS = 1000
# Answers of a server that lacks the request, or cannot read one of the keys in its document.
_UNSUPPORTED = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.LENGTH_REQUIRED,
    HTTPStatus.NOT_IMPLEMENTED,
)
# The statuses that a request for one key would have; an answer for many has only the codes.
_STATUSES = {
    "AccessDenied": HTTPStatus.FORBIDDEN,
    "InternalError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "NoSuchKey": HTTPStatus.NOT_FOUND,
    "OperationAborted": HTTPStatus.CONFLICT,
    "ServiceUnavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "SlowDown": HTTPStatus.SERVICE_UNAVAILABLE,
}


class Deletion:
    """One request that deletes up to 1,000 keys; it is repeated for those that may be deleted later."""

    def __init__(self, client: S3Client, keys: Sequence[str]) -> None:
        self._client = client
        # By the name of each object that remains, its key.
        self._left = {client.prefix + key: key for key in keys}
        self._failed: list[errors.OffloadError] = []

    async def run(self) -> list[errors.OffloadError] | None:
        """Return the errors of the keys that are not deleted; None if the server does not support it.

        Raises the error of the request, if it has no answer for each key.
        """
        first, count = next(iter(self._left.values())), len(self._left)
        try:
            with self._client.mapped_errors(f"{first} and {count - 1:,} other keys"):
                async with self._client.deadline():
                    await self._client.retrying()(self._attempt)
        except errors.StoreError as error:
            if self._is_unsupported(error):
                return None
            raise
        return self._failed

    async def _attempt(self) -> None:
        objects = [{"Key": name} for name in self._left]
        answer = await self._client.attempt("delete_objects", {"Delete": {"Objects": objects, "Quiet": True}})
        refused = {each.get("Key"): _error(each) for each in answer.get("Errors", ())}
        if not self._left.keys() >= refused.keys():
            raise ForeignAnswerError("expected an answer about the keys of the request, got one about others")
        passing = {name: error for name, error in refused.items() if self._client.is_transient(error)}
        for name in refused.keys() - passing.keys():
            self._note(self._left[name], refused[name])
        self._left = {name: key for name, key in self._left.items() if name in passing}
        if passing:
            raise next(iter(passing.values()))

    def _note(self, key: str, error: ClientError) -> None:
        """Note the error of a key; an absent one is deleted."""
        try:
            with suppress(errors.NotFoundError), self._client.mapped_errors(key):
                raise error
        except errors.OffloadError as mapped:
            self._failed.append(mapped)

    def _is_unsupported(self, error: errors.StoreError) -> bool:
        # A refused login may have one of these statuses, and is another error.
        if type(error) is not errors.StoreError or error.__cause__ is None:
            return False
        return self._client.answer(error.__cause__)[0] in _UNSUPPORTED


def _error(fields: Mapping[str, Any]) -> ClientError:
    """Return the error of one key as the answer to a request of its own."""
    status = _STATUSES.get(fields.get("Code", ""), HTTPStatus.BAD_REQUEST)
    return ClientError({"Error": fields, "ResponseMetadata": {"HTTPStatusCode": status}}, "DeleteObjects")
