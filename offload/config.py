"""The loader of settings, under the name that programs import it by: see `offload.settings`."""

from offload.settings.loader import Config, Settings, SettingValue, Source, load_config

__all__ = ["Config", "SettingValue", "Settings", "Source", "load_config"]
