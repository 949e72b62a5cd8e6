"""Parts of context files: names of folders, groups of tools, citations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kit.store import CountedStore

from offload import ConfigError, Offloader, OffloadPolicy, Rule
from offload.agent.presets._files import IndexFiles
from offload.agent.presets.context_refs import ContextRefs
from offload.agent.presets.context_refs._citations import Citations, InUse
from offload.agent.presets.context_refs._folders import part_of, readable_folder
from offload.agent.presets.context_refs._tools import ToolGroups
from offload.agent.presets.context_refs._tree import ContextTree
from offload.storage.layout import check_key, encode_part
from offload.storage.wrappers import WrapperStore
from offload_backends.memory import MemoryStore

NAMES = st.text(alphabet="aAbBzZ09._-~= éÉ/", max_size=60) | st.text(max_size=30)


@given(NAMES)
def test_a_folder_leads_back_to_its_conversation_and_is_a_key(name: str) -> None:
    folder = readable_folder(encode_part(name))

    assert part_of(folder) == encode_part(name)
    assert check_key(f"{folder}/manifest.json")
    assert folder == folder.lower()


def test_a_folder_shows_the_name_of_its_conversation_and_one_that_none_has_is_foreign() -> None:
    for name, folder in {
        "chat-1": "chat-1",
        "Chat-1": "chat-1~8",
        "cHAT-1": "chat-1~7",
        "My Chat": "my=20chat~14",
        "CON.x": "=43=4f=4e.x",
    }.items():
        assert readable_folder(encode_part(name)) == folder
    for foreign in ("~state", "chat~", "chat~0", "chat~08", "chat~zzzz", "chat~8~8", "a~" + "z" * 40):
        assert part_of(foreign) is None


@pytest.mark.parametrize(
    ("tool", "is_kept"),
    [
        ("read", True),
        ("ReadFile", True),
        ("ready", False),
        ("spread_sheet", False),
        ("directors", False),
        ("filesystem.anything", True),
        ("my-file-system.anything", True),
        ("browserstack.search", False),
        ("rss.read", False),
        ("mcp__my_filesystem__anything", True),
        ("mcp__gdrive__read_file", False),
        ("gdrive__read_file", False),
        ("terminal_read", False),
        ("createTerminal", False),
        ("bash", False),
        ("", False),
    ],
)
def test_whole_words_of_the_server_or_else_of_the_tool_decide(tool: str, is_kept: bool) -> None:
    assert ToolGroups().keeps(tool) is is_kept


def test_globs_choose_tools_of_servers_and_of_a_category_too() -> None:
    groups = ToolGroups(never_tools=("github.get_*", "bash*", "Own"))

    assert [groups.keeps(name) for name in ("github.get_x", "bash", "my_own", "read", "github.put")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def records(store: MemoryStore, *texts: str, item_type: Any = "user_message") -> list[Any]:
    policy = OffloadPolicy(types={item_type: Rule(min_chars=1, preview_chars=0)}, min_saving=0)
    off = Offloader(store, session="s", policy=policy, codec="raw", id_style="short")
    for text in texts:
        off.offload_text(text, item_type=item_type)
    return off.records()


@pytest.mark.parametrize("place", range(262_100, 262_160, 3))
def test_an_id_is_found_wherever_a_file_is_read_in_pieces(place: int) -> None:
    store = MemoryStore()
    [inner] = records(store, "a" * 500)
    infos = records(store, f"{'.' * place} {inner.ref} {'.' * 50}")
    outer = next(info.ref for info in infos if info.ref != inner.ref)

    assert Citations(store, "s").closure({outer}, infos) == {inner.ref, outer}
    assert Citations(store, "s").closure({"unknown"}, infos) == set()


def test_a_word_of_an_output_cites_nothing_but_a_line_does() -> None:
    store = MemoryStore()
    [inner] = records(store, "a" * 500)
    infos = records(store, f"{'a b ' * 500} {inner.ref}", item_type="tool_result")
    outer = next(info.ref for info in infos if info.ref != inner.ref)

    assert Citations(store, "s").closure({outer}, infos) == {outer}
    infos = records(
        store, f"{'a b ' * 500} [Tool output in context: {inner.ref}] (1KB)", item_type="tool_result"
    )
    assert inner.ref in Citations(store, "s").closure({info.ref for info in infos} - {inner.ref}, infos)


def test_outputs_are_in_use_until_a_list_shows_them_and_without_lists_the_latest_is() -> None:
    in_use = InUse()
    in_use.note_output("aaaaa")
    in_use.note_output("bbbbb")
    assert in_use.ids() == {"bbbbb"}

    in_use.note_list([{"role": "user", "content": "ccccc"}])
    in_use.note_output("ddddd")
    assert {"bbbbb", "ddddd"} <= in_use.ids()
    in_use.note_list([{"role": "user", "content": "bbbbb ddddd"}])
    in_use.note_list([])
    assert in_use.ids() == set()


def test_a_storing_call_renders_its_own_entries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []
    entry = ContextTree._entry

    def counted(tree: ContextTree, info: Any) -> Any:
        rendered.append(info.ref)
        return entry(tree, info)

    monkeypatch.setattr(ContextTree, "_entry", counted)
    store = CountedStore()

    def requests() -> tuple[int, int]:
        """Count the listings of context files and the writes of manifests."""
        listings = [each for each in store.requests if each.startswith("keys ") and "/artifacts/" in each]
        return len(listings), store.requests.count("put chat/manifest.json")

    refs = ContextRefs(store, "chat")
    for n in range(20):
        refs.tool_output(f"{n}" * 2000, tool_name="query")
    before = len(rendered), *requests()

    refs.tool_output("new" * 2000, tool_name="query")

    floor = 1
    assert before == (20, 40 + floor, 20)
    assert (len(rendered), *requests()) == (21, 42 + floor, 21)
    items = json.loads(store.get("chat/manifest.json"))["items"]
    assert [item["id"] for item in items] == rendered


def test_an_entry_of_another_writer_between_listing_and_write_is_listed_too_and_a_changed_one_again() -> None:
    store, rows = MemoryStore(), [("a", 1)]

    class Overtaken(WrapperStore):
        def put(self, key, data, *, overwrite=False):
            # The other writer listed before us, and its index file is overwritten by ours.
            if len(rows) < 3:
                rows.append(("abc"[len(rows)], 1))
            self.inner.put(key, data, overwrite=overwrite)

    index = IndexFiles(Overtaken(store), lambda _: list(rows), lambda row: {"id": row[0], "size": row[1]})

    def listed() -> list[tuple[str, int]]:
        index.note_change("index.json")
        index.update()
        items = json.loads(store.get("index.json"))["items"]
        return [(item["id"], item["size"]) for item in items]

    assert listed() == [("a", 1), ("b", 1), ("c", 1)]
    rows[:] = [("b", 2), ("c", 1), ("d", 1)]
    assert listed() == rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_bytes": -1}, "max_bytes must be an integer of at least 0, got -1"),
        ({"max_inline_chars": 1.5}, "max_inline_chars must be an integer of at least 0, got 1.5"),
        ({"bash_tools": "bash"}, "bash_tools must be a list of names, got 'bash'"),
        ({"never_tools": 5}, "never_tools must be a list of names, got 5"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_by_name(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ContextRefs(MemoryStore(), "c", **arguments)
