"""The retrieval tools of a model: context_list, _read, _tail, _grep, _query and _diff."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offload.reading.tools._tools import Tools
    from offload.reading.tools.references import References

__all__ = [
    "References",
    "Tools",
]

# A program that only offloads needs none of them.
_MODULES = {"Tools": "_tools", "References": "references"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"offload.reading.tools.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'offload.reading.tools' has no attribute {name!r}")
