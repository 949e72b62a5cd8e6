"""The pages of one record: its text, what the model saw of it, its outline, matches in it, its bytes."""

from __future__ import annotations

from collections.abc import Callable
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
from offload.web._content import page_at, text_page
from offload.web._outline import JsonOutline, outline
from offload.web._paging import number_in
from offload.web._render import render
from offload.web._search import find
from offload.web._site import Site

Tab = Literal["content", "model", "outline", "search"]
Values = dict[str, Any]

# Whatever the bytes are, a browser keeps them as a file.
_DOWNLOAD = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Content-Type": "application/octet-stream",
}


class RecordPages:
    """Answers requests for the pages of a record.

    Args:
        site: what is shown.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def content(self, request: Request) -> Response:
        """Show a page of the text, or lead to the page that holds the line in the query."""
        query = request.query_params
        if "line" in query:
            return self._to_line(request, number_in(query, "line", 1))
        number = number_in(query, "page", 1)
        return self._shown(request, "content", lambda record: {"page": text_page(record.content, number)})

    def model(self, request: Request) -> Response:
        """Show what stood in the conversation instead, beside the begin of the text."""

        def both(record: StoredRecord) -> Values:
            placeholder = record.header.placeholder
            tokens = estimate_tokens(placeholder)
            return {"placeholder": placeholder, "tokens": tokens, "page": text_page(record.content, 1)}

        return self._shown(request, "model", both)

    def outline(self, request: Request) -> Response:
        """Show the members of a JSON value, or the lines that carry a text's structure."""
        pointer, line = request.query_params.get("pointer", ""), number_in(request.query_params, "line", 1)

        def structure(record: StoredRecord) -> Values:
            try:
                found = outline(record.content, pointer, line)
            except ConfigError as error:
                return {"found": None, "fault": str(error)}
            return {"found": found, "fault": None, "is_json": isinstance(found, JsonOutline)}

        return self._shown(request, "outline", structure)

    def search(self, request: Request) -> Response:
        """Show the matches of the pattern in the query."""
        query = request.query_params
        pattern, start = query.get("q", ""), number_in(query, "from", 0)
        mode: Mode = "regex" if query.get("mode") == "regex" else "literal"
        ignore_case = "ignore_case" in query
        asked = {"q": pattern, "mode": mode} | ({"ignore_case": "on"} if ignore_case else {})

        def matches(record: StoredRecord) -> Values:
            values: Values = {"asked": asked, "found": None, "fault": None, "start": start}
            if not pattern:
                return values
            try:
                compiled = compile_pattern(pattern, mode, ignore_case=ignore_case)
            except ConfigError as error:
                return values | {"fault": str(error)}
            found = find(record.content, compiled, start)
            more = urlencode(asked | {"from": found.next_byte})
            return values | {"found": found, "more": more}

        return self._shown(request, "search", matches)

    def download(self, request: Request) -> Response:
        """Send the content as a file, in constant memory.

        It goes without its length: where it turns out damaged the answer breaks off, and the browser knows.
        """
        part, ref = request.path_params["part"], request.path_params["ref"]
        info = self._site.entry(part, ref)
        chunks = self._site.reader(part).read(info.ref).stream()
        named = {"Content-Disposition": f'attachment; filename="{info.ref}.txt"'}
        return StreamingResponse(chunks, headers=_DOWNLOAD | named)

    def _to_line(self, request: Request, line: int) -> Response:
        part, ref = request.path_params["part"], request.path_params["ref"]
        self._site.entry(part, ref)
        record = self._site.reader(part).read(ref)
        line = max(1, min(line, record.counts.lines))
        page = page_at(record.content, record.content.line_start(line))
        return RedirectResponse(f"{request.url.path}?page={page}#L{line}", 303)

    def _shown(self, request: Request, tab: Tab, show: Callable[[StoredRecord], Values]) -> Response:
        """Return the page of a record with what `show` makes of it, or with what is wrong with it."""
        part, ref = request.path_params["part"], request.path_params["ref"]
        info, reader = self._site.entry(part, ref), self._site.reader(part)
        values: Values = {
            "site": self._site,
            "part": part,
            "name": reader.name,
            "info": info,
            "tab": tab,
            "marks": read_marks(self._site.store, part),
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
