"""The forms that change a store: pins, and the deletion of a record. All are sent by POST."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from offload.retention import delete, pin, unpin
from offload.web._site import Site, address

_MAX_FORM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Changes:
    """Request handler for the forms of a site that allows changes."""

    site: Site

    async def change(self, request: Request) -> Response:
        """Apply a form and redirect to a page that confirms it."""
        await self._check(request)
        part, ref = request.path_params["part"], request.path_params.get("ref")
        return await run_in_threadpool(self._apply, request.path_params["act"], part, ref)

    async def _check(self, request: Request) -> None:
        """Raise `HTTPException` unless this site served the form."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                raise HTTPException(413, "The form is too long.")
        [key] = parse_qs(body.decode("ascii", "replace")).get("form_key", [""])[:1]
        if not hmac.compare_digest(key.encode(), self.site.form_key.encode()):
            raise HTTPException(403, "The form is from another site or an earlier server; reload the page.")

    def _apply(self, act: str, part: str, ref: str | None) -> Response:
        store, name = self.site.store, self.site.reader(part).name
        if ref is not None:
            self.site.entry(part, ref)
        match act:
            case "pin":
                pin(store, name, ref)
            case "unpin":
                unpin(store, name, ref)
            case "delete" if ref is not None:
                if not delete(store, name, [ref]).protected:
                    return RedirectResponse(f"{address(name)}?done=delete", 303)
                act = "protected"
            case _:
                raise HTTPException(404, "Unknown change.")
        return RedirectResponse(f"{address(name, ref)}?done={act}", 303)
