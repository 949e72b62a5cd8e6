"""The pages of one record: text, placeholder, outline, search, download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from offload.codec import StoredRecord
from offload.errors import ConfigError, CorruptError
from offload.layout import is_link
from offload.retention import read_marks
from offload.tokens import estimate_tokens
from offload.tools.search import Mode, compile_pattern
from offload.web._outline import JsonOutline, outline
from offload.web._paging import number_in, page_at, text_page
from offload.web._render import render
from offload.web._search import find
from offload.web._site import Site

Tab = Literal["content", "model", "outline", "search"]
Values = dict[str, Any]

# A browser must save the bytes as a file and never render them.
_DOWNLOAD = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Content-Type": "application/octet-stream",
}


@dataclass(frozen=True, slots=True)
class RecordPages:
    """Request handlers for the pages of a record."""

    site: Site

    def content(self, request: Request) -> Response:
        """Show a page of the text, or redirect to the page with the line in the query."""
        query = request.query_params
        if "line" in query:
            return self._to_line(request, number_in(query, "line", 1))
        number = number_in(query, "page", 1)
        return self._show(request, "content", lambda record: {"page": text_page(record.content, number)})

    def model(self, request: Request) -> Response:
        """Show the placeholder next to the beginning of the text."""

        def both(record: StoredRecord) -> Values:
            placeholder = record.header.placeholder
            tokens = estimate_tokens(placeholder)
            return {"placeholder": placeholder, "tokens": tokens, "page": text_page(record.content, 1)}

        return self._show(request, "model", both)

    def outline(self, request: Request) -> Response:
        """Show the members of a JSON value, or the structural lines of a text."""
        pointer, line = request.query_params.get("pointer", ""), number_in(request.query_params, "line", 1)

        def structure(record: StoredRecord) -> Values:
            try:
                outlined = outline(record.content, pointer, line)
            except ConfigError as error:
                return {"outline": None, "fault": str(error)}
            return {"outline": outlined, "fault": None, "is_json": isinstance(outlined, JsonOutline)}

        return self._show(request, "outline", structure)

    def search(self, request: Request) -> Response:
        """Show the matches of the pattern in the query."""
        query = request.query_params
        pattern, start = query.get("q", ""), number_in(query, "from", 0)
        mode: Mode = "regex" if query.get("mode") == "regex" else "literal"
        ignore_case = "ignore_case" in query
        terms = {"q": pattern, "mode": mode} | ({"ignore_case": "on"} if ignore_case else {})

        def matches(record: StoredRecord) -> Values:
            values: Values = {"query": terms, "result": None, "fault": None, "start": start}
            if not pattern:
                return values
            try:
                compiled = compile_pattern(pattern, mode, ignore_case=ignore_case)
            except ConfigError as error:
                return values | {"fault": str(error)}
            result = find(record.content, compiled, start)
            more = urlencode(terms | {"from": result.next_byte})
            return values | {"result": result, "more": more}

        return self._show(request, "search", matches)

    def download(self, request: Request) -> Response:
        """Send the content as a file, in constant memory.

        The response has no length: if the record is damaged it is aborted, and the browser reports that.
        """
        part, ref = request.path_params["part"], request.path_params["ref"]
        info = self.site.entry(part, ref)
        chunks = self.site.reader(part).read(info.ref).stream()
        disposition = {"Content-Disposition": f'attachment; filename="{info.ref}.txt"'}
        return StreamingResponse(chunks, headers=_DOWNLOAD | disposition)

    def _to_line(self, request: Request, line: int) -> Response:
        part, ref = request.path_params["part"], request.path_params["ref"]
        self.site.entry(part, ref)
        record = self.site.reader(part).read(ref)
        line = max(1, min(line, record.counts.lines))
        page = page_at(record.content, record.content.line_start(line))
        return RedirectResponse(f"{request.url.path}?page={page}#L{line}", 303)

    def _show(self, request: Request, tab: Tab, show: Callable[[StoredRecord], Values]) -> Response:
        """Return a record's page with the values of `show`, or with the damage that was found."""
        part, ref = request.path_params["part"], request.path_params["ref"]
        info, reader = self.site.entry(part, ref), self.site.reader(part)
        values: Values = {
            "site": self.site,
            "part": part,
            "name": reader.name,
            "info": info,
            "tab": tab,
            "marks": read_marks(self.site.store, part),
            "is_shared": is_link(info.key),
            "header": None,
            "counts": None,
            "done": request.query_params.get("done"),
        }
        try:
            record = reader.read(ref)
            values |= {"header": record.header, "counts": record.counts}
            values |= show(record)
        except CorruptError as error:
            number = number_in(request.query_params, "page", 1)
            return render("damaged.html", 500, **values | {"damage": str(error), "number": number})
        return render(f"{tab}.html", **values)
