"""Several processes on one container at the same time."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from buckets.racing import conversation, create, in_step, offload
from cloud_servers import Container

from offload import ExistsError, Offloader, open_store

pytest.importorskip("gcp_storage_emulator", reason="make test-clouds runs it")

KEYS = 200
LARGE = 17 * 1024**2


@pytest.mark.slow
def test_of_two_processes_that_create_a_key_in_step_one_wins(container: Container) -> None:
    won = in_step(create, container.url, container.storage_options, "ab", KEYS)

    assert sorted(won["a"] + won["b"]) == list(range(KEYS))
    for name, numbers in won.items():
        assert {container.read(f"race/{number}") for number in numbers} <= {name.encode()}
    assert {key for key in container.keys() if key.startswith("race/")} == {
        f"race/{number}" for number in range(KEYS)
    }


@pytest.mark.slow
def test_of_three_large_objects_that_are_stored_at_one_key_one_wins(container: Container) -> None:
    store = open_store(container.url, storage_options=container.storage_options)

    def succeeds(key: str, writer: int) -> bool:
        try:
            store.put(key, bytes([writer]) * LARGE)
        except ExistsError:
            return False
        return True

    for key in ("large/1", "large/2", "large/3"):
        with ThreadPoolExecutor(3) as pool:
            outcomes = list(pool.map(partial(succeeds, key), range(3)))
        assert outcomes.count(True) == 1
        assert container.read(key) == bytes([outcomes.index(True)]) * LARGE


def test_processes_in_one_session_lose_nothing(container: Container) -> None:
    names, count = "abc", 5
    said = in_step(offload, container.url, container.storage_options, names, count)

    assert_all_there(container, said, count)
    assert len([key for key in container.keys() if key.startswith("r/s/")]) == (len(names) + 1) * count


def test_a_server_that_ignores_conditions_is_found_out_and_no_writer_loses_anything(
    careless_bucket: Container, caplog: pytest.LogCaptureFixture
) -> None:
    count = 5
    with caplog.at_level(logging.WARNING, logger="offload"):
        store = open_store(careless_bucket.url, storage_options=careless_bucket.storage_options)
        store.put("first", b"")

    assert not store.has_atomic_create
    assert caplog.text.count("of two concurrent writers of one key the last one wins") == 1
    said = in_step(offload, careless_bucket.url, careless_bucket.storage_options, "ab", count)
    assert_all_there(careless_bucket, said, count)


def assert_all_there(container: Container, said: dict[str, list[str]], count: int) -> None:
    """Assert that every process's messages are restored, by an offloader that shares nothing with them."""
    off = Offloader(container.url, session="s", storage_options=container.storage_options)
    for name, texts in said.items():
        original = conversation(name, count)
        left = [message | {"content": text} for message, text in zip(original, texts, strict=True)]
        assert all(new != old for new, old in zip(left, original, strict=True))
        assert off.restore(left) == original
