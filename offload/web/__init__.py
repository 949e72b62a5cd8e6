"""Web pages of a store: sessions, records, and the placeholder that the model saw of each.

Server-rendered, without scripts. All content is untrusted: it is escaped, control characters included, and a
content security policy keeps it from executing.
"""

from __future__ import annotations

from offload.errors import needs_extra

with needs_extra("web"):
    from offload.web._app import serve, web_app

__all__ = ["serve", "web_app"]
