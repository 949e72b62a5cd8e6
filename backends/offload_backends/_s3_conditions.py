"""Probe of an S3 server: its handling of `If-None-Match: *` and its sort order, stored in the bucket."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from offload.errors import (
    ExistsError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StoreUnavailableError,
)
from offload.layout import DESCRIPTOR
from offload_backends import _descriptor
from offload_backends._descriptor import Creates

if TYPE_CHECKING:
    from offload_backends._s3_client import S3Client

T = TypeVar("T")


class _CreateSupport(NamedTuple):
    creates: Creates
    is_sorted: bool


class Conditions:
    """The features of the server for one prefix of a bucket, in one process.

    AWS is known to refuse a create of a taken key, and to list in key order. For any other server, the
    descriptor of an earlier process is read; if there is none, two probe objects are written, one of them
    is created again, and both are listed and deleted. Their names start with a dot, so they are not keys
    and no listing shows them.

    Args:
        client: the connections to the bucket.
        prefix: the store's prefix, empty or with a slash at its end.

    Attributes:
        client: the connections.
    """

    def __init__(self, client: S3Client, prefix: str) -> None:
        self.client = client
        self._prefix = prefix
        self._descriptor_read = _Question(self._read)
        self._support = _Question(self._determine)

    @property
    def known(self) -> Creates | None:
        """The effect of creates, None before it is known."""
        return self._support.known and self._support.known.creates

    async def creates(self) -> Creates:
        """Return the effect of a create on a taken key.

        Raises:
            OffloadError: the probe failed; the next call tries again.
        """
        return (await self._support.answer()).creates

    async def is_sorted(self) -> bool:
        """Return whether listings are known to be in key order, without a probe: a reader writes nothing.

        Raises:
            OffloadError: the probe failed; the next call tries again.
        """
        if self._support.known:
            return self._support.known.is_sorted
        return await self.client.is_aws() or _descriptor.decode_sorted(
            await self._descriptor_read.answer() or b""
        )

    async def _determine(self) -> _CreateSupport:
        if await self.client.is_aws():
            return _CreateSupport("enforced", is_sorted=True)
        stored = await self._descriptor_read.answer()
        creates = _descriptor.decode(stored or b"")
        if stored and creates:
            return _CreateSupport(creates, _descriptor.decode_sorted(stored))
        support = await self._probe()
        if stored is None:
            await self._keep(support)
        return support

    async def _read(self) -> bytes | None:
        """Return the descriptor, None if there is none, empty if it cannot be read."""
        part = f"bytes=0-{_descriptor.MAX_BYTES - 1}"
        try:
            answer = await self._call("get_object", DESCRIPTOR, Range=part)
        except NotFoundError:
            return None
        except (StoreUnavailableError, StoreMissingError):
            raise
        except StoreError:
            # Reading is refused; some servers also refuse absent objects.
            return b""
        body: bytes = answer["Body"]
        return body

    async def _probe(self) -> _CreateSupport:
        name = f".probe-{secrets.token_hex(8)}"
        # A server that sorts by folders lists the first one first.
        names = [f"{name}/k", f"{name}-k"]
        async with AsyncExitStack() as stack:
            for each in names:
                await self._call("put_object", each, Body=b"")
                stack.push_async_callback(self._remove, each)
            return _CreateSupport(await self._create_taken(names[0]), await self._lists(name, sorted(names)))

    async def _create_taken(self, name: str) -> Creates:
        try:
            await self._call("put_object", name, Body=b"", IfNoneMatch="*")
        except ExistsError:
            return "enforced"
        except StoreError as error:
            if not self.client.is_unsupported(error):
                raise
            return "unsupported"
        return "ignored"

    async def _lists(self, prefix: str, names: list[str]) -> bool:
        """Return whether a listing of `prefix` shows `names` in this order."""
        try:
            answer = await self.client.call("list_objects_v2", prefix, Prefix=self._prefix + prefix)
        except (StoreUnavailableError, StoreMissingError):
            raise
        except StoreError:
            # A writer may lack the permission to list.
            return False
        return [item["Key"] for item in answer.get("Contents", ())] == [self._prefix + name for name in names]

    async def _remove(self, name: str) -> None:
        with suppress(OffloadError):
            await self._call("delete_object", name)

    async def _keep(self, support: _CreateSupport) -> None:
        """Write the descriptor; if that fails, the next process probes again."""
        condition = {"IfNoneMatch": "*"} if support.creates == "enforced" else {}
        descriptor = _descriptor.encode(support.creates, is_sorted=support.is_sorted)
        with suppress(OffloadError):
            await self._call("put_object", DESCRIPTOR, Body=descriptor, **condition)

    async def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        return await self.client.call(method, name, Key=self._prefix + name, **arguments)


class _Question(Generic[T]):
    """A result that concurrent callers share; a failure or None is not kept.

    Args:
        ask: computes the result.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Future[T] | None = None

    @property
    def known(self) -> T | None:
        """The result, None before it is known."""
        asking = self._asking
        is_answered = asking and asking.done() and not asking.cancelled() and not asking.exception()
        return asking.result() if asking and is_answered else None

    async def answer(self) -> T:
        """Return the result, or raise its error."""
        if self._asking is None or (self._asking.done() and self.known is None):
            self._asking = asyncio.ensure_future(self._ask())
        # A cancelled caller does not cancel the others.
        return await asyncio.shield(self._asking)
