"""Errors as the services write them."""

from __future__ import annotations

import json

from relay import Relay


def refuse(status: int, code: str, relay: Relay, text: str = "said") -> None:
    """Answer with an error in the form of the service whose address was asked."""
    if relay.path.startswith(("/storage", "/upload")):
        error = {"code": status, "message": text, "errors": [{"domain": "global", "reason": code}]}
        kind, page = "application/json; charset=UTF-8", json.dumps({"error": error})
    else:
        kind, page = "application/xml", f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
    marks = [("x-ms-error-code", code)] if relay.path.startswith("/devstoreaccount1") else []
    body = b"" if relay.command == "HEAD" else page.encode()
    relay.answer(status, [("Content-Type", kind), *marks], body)
