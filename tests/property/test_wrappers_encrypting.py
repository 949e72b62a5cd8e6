"""A range of an encrypted object is that slice of the plain bytes, wherever chunks begin and end."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st
from strength import examples

from offload.storage.wrappers import CachingStore, EncryptingStore
from offload_backends.memory import MemoryStore

CHUNK = 64 * 1024
KEY = b"k" * 32
BYTES = random.Random(7).randbytes(4 * CHUNK)  # noqa: S311  # test data

near_a_border = st.builds(lambda n, d: max(0, n * CHUNK + d), st.integers(0, 4), st.integers(-2, 2))
places = st.one_of(near_a_border, st.integers(0, 5 * CHUNK))
ranges = st.one_of(
    st.builds(lambda n: (-n, None), st.one_of(places, st.integers(1, 3)).filter(bool)),
    st.tuples(places, st.one_of(st.none(), places)),
)


@examples(200)
@given(size=places, wanted=st.lists(ranges, min_size=1, max_size=4))
def test_a_range_equals_a_slice(size, wanted):
    data = BYTES[:size]
    store = EncryptingStore(MemoryStore(), KEY)
    store.put("a", data)

    assert [store.get("a", start=s, end=e) for s, e in wanted] == [data[s:e] for s, e in wanted]


@examples(60)
@given(sizes=st.lists(places, min_size=1, max_size=3), wanted=st.lists(ranges, min_size=1, max_size=4))
def test_ranges_follow_an_object_that_changes_size(sizes, wanted):
    medium = MemoryStore()
    store = EncryptingStore(CachingStore(medium), KEY)
    for size in sizes:
        data = BYTES[-size:] if size else b""
        store.put("a", data, overwrite=True)

        assert [store.get("a", start=s, end=e) for s, e in wanted] == [data[s:e] for s, e in wanted]
        assert [found.size for found in store.keys()] == [len(data)]
