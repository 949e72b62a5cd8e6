"""Context files on S3, found by commands from the URL alone."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from command import runner
from relay import Proxy

from offload import Offloader, open_store
from offload.__main__ import main
from offload.agent.presets.context_refs import ContextRefs
from offload.storage.registry import with_layout
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket

LOG = "".join(f"{n} {'needle' if n == 700 else 'hay'}\n" for n in range(3000))


def options(bucket: Bucket, proxy: Proxy) -> dict[str, Any]:
    return {**bucket.storage_options, "endpoint_url": proxy.url}


def test_opening_an_ordinary_store_sends_nothing_and_looking_at_its_layout_one_listing(
    s3_bucket: Bucket, proxy: Proxy
) -> None:
    url, given = f"{s3_bucket.url}/ordinary", options(s3_bucket, proxy)
    Offloader(url, session="s", storage_options=given).offload_text(LOG, tool_name="Bash")
    proxy.requests.clear()

    store = open_store(url, storage_options=given)
    sent_by_opening = list(proxy.methods)
    found = with_layout(store)

    assert sent_by_opening == []
    assert proxy.methods == ["GET"]
    assert "list-type=2" in proxy.requests[0][1]
    assert found is store
    assert type(store) is S3Store


def test_commands_open_context_files_by_their_url(
    s3_bucket: Bucket,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"{s3_bucket.url}/context"
    refs = ContextRefs(url, "conv-1", storage_options=options(s3_bucket, proxy))
    line = refs.tool_output(LOG, tool_name="bash", tool_use_id="toolu_1").splitlines()[-1]
    [info] = refs.offloader.records()
    for name, value in options(s3_bucket, proxy).items():
        monkeypatch.setenv(f"OFFLOAD_STORAGE_OPTIONS__{name.upper()}", str(value))
    monkeypatch.setenv("OFFLOAD_STORE", url)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["offload", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        return said.out

    [session] = json.loads(run("ls", "--json"))["sessions"]
    [record] = json.loads(run("ls", "--session", "conv-1", "--json"))["records"]
    assert (session["session"], session["records"]) == ("conv-1", 1)
    assert record["path"] == f"conv-1/artifacts/{info.ref}.txt"
    assert "0 hay" in run("show", line)
    assert "700 needle" in run("grep", "needle")
    assert "1 record in 1 session" in run("verify")
    run("rm", "--session", "conv-1", "--yes")
    manifest = open_store(url, storage_options=options(s3_bucket, proxy)).get("conv-1/manifest.json")
    assert json.loads(manifest)["items"] == []


def test_doctor_tests_a_store_that_cannot_be_listed(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in s3_bucket.storage_options.items():
        monkeypatch.setenv(f"OFFLOAD_STORAGE_OPTIONS__{name.upper()}", str(value))
    monkeypatch.setenv("OFFLOAD_STORE", "s3://not-there/prefix")

    done = runner(capsys, monkeypatch)("doctor", "--json")

    findings = {found["check"]: found for found in json.loads(done.stdout)["checks"]}
    assert done.returncode == 3
    assert findings["access"]["outcome"] == "failed"
    assert findings["access"]["fix"] == "create the bucket or folder, or correct the URL"
