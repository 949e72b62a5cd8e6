"""Sessions on the move between a folder and a bucket, and from the command line."""

from __future__ import annotations

import json
import random
import tarfile

import pytest
from command import runner
from kit.conversation import results

from offload import Offloader, open_store
from offload.maintenance.transfer import copy_session

LOG = "".join(f"{n:05} ERROR worker-{n % 7} could not reach 10.0.{n % 255}.1\n" for n in range(400))
# What does not shrink: its record is of several parts.
LARGE = random.Random(1).randbytes(2_400_000).hex()  # noqa: S311 # reproducible
TEXTS = [LOG, LOG[::-1], LOG * 2]


def files(folder):
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if name.startswith(("r/", "h/", "g/"))}


def in_bucket(bucket):
    listed = bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", ())
    found = [item["Key"].removeprefix("prefix/") for item in listed]
    return {key: bucket.read(key) for key in found if key != "offload.json"}


@pytest.fixture
def bucket_store(s3_bucket):
    return open_store(s3_bucket.url, storage_options=s3_bucket.storage_options)


@pytest.mark.parametrize("codec", ["zstd", "raw"])
def test_a_session_goes_to_a_bucket_and_comes_back(s3_bucket, bucket_store, tmp_path, codec):
    here, back = tmp_path / "here", tmp_path / "back"
    sent = Offloader(str(here), session="s", codec=codec).offload(results(*TEXTS)).messages

    assert len(copy_session(open_store(str(here)), bucket_store, "s").copied) == 3
    assert in_bucket(s3_bucket) == files(here)
    assert Offloader(bucket_store, session="s").restore(sent) == results(*TEXTS)

    assert len(copy_session(bucket_store, open_store(str(back)), "s").copied) == 3
    assert files(back) == files(here)
    assert Offloader(str(back), session="s").restore(sent) == results(*TEXTS)


def test_a_record_of_several_parts_goes_to_a_bucket_and_comes_back(
    s3_bucket, bucket_store, tmp_path, small_parts
):
    here, back = tmp_path / "here", tmp_path / "back"
    sent = Offloader(str(here), session="s").offload(results(LARGE)).messages
    assert max(map(len, files(here).values())) > 2 * 1024 * 1024

    copy_session(open_store(str(here)), bucket_store, "s")
    copy_session(bucket_store, open_store(str(back)), "s", name="t")

    assert in_bucket(s3_bucket) == files(here)
    assert Offloader(str(back), session="t").restore(sent) == results(LARGE)


# The command line


@pytest.fixture
def offload(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "here"
    Offloader(str(folder), session="s").offload(results(*TEXTS))
    return folder


def test_the_command_copies_and_tells_what_it_did(offload, here, tmp_path):
    there = tmp_path / "there"

    done = offload("copy", "--session", "s", here, there, "--json")
    again = offload("copy", "--session", "s", here, there)

    told = json.loads(done.stdout)
    assert (done.returncode, again.returncode) == (0, 0)
    assert (told["session"], len(told["copied"]), told["failures"]) == ("s", 3, [])
    assert "0 copied, 3 already there" in again.stdout
    assert files(there) == files(here)


def test_the_command_exits_with_three_if_a_record_is_refused(offload, here, tmp_path):
    [path, *_] = (here / "r" / "s").iterdir()
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])

    done = offload("copy", "--session", "s", here, tmp_path / "there", "--as", "t", "--json")

    told = json.loads(done.stdout)
    assert done.returncode == 3
    assert [(r["key"], r["fault"]) for r in told["failures"]] == [(f"r/s/{path.name}", "corrupt")]
    assert len(told["copied"]) == 2
    stored = files(tmp_path / "there")
    assert len(stored) == 3
    assert stored["r/t/foreign~s"] == b""


def test_the_command_exports_imports_and_forks(offload, here, tmp_path):
    there, archive = tmp_path / "there", tmp_path / "s.tar"

    assert offload("export", "--session", "s", archive, "--store", here).returncode == 0
    assert offload("import", archive, "--store", there, "--as", "t").returncode == 0
    assert offload("fork", "--session", "t", "u", "--store", there).returncode == 0

    with tarfile.open(archive) as tar:
        assert set(tar.getnames()) == set(files(here))
    assert {name.split("/")[1] for name in files(there)} == {"t", "u"}
    [verified] = [offload("verify", "--store", there, "--json").stdout]
    assert json.loads(verified)["faults"] == []
