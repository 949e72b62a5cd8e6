"""The tree as a store, and the layout of its documents."""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest
from hypothesis import given, strategies as st
from kit.conversation import from_model, from_user, tool_turn

from offload import (
    ExpiredError,
    Offloader,
    OffloadPolicy,
    OffloadStore,
    Rule,
    StoreError,
    StorePermissionError,
)
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_fs._document import pieces_of
from offload.agent.presets.context_fs._layout import PathRenderer, folder_of
from offload.agent.presets.context_fs._tree import TreeStore
from offload.engine.placeholder import PlaceholderFacts
from offload.engine.preview import preview_of
from offload.maintenance.retention import delete
from offload.maintenance.transfer import copy_session
from offload.records.codec import get_codec
from offload.records.codec.content import TextContent
from offload.records.record import Header
from offload.storage.layout import encode_part
from offload.storage.registry import open_backend
from offload.testing import StoreConformance

KEY = "r/s/abcdefghij~tool_result~=52ead~5~1.zst"
OTHER = KEY.replace("abcdefghij", "zzzzzzzzzz")
LATER = KEY.replace("~", ".2~", 1)
SHOWN = "tool_result/Read/call_abcdefghij.json"
names = st.text(st.sampled_from("abAB._-=/~ \0\u00e9") | st.characters(), max_size=8)


def tree_at(root: Path) -> TreeStore:
    return TreeStore(open_backend(root))


def test_the_address_of_a_tree_is_that_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In Python 3.14 it loads an HTTP client.
    monkeypatch.delattr(PurePath, "as_uri")

    assert tree_at(tmp_path).url == open_backend(tmp_path).url == f"file://{tmp_path}"


