"""Upload of a large object to Google Cloud Storage, which has no parts that could be sent side by side."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from offload.errors import ExistsError, NotFoundError, StoreUnavailableError
from offload.storage.store import blocks_of, sized
from offload_backends._bucket.uploads import Condition, Upload, part_size

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client


class ResumableUpload(Upload):
    """Upload of one object in parts, one after another, with the condition from the beginning to the end.

    The object appears with the last part, which is sent when there are no more pieces.
    """

    def __init__(self, client: Client, key: str, size: int) -> None:
        super().__init__(client, key, size)
        self._md5 = hashlib.md5(usedforsecurity=False)

    def _send(self, upload: str, pieces: Iterable[bytes], condition: Condition) -> None:  # noqa: ARG002  # it was set at the beginning
        start, held = 0, b""
        for part in blocks_of(sized(pieces, self._size), part_size(self._size)):
            if held:
                self._client.run(self._send_all, upload, start, held, None)
                start += len(held)
            held = part
            self._digest.update(part)
            self._md5.update(part)
        self._client.run(self._end, upload, start, held)

    async def _begin(self, condition: Condition) -> str:
        answer = await self._client.call("create_multipart_upload", self._key, **await condition())
        upload: str = answer["UploadId"]
        return upload

    async def _send_all(self, upload: str, start: int, part: bytes, total: int | None) -> int:
        """Send a part, the rest of it again if the server kept less; return the number of attempts."""
        view, attempts, end = memoryview(part), 0, start + len(part)
        while start < end:
            retrying = self._client.retrying()
            rest = view[start - end :]
            answer = await self._client.call(
                "upload_part",
                self._key,
                size=len(rest),
                retrying=retrying,
                UploadId=upload,
                Body=rest,
                Start=start,
                Total=total,
                ContentMD5=base64.b64encode(self._md5.digest()).decode(),
            )
            if answer["End"] <= start:
                raise StoreUnavailableError(f"{self._key!r}: the server keeps no bytes of the upload")
            start, attempts = answer["End"], attempts + retrying.statistics["attempt_number"]
        return attempts

    async def _end(self, upload: str, start: int, part: bytes) -> None:
        try:
            await self._send_all(upload, start, part, self._size)
        except (ExistsError, NotFoundError, StoreUnavailableError):
            # The answer of an attempt that stored the object may have been lost.
            if not await self._is_stored():
                raise
