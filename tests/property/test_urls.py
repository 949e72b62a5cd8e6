"""A text that looks like the address of a store opens one, or is refused by an error of the library."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, strategies as st
from strength import examples

from offload import Offloader, OffloadError, open_store
from offload.storage.registry import folder_of
from offload.storage.store import identity_of

SCHEMES = ("memory", "file", "s3", "gs", "az", "http", "ftp", "zip", "github", "S3", "x", "")
MARKS = ("://", ":/", ":", "//", "::", ";//", "")
PIECES = st.sampled_from(
    [
        "a",
        "b c",
        "/",
        "//",
        "[",
        "]",
        "[::1]",
        "@",
        ":",
        "%",
        "%zz",
        "%00",
        "?",
        "?a=b",
        "#",
        "#a=b",
        "..",
        "é",
        "\u2100",
        "~",
        "\\",
        " ",
    ]
)
URLS = st.builds(
    lambda scheme, mark, pieces: scheme + mark + "".join(pieces),
    st.sampled_from(SCHEMES),
    st.sampled_from(MARKS),
    st.lists(PIECES, max_size=6),
)


@examples(1000)
@given(URLS | st.text(max_size=12).map("memory://".__add__) | st.text(max_size=12))
def test_any_address_opens_a_store_or_is_refused(url: str) -> None:
    with suppress(OffloadError):
        store = open_store(url)
        folder_of(store)
        if store.url.startswith("memory://"):
            identity_of(store)
            off = Offloader(store, session="s")
            off.offload_text("a line\n" * 4000, tool_name="Bash")
            [info] = off.records()
            assert "a line" in off.tools.read(info.ref)
            store.delete(info.key)
