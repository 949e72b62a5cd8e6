"""The JSON interface of Google Cloud Storage in memory, as far as a store speaks it.

    python tests/google_storage.py PORT

It honours `ifGenerationMatch=0`, in single uploads and at the end of resumable ones, which no emulator does
that Python's package index has. A listing has pages of at most 1,000 entries. Google's own testbench
(googleapis/storage-testbench 0.45), which is in no index, passed the conformance suite, races and sessions
too, behind a wrapper that adds the header X-GUploader-UploadID, as Google does, to its answers.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

PAGE = 1000
_BUCKET = re.compile(r"(?:/upload)?/storage/v1/b(?:/(?P<bucket>[^/]+)(?P<objects>/o)?)?")
_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<key>[^/]+)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (?:\*|(?P<start>\d+)-\d+)/(?P<total>\d+|\*)")

Object = tuple[bytes, dict[str, Any]]


class Refused(Exception):  # noqa: N818  # it is an answer
    """The status of an answer that is an error, its reason and its text."""


class Buckets:
    """All buckets, and uploads under way; one request at a time looks at them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, dict[str, Object]] = {}
        self.uploads: dict[str, tuple[str, str, dict[str, str], bytearray]] = {}
        self.numbers = itertools.count(1)

    def bucket(self, name: str) -> dict[str, Object]:
        if name not in self.objects:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        return self.objects[name]

    def object(self, bucket: str, key: str) -> Object:
        if key not in self.bucket(bucket):
            raise Refused(404, "notFound", f"No such object: {bucket}/{key}")
        return self.objects[bucket][key]

    def store(
        self, bucket: str, key: str, data: bytes, query: dict[str, str], md5: str | None = None
    ) -> dict[str, Any]:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        if md5 not in (None, digest):
            raise Refused(400, "invalid", f"Provided MD5 hash {md5!r} doesn't match calculated {digest!r}.")
        if query.get("ifGenerationMatch") == "0" and key in self.bucket(bucket):
            raise Refused(412, "conditionNotMet", "At least one pre-condition did not hold.")
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        resource = {
            "kind": "storage#object",
            "bucket": bucket,
            "name": key,
            "size": str(len(data)),
            "generation": str(next(self.numbers)),
            "md5Hash": digest,
            "timeCreated": now,
            "updated": now,
        }
        self.bucket(bucket)[key] = data, resource
        return resource

    def listed(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        # By the order of UTF-8, which is that of code points.
        names = sorted(name for name in self.bucket(bucket) if name.startswith(prefix))
        first = query.get("startOffset", "")
        entries = {_cut(name, prefix, delimiter): name for name in names if name >= first}
        page = [entry for entry in entries if entry > query.get("pageToken", "")]
        size = min(int(query.get("maxResults", PAGE)), PAGE)
        answer: dict[str, Any] = {"kind": "storage#objects"}
        answer["items"] = [self.objects[bucket][e][1] for e in page[:size] if e == entries[e]]
        answer["prefixes"] = [entry for entry in page[:size] if entry != entries[entry]]
        if page[size:]:
            answer["nextPageToken"] = page[size - 1]
        return answer


def _cut(name: str, prefix: str, delimiter: str | None) -> str:
    """Return the entry that a listing has for an object: its name, or that of a folder."""
    inside, found, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else (name, "", "")
    return prefix + inside + found if found else name


class Requests(BaseHTTPRequestHandler):
    """Answers requests."""

    protocol_version = "HTTP/1.1"
    # Head and body are sent apart: without this, each answer waits 40 ms for an acknowledgement.
    disable_nagle_algorithm = True
    all = Buckets()

    def answered(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        if len(self.body) < size:
            # The client died: what came is no request.
            self.close_connection = True
            return
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            with self.all.lock:
                self.route(url.path)
        except Refused as refused:
            status, reason, text = refused.args
            error = {"code": status, "message": text, "errors": [{"domain": "global", "reason": reason}]}
            self.say({"error": error}, status)

    do_GET = do_POST = do_PUT = do_DELETE = answered  # noqa: N815  # the server looks for these names

    def route(self, path: str) -> None:
        if "upload_id" in self.query:
            self.upload()
        elif found := _OBJECT.fullmatch(path):
            self.one(found["bucket"], unquote(found["key"]))
        elif not (found := _BUCKET.fullmatch(path)):
            self.say({}, 200 if path == "/" else 404)
        elif self.command == "GET" and found["objects"]:
            self.say(self.all.listed(found["bucket"], self.query))
        elif self.command == "GET":
            self.all.bucket(found["bucket"])
            self.say({"kind": "storage#bucket", "name": found["bucket"]})
        elif found["bucket"] is None:
            self.all.objects[json.loads(self.body)["name"]] = {}
            self.say({})
        else:
            self.insert(found["bucket"])

    def one(self, bucket: str, key: str) -> None:
        data, resource = self.all.object(bucket, key)
        if self.command == "DELETE":
            del self.all.objects[bucket][key]
            self.send(204, b"")
        elif self.query.get("alt") == "media":
            self.send_range(data, resource)
        else:
            self.say(resource)

    def insert(self, bucket: str) -> None:
        if self.query["uploadType"] == "resumable":
            self.all.bucket(bucket)
            number = str(next(self.all.numbers))
            self.all.uploads[number] = bucket, self.query["name"], self.query, bytearray()
            self.send(200, b"", Location=f"http://{self.headers['Host']}{self.path}&upload_id={number}")
        elif self.query["uploadType"] == "media":
            self.say(self.all.store(bucket, self.query["name"], self.body, self.query))
        else:
            text, data = _parts(self.body, self.headers["Content-Type"])
            told = json.loads(text)
            self.say(self.all.store(bucket, told["name"], data, self.query, told.get("md5Hash")))

    def upload(self) -> None:
        number = self.query["upload_id"]
        if number not in self.all.uploads:
            raise Refused(404, "notFound", "No such upload.")
        bucket, key, query, data = self.all.uploads[number]
        if self.command == "DELETE":
            del self.all.uploads[number]
            self.send(499, b"")
            return
        told = _CONTENT_RANGE.fullmatch(self.headers["Content-Range"])
        assert told is not None
        if told["start"]:
            data[int(told["start"]) :] = self.body
        if told["total"] == str(len(data)):
            md5 = dict(parse_qsl(self.headers.get("x-goog-hash", "").replace("+", "%2B"))).get("md5")
            stored = self.all.store(bucket, key, bytes(data), query, md5)
            del self.all.uploads[number]
            self.say(stored)
        else:
            self.send(308, b"", **({"Range": f"bytes=0-{len(data) - 1}"} if data else {}))

    def send_range(self, data: bytes, resource: dict[str, Any]) -> None:
        proof = {"x-goog-hash": f"md5={resource['md5Hash']}", "x-goog-generation": resource["generation"]}
        asked = _RANGE.fullmatch(self.headers.get("Range") or "")
        if asked is None:
            self.send(200, data, **proof)
            return
        first, last = asked.groups()
        start = int(first) if first else max(0, len(data) - int(last))
        end = min(len(data), int(last) + 1) if first and last else len(data)
        if start >= end:
            raise Refused(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        proof["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self.send(206, data[start:end], **proof)

    def say(self, answer: dict[str, Any], status: int = 200) -> None:
        self.send(status, json.dumps(answer).encode(), **{"Content-Type": "application/json; charset=UTF-8"})

    def send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keep the server quiet."""


def _parts(body: bytes, content_type: str) -> tuple[bytes, bytes]:
    """Return the description and the data of an upload in one request."""
    boundary = b"--" + re.findall(r'boundary="?([^";]+)', content_type)[0].encode()
    # Its first line says how all lines end; data may end in the other way.
    newline = b"\r\n" if body.startswith(boundary + b"\r") else b"\n"
    _, described, rest = body.split(boundary + newline, 2)
    data = rest.rpartition(newline + boundary + b"--")[0]
    return described.partition(2 * newline)[2], data.partition(2 * newline)[2]


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    _Server(("127.0.0.1", int(sys.argv[1])), Requests).serve_forever()