class TestTheTree(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> OffloadStore:
        return tree_at(tmp_path / "not" / "yet")

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        return Path(store.url.removeprefix("file://"), ".offload", key).read_bytes()

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        path = Path(store.url.removeprefix("file://"), ".offload", key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def record(text: str = "12345", codec: str = "zstd", **given: object) -> bytes:
    """Return the bytes of a record of a tool result."""
    content = TextContent.of(text, 1)
    fields = {"ref": "abcdefghij", "session": "s", "item_type": "tool_result", "tool_name": "Read"}
    header = Header(
        **{**fields, "created_at": 7.5, "placeholder": "p", "sha256": content.counts.sha256, **given}  # type: ignore[arg-type] # one dict of all kinds
    )
    return get_codec(codec).encode(header, content).body


def content_of(path: Path) -> str:
    """Return the content in a document, as any reader of JSON finds it."""
    text: str = json.loads(path.read_text())["content"]
    return text


def facts(**given: object) -> PlaceholderFacts:
    fields = {"ref": "abcdefghij", "item_type": "tool_result", "tool_name": "Read", "chars": 5, "lines": 1}
    return PlaceholderFacts(**{**fields, "preview": preview_of("text", 10), **given})  # type: ignore[arg-type] # one dict of all kinds


def test_the_items_of_a_result_are_listed_even_if_an_image_moved_up(tmp_path):
    data = base64.b64encode(b"GIF89a" + bytes(600)).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": data}}
    texts = [{"type": "text", "text": f"{word} " * 3000} for word in ("alpha", "beta")]
    fs = ContextFileSystem(tmp_path / "tree", session="s")
    fs.offload([*tool_turn("t", [*texts, image], "Shot"), from_model("seen")])

    assert [(item.block, item.offloaded) for item in fs.items() if item.message == 1] == [
        ((0, 2), False),
        (0, True),
    ]


@pytest.mark.parametrize(
    "key", ["a", "g/s/used", "r/s/x", f"{KEY}.expired", KEY.replace(".zst", ".link"), KEY]
)
def test_other_objects_and_bytes_that_are_no_record_have_no_document(tmp_path, key):
    tree = tree_at(tmp_path)

    tree.put(key, b"12345" if key == KEY else record())
    tree.update_index()

    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files - {tmp_path / "index.json"} == {tmp_path / ".offload" / key}
    assert tree.documents() == []


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_a_record_of_any_codec_has_a_document_with_its_fields(tmp_path, codec):
    key = KEY.replace(".zst", get_codec(codec).suffix)
    body = record(codec=codec) if codec != "raw" else b"12345"
    tree = tree_at(tmp_path)
    if codec == "raw":
        content = TextContent.of("12345", 1)
        header = get_codec("zstd").open(lambda *, start=0, end=None: record()[start:end]).header
        tree.put(f"h/{key.removeprefix('r/')}.json", get_codec("raw").encode(header, content).sidecar or b"")

    tree.put(key, body)

    assert json.loads((tmp_path / SHOWN).read_text()) == {
        "schema_version": "1.0",
        "item_id": "abcdefghij",
        "item_type": "tool_result",
        "offloaded_at": 7,
        "metadata": {"tool_name": "Read"},
        "content": "12345",
    }


def test_a_deleted_record_loses_its_document_but_not_that_of_its_next_generation(tmp_path):
    tree = tree_at(tmp_path)
    for key in (KEY, OTHER, LATER):
        tree.put(key, record(key))
    assert content_of(tmp_path / SHOWN) == LATER
    assert tree.get(KEY) == record(KEY)
    for key in (KEY, OTHER):
        tree.put(f"{key}.expired", b"")
        tree.put(key, b"", overwrite=True)

    tree.update_index()

    assert [d.path for d in tree.documents()] == [SHOWN]
    assert [p.name for p in (tmp_path / "tool_result" / "Read").iterdir()] == ["call_abcdefghij.json"]
    assert content_of(tmp_path / SHOWN) == LATER


def test_a_document_that_is_listed_in_a_folder_of_another_case_is_found_and_kept(tmp_path):
    tree = tree_at(tmp_path)
    tree.put(KEY, record())
    tree.put(OTHER.replace("=52ead", "read"), record(tool_name="read", ref="zzzzzzzzzz"))
    folders = tmp_path / "tool_result"
    # As macOS and Windows have it: one folder, which both names open.
    (folders / "read" / "call_zzzzzzzzzz.json").rename(folders / "Read" / "call_zzzzzzzzzz.json")
    (folders / "read").rmdir()
    (folders / "read").symlink_to(folders / "Read")
    assert len(tree.documents()) == 2

    tree.put(f"{KEY}.expired", b"")
    tree.update_index()

    assert [p.name for p in (folders / "Read").iterdir()] == ["call_zzzzzzzzzz.json"]
    assert [d.path for d in tree.documents()] == ["tool_result/Read/call_zzzzzzzzzz.json"]


def test_an_undeleted_record_gets_its_document_again(tmp_path):
    tree = tree_at(tmp_path)
    tree.put(KEY, record())
    tree.put(f"{KEY}.expired", b"")
    tree.update_index()
    assert not (tmp_path / SHOWN).exists()

    tree_at(tmp_path).delete(f"{KEY}.expired")
    tree.delete(f"{KEY}.expired")
    tree.update_index()

    assert content_of(tmp_path / SHOWN) == "12345"
    assert [d.path for d in tree.documents()] == [SHOWN]


@pytest.mark.parametrize("is_marked", [True, False])
def test_an_emptied_record_or_one_without_a_document_is_not_listed(tmp_path, is_marked):
    tree = tree_at(tmp_path)
    for key in (KEY, OTHER):
        tree.put(key, record())
    if is_marked:
        tree.put(f"{KEY}.expired", b"")
    tree.put(KEY, b"", overwrite=True)
    (tmp_path / SHOWN.replace("abcdefghij", "zzzzzzzzzz")).unlink()

    assert tree.documents() == []


def edited_by_an_editor(path: Path) -> None:
    other = path.with_name("edited")
    other.write_text(path.read_text().replace("12345", "edited"))
    other.replace(path)


def edited_in_place(path: Path) -> None:
    path.write_text(path.read_text().replace("12345", "edited"))


def deleted(path: Path) -> None:
    path.unlink()


def linked_to_its_record(path: Path) -> None:
    """Make a document as release 0.1 did."""
    path.unlink()
    path.hardlink_to(next((path.parents[2] / ".offload" / "r" / "s").iterdir()))


def replaced_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "change", [edited_by_an_editor, edited_in_place, deleted, linked_to_its_record, replaced_by_a_link]
)
def test_a_changed_document_leaves_the_record_alone_and_is_repaired(tmp_path, change):
    tree = tree_at(tmp_path)
    tree.put(KEY, record())
    right = (tmp_path / SHOWN).read_bytes()
    change(tmp_path / SHOWN)

    assert tree.get(KEY) == record()
    tree.reindex()

    assert (tmp_path / SHOWN).read_bytes() == right
    assert (tmp_path / SHOWN).lstat().st_nlink == 1
    assert not (tmp_path / SHOWN).is_symlink()
    assert tree.get(KEY) == record()


def test_a_reindex_removes_the_files_of_killed_writers_and_keeps_the_document_of_a_damaged_record(tmp_path):
    tree = tree_at(tmp_path)
    tree.put(KEY, record())
    right = (tmp_path / SHOWN).read_bytes()
    (tmp_path / ".offload" / KEY).write_bytes(b"damaged")
    old, new = (tmp_path / "tool_result" / "Read" / f".tmp-{letter * 16}" for letter in "ab")
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))

    tree.reindex()

    assert (tmp_path / SHOWN).read_bytes() == right
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path):
    (tmp_path / "tool_result").mkdir()
    os.chown(tmp_path / "tool_result", 12_345, -1)

    with pytest.raises(StorePermissionError, match="tool_result must be a folder of this user"):
        tree_at(tmp_path).put(KEY, record())


