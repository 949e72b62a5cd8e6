"""Pytest plugin that puts the implementations here in place of a peer's own, whose tests then run them."""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from offload_backends.memory import MemoryStore

PEER = os.environ["PEER"]


def pytest_configure() -> None:
    """Replace the peer's classes before its tests import them; the suite of LangChain asks for ours."""
    known = {"anthropic": _anthropic, "deepagents": _deepagents, "google-adk": _adk, "strands": _strands}
    if PEER in known:
        known[PEER]()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Let the tests of the Anthropic SDK see the files of a memory in its store."""
    for module in {item.module for item in items if hasattr(item.module, "get_directory_snapshot")}:
        module.get_directory_snapshot = _files_of


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run coroutine tests, so that no environment needs the peer's own plugin."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


# The memory tool of the Anthropic SDK. The folder of a test is the store's name.

_memories: dict[str, Any] = {}


def _files_of(base_path: str) -> dict[str, str]:
    files = _memories[base_path]._files  # what is stored, not what the tool answers
    return {info.key.lstrip("/"): files.get(info.key).decode() for info in files.list()}


class _File:
    """A path below a memory's root, for tests that write or read a file beside the tool."""

    def __init__(self, memory: Any, name: str) -> None:
        self._files, self._name = memory._files, name
        self._memory = memory

    def __truediv__(self, name: str) -> _File:
        return _File(self._memory, f"{self._name}/{name}")

    def write_bytes(self, data: bytes) -> None:
        self._files.put(self._name, data)

    def read_bytes(self) -> bytes:
        return bytes(self._files.get(self._name))

    def is_dir(self) -> bool:
        return True


class _AsyncFile(_File):
    async def is_dir(self) -> bool:  # type: ignore[override] # as in anyio
        return True


def _anthropic() -> None:
    from anthropic.lib.tools import _beta_builtin_memory_tool as sdk

    from offload.integrations.anthropic import AsyncOffloadMemory, OffloadMemory

    class Memory(OffloadMemory):
        def __init__(self, base_path: str) -> None:
            super().__init__(MemoryStore(), session="tests")
            self.base_path, self.memory_root = Path(base_path), _File(self, "/memories")
            _memories[base_path] = self

    class AsyncMemory(AsyncOffloadMemory):
        def __init__(self, base_path: str) -> None:
            super().__init__(MemoryStore(), session="tests")
            self.base_path, self.memory_root = Path(base_path), _AsyncFile(self._memory, "/memories")
            _memories[base_path] = self._memory

    vars(sdk).update(BetaLocalFilesystemMemoryTool=Memory, BetaAsyncLocalFilesystemMemoryTool=AsyncMemory)


def _adk() -> None:
    from google.adk.artifacts import in_memory_artifact_service as adk

    from offload.integrations.google_adk import OffloadArtifactService

    vars(adk)["InMemoryArtifactService"] = lambda: OffloadArtifactService(MemoryStore())


def _strands() -> None:
    from strands import storage

    from offload.integrations.strands import OffloadStorage

    class Storage(OffloadStorage):
        def __init__(self, **_: Any) -> None:
            super().__init__(MemoryStore(), session="tests")

    storage.InMemoryStorage = Storage


def _deepagents() -> None:
    from deepagents.backends import store as deepagents

    from offload.integrations.deepagents import OffloadBackend

    # One store for each of the framework's, and one session for each of its namespaces.
    stores: dict[int, tuple[Any, MemoryStore]] = {}

    def backend(*, store: Any, namespace: Any) -> OffloadBackend:
        _, ours = stores.setdefault(id(store), (store, MemoryStore()))
        return OffloadBackend(ours, session="-".join(namespace(None)))

    deepagents.StoreBackend = backend
