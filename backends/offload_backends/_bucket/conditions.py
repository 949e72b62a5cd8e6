"""Probe of a server: its handling of `If-None-Match: *` and its sort order, stored in the bucket."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from offload import errors
from offload.storage.layout import DESCRIPTOR
from offload_backends._descriptor import FORMAT, MAX_BYTES, Creates, Descriptor, decode

if TYPE_CHECKING:
    from offload_backends._bucket.client import Client

_log = logging.getLogger("offload")
_NOT_ATOMIC = (
    "%s: the server cannot prevent a create from overwriting: of two concurrent writers of one key the last "
    "one wins"
)

T = TypeVar("T")


class Conditions:
    """The features of the server for one prefix of a bucket, in one process.

    AWS is known to refuse a create of a taken key, and to list in key order. For any other server, the
    descriptor of an earlier process is read; if there is none, two probe objects are written, one of them
    is created again, and both are listed and deleted. Their names start with a dot, so they are not keys
    and no listing shows them. If the probe fails, its error is raised, and the next call tries again.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._descriptor_read = _Question(self._read)
        self._support = _Question(self._determine)

    @property
    def known(self) -> Creates | None:
        return self._support.known.creates if self._support.known else None

    async def creates(self) -> Creates:
        """Return the effect of a create on a taken key."""
        return (await self._support.answer()).creates

    async def is_sorted(self) -> bool:
        """Return whether listings are known to be in key order, without a probe: a reader writes nothing."""
        support = self._support.known
        if support is None:
            if await self._client.is_known():
                return True
            support = decode(await self._descriptor_read.answer() or b"")
        return support is not None and support.is_sorted is True

    async def _determine(self) -> Descriptor:
        if await self._client.is_known():
            return Descriptor(FORMAT, "enforced", is_sorted=True)
        stored = await self._descriptor_read.answer()
        described = decode(stored or b"")
        support = described if described and self._is_complete(described) else await self._probe()
        if support is not described and (stored is None or described):
            await self._keep(support, is_new=stored is None)
        if support.creates != "enforced":
            _log.warning(_NOT_ATOMIC, self._client.url)
        return support

    async def _read(self) -> bytes | None:
        """Return the descriptor, None if there is none, empty if it cannot be read."""
        try:
            return await self._client.get(DESCRIPTOR, 0, MAX_BYTES)
        except errors.NotFoundError:
            return None
        except (errors.StoreUnavailableError, errors.StoreMissingError):
            raise
        except errors.StoreError:
            # Reading is refused; some servers also refuse absent objects.
            return b""

    async def _probe(self) -> Descriptor:
        name = f".probe-{secrets.token_hex(8)}"
        # A server that sorts by folders lists the first one first.
        names = [f"{name}/k", f"{name}-k"]
        async with AsyncExitStack() as stack:
            creates = await self._effect(names, stack)
            return Descriptor(FORMAT, creates, await self._lists(name, sorted(names)))

    async def _effect(self, names: list[str], stack: AsyncExitStack) -> Creates:
        """Create objects, which `stack` removes; return the effect of a create on a taken key."""
        for each in names:
            await self._client.call("put_object", each, Body=b"")
            stack.push_async_callback(self._remove, each)
        return await self._create_taken(names[0])

    async def _create_taken(self, name: str, body: bytes = b"") -> Creates:
        try:
            await self._client.call("put_object", name, Body=body, IfNoneMatch="*")
        except errors.ExistsError:
            return "enforced"
        except errors.StoreError as error:
            if not self._client.is_unsupported(error):
                raise
            return "unsupported"
        return "ignored"

    async def _lists(self, prefix: str, names: list[str]) -> bool:
        """Return whether a listing of `prefix` shows `names` in this order."""
        try:
            answer = await self._client.call("list_objects_v2", prefix)
        except (errors.StoreUnavailableError, errors.StoreMissingError):
            raise
        except errors.StoreError:
            # A writer may lack the permission to list.
            return False
        root = self._client.prefix
        return [item["Key"] for item in answer.get("Contents", ())] == [root + name for name in names]

    async def _remove(self, name: str) -> None:
        with suppress(errors.OffloadError):
            await self._client.call("delete_object", name)

    def _is_complete(self, described: Descriptor) -> bool:  # noqa: ARG002  # a weaker probe is known to one subclass only
        """Return whether a stored descriptor is used as it is; another one is replaced."""
        return True

    async def _keep(self, support: Descriptor, *, is_new: bool) -> None:
        """Write the descriptor; if that fails, the next process probes again."""
        is_condition_checked = is_new and support.creates == "enforced"
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if is_condition_checked else {}
        with suppress(errors.OffloadError):
            await self._client.call("put_object", DESCRIPTOR, Body=support.encode(), **condition)


class _Question(Generic[T]):
    """The result of `ask`, which concurrent callers share; a failure or None is not kept."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Future[T] | None = None

    @property
    def known(self) -> T | None:
        asking = self._asking
        is_answered = asking and asking.done() and not asking.cancelled() and not asking.exception()
        return asking.result() if asking and is_answered else None

    async def answer(self) -> T:
        if self._asking is None or (self._asking.done() and self.known is None):
            self._asking = asyncio.ensure_future(self._ask())
        # A cancelled caller does not cancel the others.
        return await asyncio.shield(self._asking)