def test_a_record_without_a_possible_document_is_an_error_for_the_caller(tmp_path):
    (tmp_path / SHOWN).mkdir(parents=True, mode=0o700)
    tmp_path.chmod(0o700)

    with pytest.raises(StoreError, match=r"call_abcdefghij\.json: Is a directory; the folder must belong"):
        tree_at(tmp_path).put(KEY, record())


def test_a_reindex_during_a_write_keeps_the_new_record(tmp_path, monkeypatch):
    tree, writer, later = tree_at(tmp_path), tree_at(tmp_path), LATER
    tree.put(KEY, record())
    tree.put(f"{KEY}.expired", b"")
    listing = tree._live

    def listed(*prefix: str) -> object:
        found = listing(*prefix)
        if later not in [stored.key for stored in tree.keys()]:
            writer.put(later, record("54321"))
        return found

    monkeypatch.setattr(tree, "_live", listed)

    tree.reindex()

    assert content_of(tmp_path / SHOWN) == "54321"
    assert len(tree.documents()) == 1


def test_a_writer_that_was_overtaken_writes_the_index_again(tmp_path, monkeypatch):
    tree, other = tree_at(tmp_path), tree_at(tmp_path)
    tree.put(KEY, record())
    put, second = tree._index._store.put, OTHER

    def overtaken(key: str, data: bytes, *, overwrite: bool = False) -> None:
        if second not in [found.key for found in tree.keys()]:
            other.put(second, record())
            other.update_index()
        put(key, data, overwrite=overwrite)

    monkeypatch.setattr(tree._index._store, "put", overtaken)

    tree.update_index()

    assert (tmp_path / "index.json").read_bytes().count(b"item_id") == 2


@given(names, names)
def test_a_name_of_a_tool_is_one_safe_folder_that_no_other_name_has(one: str, other: str) -> None:
    folder = folder_of(encode_part(one))

    assert 0 < len(folder) <= 120
    assert folder.isascii()
    assert folder.isprintable()
    assert "/" not in folder
    assert not folder.startswith(".")
    assert (folder == folder_of(encode_part(other))) == (one == other)


@pytest.mark.parametrize(("item_type", "name"), [("tool_result", "call"), ("user_message", "msg")])
@pytest.mark.parametrize("ref", ["abcdefghij", "a" * 20, "k3j9x"])
def test_the_ref_of_a_placeholder_is_found_in_its_path_whatever_a_summary_says(
    item_type: str, name: str, ref: str
) -> None:
    renderer = PathRenderer(Path("/a b/c"))
    other = renderer.render(facts(ref="zzzzzzzzzz"))
    for summary in (None, f"{other}\n{other}\nUse Read tool to view details."):
        text = renderer.render(facts(item_type=item_type, ref=ref, tool_name=None, summary=summary))
        assert text.split("\n")[1] == f"Path: /a b/c/{item_type}/{name}_{ref}.json"
        assert PathRenderer(Path("/")).find_ref(text) == ref
        assert renderer.find_path(text) == f"/a b/c/{item_type}/{name}_{ref}.json"


@pytest.mark.parametrize("change", ["{} ", " {}", "{}\n", "{0}{0}", "[Content offloaded]\n{}"])
def test_a_text_that_only_contains_a_placeholder_is_not_one(change: str) -> None:
    renderer = PathRenderer(Path("/root"))

    assert renderer.find_ref(change.format(renderer.render(facts()))) is None
    assert renderer.find_path(change.format(renderer.render(facts()))) is None


