"""The pages of the layouts of the presets: context files, counted and named with their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.conversation import tool_turn
from pages import ORIGIN, Html, visitor

from offload import Offloader, OffloadStore, open_store
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.agent.presets.tool_results import offload_tool_results
from offload.storage.layout import encode_part

LOG = "".join(f"{n} line\n" for n in range(3000))


def conversation(calls: int = 2) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for n in range(calls):
        messages += tool_turn(f"toolu_{n}", f"{n} {LOG}", "Bash", {"command": "make"})
    return [*messages, {"role": "assistant", "content": "done"}]


@pytest.fixture(params=["context_fs", "context_refs", "tool_results"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[OffloadStore, str, list[Path]]:
    """The store at the root of a layout, its session and its two files."""
    root = tmp_path / "context"
    if request.param == "context_fs":
        ContextFileSystem(root, "S 1").offload(conversation())
        return open_store(root), "S 1", list(root.glob("tool_result/*/*.json"))
    if request.param == "context_refs":
        ContextRefs(root, "S 1").offload(conversation())
        return open_store(root), "S 1", list(root.glob("*/artifacts/*.txt"))
    offload_tool_results(conversation(), root)
    return open_store(root), "tool-results", list(root.glob("*.md"))


def test_the_context_files_of_a_session_are_counted_and_named_with_their_paths(tree):
    store, session, files = tree
    page, at = visitor(store), f"/s/{encode_part(session)}"
    refs = [info.ref for info in Offloader(store, session=session).records()]
    listed = Html(page.get(at).text).text
    shown = [Html(page.get(f"{at}/r/{ref}").text).text for ref in refs]
    models = [Html(page.get(f"{at}/r/{ref}/model").text).text for ref in refs]

    assert len(files) == 2
    assert "Context files2" in Html(page.get("/").text).text
    assert "Context files2" in listed
    for file in files:
        assert str(file) in listed
        assert f"Context file{file}" in "".join(shown)
    assert all("0 line" in text for text in shown)
    names = ["Path: ", "output in context: ", "[Content offloaded to: ./tool-result-"]
    assert all(any(name in text for name in names) for text in models)


def test_every_page_works_and_a_visit_changes_no_file(tree):
    store, session, _ = tree
    root = Path(store.url.removeprefix("file://"))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    page, at = visitor(store), f"/s/{encode_part(session)}"
    [ref, _] = [info.ref for info in Offloader(store, session=session).records()]
    seen = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    for path in (
        *("/", "/retention?session_records=1", at, f"{at}/deleted", f"{at}/check"),
        *(f"{at}/r/{ref}{tab}" for tab in ("", "/model", "/outline", "/search?q=line", "/download")),
    ):
        assert page.get(path).status_code == 200, path

    assert seen == before
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_record_is_deleted_with_its_document_and_a_plain_file_is_refused(tree):
    store, session, files = tree
    page, at = visitor(store, allows_changes=True), f"/s/{encode_part(session)}"
    ref = Offloader(store, session=session).records()[0].ref
    form = next(a for tag, a in Html(page.get(f"{at}/r/{ref}").text).tags if a.get("name") == "form_key")

    done = page.post(f"{at}/r/{ref}/delete", data={"form_key": form["value"]}, headers={"origin": ORIGIN})

    if session == "tool-results":
        assert done.status_code == 403
        assert "can be read, copied and exported only" in done.text
        assert all(file.exists() for file in files)
    else:
        assert done.status_code == 200
        assert len(Offloader(open_store(store.url), session=session).records()) == 1
        root = Path(store.url.removeprefix("file://"))
        [index] = [p for name in ("index.json", "manifest.json") for p in root.rglob(name)]
        assert ref not in index.read_text()


def test_an_ordinary_store_shows_no_context_files(tmp_path):
    store = open_store(tmp_path)
    Offloader(store, session="s").offload_text(LOG, tool_name="Bash")

    assert "Context file" not in visitor(store).get("/").text
    assert "Context file" not in visitor(store).get("/s/s").text
