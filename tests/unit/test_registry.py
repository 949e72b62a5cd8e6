from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest

from offload import Offloader
from offload.errors import ConfigError, MissingExtraError, UnknownSchemeError
from offload.storage import registry
from offload.storage.registry import default_path, open_store
from offload_backends._fsspec import FsspecStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore
from offload_backends.s3 import S3Store


def plant(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Let entry points be found as if a package that has them were installed."""
    planted = [EntryPoint(name, value, registry.BACKENDS) for name, value in points.items()]
    everything = EntryPoints([*entry_points(group=registry.BACKENDS), *planted])
    monkeypatch.setattr("importlib.metadata.entry_points", everything.select)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("some/folder", LocalStore),
        ("~/folder", LocalStore),
        ("C:\\folder", LocalStore),
        ("c:/folder", LocalStore),
        ("file:///folder", LocalStore),
        (Path("folder"), LocalStore),
        ("memory://", MemoryStore),
        ("MEMORY://name", MemoryStore),
        ("s3://bucket/prefix", S3Store),
        ("S3://bucket/prefix", S3Store),
        ("local:///folder", FsspecStore),
        ("simplecache::s3://bucket/prefix", FsspecStore),
    ],
)
def test_the_scheme_chooses_the_store(url: str | Path, kind: type) -> None:
    assert type(open_store(url)) is kind


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/prefix", "s3://bucket/prefix"),
        ("s3:bucket", "s3://bucket"),
        ("s3//bucket", "s3://bucket"),
        ("S3//bucket", "s3://bucket"),
        ("s3;//bucket", "s3://bucket"),
        ("s3 ://bucket", "s3://bucket"),
        (" s3://bucket", "s3://bucket"),
        ("'s3://bucket'", "s3://bucket"),
        ("s3:\\bucket", "s3://bucket"),
        ("memory:/x", "memory://x"),
        ("memory:", "memory://"),
        ("gs:/b", "gs://b"),
        ("http//x", "http://x"),
        ("https:/x/y", "https://x/y"),
        ("FTP:/host/x", "ftp://host/x"),
        ("file:/data/x", "file:///data/x"),
        ("file//data/x", "file:///data/x"),
        ("zork:/host", "zork://host"),
        ("S3://", "s3://bucket"),
        ("s://bucket", "s3://bucket"),
        ("simplecache:s3://bucket", "s3://bucket"),
    ],
)
def test_a_slip_in_a_url_makes_no_folder_and_is_told_what_was_meant(url: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(meant)):
        open_store(url)


def test_what_is_told_of_a_slip_holds_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("ftp:/user:p/canary@host/x?sig=canary")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["./s3:/bucket", "./memory:/x", "../a://b", "/data/s3://x", "notes:2026", "a//b", "s3", "memory/x"],
)
def test_a_path_that_looks_like_a_url_is_one_where_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store(path), LocalStore)


@pytest.mark.parametrize("path", ["s3:/bucket", "memory:x", "s3:", "a::b"])
def test_a_path_object_is_a_path_whatever_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(Path(path)).put("k", b"x")
    assert (tmp_path / path / "k").read_bytes() == b"x"
    assert Offloader.from_config(store=Path(path)).store.url == open_store(Path(path)).url


def test_a_store_is_returned_as_it_is_and_what_names_none_is_refused() -> None:
    store = MemoryStore()

    assert open_store(store) is store
    with pytest.raises(ConfigError):
        open_store(store, storage_options={"key": "x"})
    with pytest.raises(
        UnknownSchemeError, match=r"'zork'.*protocols.*: abfs, abfss, az, file, fsspec, gcs, gs, memory, s3"
    ):
        open_store("zork://host/path")
    wrong: list[Any] = ["", 7, b"folder", object()]
    for each in wrong:
        with pytest.raises(ConfigError):
            open_store(each)


def test_without_a_url_the_store_is_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    assert open_store().url == default_path().as_uri()
    assert default_path().is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_third_party_adds_a_scheme_and_two_packages_that_claim_one_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, zork="offload_backends.memory:MemoryStore", s3="somewhere.else:S3Store")

    assert isinstance(open_store("zork://"), MemoryStore)
    with pytest.raises(ConfigError, match=r"offload_backends\.s3:S3Store, somewhere\.else:S3Store"):
        open_store("s3://bucket")


def test_what_is_installed_is_read_once_and_again_for_a_scheme_that_nobody_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []

    def counted(**asked: Any) -> Any:
        reads.append(asked)
        return entry_points(**asked)

    monkeypatch.setattr("importlib.metadata.entry_points", counted)
    for _ in range(20):
        open_store(tmp_path)
        open_store("memory://")
    read_for_known = len(reads)
    with pytest.raises(UnknownSchemeError):
        open_store("zork://")
    info = tmp_path / "zork-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zork\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[offload.backends]\nzork = offload_backends.memory:MemoryStore\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert read_for_known == 1
    assert isinstance(open_store("zork://"), MemoryStore)


def test_a_backend_or_a_file_system_that_lacks_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, zork="no_such_package.store:Store")

    with pytest.raises(MissingExtraError, match="no_such_package"):
        open_store("zork://")
    with pytest.raises(MissingExtraError, match="paramiko"):
        open_store("sftp://host/folder").get("k")


@pytest.mark.parametrize(
    ("scheme", "extra"),
    [("gs", "gcs"), ("gcs", "gcs"), ("az", "azure"), ("abfs", "azure"), ("abfss", "azure"), ("s3", "s3")],
)
def test_a_cloud_without_its_packages_names_the_command(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offload_backends._bucket.store.find_spec", lambda _: None)

    with pytest.raises(MissingExtraError, match=rf"pip install 'offload\[{extra}\]'"):
        open_store(f"{scheme}://place")


def test_the_account_in_an_azure_url_is_an_option_and_the_container_may_follow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offload_backends._bucket.store.find_spec", lambda _: True)
    url = "abfss://place@account.dfs.core.windows.net/folder/a"

    assert open_store(url).url == "abfss://place/folder/a"
    open_store(url, storage_options={"account_name": "account"})
    with pytest.raises(ConfigError, match="account_name"):
        open_store(url, storage_options={"account_name": "another"})
    assert open_store("abfs://account.dfs.core.windows.net/place/folder").url == "abfs://place/folder"
    with pytest.raises(ConfigError, match="container"):
        open_store("abfs://account.dfs.core.windows.net")


@pytest.mark.parametrize("scheme", ["gs", "abfss", "s3"])
@pytest.mark.parametrize("rest", ["key:canary@place", "place?sig=canary", "place/a#canary", ""])
def test_a_url_of_a_cloud_names_place_and_prefix_and_nothing_else(scheme: str, rest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(f"{scheme}://{rest}")

    assert "canary" not in str(caught.value)


def test_no_store_shows_its_storage_options_or_password() -> None:
    options = {"key": "canary", "secret": "canary"}
    stores = [
        open_store("s3://bucket", storage_options=options),
        open_store("ftp://user:canary@host/folder", storage_options=options),
    ]

    assert "canary" not in repr(stores) + "".join(store.url for store in stores)


def test_opening_local_memory_and_s3_loads_no_file_system_library() -> None:
    code = (
        "import sys; from offload.storage.registry import open_store; "
        "[open_store(url) for url in ('folder', 'memory://', 's3://bucket')]; "
        "print(sorted({'fsspec', 's3fs', 'botocore', 'aiohttp'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
