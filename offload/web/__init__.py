"""Web pages of a store: sessions, records, and the placeholder that the model saw of each.

Server-rendered, without scripts. All content is untrusted: it is escaped, control characters included, and a
content security policy keeps it from executing.
"""

from __future__ import annotations

from offload.errors import MissingExtraError

try:
    from offload.web._app import serve, web_app
except ModuleNotFoundError as error:
    raise MissingExtraError(f"{error}; install it with: pip install 'offload[web]'") from error

__all__ = ["serve", "web_app"]
