"""What an S3 server does with `If-None-Match: *`, and how it sorts: found out once, kept in the bucket."""

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
    """The answers for one prefix of a bucket, in one process.

    AWS is known to refuse a create of a key that is taken, and to list in key order. Any other server is
    asked for what an earlier process kept in the descriptor; if there is none, two probe objects are
    written, one of them created once more, listed, and removed. Their names start with a dot, which no
    key does, so that no listing shows them.

    Args:
        client: the connections to the bucket.
        prefix: the store's prefix, empty or with a slash at its end.
    """

    def __init__(self, client: S3Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._kept = _Question(self._read)
        self._found = _Question(self._find_out)

    @property
    def known(self) -> Creates | None:
        """What was found out of creates, None before."""
        return self._found.known and self._found.known.creates

    async def creates(self) -> Creates:
        """Return what the server does with creates.

        Raises:
            OffloadError: the server could not be asked; the next call tries again.
        """
        return (await self._found.answer()).creates

    async def is_sorted(self) -> bool:
        """Return whether listings are known to come in key order; a reader writes nothing to find out.

        Raises:
            OffloadError: the server could not be asked; the next call tries again.
        """
        if self._found.known:
            return self._found.known.is_sorted
        return await self._client.is_aws() or _descriptor.decode_sorted(await self._kept.answer() or b"")

    async def _find_out(self) -> _CreateSupport:
        if await self._client.is_aws():
            return _CreateSupport("enforced", is_sorted=True)
        kept = await self._kept.answer()
        creates = _descriptor.decode(kept or b"")
        if kept and creates:
            return _CreateSupport(creates, _descriptor.decode_sorted(kept))
        support = await self._probe()
        if kept is None:
            await self._keep(support)
        return support

    async def _read(self) -> bytes | None:
        """Return the descriptor, None if there is none, nothing if it cannot be read."""
        wanted = f"bytes=0-{_descriptor.MAX_BYTES - 1}"
        try:
            answer = await self._call("get_object", DESCRIPTOR, Range=wanted)
        except NotFoundError:
            return None
        except (StoreUnavailableError, StoreMissingError):
            raise
        except StoreError:
            # Not for us to read; some servers also say so of what is not there.
            return b""
        body: bytes = answer["Body"]
        return body

    async def _probe(self) -> _CreateSupport:
        name = f".probe-{secrets.token_hex(8)}"
        # Sorted by folders, the first of them comes first.
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
            if not self._client.is_unsupported(error):
                raise
            return "unsupported"
        return "ignored"

    async def _lists(self, prefix: str, names: list[str]) -> bool:
        """Return whether a listing of `prefix` is seen to be `names`."""
        try:
            answer = await self._client.call("list_objects_v2", prefix, Prefix=self._prefix + prefix)
        except (StoreUnavailableError, StoreMissingError):
            raise
        except StoreError:
            # Who writes need not be allowed to list.
            return False
        return [item["Key"] for item in answer.get("Contents", ())] == [self._prefix + name for name in names]

    async def _remove(self, name: str) -> None:
        with suppress(OffloadError):
            await self._call("delete_object", name)

    async def _keep(self, support: _CreateSupport) -> None:
        """Write the descriptor; where that cannot be, the next process asks again."""
        condition = {"IfNoneMatch": "*"} if support.creates == "enforced" else {}
        said = _descriptor.encode(support.creates, is_sorted=support.is_sorted)
        with suppress(OffloadError):
            await self._call("put_object", DESCRIPTOR, Body=said, **condition)

    async def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        return await self._client.call(method, name, Key=self._prefix + name, **arguments)


class _Question(Generic[T]):
    """A question that callers of the same moment share, and that is asked again if it failed or found None.

    Args:
        ask: asks it.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Future[T] | None = None

    @property
    def known(self) -> T | None:
        """The answer, None before."""
        asking = self._asking
        is_answered = asking and asking.done() and not asking.cancelled() and not asking.exception()
        return asking.result() if asking and is_answered else None

    async def answer(self) -> T:
        """Return the answer, or raise what kept it from being found."""
        if self._asking is None or (self._asking.done() and self.known is None):
            self._asking = asyncio.ensure_future(self._ask())
        # A caller that gives up does not take the answer from the others.
        return await asyncio.shield(self._asking)
