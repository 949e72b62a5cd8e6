"""Texts with NULs, in other encodings and normal forms: every reader shows them or says what it lacks."""

from __future__ import annotations

import re
from typing import Any, Literal
from unicodedata import normalize

import pytest

from offload import Offloader
from offload_backends.memory import MemoryStore

LINES = [f"2026-09-02 10:00:{n % 60:02d} INFO step {n} done — café" for n in range(600)]
LINES[400] = "2026-09-02 10:00:40 ERROR checksum mismatch in chunk 400"
LOG = "\n".join(LINES)
UTF_16 = LOG.encode("utf-16-le")
PLAIN = LOG.replace("—", "-").replace("é", "e")


def stored(content: str | bytes, **options: Any) -> tuple[Offloader, str, str]:
    off = Offloader(MemoryStore(), session="s", on_error="raise", **options)
    with off.open_sink(tool_name="Bash") as sink:
        sink.write(content)
    assert sink.info is not None
    return off, sink.info.ref, sink.placeholder


def call(off: Offloader, tool: str, **arguments: Any) -> str:
    return off.tools.call(f"context_{tool}", arguments)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(b"\xff\xfe" + UTF_16, LOG, id="mark"),
        pytest.param(b"\xfe\xff" + LOG.encode("utf-16-be"), LOG, id="big-endian"),
        pytest.param(LOG.encode("utf-32"), LOG, id="UTF-32"),
        pytest.param(UTF_16, LOG, id="no mark"),
        pytest.param((b"\xff\xfe" + UTF_16).decode("latin-1"), LOG, id="as Latin-1"),
        pytest.param((b"\xff\xfe" + PLAIN.encode("utf-16-le")).decode("utf-8", "replace"), PLAIN, id="lossy"),
    ],
)
def test_a_text_in_utf_16_is_read_decoded_by_every_reader_and_restored_as_it_was(
    content: str | bytes, text: str
) -> None:
    off, ref, placeholder = stored(content)
    assert ", shown decoded from UTF-" in placeholder
    assert "ERROR checksum mismatch in chunk 400" in placeholder
    for where in ({"id": ref}, {}):
        found = call(off, "grep", pattern="checksum mismatch", **where)
        assert f"line 401, character {text.index('checksum')}, shown decoded from UTF-" in found
    first, *lines, _ = call(off, "read", id=ref, start_line=400, end_line=402).split("\n")
    assert f"of {len(text)}, lines 400-402 of 600, shown decoded from UTF-" in first
    assert lines[:3] == text.split("\n")[399:402]
    assert text.split("\n")[599] in call(off, "tail", id=ref)
    assert off.search("mismatch").passages[0].start_line <= 401
    assert not off.search("mismatch").unsearched
    assert "401" in call(off, "query", id=ref, sql="SELECT n FROM lines WHERE text LIKE '%chunk 400%'")
    assert [value.place for value in off.evidence("It was step 599.").values] == [f"{ref}:600"]
    whole = b"".join(off.content(ref)).decode("utf-8", "surrogatepass")
    assert whole == (content if isinstance(content, str) else content.decode("utf-8", "surrogateescape"))


def test_what_redact_removes_from_the_decoded_text_is_not_stored() -> None:
    off, ref, _ = stored(UTF_16, redact=lambda text: text.replace("chunk 400", "***"))
    assert "mismatch in ***" in call(off, "grep", pattern="checksum", id=ref)
    assert b"4\x000\x000\0" not in b"".join(off.content(ref))


def test_a_text_that_is_utf_16_in_part_is_shown_as_stored_and_a_search_in_vain_says_so() -> None:
    tail = PLAIN.replace("checksum", "digest").encode("utf-16-le").decode()
    off, ref, _ = stored(f"{PLAIN}\n{tail}")
    assert "d␀i␀g␀e␀s␀t␀" in call(off, "read", id=ref, start_line=1001, end_line=1001)
    for where in ({"id": ref}, {}):
        assert "NULs (shown as ␀)" in call(off, "grep", pattern="digest", **where)
        assert "NULs" not in call(off, "grep", pattern="checksum", **where)


def test_names_that_end_in_nul_are_apart_in_the_preview_and_in_the_answers() -> None:
    off, ref, placeholder = stored("\0".join(f"./src/pkg{n}/mod_{n}.py" for n in range(900)))
    assert "./src/pkg1/mod_1.py␀./src/pkg2/mod_2.py␀" in placeholder
    assert "./src/pkg76/mod_76.py␀./src/pkg77/mod_77.py␀" in call(off, "grep", pattern="mod_77.py", id=ref)
    assert call(off, "read", id=ref, limit=40).split("\n")[1] == "./src/pkg0/mod_0.py␀./src/pkg1/mod_1.py␀"
    assert off.search("mod_77").passages[0].text.count("mod_77.py") == 1


def test_the_mark_of_utf_8_is_no_part_of_the_first_line() -> None:
    off, ref, _ = stored(f"\ufeff{LOG}")
    assert "line 1, character 1:\n" in call(off, "grep", pattern="^2026.* step 0 ", mode="regex", id=ref)


def test_a_run_of_nuls_before_a_text_is_one_mark() -> None:
    off, ref, placeholder = stored("\0" * 5000 + LOG)
    assert "␀{5000 times}2026-09-02 10:00:00 INFO step 0" in placeholder
    assert "ERROR checksum" in placeholder
    assert call(off, "read", id=ref).split("\n")[1].startswith("␀{5000 times}2026")


NAMES = [f"Résumé-{n}.pdf" for n in range(900)]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("pattern", "mode"),
    [("Résumé-77.", "literal"), ("^R[xé]sumé-77[.]pdf$", "regex"), ("pdf Résumé-77.", "words")],
)
def test_a_pattern_finds_accents_in_either_form_and_says_if_they_differ(
    form: Literal["NFC", "NFD"], asked: Literal["NFC", "NFD"], pattern: str, mode: str
) -> None:
    off, ref, _ = stored("\n".join(normalize(form, name) for name in NAMES))
    found = call(off, "grep", pattern=normalize(asked, pattern), mode=mode, id=ref)
    assert found.startswith("[1 match shown")
    assert ("accents as characters of their own" in found) == (form != asked)
    assert re.search("^R", call(off, "grep", pattern="R", id=ref), re.MULTILINE)


def test_titles_are_found_by_words_in_either_form() -> None:
    off = Offloader(MemoryStore(), session="s")
    off.offload_text(LOG, tool_name="Bash", title=normalize("NFD", "cat Résumé.txt"))
    assert call(off, "list", query="résumé").startswith("[1 title ")
