"""Probe of a server of Google's or Azure's kind by writers at the same time.

The stores were tested on emulators only. So no endpoint is trusted: each prefix is probed once, and the
result is stored for later processes.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from offload_backends._bucket.conditions import Conditions
from offload_backends._descriptor import Creates, Descriptor

_WRITERS = 2


class Race(Conditions):
    """The features of a server, by a probe in which several writers create one object at the same time.

    An emulator may refuse the second of two creates and accept two simultaneous ones.
    """

    async def _effect(self, names: list[str], stack: AsyncExitStack) -> Creates:
        for each in names:
            stack.push_async_callback(self._remove, each)
        outcomes = [await self._race(each) for each in names]
        return next((each for each in outcomes if each != "enforced"), "enforced")

    def _is_complete(self, described: Descriptor) -> bool:
        # The generic store writes no sort order, and tests creates one after another.
        return described.is_sorted is not None

    async def _race(self, name: str) -> Creates:
        outcomes = await asyncio.gather(*(self._create_taken(name, b"%d" % n) for n in range(_WRITERS)))
        if outcomes.count("ignored") > 1:
            return "ignored"
        # One of them found the key free.
        return "unsupported" if "unsupported" in outcomes else "enforced"
