"""A page in the browser that shows what a store holds: sessions, records, what the model saw of each.

Server-rendered, without scripts. Everything that is shown was written by others, so it is escaped, its
controls are made visible, and a content security policy lets nothing of it act.
"""

from __future__ import annotations

from offload.errors import MissingExtraError

try:
    from offload.web._app import serve, web_app
except ModuleNotFoundError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[web]'") from error

__all__ = ["serve", "web_app"]
