"""Options and particulars of Google and Azure: what a store says, and what it never shows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from cloud_servers import Container
from relay import Proxy, Relay, hang

from offload import open_store
from offload.errors import (
    ConfigError,
    MissingExtraError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.storage.store import OffloadStore
from offload_backends._bucket import client as bucket_client
from offload_backends.cloud import AzureStore

pytest.importorskip("gcp_storage_emulator", reason="make test-clouds runs it")


@pytest.mark.parametrize(
    ("url", "known"), [("gs://bucket", "endpoint_url"), ("az://container", "account_key")]
)
def test_a_mistyped_option_is_told_with_the_known_one(url: str, known: str) -> None:
    typo = known.replace("o", "", 1)

    with pytest.raises(ConfigError, match=rf"{url}: unknown storage option '{typo}'; did you mean '{known}'"):
        open_store(url, storage_options={typo: "canary"}).get("k")


def test_options_of_the_login_are_options_of_azure() -> None:
    options = {"account_name": "one", "exclude_cli_credential": True, "authority": "login.example.org"}
    store = open_store("az://container", storage_options=options)
    assert isinstance(store, AzureStore)

    assert store._client.system.service_client.account_name == "one"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket", {"tokne": "canary"}),
        ("az://container", {"zork": "canary"}),
        ("gs://bucket", {"token": {"refresh_token": "canary"}}),
        ("gs://bucket", {"access": "canary"}),
        ("gs://bucket", {"token": "google_default", "project": "canary"}),
        ("gs://bucket", {"token": "anon", "requests_timeout": "canary"}),
        ("az://container", {"connection_string": "AccountKey=canary"}),
        ("az://container", {"account_key": "canary"}),
        ("az://container", {"account_name": "a", "account_key": "Y2FuYXJ5", "read_timeout": "canary"}),
    ],
)
def test_an_option_that_cannot_work_is_an_error_without_its_value(
    url: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/canary")
    with pytest.raises(ConfigError) as caught:
        open_store(url, storage_options=options).get("k")

    assert url in str(caught.value)
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


class RefusedLogin:
    """A credential whose service refuses the login with status 400, as for an expired secret."""

    async def get_token(self, *_: str, **__: object) -> None:
        from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415  # only its environment has it

        error = ClientAuthenticationError("refused")
        error.status_code = 400
        raise error

    async def close(self) -> None:
        pass


def test_a_refused_login_says_nothing_about_conditions() -> None:
    options = {"account_name": "account", "account_host": "127.0.0.1:9", "credential": RefusedLogin()}
    store = open_store("az://container", storage_options=options)

    with pytest.raises(StorePermissionError):
        store.put("k", b"x")

    assert store.has_atomic_create


@pytest.mark.parametrize(
    ("domain", "host"),
    [
        ("blob.core.windows.net", "account.blob.core.windows.net"),
        ("dfs.core.chinacloudapi.cn", "account.blob.core.chinacloudapi.cn"),
    ],
)
def test_an_azure_url_is_served_by_the_cloud_that_it_names(domain: str, host: str) -> None:
    url = f"abfss://container@account.{domain}/prefix"
    store = open_store(url, storage_options={"account_key": "Y2FuYXJ5"})
    assert isinstance(store, AzureStore)

    assert store._client.system.service_client.primary_hostname == host


def test_a_connection_string_for_another_account_than_the_url_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=one;AccountKey=Y2FuYXJ5")

    with pytest.raises(ConfigError, match=r"'one'.*'two'"):
        open_store("abfss://container@two.dfs.core.windows.net").get("k")


def test_the_host_of_an_account_may_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    host = "two.privatelink.blob.core.windows.net"
    options = {"account_name": "two", "account_key": "Y2FuYXJ5", "account_host": host}
    store = open_store("az://container", storage_options=options)
    assert isinstance(store, AzureStore)

    assert store._client.system.service_client.primary_hostname == host


def test_a_package_that_lacks_a_name_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "offload_backends.cloud._google", raising=False)
    monkeypatch.delattr("gcsfs.retry.NonRetryableError")

    with pytest.raises(MissingExtraError, match=r"NonRetryableError.*--upgrade 'offload\[gcs\]'"):
        open_store("gs://bucket", storage_options={"token": "anon"}).get("k")


def test_a_large_blob_that_is_replaced_while_it_is_read_is_read_again(
    container: Container, proxy: Proxy, store: OffloadStore
) -> None:
    if container.scheme != "az":
        pytest.skip("one request reads an object of Google")
    large = 33 * 1024**2
    container.write("large", b"1" * large)

    def replace_before(relay: Relay) -> None:
        container.write("large", b"2" * large)
        relay.answer(*relay.passed_on())

    proxy.faults = [lambda relay: relay.answer(*relay.passed_on()), replace_before]

    assert store.get("large") == b"2" * large


def test_the_descriptor_of_the_generic_store_is_replaced(container: Container) -> None:
    store = open_store(container.url + "/inner", storage_options=container.storage_options)
    container.write("inner/offload.json", b'{"format": 1, "create": "ignored"}')

    store.put("a", b"x")

    assert store.has_atomic_create
    assert json.loads(container.read("inner/offload.json")) == {
        "format": 1,
        "create": "enforced",
        "sorted": True,
    }


def test_a_limit_of_the_user_ends_an_attempt(
    container: Container, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"gs": "requests_timeout", "az": "read_timeout"}[container.scheme]
    options = {**replace(container, endpoint=proxy.url).storage_options, name: "0.2"}
    monkeypatch.setattr(bucket_client, "LAST_START", 0.0)
    proxy.faults, proxy.last_fault_stays = [hang], True

    with pytest.raises(StoreUnavailableError):
        open_store(container.url, storage_options=options).get("here")

    assert len(proxy.requests) == 1


def test_a_longer_limit_of_the_user_extends_the_deadline(
    container: Container, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"gs": "requests_timeout", "az": "read_timeout"}[container.scheme]
    options = {**replace(container, endpoint=proxy.url).storage_options, name: 60}
    container.write("here", b"late")
    monkeypatch.setattr(bucket_client, "DEADLINE", 0.01)
    monkeypatch.setattr(bucket_client, "_ASSUMED_SIZE", 0)

    def answer_late(relay: Relay) -> None:
        proxy.released.wait(0.5)
        relay.answer(*relay.passed_on())

    proxy.faults = [answer_late]

    assert open_store(container.url, storage_options=options).get("here") == b"late"


def test_a_listing_whose_start_is_refused_begins_at_the_first_object(
    store: OffloadStore, container: Container, proxy: Proxy
) -> None:
    if container.scheme != "az":
        pytest.skip("Google starts anywhere")
    store.put("later", b"x")
    told = [("Content-Type", "application/xml"), ("x-ms-error-code", "InvalidQueryParameterValue")]
    text = b"<Error><Code>InvalidQueryParameterValue</Code><Message>said</Message></Error>"
    proxy.requests.clear()
    proxy.faults = [lambda relay: relay.answer(400, told, text)]

    assert [entry.key for entry in store.keys(after="here")] == ["later"]
    assert ["startFrom" in path for _, path, _ in proxy.requests] == [True, False]


LEFT = """
import json, os, signal, sys
from offload import open_store

store = open_store(sys.argv[1], storage_options=json.loads(sys.argv[2]))
store.put("before", b"x")
child = os.fork()
if child == 0:
    signal.alarm(20)
    store.put("child", b"x")
    sys.exit()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_that_has_used_the_store_can_exit(container: Container) -> None:
    arguments = [container.url, json.dumps(container.storage_options)]
    ran = subprocess.run([sys.executable, "-c", LEFT, *arguments], check=False, timeout=100)

    assert ran.returncode == 0
