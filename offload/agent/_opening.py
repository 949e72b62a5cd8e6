"""The arguments of a context manager: their types, and the offloader that it opens without one."""

from __future__ import annotations

from collections.abc import Mapping

from offload.agent._config import AgentConfig
from offload.base.threads.locks import NO_FORK
from offload.errors import ConfigError, check_callable, check_kind
from offload.offloader import Offloader


def check_types(offloader: object, config: object, strategy: object, functions: Mapping[str, object]) -> None:
    """Raise `ConfigError` for an argument of another type, which would fail only when it is used."""
    if not isinstance(offloader, Offloader | None):
        has_one = isinstance(getattr(offloader, "offloader", None), Offloader)
        hint = "; pass its offloader" if has_one else ""
        raise ConfigError(f"offloader must be an Offloader, got {type(offloader).__name__}{hint}")
    check_kind("config", config, AgentConfig)
    if strategy is not None and not callable(getattr(strategy, "compact", None)):
        raise ConfigError(f"strategy must have a method compact, got {type(strategy).__name__}")
    for name, function in functions.items():
        check_callable(name, function)


def opened_offloader(offloader: Offloader | None, config: AgentConfig) -> Offloader:
    """Return the offloader, or that of a new `ContextFileSystem`. Raises `ConfigError`."""
    if offloader is not None:
        if config.file_system_settings:
            raise ConfigError(
                f"{', '.join(config.file_system_settings)}: for a ContextManager without an offloader only; "
                "pass them to ContextFileSystem, and its offloader here"
            )
        return offloader
    with NO_FORK:
        from offload.agent.presets.context_fs import ContextFileSystem  # noqa: PLC0415 # loaded only when used

    return ContextFileSystem(
        config.offload_root_path,
        offload_enabled=config.offload_enabled,
        offload_token_threshold=config.offload_token_threshold,
    ).offloader
