from __future__ import annotations

import base64
import pickle
import struct
import sys
import zlib
from typing import Any

import prepared
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from kit.store import CountedStore

from offload import Offloader
from offload.errors import ConfigError, CorruptError, EncryptionError, NotFoundError, StoreUnavailableError
from offload.maintenance import transfer
from offload.storage.wrappers import EncryptingStore, RetryingStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
CHUNK = 64 * 1024
SEALED = CHUNK + 16
FOOTER = 56
LARGE = b"".join(n.to_bytes(4, "big") for n in range(50_000))  # three chunks and a part


@pytest.fixture
def store(medium):
    return EncryptingStore(medium, KEY)


def conversation(text):
    return [
        {"role": "assistant", "tool_calls": [{"id": "t", "type": "function", "function": {"name": "Bash"}}]},
        {"role": "tool", "tool_call_id": "t", "content": text},
    ]


def hkdf(purpose, length, salt):
    return HKDF(SHA256(), length, salt, b"offload sealed object: " + purpose).derive(KEY)


def opened_by_the_book(name, sealed):
    """Open a sealed object as the format page says, without the code under test."""
    body, footer = sealed[:-56], sealed[-56:]
    magic, key_id, salt, size, crc = struct.unpack("<4s8s32sQI", footer)
    assert (magic, key_id, crc) == (b"OFS1", hkdf(b"key id", 8, None), zlib.crc32(footer[:-4]))
    cipher = AESGCM(hkdf(b"object key", 32, salt))
    chunks = [body[at : at + SEALED] for at in range(0, len(body), SEALED)]
    plain = b"".join(
        cipher.decrypt(
            n.to_bytes(11, "big") + (b"\1" if n == len(chunks) - 1 else b"\0"), chunk, footer + name.encode()
        )
        for n, chunk in enumerate(chunks)
    )
    assert len(plain) == size
    return plain


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 200_000])
@pytest.mark.parametrize("step", [None, 1000, CHUNK, 150_000])
def test_an_object_put_or_streamed_in_any_pieces_is_what_the_format_says(store, medium, size, step):
    data = LARGE[:size]
    if step is None:
        store.put("a/b", data)
    else:
        store.put_stream("a/b", [data[at : at + step] for at in range(0, size, step)], size)

    sealed = medium.get("a/b")

    assert opened_by_the_book("a/b", sealed) == data
    assert len(sealed) == size + 16 * max(1, -(-size // CHUNK)) + FOOTER
    assert store.get("a/b") == data
    assert [found.size for found in store.keys()] == [size]


# Sealed once, by the first version; never regenerated.
GOLDEN = bytes.fromhex(
    "3d03e3da129ccb78ad41d81778fbaaf63d141b29c0d0cfa94a7bcf97db"
    "4f465331473a55f52dbfb8997ec52cd53af57478ccc7d9e809c1332c9bf9bca004fa9b63f2cede87c8dd92f0"
    "0d00000000000000ec4b7614"
)


def test_an_object_of_every_released_format_is_read(store, medium):
    medium.put("golden/1", GOLDEN)

    assert store.get("golden/1") == b"kept for ever"


def test_nothing_of_the_content_or_the_key_is_in_the_medium_and_the_same_bytes_differ_each_time(
    store, medium
):
    store.put("a", b"the needle " * 1000)
    assert b"needle" not in medium.get("a")
    assert KEY not in medium.get("a")

    store.put("a", bytes(100_000), overwrite=True)
    first = medium.get("a")
    store.put("a", bytes(100_000), overwrite=True)
    blocks = {medium.get("a")[at : at + 16] for at in range(0, 100_000, 16)}

    assert first[:16] not in blocks
    assert len(blocks) == 6250
    assert first[-44:-12] != medium.get("a")[-44:-12]


# What was not sealed so


def reads(size):
    return [{}, {"start": -1}, {"start": -size}, {"start": 0, "end": size}, {"start": size + 1}]


@pytest.mark.parametrize("data", [b"", b"0123456789"], ids=len)
def test_no_flipped_bit_is_read(medium, data):
    EncryptingStore(medium, KEY).put("a", data)
    sealed = medium.get("a")
    for place in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[place // 8] ^= 1 << place % 8
        medium.put("a", bytes(flipped), overwrite=True)
        for read in reads(len(data)):
            with pytest.raises(CorruptError):
                EncryptingStore(medium, KEY).get("a", **read)


@pytest.mark.parametrize("data", [b"", b"0123456789"], ids=len)
def test_no_truncated_or_lengthened_object_is_read(medium, data):
    EncryptingStore(medium, KEY).put("a", data)
    sealed = medium.get("a")
    wrong = [sealed[:n] for n in range(len(sealed))] + [sealed[n:] for n in range(1, len(sealed))]
    wrong += [sealed + b"\0", b"\0" + sealed, sealed + sealed, sealed[:3] + sealed]

    for damaged in wrong:
        medium.put("a", damaged, overwrite=True)
        with pytest.raises(CorruptError):
            EncryptingStore(medium, KEY).get("a")
        with pytest.raises(CorruptError):
            EncryptingStore(medium, KEY).get("a", start=-len(data) - 1)


def chunks_and_footer(sealed):
    body = sealed[:-FOOTER]
    return [body[at : at + SEALED] for at in range(0, len(body), SEALED)], sealed[-FOOTER:]


def resized(footer, size):
    facts = footer[:44] + struct.pack("<Q", size)
    return facts + struct.pack("<I", zlib.crc32(facts))


@pytest.mark.parametrize(
    "rearrange",
    {
        "swapped": lambda c, f: [c[1], c[0], c[2], c[3], f],
        "repeated": lambda c, f: [c[0], c[0], c[2], c[3], f],
        "left out": lambda c, f: [c[0], c[2], c[3], f],
        "cut at a chunk": lambda c, f: [*c[:3], f],
        "cut at a chunk, with the size changed to match": lambda c, f: [*c[:3], resized(f, 3 * CHUNK)],
        "all but one cut": lambda c, f: [c[0], resized(f, CHUNK)],
        "emptied": lambda _, f: [resized(f, 0)],
        "said to be empty": lambda c, f: [*c, resized(f, 0)],
        "said to be huge": lambda c, f: [*c, resized(f, 2**64 - 1)],
    }.values(),
)
def test_chunks_cannot_be_rearranged(store, medium, rearrange):
    store.put("a", LARGE)
    medium.put("a", b"".join(rearrange(*chunks_and_footer(medium.get("a")))), overwrite=True)
    fresh = EncryptingStore(medium, KEY)

    for read in ({}, {"start": -200_000}, {"start": 0, "end": 300_000}, {"start": 1}):
        with pytest.raises(CorruptError):
            fresh.get("a", **read)


def test_a_chunk_too_many_is_refused_and_no_range_reads_it(store, medium):
    store.put("a", LARGE)
    chunks, footer = chunks_and_footer(medium.get("a"))
    medium.put("a", b"".join([*chunks, chunks[3], footer]), overwrite=True)

    for read in ({}, {"start": -200_000}):
        with pytest.raises(CorruptError):
            store.get("a", **read)
    assert store.get("a", start=1, end=300_000) == LARGE[1:]
    assert store.get("a", start=-10) == LARGE[-10:]


@pytest.mark.parametrize("size", [0, CHUNK, 3 * CHUNK, 2**63])
def test_a_range_past_an_end_that_was_moved_is_not_empty_but_refused(store, medium, size):
    store.put("a", LARGE)
    chunks, footer = chunks_and_footer(medium.get("a"))
    medium.put("a", b"".join([*chunks, resized(footer, size)]), overwrite=True)

    for start, end in ((size, None), (size, size + 10), (199_000, 199_100)):
        with pytest.raises(CorruptError):
            EncryptingStore(medium, KEY).get("a", start=start, end=end)


@pytest.mark.parametrize("foreign", [None, b"", b"x", bytes(200_000), bytes(range(256))])
def test_bytes_that_no_store_wrote_and_what_was_moved_from_another_key_are_refused(store, medium, foreign):
    store.put("a", b"0123456789")
    medium.put("b", medium.get("a") if foreign is None else foreign)
    said = "^b: chunk 0 was changed" if foreign is None else "not written by an EncryptingStore"

    for read in reads(10):
        with pytest.raises(CorruptError, match=said):
            store.get("b", **read)
    assert [found.key for found in store.keys()] == ["a", "b"]


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
@pytest.mark.parametrize(
    "text", ["a line of output\n" * 2000, "größer\n" * 2000, "\x1b[1mnot plain\x00\n" * 2000]
)
def test_a_record_that_was_stored_in_clear_is_said_to_be_in_clear_not_damaged(store, medium, codec, text):
    clear = Offloader(medium, session="s", codec=codec)
    messages = clear.offload(conversation(text)).messages
    [info] = clear.records()

    for read in (
        lambda off: off.tools.read(info.ref),
        lambda off: b"".join(off.content(info.ref)),
        lambda off: off.verify(),
        lambda off: off.restore(messages),
    ):
        with pytest.raises(EncryptionError, match=r"stored in clear.*OFFLOAD_KEY") as caught:
            read(Offloader(store, session="s"))
        assert not isinstance(caught.value, CorruptError)
    assert len(Offloader(store, session="s").records()) == 1


def test_an_object_in_clear_is_told_from_a_damaged_one_by_every_read(store, medium):
    medium.put("clear", b'{"session":"s"}')
    store.put("a", LARGE)
    sealed = medium.get("a")

    for read in reads(10):
        with pytest.raises(EncryptionError, match=r"^clear: it was stored in clear"):
            store.get("clear", **read)
    [error] = store.get_many(["clear"])
    assert error.kind == "encrypted"
    for kept in (0, 1, 12, 40, 72, 1000, len(sealed) - 1):
        medium.put("a", sealed[:kept], overwrite=True)
        with pytest.raises(CorruptError):
            EncryptingStore(medium, KEY).get("a")
    for bit in range(8 * 56):
        damaged = bytearray(sealed)
        damaged[-1 - bit // 8] ^= 1 << bit % 8
        medium.put("a", bytes(damaged), overwrite=True)
        with pytest.raises(CorruptError):
            EncryptingStore(medium, KEY).get("a")


def test_chunks_of_two_versions_of_an_object_do_not_mix(store, medium):
    store.put("a", LARGE)
    old, _ = chunks_and_footer(medium.get("a"))
    store.put("a", LARGE, overwrite=True)
    new, footer = chunks_and_footer(medium.get("a"))
    medium.put("a", b"".join([new[0], old[1], *new[2:], footer]), overwrite=True)

    assert store.get("a", start=0, end=CHUNK) == LARGE[:CHUNK]
    with pytest.raises(CorruptError, match="chunk 1"):
        store.get("a", start=CHUNK, end=CHUNK + 1)


# Keys


def test_a_wrong_key_is_told_from_damage_and_names_both_ids(store, medium):
    store.put("a", b"0123456789")
    wrong = EncryptingStore(medium, OTHER_KEY)

    for read in reads(10):
        with pytest.raises(
            EncryptionError, match=r"a: encrypted with the key of id [0-9a-f]{16}, got"
        ) as caught:
            wrong.get("a", **read)
        assert hkdf(b"key id", 8, None).hex() in str(caught.value)


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_without_its_key_a_record_is_said_to_be_encrypted_by_every_read(store, medium, codec, key):
    original = Offloader(store, session="s", codec=codec)
    messages = original.offload(conversation("a line of output\n" * 2000)).messages
    [info] = original.records()
    opened = medium if key is None else EncryptingStore(medium, key)
    said = r"it is encrypted; open the store as EncryptingStore\(store, key\), or set OFFLOAD_KEY"

    for read in (
        lambda off: off.tools.read(info.ref),
        lambda off: off.tools.tail(info.ref),
        lambda off: off.tools.grep("line", info.ref),
        lambda off: b"".join(off.content(info.ref)),
        lambda off: off.verify(),
        lambda off: off.restore(messages),
        lambda off: transfer.share(off.store, "s", info.ref, "other"),
    ):
        with pytest.raises(EncryptionError, match=said if key is None else "OFFLOAD_KEY") as caught:
            read(Offloader(opened, session="s"))
        assert not isinstance(caught.value, CorruptError)
    answer = Offloader(opened, session="s").tools.call("context_read", {"id": info.ref})
    assert "is encrypted" in answer
    assert "OFFLOAD_KEY" in answer


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (KEY, KEY.hex()),
        (KEY, KEY.hex().upper()),
        (KEY, base64.b64encode(KEY).decode()),
        (KEY, base64.urlsafe_b64encode(KEY).decode().rstrip("=")),
        (KEY, f"  {KEY.hex()}\n"),
        (b"\xfb\xff" * 16, base64.b64encode(b"\xfb\xff" * 16).decode()),
        (b"\xfb\xff" * 16, base64.urlsafe_b64encode(b"\xfb\xff" * 16).decode()),
    ],
)
def test_a_key_as_text_is_the_key(medium, key, text, monkeypatch):
    EncryptingStore(medium, key).put("a", b"sealed")
    monkeypatch.setenv("OFFLOAD_KEY", text)

    assert EncryptingStore(medium, text).get("a") == b"sealed"
    assert EncryptingStore(medium).get("a") == b"sealed"


@pytest.mark.parametrize(
    "key",
    [
        *(b"", bytes(31), bytes(33), KEY.hex().encode(), 32, bytearray(32), ""),
        *("secret-word", KEY.hex()[:-1], KEY.hex()[:-1] + "g", KEY.hex() + "00", "\u0665" * 64, "A" * 42),
    ],
)
def test_no_key_and_another_form_of_key_are_refused_without_repeating_it(medium, key, monkeypatch):
    with pytest.raises(ConfigError, match="key must be 32 random bytes") as caught:
        EncryptingStore(medium, key)

    assert not key or str(key) not in str(caught.value).replace("32", "")
    assert caught.value.__cause__ is None
    monkeypatch.delenv("OFFLOAD_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OFFLOAD_KEY"):
        EncryptingStore(medium)


def test_the_key_is_in_no_repr_error_or_pickle(store, medium):
    store.put("a", b"x")
    medium.put("a", b"damaged", overwrite=True)
    with pytest.raises(CorruptError) as damaged:
        store.get("a")

    shown = [repr(store), repr(vars(store)), str(store), repr(damaged.value)]

    assert repr(store) == "EncryptingStore(MemoryStore('memory://'))"
    for form in (KEY.hex(), repr(KEY)[2:-1], base64.b64encode(KEY).decode()):
        assert not any(form in text for text in shown)
    with pytest.raises(ConfigError, match="cannot be copied or pickled"):
        pickle.dumps(store._key)
    with pytest.raises((ConfigError, TypeError, pickle.PicklingError)):
        pickle.dumps(store)


def test_a_missing_package_names_the_command():
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from offload.storage.wrappers import EncryptingStore\n"
        "try: EncryptingStore(None, bytes(32))\n"
        "except ImportError as error: print(error.kind, error)"
    )
    done = prepared.run(program)

    assert done.stdout.startswith("missing_extra ")
    assert "pip install 'offload[crypto]'" in done.stdout


# What a read costs


@pytest.mark.parametrize(
    ("read", "fetched"),
    [
        ({}, [200_000 + 4 * 16 + FOOTER]),
        ({"start": -1000}, [SEALED + 200_000 - 3 * CHUNK + 16 + FOOTER + SEALED]),
        ({"start": 0, "end": 10}, [FOOTER, SEALED]),
        ({"start": CHUNK - 1, "end": CHUNK + 1}, [FOOTER, 2 * SEALED]),
        ({"start": CHUNK, "end": 2 * CHUNK}, [FOOTER, SEALED]),
        ({"start": 199_000}, [FOOTER, 200_000 - 3 * CHUNK + 16]),
        ({"start": 400_000, "end": 400_001}, [FOOTER, 200_000 - 3 * CHUNK + 16]),
    ],
)
def test_a_read_fetches_only_the_chunks_it_needs(read, fetched):
    medium = CountedStore()
    EncryptingStore(medium, KEY).put("a", LARGE)

    EncryptingStore(medium, KEY).get("a", **read)

    assert len(medium.sizes) == len(fetched)
    assert sum(medium.sizes) <= sum(fetched)


@pytest.mark.parametrize("first", [{}, {"start": -10}, {"start": 70_000, "end": 70_001}])
def test_a_range_after_another_read_is_one_request(first):
    medium = CountedStore()
    store = EncryptingStore(medium, KEY)
    store.put("a", LARGE)
    store.get("a", **first)
    medium.sizes.clear()

    assert store.get("a", start=10, end=20) == LARGE[10:20]
    assert medium.sizes == [SEALED]


# What is remembered of an object


@pytest.mark.parametrize(
    "new",
    [LARGE[::-1], LARGE[:5], LARGE * 2, b"", None],
    ids=lambda new: "deleted" if new is None else len(new),
)
def test_a_range_of_an_object_that_another_replaced_or_deleted_is_of_the_new_one(store, medium, new):
    store.put("a", LARGE)
    store.get("a")
    if new is None:
        medium.delete("a")
    else:
        EncryptingStore(medium, KEY).put("a", new, overwrite=True)

    for start, end in ((0, 10), (3, 100_000), (199_999, 200_001), (390_000, None), (10**9, None), (0, 0)):
        if new is not None:
            assert store.get("a", start=start, end=end) == new[start:end]
            continue
        with pytest.raises(NotFoundError):
            store.get("a", start=start, end=end)


class Restless(MemoryStore):
    """Replaces the object each time that its footer was read."""

    replacements = sys.maxsize

    def get(self, key, *, start=0, end=None):
        data = super().get(key, start=start, end=end)
        if start == -FOOTER and self.replacements:
            self.replacements -= 1
            EncryptingStore(self, KEY).put(key, LARGE, overwrite=True)
        return data


def test_an_object_replaced_while_a_range_is_read_is_read_again_for_a_bounded_time():
    medium = Restless()
    EncryptingStore(medium, KEY).put("a", LARGE)
    with pytest.raises(StoreUnavailableError, match="was replaced during each"):
        EncryptingStore(medium, KEY).get("a", start=5, end=9)

    medium.replacements = 3
    assert EncryptingStore(medium, KEY).get("a", start=5, end=9) == LARGE[5:9]


# In bulk, and next to other parts


def test_many_are_sealed_and_what_cannot_be_opened_is_told_in_its_place(medium):
    store: Any = EncryptingStore(FaultyBulkStore(medium, nth=sys.maxsize), KEY)
    assert store.put_many([("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4")]) == [None] * 4
    assert opened_by_the_book("a", medium.get("a")) == b"1"
    medium.put("b", b"damaged", overwrite=True)
    medium.delete("c")
    EncryptingStore(medium, OTHER_KEY).put("d", b"4", overwrite=True)

    results = list(store.get_many(["a", "b", "c", "d", "a"]))

    assert [r if isinstance(r, bytes) else type(r) for r in results] == [
        *(b"1", CorruptError, NotFoundError, EncryptionError, b"1")
    ]


@pytest.mark.parametrize("verb", ["put", "get", "keys", "delete"])
def test_an_error_of_the_store_inside_passes(medium, verb):
    store = EncryptingStore(FaultyStore(medium, verb=verb, is_lasting=True), KEY)
    calls = {
        "put": lambda: store.put("a", b"x"),
        "get": lambda: store.get("a", start=1, end=2),
        "keys": lambda: list(store.keys()),
        "delete": lambda: store.delete("a"),
    }

    with pytest.raises(StoreUnavailableError):
        calls[verb]()


# Streams


def sealing(inner) -> Any:
    return EncryptingStore(inner, KEY)


def test_a_stream_is_sealed_as_its_pieces_come():
    asked: list[int] = []

    class Watching(MemoryStore):
        def put_stream(self, _key, pieces, _size):
            for number, sealed in enumerate(pieces):
                assert len(sealed) <= SEALED
                assert sum(asked) <= (number + 1) * CHUNK + 1000

    def pieces():
        for at in range(0, len(LARGE), 1000):
            asked.append(len(LARGE[at : at + 1000]))
            yield LARGE[at : at + 1000]

    sealing(Watching()).put_stream("a", pieces(), len(LARGE))

    assert sum(asked) == len(LARGE)


class Twice(MemoryStore):
    """Asks for the pieces of a stream twice."""

    def put_stream(self, _key, pieces, _size):
        self.tries = [b"".join(pieces), b"".join(pieces)]


def test_a_stream_is_sealed_the_same_for_every_try_and_anew_for_every_call(medium):
    inner = Twice()
    store = sealing(inner)

    store.put_stream("a", [LARGE], len(LARGE))
    first = inner.tries
    store.put_stream("a", [LARGE], len(LARGE))

    assert first[0] == first[1]
    assert opened_by_the_book("a", first[0]) == LARGE
    assert inner.tries[0][-44:-12] != first[0][-44:-12]
    # So one whose answer was lost is found to be ours.
    retrying = RetryingStore(FaultyStore(medium, verb="put", moment="after"), first_pause=0)
    sealing(retrying).put_stream("a", [LARGE], len(LARGE))
    assert opened_by_the_book("a", medium.get("a")) == LARGE


@pytest.mark.parametrize("place", [0, CHUNK, len(LARGE) - 1])
def test_no_nonce_seals_two_texts_where_pieces_change_between_tries(place):
    changed = LARGE[:place] + b"\xff" + LARGE[place + 1 :]
    texts = iter([LARGE, changed])

    class Pieces:
        def __iter__(self):
            return iter([next(texts)])

    with pytest.raises(ConfigError, match="pieces must be equal"):
        sealing(Twice()).put_stream("a", Pieces(), len(LARGE))
