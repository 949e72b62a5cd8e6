"""The loader of `offload.settings`, under the name that programs import it by."""

from offload.settings import Config, Settings, load_config

__all__ = ["Config", "Settings", "load_config"]
