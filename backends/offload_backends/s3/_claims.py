"""Claims: how simultaneous creates of one large object get one winner, on servers other than AWS.

Such a server may check the condition of a completion and write the object so much later that several
writers succeed. Its create of a small object is one step. So a writer that has sent all parts first creates
a claim, a small object with the arguments of its completion, and only the claimed upload is completed. A
writer that finds the claim of another completes that upload before it reports the key as taken, so a writer
that died holds up no other.

A claimed upload belongs to all writers: its own one does not abort it while another may be completing it. A
claim whose upload has ended without an object is dead, and the next number decides. Claims, dead ones too,
are deleted only once the object is visible: a writer that wins a claim afterwards sees the object. Were one
deleted earlier, a writer at the next number and a writer that finds the first number free would both win.

One order of events has two winners: the object is deleted, and two writers create it again while the first
creator still deletes its claims. Keys of records are never used again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from offload.errors import (
    ExistsError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client

# Some servers forget an upload a moment before they show its object.
_SHOWN_WITHIN_SECONDS = 1.0
# A server that refuses a claim and shows none would be asked for ever.
_MOST_IN_VAIN = 20
# Ten thousand parts take less.
_MAX_BYTES = 4 * 1024**2


class _Completion(msgspec.Struct, frozen=True):
    UploadId: str
    MultipartUpload: dict[str, list[dict[str, str | int]]]


# Created at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_COMPLETIONS = msgspec.json.Decoder(_Completion)


class Claims:
    """The claims to one key; each object of this class serves one create."""

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key
        self._digest = sha256(key.encode()).hexdigest()[:32]
        self._number = 0
        self._is_shown = False

    @property
    def is_shown(self) -> bool:
        """Whether other writers may see this writer's claim, and complete its upload."""
        return self._is_shown

    @asynccontextmanager
    async def won(self, completion: dict[str, Any]) -> AsyncIterator[None]:
        """Claim the key for the upload with these arguments of a completion, which the block completes.

        If another writer has claimed it, complete that upload and raise `ExistsError`. If the server refuses
        every claim and shows none, raise `StoreUnavailableError`.
        """
        await self._win(json.dumps(completion).encode())
        try:
            yield
        except ExistsError:
            await self._clear()
            raise
        await self._clear()

    async def take_note(self, error: StoreError) -> None:
        """Find out whether anybody may still complete this writer's upload, after the server did not."""
        if not isinstance(error, StoreUnavailableError) or await self._is_ended(error):
            self._is_shown = False

    async def _win(self, mine: bytes) -> None:
        asked_in_vain = 0
        while (claim := await self._claim(mine)) != mine:
            if await self._settle(claim):
                await self._clear()
                raise ExistsError(f"{self._client.prefix + self._key!r} is taken; another writer was first")
            if claim is not None:
                self._number += 1
            elif (asked_in_vain := asked_in_vain + 1) == _MOST_IN_VAIN:
                name = self._client.prefix + self._name(self._number)
                raise StoreUnavailableError(
                    f"{name!r}: the server refuses it as taken and does not show it; try again later"
                )

    async def _clear(self) -> None:
        """Delete the claims, since the object is visible; a failure changes nothing."""
        self._is_shown = False
        with suppress(OffloadError):
            for number in range(self._number + 1):
                await self._client.call("delete_object", self._name(number))

    def _name(self, number: int) -> str:
        # A name with a leading dot is not a key.
        return f".claim-{self._digest}-{number}"

    async def _claim(self, mine: bytes) -> bytes | None:
        """Create the claim; return the one that is there, None if it was just deleted."""
        self._is_shown = True
        retrying = self._client.retrying()
        try:
            await self._client.call(
                "put_object", self._name(self._number), retrying=retrying, Body=mine, IfNoneMatch="*"
            )
        except ExistsError:
            # It may be the own one: the answer of a first attempt may have been lost.
            claim = await self._read()
            self._is_shown = claim == mine
            return claim
        except StoreError as error:
            is_refused = not isinstance(error, StoreUnavailableError)
            self._is_shown = not is_refused or retrying.statistics["attempt_number"] > 1
            raise
        return mine

    async def _read(self) -> bytes | None:
        with suppress(NotFoundError):
            return await self._client.get(self._name(self._number), 0, _MAX_BYTES)
        return None

    async def _settle(self, claim: bytes | None) -> bool:
        """Complete the upload of another writer's claim; return whether the key is taken afterwards."""
        if not await self._is_taken():
            with suppress(msgspec.DecodeError):
                await self._complete(msgspec.to_builtins(_COMPLETIONS.decode(claim or b"")))
        return await self._is_taken()

    async def _is_taken(self) -> bool:
        with suppress(NotFoundError):
            await self._client.call("head_object", self._key)
            return True
        return False

    async def _complete(self, completion: dict[str, Any]) -> None:
        try:
            # Some servers fail, and do not refuse, the completion of an unknown upload.
            await self._client.call("list_parts", self._key, UploadId=completion["UploadId"], MaxParts=1)
            await self._client.call("complete_multipart_upload", self._key, **completion, IfNoneMatch="*")
        except ExistsError:
            return
        except StoreUnavailableError as error:
            if not await self._is_ended(error):
                raise

    async def _is_ended(self, error: StoreUnavailableError) -> bool:
        """Return whether an upload has ended; if so, its object is visible afterwards, or will never be."""
        if error.__cause__ and self._client.is_ended(error.__cause__):
            await asyncio.sleep(_SHOWN_WITHIN_SECONDS)
            return True
        return False
