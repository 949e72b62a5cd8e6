"""What an S3 server does with `If-None-Match: *`: found out once, and kept in the bucket."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from offload.errors import (
    ExistsError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StoreUnavailableError,
)
from offload.keys import DESCRIPTOR
from offload_backends import _descriptor
from offload_backends._descriptor import Creates

if TYPE_CHECKING:
    from offload_backends._s3_client import S3Client


class Conditions:
    """The answer for one prefix of a bucket, in one process.

    AWS is known to refuse a create of a key that is taken. Any other server is asked for what an earlier
    process kept in the descriptor; if there is none, a probe object is written, created once more, and
    removed. Its name starts with a dot, which no key does, so that no listing shows it.

    Args:
        client: the connections to the bucket.
        prefix: the store's prefix, empty or with a slash at its end.
    """

    def __init__(self, client: S3Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._question: asyncio.Task[Creates] | None = None

    @property
    def known(self) -> Creates | None:
        """What was found out, None before."""
        question = self._question
        is_answered = question and question.done() and not question.cancelled() and not question.exception()
        return question.result() if question and is_answered else None

    async def creates(self) -> Creates:
        """Return what the server does with creates; callers of the same moment share one question.

        Raises:
            OffloadError: the server could not be asked; the next call tries again.
        """
        if self._question is None or (self._question.done() and self.known is None):
            self._question = asyncio.create_task(self._find_out())
        # A caller that gives up does not take the answer from the others.
        return await asyncio.shield(self._question)

    async def _find_out(self) -> Creates:
        if await self._client.is_aws():
            return "enforced"
        try:
            answer = await self._client.call(
                "get_object",
                DESCRIPTOR,
                Key=self._prefix + DESCRIPTOR,
                Range=f"bytes=0-{_descriptor.MAX_BYTES - 1}",
            )
        except NotFoundError:
            creates = await self._probe()
            await self._keep(creates)
            return creates
        except (StoreUnavailableError, StoreMissingError):
            raise
        except StoreError:
            # Not for us to read; some servers also say so of what is not there.
            return await self._probe()
        return _descriptor.decode(answer["Body"]) or await self._probe()

    async def _probe(self) -> Creates:
        name = f".probe-{secrets.token_hex(8)}"
        await self._client.call("put_object", name, Key=self._prefix + name, Body=b"")
        try:
            return await self._create_taken(name)
        finally:
            with suppress(OffloadError):
                await self._client.call("delete_object", name, Key=self._prefix + name)

    async def _create_taken(self, name: str) -> Creates:
        try:
            await self._client.call("put_object", name, Key=self._prefix + name, Body=b"", IfNoneMatch="*")
        except ExistsError:
            return "enforced"
        except StoreError as error:
            if not self._client.is_unsupported(error):
                raise
            return "unsupported"
        return "ignored"

    async def _keep(self, creates: Creates) -> None:
        """Write the descriptor; where that cannot be, the next process asks again."""
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if creates == "enforced" else {}
        with suppress(OffloadError):
            await self._client.call(
                "put_object",
                DESCRIPTOR,
                Key=self._prefix + DESCRIPTOR,
                Body=_descriptor.encode(creates),
                **condition,
            )
