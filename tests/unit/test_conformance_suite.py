from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from kit.store import CutsSuffixes, ListsByPart, OverwritesAlways
from strength import thinned

from offload.storage.store import OffloadStore, StoredObject
from offload.testing import StoreConformance
from offload_backends.memory import MemoryStore


class SucceedsOnTheSameBytes(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if overwrite or not any(found.key == key for found in self.keys()) or self.get(key) != data:
            super().put(key, data, overwrite=overwrite)


class ListsOnePage(MemoryStore):
    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return iter(list(super().keys(prefix, after=after))[:1000])


class StartsAtAfter(MemoryStore):
    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return (found for found in super().keys(prefix) if found.key >= after)


class DropsEmptyData(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if data:
            super().put(key, data, overwrite=overwrite)


SUITE = StoreConformance()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (OverwritesAlways, SUITE.test_a_put_of_a_taken_key_is_refused_and_keeps_its_bytes),
        (OverwritesAlways, SUITE.test_a_create_has_exactly_one_winner),
        (SucceedsOnTheSameBytes, SUITE.test_the_same_bytes_again_are_refused_too),
        (ListsByPart, SUITE.test_keys_sort_by_code_point_of_the_whole_key),
        (ListsOnePage, SUITE.test_more_than_a_thousand_keys_are_listed_from_any_place),
        (DropsEmptyData, SUITE.test_an_empty_object_holds_its_key),
    ],
)
def test_the_suite_finds_a_store_that_breaks_the_contract(
    broken: type[MemoryStore], test: Callable[[OffloadStore], None]
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError)):
        test(broken())
    test(MemoryStore())


@pytest.mark.parametrize("prefix", ["", "b"])
def test_the_suite_finds_a_listing_that_begins_too_early(prefix: str) -> None:
    with pytest.raises(AssertionError):
        SUITE.test_a_listing_starts_after_an_existing_or_absent_key(StartsAtAfter(), prefix)


def test_the_suite_finds_a_wrong_range() -> None:
    with pytest.raises(AssertionError):
        SUITE.test_a_range_equals_a_slice(CutsSuffixes(), b"0123456789")


def weaker(self: StoreConformance, store: OffloadStore) -> None:
    """Assert nothing."""


@pytest.mark.xfail(reason="the medium is written in place")
def honest(self: StoreConformance, store: OffloadStore) -> None:
    """Assert nothing, and say why."""


@pytest.mark.parametrize(
    "name", ["test_a_reader_never_sees_half_an_object", "test_many_puts_store_each_item"]
)
@pytest.mark.parametrize("replacement", [weaker, None])
def test_a_subclass_may_not_redefine_a_test_without_a_reason(name: str, replacement: object) -> None:
    with pytest.raises(TypeError, match=name):
        type("TestWeaker", (StoreConformance,), {name: replacement})

    type("TestHonest", (StoreConformance,), {name: honest})
    type("TestLarger", (StoreConformance,), {"test_of_its_own": weaker})


@pytest.mark.parametrize("package", thinned(["pytest", "hypothesis"], 2))
def test_a_package_that_the_suite_lacks_is_told_with_its_extra(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import offload.testing"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert f"MissingExtraError: import of {package} halted" in done.stderr
    assert "pip install 'offload[testing]'" in done.stderr
