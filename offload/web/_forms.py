"""The forms that pin and delete records. All are sent by POST."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from offload.maintenance.retention import delete, pin, unpin
from offload.web._site import AT_RECORD, AT_SESSION, Site

_MAX_FORM_BYTES = 4096


class Forms:
    """Request handlers for the changes that visitors make."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[Route]:
        """Return the addresses to which forms are sent."""
        return [Route(f"{at}/{{act}}", self.change, methods=["POST"]) for at in (AT_SESSION, AT_RECORD)]

    async def change(self, request: Request) -> Response:
        """Apply a form and redirect to a page that confirms it."""
        await self._check_form(request)
        return await run_in_threadpool(self._apply, request)

    async def _check_form(self, request: Request) -> None:
        """Raise `HTTPException` unless this site served the form."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                raise HTTPException(413, "The form is too long.")
        [key] = parse_qs(body.decode("ascii", "replace")).get("form_key", [""])[:1]
        if not hmac.compare_digest(key.encode(), self._site.form_key.encode()):
            raise HTTPException(403, "The form is from another site or an earlier server; reload the page.")

    def _apply(self, request: Request) -> Response:
        act, part, ref = (request.path_params.get(name) for name in ("act", "part", "ref"))
        name, path = self._site.reader(part).name, f"/s/{part}"
        if ref is not None:
            self._site.record(request)
        match act:
            case "pin":
                pin(self._site.store, name, ref)
            case "unpin":
                unpin(self._site.store, name, ref)
            case "delete" if ref is not None:
                if not delete(self._site.store, name, [ref]).protected:
                    return RedirectResponse(f"{path}?done=delete", 303)
                act = "protected"
            case _:
                raise HTTPException(404, "Unknown change.")
        return RedirectResponse(f"{path if ref is None else f'{path}/r/{ref}'}?done={act}", 303)
