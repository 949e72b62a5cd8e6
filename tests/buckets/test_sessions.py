"""Whole sessions on Google and Azure: offloaded, read back elsewhere, shared, collected, copied, forked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from buckets.racing import POLICY
from cloud_servers import AzureContainer, Container, GoogleBucket, new_container
from command import runner
from kit.conversation import chat_result
from relay import Proxy
from servers import Server

from offload import ExpiredError, Offloader, open_store
from offload.engine.policy import Retention
from offload.maintenance.retention import collect
from offload.maintenance.transfer import copy_session

pytest.importorskip("gcp_storage_emulator", reason="make test-clouds runs it")

LOG = "".join(f"{n:05} ERROR worker-{n % 7} could not reach 10.0.{n % 255}.1\n" for n in range(400))
TEXTS = [LOG, LOG[::-1], LOG * 2]
MESSAGES = [chat_result(f"call_{number}", text) for number, text in enumerate(TEXTS)]


def opened(container: Container, session: str = "s") -> Offloader:
    return Offloader(container.url, session=session, storage_options=container.storage_options, policy=POLICY)


def test_a_session_is_continued_from_its_url_alone(container: Container) -> None:
    sent = opened(container).offload(MESSAGES).messages
    other = opened(container)

    assert sent != MESSAGES
    assert other.restore(sent) == MESSAGES
    assert other.offload(MESSAGES).messages == sent
    assert all("[more: " in other.tools.read(record.ref) for record in other.records())
    assert "00399 ERROR" in other.tools.grep("00399 ERROR")
    assert {record.key for record in other.records()} == {key for key in container.keys() if key[:2] == "r/"}
    assert list(other.verify()) == []


def test_a_shared_record_is_read_in_the_other_session_until_it_is_revoked(container: Container) -> None:
    off, review = opened(container, "owner"), opened(container, "review")
    off.offload(MESSAGES)
    ref = off.records()[0].ref
    assert "unknown id" in review.tools.call("context_read", {"id": ref})

    off.share(ref, to="review")
    assert "[more: " in review.tools.call("context_read", {"id": ref})

    off.revoke(ref, to="review")
    assert "unknown id" in opened(container, "review").tools.call("context_read", {"id": ref})


def test_a_collected_record_is_expired_and_its_bytes_are_gone(container: Container) -> None:
    off = opened(container, "old")
    sent = off.offload(MESSAGES).messages
    keys = [record.key for record in off.records()]
    assert all(container.read(key) for key in keys)

    for _ in range(2):
        collect(off.store, Retention(session_bytes=1, live_for=0, grace=0), session="old")

    with pytest.raises(ExpiredError):
        opened(container, "old").restore(sent)
    assert [container.read(key) for key in keys] == [b"", b"", b""]
    assert opened(container, "old").offload(MESSAGES).messages == sent
    assert opened(container, "old").restore(sent) == MESSAGES


def test_many_objects_go_and_come_at_once(container: Container) -> None:
    messages = [chat_result(f"call_{n}", f"item {n} of many\n" * 50) for n in range(200)]
    sent = opened(container, "many").offload(messages).messages

    assert len(opened(container, "many").records()) == 200
    assert opened(container, "many").restore(sent) == messages


def test_a_sink_writes_a_large_object_in_parts(container: Container) -> None:
    piece = bytes(range(256)) * 4096
    off = Offloader(
        container.url, session="sink", storage_options=container.storage_options, codec="raw", policy=POLICY
    )
    with off.open_sink(tool_name="Bash") as sink:
        for _ in range(20):
            sink.write(piece.decode("latin-1"))

    assert sink.error is None
    [record] = opened(container, "sink").records()
    assert "".join(part.decode() for part in opened(container, "sink").content(record.ref)) == (
        piece.decode("latin-1") * 20
    )
    assert opened(container, "sink").tools.tail(record.ref, lines=1)


@pytest.mark.parametrize("from_google", [True, False])
def test_a_session_moves_between_the_clouds(
    google_server: Server,
    azure_server: Server,
    from_google: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    google = new_container(GoogleBucket, google_server.endpoint)
    azure = new_container(AzureContainer, azure_server.endpoint)
    source, target = (google, azure) if from_google else (azure, google)
    sent = opened(source).offload(MESSAGES).messages
    for name, value in {**google.environ, **azure.environ}.items():
        monkeypatch.setenv(name, value)

    done = runner(capsys, monkeypatch)("copy", source.url, target.url, "--session", "s")

    assert done.returncode == 0, done.stderr
    assert "3 copied" in done.stdout
    assert opened(target).restore(sent) == MESSAGES
    objects = {key: source.read(key) for key in source.keys() if key != "offload.json"}
    assert {key: target.read(key) for key in target.keys() if key != "offload.json"} == objects
    again = copy_session(open_store(source.url), open_store(target.url), "s")
    assert again.copied == []


# Requests


def test_a_turn_costs_one_request_per_item_and_nothing_without_one(
    container: Container, proxy: Proxy
) -> None:
    through = replace(container, endpoint=proxy.url)
    off = opened(through, "counted")
    off.offload(MESSAGES[:1])
    proxy.requests.clear()

    off.offload(MESSAGES)
    assert proxy.methods == ["POST" if container.scheme == "gs" else "PUT"] * 2
    off.offload(MESSAGES)
    assert len(proxy.requests) == 2


def test_a_session_is_opened_by_a_listing_and_a_record_read_by_a_get(
    container: Container, proxy: Proxy
) -> None:
    opened(container, "counted").offload(MESSAGES)
    other = opened(replace(container, endpoint=proxy.url), "counted")

    [record, *_] = other.records()
    assert proxy.methods == ["GET"]
    assert "".join(part.decode() for part in other.content(record.ref)) in TEXTS
    # Azure knows no range that counts from the end: it is asked for the size first.
    assert proxy.methods[1:] == (["GET"] if container.scheme == "gs" else ["HEAD", "GET"])


# Processes

FORKED = """
import json, os, signal, sys
from offload import Offloader

url, options, used = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "used"
off = Offloader(url, session="fork", storage_options=options)
LOG = "a line of a log that is long enough to leave\\n" * 400


def use(name):
    text = off.offload_text(f"{LOG}{name}")
    assert text.startswith("[Offloaded"), text
    found = off.records()
    assert any(name in off.tools.tail(record.ref, lines=1) for record in found), found


if used:
    use("before")
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        use("child")
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
status = os.waitpid(child, 0)[1]
use("parent")
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("used", ["used", "unused"])
def test_a_forked_process_goes_on_by_itself(container: Container, used: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    ran = subprocess.run(
        [*command, container.url, json.dumps(container.storage_options), used],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
