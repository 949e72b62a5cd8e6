"""Upload of a large object in parts; the object is visible after the last request.

The caller's thread iterates and cuts the pieces; fsspec's loop sends the parts. So an iterator of pieces
may block, and may read from the same store.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from offload.errors import ExistsError, NotFoundError, OffloadError, StoreUnavailableError
from offload.storage.store import blocks_of, sized

if TYPE_CHECKING:
    from tenacity import AsyncRetrying

    from offload_backends._bucket.client import Client

_MIB = 1024**2
# S3's own limits.
MAX_SIZE = 5 * 1024**4
_MAX_PARTS = 10_000

_PART = 8 * _MIB
_IN_FLIGHT = 4
_ABORT_SECONDS = 5.0


def part_size(size: int) -> int:
    """Return the part size for an object of `size` bytes: 8 MiB, or more to limit the number of parts."""
    needed = -(-size // _MAX_PARTS)
    return max(_PART, -(-needed // _MIB) * _MIB)


def md5(data: bytes) -> str:
    """Return the checksum that every S3 server verifies."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


# Returns the arguments of a completion.
Condition = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


class Upload:
    """Upload of one object of `size` bytes."""

    def __init__(self, client: Client, key: str, size: int) -> None:
        self._client = client
        self._key = key
        self._size = size
        self._digest = hashlib.sha256()

    def store(self, pieces: Iterable[bytes], condition: Condition) -> None:
        """Upload `pieces`, then create the object with the arguments that `condition` returns.

        `condition` is called before anything is sent and again at the end; it raises `ExistsError` for a
        taken key. After any exception the upload is aborted if the server can be reached.
        """
        upload = self._client.run(self._begin, condition)
        try:
            self._send(upload, pieces, condition)
        except BaseException:
            # Parts of an unfinished upload cost money, and no listing shows them.
            self._client.run(self._abort, upload)
            raise

    def _send(self, upload: str, pieces: Iterable[bytes], condition: Condition) -> None:
        completion = {"UploadId": upload, "MultipartUpload": {"Parts": self._parts(upload, pieces)}}
        self._client.run(self._complete, completion, condition)

    def _parts(self, upload: str, pieces: Iterable[bytes]) -> list[dict[str, Any]]:
        """Send the parts, a few at a time, and return the list for the completion."""
        sending: deque[Future[dict[str, Any]]] = deque()
        parts: list[dict[str, Any]] = []
        try:
            blocks = blocks_of(sized(pieces, self._size), part_size(self._size))
            for number, part in enumerate(blocks, 1):
                self._digest.update(part)
                sending.append(self._client.submit(self._send_part, upload, number, part, md5(part)))
                # Wait before the next part is cut, to limit the parts in memory.
                if len(sending) == _IN_FLIGHT:
                    parts.append(sending.popleft().result())
            while sending:
                parts.append(sending.popleft().result())
        finally:
            for future in sending:
                future.cancel()
        return parts

    async def _begin(self, condition: Condition) -> str:
        await condition()
        answer = await self._client.call("create_multipart_upload", self._key)
        upload: str = answer["UploadId"]
        return upload

    async def _send_part(self, upload: str, number: int, part: bytes, checksum: str) -> dict[str, Any]:
        answer = await self._client.call(
            "upload_part",
            self._key,
            size=len(part),
            UploadId=upload,
            PartNumber=number,
            Body=part,
            ContentMD5=checksum,
        )
        # The checksums that newer botocore adds are compared once more on completion.
        checksums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
        return {"PartNumber": number, "ETag": answer["ETag"], **checksums}

    async def _complete(self, completion: dict[str, Any], condition: Condition) -> None:
        """Create the object by the arguments `completion` and those of `condition`."""
        retrying = self._client.retrying()
        try:
            await self._create({**completion, **await condition()}, retrying)
        except (ExistsError, StoreUnavailableError) as error:
            # If this upload was completed, the object exists, or the upload is unknown to the server.
            is_of_another = isinstance(error, ExistsError) and not self._may_be_completed(retrying)
            if is_of_another or not await self._is_stored():
                raise

    async def _create(self, arguments: dict[str, Any], retrying: AsyncRetrying) -> None:
        await self._client.call("complete_multipart_upload", self._key, retrying=retrying, **arguments)

    def _may_be_completed(self, retrying: AsyncRetrying) -> bool:
        """Return whether this upload may be completed: the answer of an attempt may have been lost."""
        attempts: int = retrying.statistics.get("attempt_number", 1)
        return attempts > 1

    async def _is_stored(self) -> bool:
        """Return whether the object has the bytes that were sent; it is read one part at a time."""
        stored = hashlib.sha256()
        try:
            # The last part ends after the object, to find a longer one.
            for start in range(0, self._size + 1, _PART):
                stored.update(await self._client.get(self._key, start, start + _PART))
        except NotFoundError:
            return False
        return stored.digest() == self._digest.digest()

    async def _abort(self, upload: str) -> None:
        with suppress(OffloadError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._client.call("abort_multipart_upload", self._key, UploadId=upload)