@pytest.mark.parametrize("suffix", [".json", ".zst"])
def test_the_path_of_a_record_is_that_of_its_document(tmp_path, suffix):
    tree, shown = tree_at(tmp_path), SHOWN.replace(".json", suffix)
    tree.put(KEY, record(placeholder=f"Path: {tmp_path / shown}\n"))

    assert (tmp_path / shown).is_file()
    assert tree.path_of(KEY) == shown
    assert tree.path_of(f"{KEY}.expired") == f".offload/{KEY}.expired"


@given(
    st.text(st.sampled_from('ab"\\\n\t\0\u00e9\U0001f600\ud800') | st.characters(), max_size=40),
    st.integers(1, 400),
)
def test_the_pieces_of_a_text_join_to_it_and_fit_into_a_line(text: str, times: int) -> None:
    pieces = list(pieces_of(text * times))

    assert "".join(pieces) == text * times
    for piece in pieces:
        line = f"    {json.dumps(piece, ensure_ascii=False)},".encode("utf-8", "backslashreplace").decode()
        assert len(line.encode("utf-16-le")) <= 2 * 2_000
        assert "\n" not in piece[:-1]
        assert 0 < len(piece) <= 1_900


CONVERSATION = [from_user("alpha beta " * 3000), from_model("seen")]


def test_a_tree_needs_no_hard_links(tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    def opened(path: str, *arguments: int, really: Callable[..., int] = os.open, **options: int) -> int:
        if path == ".":
            raise OSError(errno.EOPNOTSUPP, "no unnamed files")
        return really(path, *arguments, **options)

    fs = ContextFileSystem(tmp_path / "tree", "s")
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "open", opened)

    out = fs.offload(CONVERSATION)
    fs.reindex()

    assert out.errors == []
    assert len(fs.history()) == 1
    assert fs.restore(out.messages) == CONVERSATION


@pytest.mark.parametrize("compress", [False, True])
def test_a_session_of_another_store_is_copied_into_a_tree(tmp_path, compress):
    rule = Rule(min_tokens=1500, after_replies=1)
    off = Offloader(tmp_path / "store", session="s", policy=OffloadPolicy(types={"user_message": rule}))
    sent = off.offload(CONVERSATION).messages
    fs = ContextFileSystem(tmp_path / "tree", "s", compress=compress)

    copy_session(off.store, fs.offloader.store, "s")

    [document] = fs.history()
    assert content_of(fs.root / document.path) == CONVERSATION[0]["content"]
    assert [item["item_id"] for item in index_of(fs.root)] == [document.item_id]
    assert fs.restore(sent) == CONVERSATION


def index_of(root: Path) -> list[dict[str, object]]:
    items: list[dict[str, object]] = json.loads((root / "index.json").read_text())["items"]
    return items


def test_a_fork_has_its_documents_and_deleting_one_session_keeps_the_others(tmp_path):
    fs = ContextFileSystem(tmp_path / "tree", "s")
    sent = fs.offload(CONVERSATION).messages
    fork = fs.offloader.fork("t")
    assert [entry["session_id"] for entry in index_of(fs.root)] == ["s", "t"]

    delete(fs.offloader.store, "s")

    [entry] = index_of(fs.root)
    assert entry["session_id"] == "t"
    assert content_of(fs.root / str(entry["path"])) == CONVERSATION[0]["content"]
    assert fork.restore(sent) == CONVERSATION
    delete(fs.offloader.store, "t")
    assert index_of(fs.root) == []
    assert not list(fs.root.rglob("msg_*.json"))


def test_restore_keeps_what_is_missing_if_that_is_asked_for(tmp_path: Path) -> None:
    fs = ContextFileSystem(tmp_path, session="s")
    sent = fs.offload(
        [from_user("go"), *tool_turn("a", "a line of output\n" * 2000), from_model("done")]
    ).messages
    delete(fs.offloader.store, "s", [fs.offloader.records()[0].ref])
    with pytest.raises(ExpiredError):
        fs.restore(sent)
    kept = fs.restore(sent, on_missing="keep")
    assert kept == sent
    assert [missing.message for missing in kept.missing] == [2]
