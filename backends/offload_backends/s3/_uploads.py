"""Upload of a large object to a server other than AWS, whose completion is claimed first: see `_claims`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offload.errors import StoreError
from offload_backends._bucket.uploads import Condition, Upload
from offload_backends.s3._claims import Claims

if TYPE_CHECKING:
    from tenacity import AsyncRetrying

    from offload_backends._bucket.client import Client


class ClaimedUpload(Upload):
    """Upload of one object, which other writers may complete once they see its claim."""

    def __init__(self, client: Client, key: str, size: int) -> None:
        super().__init__(client, key, size)
        self._claims = Claims(client, key)

    async def _complete(self, completion: dict[str, Any], condition: Condition) -> None:
        async with self._claims.won(completion):
            await super()._complete(completion, condition)

    async def _create(self, arguments: dict[str, Any], retrying: AsyncRetrying) -> None:
        try:
            await super()._create(arguments, retrying)
        except StoreError as error:
            await self._claims.take_note(error)
            raise

    def _may_be_completed(self, retrying: AsyncRetrying) -> bool:  # noqa: ARG002  # another writer may, at any time
        return True

    async def _abort(self, upload: str) -> None:
        if not self._claims.is_shown:
            await super()._abort(upload)
