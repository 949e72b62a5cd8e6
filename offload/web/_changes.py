"""What a visitor may change, if anything: pins, and the deletion of a record. Forms alone, by POST."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from offload.retention import delete, pin, unpin
from offload.web._site import Site, address

_FORM_BYTES = 4096


class Changes:
    """Answers the forms of a site that allows changes.

    Args:
        site: what is changed.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def change(self, request: Request) -> Response:
        """Do what a form asks for, and lead back to a page that says so."""
        await self._check(request)
        part, ref = request.path_params["part"], request.path_params.get("ref")
        return await run_in_threadpool(self._done, request.path_params["act"], part, ref)

    async def _check(self, request: Request) -> None:
        """Raise `HTTPException` for a form that is not one of ours."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM_BYTES:
                raise HTTPException(413, "No form of these pages is that long.")
        [key] = parse_qs(body.decode("ascii", "replace")).get("form_key", [""])[:1]
        if not hmac.compare_digest(key.encode(), self._site.form_key.encode()):
            raise HTTPException(403, "The form is not of this page, or of one that was served before.")

    def _done(self, act: str, part: str, ref: str | None) -> Response:
        store, name = self._site.store, self._site.reader(part).name
        if ref is not None:
            self._site.entry(part, ref)
        match act:
            case "pin":
                pin(store, name, ref)
            case "unpin":
                unpin(store, name, ref)
            case "delete" if ref is not None:
                if not delete(store, name, [ref]).spared:
                    return RedirectResponse(f"{address(name)}?done=delete", 303)
                act = "spared"
            case _:
                raise HTTPException(404, "There is no such change.")
        return RedirectResponse(f"{address(name, ref)}?done={act}", 303)
