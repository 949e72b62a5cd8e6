"""Servers of Google Cloud Storage and Azure Blob Storage on the loopback interface; containers there, on S3.

A container is looked into past the store: on Google by plain requests, else by the service's own client.
"""

from __future__ import annotations

import http.client
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import pytest
from servers import ACCESS_KEY, SECRET_KEY, Server, free_ports, raw_client, running

_HERE = Path(__file__).parent
_AZURITE = Path(sys.prefix, "node_modules/azurite/dist/src/blob/main.js")
# The account that is built into Azurite, with its public key.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_numbers = itertools.count()


@dataclass(frozen=True)
class Container:
    """A fresh bucket or container of a cloud, reached at `endpoint`.

    Attributes:
        scheme: that of its URL.
        endpoint: the address of the server, or of a proxy before it.
        name: its name.
        prefix: where the objects of a store are.
    """

    scheme: ClassVar[str]
    endpoint: str
    name: str
    prefix: str = "prefix"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}/{self.prefix}"

    @property
    def storage_options(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which a program finds the server and its credentials."""
        raise NotImplementedError

    def make(self) -> None:
        raise NotImplementedError

    def read(self, key: str) -> bytes:
        raise NotImplementedError

    def write(self, key: str, data: bytes) -> None:
        raise NotImplementedError

    def keys(self) -> list[str]:
        """Return the keys below the prefix; names with a leading dot are no keys."""
        return [name.removeprefix(f"{self.prefix}/") for name in self._names(f"{self.prefix}/")]

    def empty(self) -> None:
        for name in self._names(f"{self.prefix}/"):
            self._delete(name)

    def _names(self, prefix: str) -> list[str]:
        raise NotImplementedError

    def _delete(self, name: str) -> None:
        raise NotImplementedError


class S3Bucket(Container):
    """A bucket of S3."""

    scheme = "s3"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": self.endpoint}

    def make(self) -> None:
        self._client.create_bucket(Bucket=self.name)

    def read(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self.name, Key=f"{self.prefix}/{key}")["Body"].read()
        return data

    def write(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=f"{self.prefix}/{key}", Body=data)

    @property
    def _client(self) -> Any:
        return raw_client(self.endpoint)

    def _names(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def empty(self) -> None:
        names = self._names(f"{self.prefix}/")
        for first in range(0, len(names), 1000):
            page = [{"Key": name} for name in names[first : first + 1000]]
            self._client.delete_objects(Bucket=self.name, Delete={"Objects": page})


class GoogleBucket(Container):
    """A bucket of Google Cloud Storage."""

    scheme = "gs"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint, "token": "anon"}

    @property
    def environ(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.endpoint}

    def make(self) -> None:
        self._ask("POST", "/storage/v1/b?project=p", json.dumps({"name": self.name}).encode())

    def read(self, key: str) -> bytes:
        return self._ask("GET", f"/download{self._path(f'{self.prefix}/{key}')}?alt=media")

    def write(self, key: str, data: bytes) -> None:
        name = quote(f"{self.prefix}/{key}", safe="")
        self._ask("POST", f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}", data)

    def _names(self, prefix: str) -> list[str]:
        names, token = [], ""
        while True:
            query = f"prefix={quote(prefix, safe='')}&pageToken={quote(token, safe='')}"
            page = json.loads(self._ask("GET", f"/storage/v1/b/{self.name}/o?{query}"))
            names += [item["name"] for item in page.get("items") or ()]
            if not (token := page.get("nextPageToken", "")):
                return names

    def _delete(self, name: str) -> None:
        self._ask("DELETE", self._path(name))

    def _path(self, name: str) -> str:
        return f"/storage/v1/b/{self.name}/o/{quote(name, safe='')}"

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        kind = "application/json" if path.startswith("/storage") else "application/octet-stream"
        connection.request(method, path, data, {"Content-Type": kind})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status >= 300:
            raise LookupError(f"{method} {path}: {answer.status} {body[:200]!r}")
        return body


class AzureContainer(Container):
    """A container of Azure Blob Storage."""

    scheme = "az"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"connection_string": self.connection_string}

    @property
    def environ(self) -> dict[str, str]:
        return {"AZURE_STORAGE_CONNECTION_STRING": self.connection_string}

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"BlobEndpoint={self.endpoint}/{_ACCOUNT};"
        )

    def make(self) -> None:
        _azure_client(self.connection_string, self.name).create_container()

    def read(self, key: str) -> bytes:
        data: bytes = self._client.download_blob(f"{self.prefix}/{key}").readall()
        return data

    def write(self, key: str, data: bytes) -> None:
        self._client.upload_blob(f"{self.prefix}/{key}", data, overwrite=True)

    @property
    def _client(self) -> Any:
        return _azure_client(self.connection_string, self.name)

    def _names(self, prefix: str) -> list[str]:
        return list(self._client.list_blob_names(name_starts_with=prefix))

    def _delete(self, name: str) -> None:
        self._client.delete_blob(name)


@cache
def _azure_client(connection_string: str, name: str) -> Any:
    from azure.storage.blob import ContainerClient  # noqa: PLC0415  # only its environment has it

    return ContainerClient.from_connection_string(connection_string, name)


def new_container(
    kind: Callable[[str, str], GoogleBucket | AzureContainer | S3Bucket], endpoint: str
) -> Container:
    """Make a container, past the store, on the server at `endpoint`."""
    made: Container = kind(endpoint, f"container-{next(_numbers)}")
    made.make()
    return made


def google(folder: Path) -> AbstractContextManager[Server]:
    """Run the server of `google_storage.py`, which honours conditions."""
    [port] = free_ports(1)
    return running([sys.executable, str(_HERE / "google_storage.py"), str(port)], port, folder)


def google_without_conditions(folder: Path) -> AbstractContextManager[Server]:
    """Run gcp-storage-emulator, which takes no notice of conditions."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={port}"]
    return running([*command, "--in-memory"], port, folder)


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Run Azurite, Microsoft's emulator, which honours conditions."""
    node = shutil.which("node")
    if node is None or not _AZURITE.exists():
        pytest.skip("Azurite is not installed: `make test-clouds` installs it where npm is")
    [port] = free_ports(1)
    arguments = [
        *("--blobHost=127.0.0.1", f"--blobPort={port}", "--inMemoryPersistence", "--silent"),
        # Its client is newer than Azurite.
        *("--disableTelemetry", "--skipApiVersionCheck"),
    ]
    with running([node, str(_AZURITE), *arguments], port, folder) as server:
        yield server
