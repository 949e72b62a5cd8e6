"""No leaks: no files readable by others, no secrets in logs, reprs, tracebacks and commands."""

from __future__ import annotations

import logging
import os
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import runner
from kit.conversation import results

from offload import Offloader, OffloadError, OffloadPolicy, Rule, open_store
from offload.engine.settings.loader import load_config
from offload.maintenance.doctor import diagnose
from offload.maintenance.transfer import export_session
from offload.storage.store import without_secrets
from offload.storage.wrappers import CachingStore, EncryptingStore, ReadOnlyStore, RetryingStore
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

if TYPE_CHECKING:
    from conftest import Bucket

# Every secret holds it: as it is, in hexadecimal or in base64.
CANARY = "canary4711"
ACCESS_KEY, SECRET_KEY, TOKEN = f"AKIA{CANARY}", f"secret-{CANARY}", f"token-{CANARY}"
SEALING_KEY = f"32 bytes with {CANARY} in them..".ljust(32)[:32].encode()
SHAPES = (CANARY, CANARY.encode().hex(), "Y2FuYXJ5NDcxM", "NhbmFyeTQ3MT", "jYW5hcnk0NzEx")
# Far enough from both ends, and like the lines beside it, so that no preview shows it.
LINE = "nothing to see in this line of many\n"
CONTENT = LINE * 300 + f"the word is {CANARY}\n".replace("the word is", LINE.strip()) + LINE * 300
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=100)}, min_saving=0)
NOBODY = "127.0.0.1:9"


def leaks(said: str) -> list[str]:
    """Return each line of `said` that holds the canary, however it is written."""
    return [line for line in said.splitlines() if any(shape in line for shape in SHAPES)]


