"""The pages of a record: its text, and the views of it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from offload.base.text import decode_text, printed_bytes
from offload.base.tokens import estimate_tokens
from offload.errors import ConfigError, CorruptError, NotFoundError
from offload.maintenance.retention.marks import read_marks
from offload.reading.tools._query import MAX_SQL_CHARS, Queries
from offload.reading.tools.search import PatternMode, compile_pattern
from offload.records.codec.base import StoredRecord
from offload.storage.layout import is_link
from offload.web._ansi import has_colors, styled
from offload.web._color import by_line, colored, language_of
from offload.web._contents import find as find_matches, kind_of_content, outline
from offload.web._paging import number_in, page_at, text_page
from offload.web._site import AT_RECORD, OPEN_SESSIONS, SHOWN, Site, Values, file_of
from offload.web._versions import changes
from offload.web._views import arguments, image_type, is_markdown, rendered, table, view_of

_SQL, _SQL_OF_LINES = "SELECT * FROM t LIMIT 50", "SELECT * FROM lines LIMIT 50"
_ROWS_CHARS, _CELL_CHARS = 200_000, 500
# A browser must save the bytes as a file and never render them.
_DOWNLOAD = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Content-Type": "application/octet-stream",
}


class RecordPages:
    """Request handlers for a record."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # The tables of queries are kept by ref, and a ref is valid in one session.
        self._queries = lru_cache(OPEN_SESSIONS)(lambda _part: Queries(_ROWS_CHARS))

    def routes(self) -> list[Route]:
        """Return the address and the handler of each page."""
        return [
            Route(AT_RECORD, self.content),
            Route(f"{AT_RECORD}/model", self.model),
            Route(f"{AT_RECORD}/outline", self.outline),
            Route(f"{AT_RECORD}/search", self.search),
            Route(f"{AT_RECORD}/query", self.query),
            Route(f"{AT_RECORD}/changes", self.changes),
            Route(f"{AT_RECORD}/download", self.download),
            Route(f"{AT_RECORD}/image", self.image),
        ]

    def content(self, request: Request) -> Response:
        """Show a page of the text, or redirect to the page with the line or the character in the query."""
        query = request.query_params
        if "line" in query or "char" in query:
            return self._to_page(request, query)
        number = number_in(query, "page", 1)
        if "markdown" in query:
            return self._show(request, "content", _markdown, page=None)
        if "page" in query:
            return self._show(
                request,
                "content",
                lambda record: {
                    "view": view_of(record),
                    "is_markdown": is_markdown(record),
                    "page": _colored_page(record, number, has_controls="raw" in query),
                },
            )
        return self._show(request, "content", lambda record: self._first_view(record, request), page=None)

    def _first_view(self, record: StoredRecord, request: Request) -> Values:
        """Return the values of the view that a record opens with; its text if that view fails."""
        view, query = view_of(record), request.query_params
        try:
            if view == "table":
                page, column = number_in(query, "rows", 1), number_in(query, "sort", 0)
                shown = table(record, page, column, is_descending="desc" in query)
                return {"view": view, "table": shown, "most": _CELL_CHARS}
            if view == "image":
                return {"view": view, "media_type": image_type(record)}
            if view == "arguments" and (parts := arguments(record)):
                return {"view": view, "arguments": parts}
            if view in ("arguments", "tree"):
                return {"view": "tree", "outline": outline(record.content, "", 1)}
        except ConfigError as error:
            return {"view": "text", "page": _colored_page(record, 1), "fault": str(error)}
        return {"view": "text", "page": _colored_page(record, 1), "is_markdown": is_markdown(record)}

    def model(self, request: Request) -> Response:
        """Show the placeholder next to the beginning of the text."""
        return self._show(
            request,
            "model",
            lambda record: {
                "tokens": estimate_tokens(record.header.placeholder),
                "page": _colored_page(record, 1),
            },
        )

    def outline(self, request: Request) -> Response:
        """Show the members of a JSON value, or the structural lines of a text."""
        pointer, line = request.query_params.get("pointer", ""), number_in(request.query_params, "line", 1)
        return self._show(
            request, "outline", lambda record: {"outline": outline(record.content, pointer, line)}
        )

    def search(self, request: Request) -> Response:
        """Show the matches of the pattern in the query."""
        query = request.query_params
        pattern, start = query.get("q", ""), number_in(query, "from", 0)
        mode: PatternMode = "regex" if query.get("mode") == "regex" else "literal"
        ignore_case = "ignore_case" in query
        terms = {"q": pattern, "mode": mode} | ({"ignore_case": "on"} if ignore_case else {})

        def matches(record: StoredRecord) -> Values:
            if not pattern:
                return {}
            result = find_matches(
                record.content, compile_pattern(pattern, mode, ignore_case=ignore_case), start
            )
            return {"result": result, "more": urlencode(terms | {"from": result["next_byte"]})}

        return self._show(request, "search", matches, query=terms, start=start, result=None)

    def query(self, request: Request) -> Response:
        """Show the rows of the SELECT in the query, by default the first ones of the table or the lines."""
        part, asked = request.path_params["part"], request.query_params.get("sql", "").strip()

        def result(record: StoredRecord, sql: str) -> Values:
            return {"sql": sql, "result": self._queries(part).result([record], sql)}

        def rows(record: StoredRecord) -> Values:
            if len(asked) > MAX_SQL_CHARS:
                raise ConfigError(
                    f"a query must have at most {MAX_SQL_CHARS:,} characters, got {len(asked):,}"
                )
            if asked:
                return result(record, asked)
            with suppress(ConfigError):
                return result(record, _SQL)
            return result(record, _SQL_OF_LINES)

        return self._show(
            request, "query", rows, sql=asked or _SQL, result=None, shown=SHOWN, most=_CELL_CHARS
        )

    def changes(self, request: Request) -> Response:
        """Show the difference from an older version of the same source."""
        query = request.query_params
        reader, info = self._site.record(request)
        old, start = query.get("old", ""), number_in(query, "from", 0)
        return self._show(request, "changes", lambda _: {"diff": changes(reader, info, old, start)})

    def download(self, request: Request) -> Response:
        """Send the content as a file, in constant memory.

        The response has no length: if the record is damaged it is aborted, and the browser reports that.
        """
        reader, info = self._site.record(request)
        disposition = {"Content-Disposition": f'attachment; filename="{info.ref}.txt"'}
        content = printed_bytes(reader.read(info.ref).stream())
        return StreamingResponse(content, headers=_DOWNLOAD | disposition)

    def image(self, request: Request) -> Response:
        """Send the image that a record is."""
        reader, info = self._site.record(request)
        record = reader.read(info.ref)
        kind = image_type(record)
        if not kind:
            raise NotFoundError(f"record {info.ref!r} shows no image")
        data = decode_text(record.load()).partition(",")[2]
        return Response(b64decode(f"{data}=="), headers=_DOWNLOAD | {"Content-Type": kind})

    def _to_page(self, request: Request, query: Mapping[str, str]) -> Response:
        reader, info = self._site.record(request)
        content = reader.read(info.ref).content
        char = number_in(query, "char", 0)
        if "line" in query:
            char = content.line_start(min(number_in(query, "line", 1), content.lines))
        page, line = page_at(content, char), content.line_at(char)
        return RedirectResponse(f"{request.url.path}?page={page}#L{line}", 303)

    def _show(
        self, request: Request, tab: str, show: Callable[[StoredRecord], Values], **values: Any
    ) -> Response:
        """Return a record's page with the values of `show`, or with the damage or the fault that it found."""
        reader, info = self._site.record(request)
        values |= {
            "info": info,
            "tab": tab,
            "marks": read_marks(self._site.store, request.path_params["part"]),
            "is_shared": is_link(info.key),
            "file": file_of(self._site.store, info.key),
            "header": None,
            "counts": None,
            "fault": None,
            "is_markdown": False,
        }
        try:
            record = reader.read(info.ref)
            values |= {"header": record.header, "counts": record.counts}
            try:
                values |= show(record)
            except ConfigError as error:
                values["fault"] = str(error)
        except CorruptError as error:
            number = number_in(request.query_params, "page", 1)
            return self._site.render(
                request, "damaged.html", 500, **values | {"damage": str(error), "number": number}
            )
        return self._site.render(request, f"{tab}.html", **values)


def _markdown(record: StoredRecord) -> Values:
    """Return the values of a record as rendered Markdown; its text with the reason if it is none."""
    try:
        return {"view": "Markdown", "html": rendered(record)}
    except ConfigError as error:
        return {"view": "text", "page": _colored_page(record, 1), "fault": str(error)}


def _colored_page(record: StoredRecord, number: int, *, has_controls: bool = False) -> Values:
    """Return a page of a record's text, its lines with the colors of a terminal or of its syntax.

    With `has_controls` the sequences of a terminal are shown as they are.
    """
    page = text_page(record.content, number)
    lines = [line.removesuffix("\r") for line in page["lines"]]  # the line ends of Windows
    is_styled = has_colors(text := "\n".join(lines))
    page |= {"is_styled": is_styled, "has_controls": has_controls}
    if is_styled and not has_controls:
        return page | {"lines": by_line(styled(text))}
    language = language_of(record.title, kind_of_content(record.content).name)
    return page | {"lines": colored(lines, language) if lines else []}
