"""Settings: one loader reads files, the environment and arguments; an offloader works with its options.

`load_config` finds the values and their origins. `Options` is what an `Offloader` works with, and `Hooks`
are the functions of the caller in it.
"""

from offload.settings._hooks import (
    HOOK_SECONDS,
    MAX_SUMMARY_CHARS,
    Hooks,
    ItemSummarizer,
    Redact,
    ShouldOffload,
    foreign,
)
from offload.settings._loader import FILE_VARIABLE, Config, Settings, SettingValue, Source, load_config
from offload.settings._options import (
    Clock,
    OnError,
    OptionArguments,
    Options,
    PresetOptions,
    SessionArguments,
    StoreArguments,
    default_policy,
)

__all__ = [
    "FILE_VARIABLE",
    "HOOK_SECONDS",
    "MAX_SUMMARY_CHARS",
    "Clock",
    "Config",
    "Hooks",
    "ItemSummarizer",
    "OnError",
    "OptionArguments",
    "Options",
    "PresetOptions",
    "Redact",
    "SessionArguments",
    "SettingValue",
    "Settings",
    "ShouldOffload",
    "Source",
    "StoreArguments",
    "default_policy",
    "foreign",
    "load_config",
]