def traces(*calls: Callable[[], object], kind: type[OffloadError] = OffloadError) -> str:
    """Return the tracebacks of what `calls` raise, causes and contexts included; each must raise."""
    said = []
    for call in calls:
        with pytest.raises(kind) as raised:
            call()
        said.append("".join(traceback.format_exception(raised.value)) + repr(raised.value))
    return "\n".join(said)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Return a function that returns all log output at the most verbose level."""
    with caplog.at_level(logging.DEBUG, "offload"), caplog.at_level(logging.DEBUG, "offload_backends"):
        yield lambda: "\n".join(
            caplog.handler.format(record) for record in caplog.records if record.name.startswith("offload")
        )


def test_a_leak_is_found_in_every_shape() -> None:
    import base64  # noqa: PLC0415 # nothing else here needs it

    for start in range(3):
        secret = b"." * start + CANARY.encode() + b"..."
        assert leaks(base64.b64encode(secret).decode())
        assert leaks(secret.hex())
    assert leaks(repr(SEALING_KEY))


# Modes


def write_everything(place: Path, codec: str) -> None:
    """Make a store, a cache of each kind and an archive below `place`."""
    off = Offloader(place / "store", session="s", policy=POLICY, codec=codec)
    ref = off.offload(results(CONTENT)).records[0].ref
    with off.open_sink(tool_use_id="long") as sink:
        sink.write(LINE * 10_000)
    off.pin(ref)
    off.share(ref, "t")
    off.fork("u")
    off.gc()
    off.touch()
    export_session(off.store, "s", place / "s.tar")


@pytest.mark.parametrize(("umask", "codec"), [(0o000, "zstd"), (0o022, "json"), (0o077, "raw")])
def test_whatever_a_session_writes_only_its_owner_can_read(tmp_path: Path, umask: int, codec: str) -> None:
    place = tmp_path / "new"
    before = os.umask(umask)
    try:
        write_everything(place, codec)
    finally:
        os.umask(before)

    found = [place, *place.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert {path for path in found if modes[path] != (0o700 if path.is_dir() else 0o600)} == set()
    for made in ("store/r/s", "store/g/s", "store/r/u"):
        assert list((place / made).rglob("*")), made


# S3


def odd_options(bucket: Bucket) -> dict[str, Any]:
    return bucket.storage_options | {"key": ACCESS_KEY, "secret": SECRET_KEY, "token": TOKEN}


def test_credentials_of_a_bucket_are_told_to_nobody(s3_bucket: Bucket, logged: Callable[[], str]) -> None:
    options = odd_options(s3_bucket)
    off = Offloader(s3_bucket.url, session="s", policy=POLICY, storage_options=options)
    out = off.offload(results(CONTENT))
    assert len(out.records) == 1
    assert off.restore(out.messages) == results(CONTENT)
    wrapped = [kind(off.store) for kind in (RetryingStore, ReadOnlyStore, CachingStore, FaultyStore)]

    def elsewhere(url: str = s3_bucket.url, **more: Any) -> Callable[[], object]:
        return lambda: Offloader(url, session="s", storage_options=options | more).records()

    said = traces(
        lambda: off.store.get("nothing"),
        lambda: off.tools.read("abcdefghij"),
        elsewhere("s3://no-such-bucket/x"),
        elsewhere(endpoint_url=f"http://{NOBODY}"),
        elsewhere(sse_customer_key=CANARY),
        elsewhere(f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket/x"),
        elsewhere(f"s3://bucket/x?secret={SECRET_KEY}"),
    )

    assert "no-such-bucket" in said
    assert leaks(said) == []
    assert leaks(logged()) == []
    assert leaks(repr((off, off.store, off.tools, out, off.stats(), off.records(), *wrapped))) == []
    assert leaks(off.store.url) == leaks(repr(diagnose(off.store))) == []


def test_what_a_server_refuses_names_no_credential(s3_bucket: Bucket, logged: Callable[[], str]) -> None:
    off = Offloader(
        "s3://no-such-bucket/x", session="s", policy=POLICY, storage_options=odd_options(s3_bucket)
    )

    out = off.offload(results(LINE * 400))

    assert len(out.errors) == 1
    assert "no-such-bucket" in logged()
    assert leaks(logged() + repr(out) + "".join(traceback.format_exception(out.errors[0]))) == []


# URLs


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "http", "nosuch", "file", "simplecache::ftp"])
def test_a_password_in_a_url_is_told_to_nobody(scheme: str, logged: Callable[[], str]) -> None:
    url = f"{scheme}://user:p@w-{CANARY}@{NOBODY}/folder"
    try:
        off = Offloader(url, session="s", policy=POLICY)
    except OffloadError as error:
        said = "".join(traceback.format_exception(error))
    else:
        assert NOBODY in off.store.url
        said = traces(off.records, lambda: off.store.put("k", b"x"), lambda: off.store.get("k"))
        said += repr((off, off.store, off.store.url, off.offload(results(LINE * 400)), diagnose(off.store)))

    assert said
    assert leaks(said) == []
    assert leaks(logged()) == []


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://user:p/{CANARY}@{NOBODY}/folder",
        f"ftp://user:12/{CANARY}@{NOBODY}/folder",
        f"sftp://user:{CANARY}/w@{NOBODY}/folder",
        f"ftp://user:a@b/{CANARY}@{NOBODY}/folder",
        f"ftp://user:a?b#{CANARY}@{NOBODY}/folder",
        f"ftp://user:a::{CANARY}@{NOBODY}/folder",
        f"FTP://{CANARY}@{NOBODY}/folder",
        f"github://{CANARY}@{NOBODY}/folder",
        f"http://{NOBODY}/folder?sv=2026&sig={CANARY}",
        f"http://{NOBODY}/folder?{CANARY}",
        f"http://{NOBODY}/folder#access_token={CANARY}",
        f"http://{NOBODY}?sig={CANARY}",
        f"simplecache::http://{NOBODY}/folder?sig={CANARY}",
        f"zip://inner::http://user:p/{CANARY}@{NOBODY}/a.zip?sig={CANARY}",
    ],
)
def test_no_secret_of_a_url_is_told_wherever_it_stands(url: str, logged: Callable[[], str]) -> None:
    off = Offloader(url, session="s", policy=POLICY)
    assert NOBODY in off.store.url
    said = repr((off, off.store, off.store.url, CachingStore(off.store)))
    said += repr(load_config(environ={"OFFLOAD_STORE": url}).values())
    if "github" not in url:  # which asks another host
        said += repr((off.offload(results(LINE * 400)), diagnose(off.store)))
        said += traces(off.records, lambda: off.store.put("k", b"x"), lambda: off.store.get("k"))

    assert leaks(said) == []
    assert leaks(logged()) == []


@pytest.mark.parametrize(
    "url",
    [
        f"s3://KEY:{CANARY}@bucket/x",
        f"s3://KEY:a/{CANARY}@bucket/x",
        f"s3://{CANARY}@bucket",
        f"s3://bucket/x?sig={CANARY}",
        f"file://user:p/{CANARY}@host/x",
        f"nosuch://user:p/{CANARY}@host/x?sig={CANARY}",
    ],
)
def test_a_url_that_is_refused_is_told_without_its_secrets(url: str) -> None:
    assert leaks(traces(lambda: open_store(url), lambda: open_store(url, storage_options={"x": 1}))) == []


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/me@example.com/x",
        "sftp://host:22/folder#1",
        "az://container/a",
        "simplecache::ftp://host/a",
        "/data/me@home:1/x",
        "zip://inner::file:///y.zip",
    ],
)
def test_what_is_no_secret_of_an_address_is_shown(url: str) -> None:
    assert without_secrets(url) == url


# The key of an encrypting store


@pytest.mark.parametrize("given", [SEALING_KEY, SEALING_KEY.hex()])
def test_a_sealing_key_is_told_to_nobody(given: bytes | str, logged: Callable[[], str]) -> None:
    medium = MemoryStore()
    store = EncryptingStore(medium, key=given)
    off = Offloader(store, session="s", policy=POLICY)
    out = off.offload(results(CONTENT))
    other = Offloader(EncryptingStore(medium, key=bytes(32)), session="s")
    [record] = medium.keys("r/")
    medium.put("r/s/" + "damaged", medium.get(record.key)[:-1] + b"x")

    said = traces(
        lambda: other.restore(out.messages),
        lambda: EncryptingStore(medium, key=f"pass {CANARY}"),
        lambda: EncryptingStore(medium, key=SEALING_KEY[:-1]),
        lambda: EncryptingStore(medium, key=SEALING_KEY.hex()[:-1]),
        lambda: store.get("r/s/damaged"),
    )

    assert leaks(said) == []
    assert leaks(repr((store, off, off.tools, out, off.verify())) + logged()) == []
    at_rest = b"".join(found.key.encode() + medium.get(found.key) for found in medium.keys())
    assert CANARY.encode() not in at_rest
    assert off.restore(out.messages) == results(CONTENT)


def test_a_sealing_key_of_the_environment_that_is_none_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOAD_KEY", f"pass {CANARY}")
    assert leaks(traces(lambda: EncryptingStore(MemoryStore()))) == []


# Content


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_what_a_record_holds_is_in_no_error_log_or_repr(
    tmp_path: Path, codec: str, logged: Callable[[], str]
) -> None:
    off = Offloader(tmp_path, session="s", policy=POLICY, codec=codec)
    out = off.offload(results(CONTENT))
    [path] = (path for path in (tmp_path / "r").rglob("*") if path.is_file())
    whole = path.read_bytes()
    said = [repr((off, off.tools, out, off.records(), off.stats(), off.gc(), off.prompt()))]
    for place in range(5, len(whole), max(1, len(whole) // 25)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1 :])
        fresh = Offloader(tmp_path, session="s")
        damages = fresh.verify()
        said += [repr(damages), *("".join(traceback.format_exception(d.error)) for d in damages)]
        said.append(fresh.tools.call("context_read", {"id": out.records[0].ref, "offset": 10**6}))
        try:
            fresh.restore(out.messages)
        except OffloadError as error:
            said.append("".join(traceback.format_exception(error)))

    assert len(said) > 60
    assert leaks("\n".join(said)) == []
    assert leaks(logged()) == []


def test_an_item_that_could_not_be_stored_is_in_no_log_and_no_error(logged: Callable[[], str]) -> None:
    store = FaultyStore(MemoryStore(), is_lasting=True)
    for on_error in ("keep", "truncate"):
        out = Offloader(store, session="s", policy=POLICY, on_error=on_error).offload(results(CONTENT))
        assert len(out.errors) == 1
        assert leaks(repr((out.errors, out.decisions, out.records))) == []
    raising = Offloader(store, session="s", policy=POLICY, on_error="raise")
    assert leaks(traces(lambda: raising.offload(results(CONTENT)))) == []

    assert logged().count("offloading failed") == 3
    assert leaks(logged()) == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": CANARY, "content": [{"type": "tool_result", "tool_use_id": 7, "content": CANARY}]},
        {"role": "user", "content": {CANARY: CANARY}},
        {"role": "user", "content": [CANARY]},
        {"role": "tool", "tool_call_id": 7, "content": [{"type": "text", "text": [CANARY]}]},
        {"role": "assistant", "tool_calls": [CANARY]},
    ],
)
def test_a_malformed_message_is_reported_without_what_it_says(
    message: dict[str, Any], logged: Callable[[], str]
) -> None:
    out = Offloader("memory://", session="s").offload([message])
    assert out.messages == [message]
    assert leaks(repr(out.errors) + logged()) == []


# The command line


def test_no_command_shows_a_secret_that_it_was_not_asked_for(
    tmp_path: Path,
    s3_bucket: Bucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    logged: Callable[[], str],
) -> None:
    store = tmp_path / "store"
    Offloader(store, session="s", policy=POLICY).offload(results(CONTENT))
    given = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_ENDPOINT_URL": s3_bucket.storage_options["endpoint_url"],
        "OFFLOAD_KEY": SEALING_KEY.hex(),
        "COLUMNS": "400",
    }
    s3 = open_store(s3_bucket.url, storage_options=s3_bucket.storage_options)
    Offloader(s3, session="s", policy=POLICY).offload(results(CONTENT))
    ftp = f"ftp://user:pw-/{CANARY}@{NOBODY}/x?sig={CANARY}"
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def offload(*arguments: object) -> str:
        """Return all that the command says."""
        done = runner(capsys, monkeypatch)(*arguments)
        assert done.returncode in (0, 1, 2, 3)
        return done.stdout + done.stderr

    said = {
        command: offload(*command)
        for command in (
            ("--help",),
            *((name, "--help") for name in ("ls", "doctor", "verify")),
            ("ls", "--store", store),
            ("ls", "--store", store, "--session", "s", "--json"),
            ("du", "s", "--store", store),
            ("verify", "--store", store),
            ("doctor", store),
            ("ls", "--store", s3_bucket.url, "--session", "s"),
            ("doctor", s3_bucket.url),
            ("doctor", "s3://no-such-bucket/x"),
            ("ls", "--store", ftp),
            ("doctor", ftp),
            ("doctor", f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket"),
        )
    }

    assert {command: leaks(text) for command, text in said.items() if leaks(text)} == {}
    assert leaks(logged()) == []
    assert all(said.values())
    assert "tool_result" in said["ls", "--store", s3_bucket.url, "--session", "s"]
