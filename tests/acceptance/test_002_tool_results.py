"""The method `offloadToolResults` as its requirements describe it, with Python names; each row is a test.

| statement | test |
|---|---|
| UC-001 A large result: the text is in a file, the file name in the message | test_01 |
| UC-002 A small result is kept, and nothing is written | test_02 |
| UC-003 Of both together, only the large one is offloaded | test_03 |
| UC-004 Without results, the messages are unchanged and nothing is written | test_02 |
| F-001.1 Messages are processed from the first to the last | test_05 |
| F-001.2 Every block of a content is checked | test_06 |
| F-001.3 Only blocks of type `tool_result` are offloaded | test_06 |
| F-001.4 The file is `tool-result-{tool_use_id}.md` | test_08 |
| F-001.5 A new list: changed messages are deep copies, the others the same objects | test_09 |
| F-001 A missing folder is created with its parents | test_24 |
| F-001 Results of one id get `-1`, `-2` | test_11 |
| F-001 No messages: an empty result | test_02 |
| F-001 A file that cannot be written raises | test_13 |
| F-001 Exactly 100 characters are offloaded | test_14 |
| F-001 99 characters are kept | test_14 |
| F-001 An empty text is kept | test_02 |
| F-001 Calls are independent of each other | test_17 |
| F-001 Files in the folder are the only effect | test_18 |
| F-001 The input is not changed | test_17 |
| F-002.1 A string has its length in JavaScript | test_20 |
| F-002.2 Numbers count as JavaScript prints them | test_14, tests/property/test_javascript.py |
| F-002.2 Blocks have the length of `JSON.stringify`, which is also the content of the file | test_21 |
| F-002.3, F-002.4 The threshold applies to blocks too | test_14 |
| F-003.1 `[Content offloaded to: {path}]` replaces the content | test_01 |
| F-003.2 The path is relative to the folder | test_24 |
| F-003.3 A string replaces a list of blocks | test_25 |
| F-004.1 `offloaded_count` | test_05 |
| F-004.2 `freed_chars` is the sum of the original characters | test_27 |
| F-004.3 `files` are absolute paths | test_28 |
| F-005.1 Two calls may create the same folder at once | test_29 |
| F-005.2 The folder may exist, whatever its mode | test_30 |
| 4.3 Types for an IDE | tests/typing/tool_results.py |

The requirements exclude the agent loop, token counts, reading files back and summaries. Tests 31 and later
cover open points: hostile ids, used file names, privacy, killed processes, durability, other message shapes.
"""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from offload import ConfigError, MessageError, StoreError
from offload.agent.presets.tool_results import offload_tool_results

LARGE = "a line of output\n" * 20
SMALL = "exit 0"


def result(content: Any, call: Any = "toolu_01AbC") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def blocks_of_length(chars: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": "x" * (chars - len('[{"type":"text","text":""}]'))}]


def files_in(folder: Path) -> dict[str, str]:
    """Return what every file in `folder` holds, by name; nothing if there is no folder."""
    return {path.name: path.read_bytes().decode() for path in folder.glob("*")}


def shown(messages: list[Any]) -> list[str]:
    return [block["content"] for message in messages for block in message["content"]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_01_a_large_result_is_in_a_file_and_the_name_of_the_file_in_the_message(out):
    done = offload_tool_results([user(result(LARGE))], out)

    assert files_in(out) == {"tool-result-toolu_01AbC.md": LARGE}
    assert done.messages == [user(result("[Content offloaded to: ./tool-result-toolu_01AbC.md]"))]


@pytest.mark.parametrize(
    "messages",
    [
        [user(result(SMALL))],
        [user(result(""), result([]))],
        [
            user(
                {"type": "text", "text": LARGE},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": LARGE}},
            )
        ],
        [{"role": "user", "content": LARGE}, {"role": "user"}, LARGE, None],
        [{"role": "tool", "tool_call_id": "x", "content": LARGE}],
        [user(LARGE, None, 7), user({"type": "tool_result", "tool_use_id": "x"}, result(None), result(7))],
        [],
    ],
    ids=["small", "empty", "no results", "no blocks", "openai", "no texts", "no messages"],
)
def test_02_without_a_large_result_the_messages_are_the_same_and_nothing_is_written(out, messages):
    done = offload_tool_results(messages, out)

    assert [id(m) for m in done.messages] == [id(m) for m in messages]
    assert (done.offloaded_count, done.freed_chars, done.files) == (0, 0, [])
    assert not out.exists()


def test_03_of_large_and_small_results_only_the_large_ones_are_offloaded(out):
    messages = [user(result(SMALL, "a"), result(LARGE, "b")), user(result(SMALL, "c"))]

    done = offload_tool_results(messages, out)

    assert shown(done.messages) == [SMALL, "[Content offloaded to: ./tool-result-b.md]", SMALL]
    assert files_in(out) == {"tool-result-b.md": LARGE}


def test_05_messages_are_processed_from_the_first_to_the_last(out):
    messages = [
        user(result(LARGE, "z")),
        user(result(SMALL, "b"), result(LARGE, "a")),
        user(result(LARGE, "m")),
    ]

    done = offload_tool_results(messages, out)

    assert [Path(file).name for file in done.files] == [f"tool-result-{call}.md" for call in "zam"]
    assert done.offloaded_count == 3


def test_06_every_block_of_a_content_is_checked_and_those_of_other_types_are_kept(out):
    others = [
        {"type": "text", "text": LARGE},
        {"type": "tool_use", "id": "b", "name": "Write", "input": {"text": LARGE}},
        {"type": "web_search_tool_result", "tool_use_id": "c", "content": LARGE},
    ]
    blocks = [result(f"{n}{LARGE}", f"call_{n}") for n in range(3)]

    done = offload_tool_results([user(blocks[0], *others, *blocks[1:])], out)

    assert files_in(out) == {f"tool-result-call_{n}.md": f"{n}{LARGE}" for n in range(3)}
    assert done.messages[0]["content"][1:4] == others


@pytest.mark.parametrize("call", ["toolu_01A09q90qw90lq917835lq9", "srvtoolu_x.y-1", "A", "x" * 120])
def test_08_the_file_is_named_after_the_call(out, call):
    offload_tool_results([user(result(LARGE, call))], out)

    assert files_in(out) == {f"tool-result-{call}.md": LARGE}


def test_09_a_changed_message_is_a_deep_copy_and_the_others_are_the_same_objects(out):
    cited = {"type": "text", "text": "see", "citations": [{"start": 1}]}
    messages = [user(cited), user(cited, result(LARGE)), user(result(SMALL))]

    done = offload_tool_results(messages, out)
    done.messages[1]["content"][0]["citations"][0]["start"] = 2

    assert done.messages is not messages
    assert [new is old for new, old in zip(done.messages, messages, strict=True)] == [True, False, True]
    assert cited["citations"] == [{"start": 1}]


def test_11_results_of_one_id_get_numbers(out):
    twice = result(f"0 {LARGE}", "x")
    messages = [user(twice, result(f"1 {LARGE}", "x")), user(twice, result(LARGE, "x-1"))]

    done = offload_tool_results(messages, out)

    # An id that ends in a number does not get the file of an earlier one with that number.
    names = [f"tool-result-x{n}.md" for n in ("", "-1", "-2", "-1-1")]
    assert files_in(out) == dict(zip(names, [f"0 {LARGE}", f"1 {LARGE}", f"0 {LARGE}", LARGE], strict=True))
    assert shown(done.messages) == [f"[Content offloaded to: ./{name}]" for name in names]


def test_13_a_file_that_cannot_be_written_raises(tmp_path):
    (tmp_path / "file").write_text("in the way")
    messages = [user(result(LARGE))]

    with pytest.raises(StoreError) as caught:
        offload_tool_results(messages, tmp_path / "file" / "out")

    assert isinstance(caught.value, OSError)
    assert messages == [user(result(LARGE))]


def test_13_a_full_disk_raises_and_leaves_no_part_of_a_file(out):
    program = f"""
import resource
from offload import StoreError
from offload.agent.presets.tool_results import offload_tool_results
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
block = {{"type": "tool_result", "tool_use_id": "x", "content": "y" * 9000}}
try:
    offload_tool_results([{{"role": "user", "content": [block]}}], {str(out)!r})
except StoreError:
    print("raised", block["content"] == "y" * 9000)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert done.stdout == "raised True\n"
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ("x" * 99, 0),
        ("x" * 100, 1),
        (blocks_of_length(99), 0),
        (blocks_of_length(100), 1),
        # In JavaScript [{"score":1,"n":"…"}]; Python's own JSON has 1.0, two characters more.
        ([{"score": 1.0, "n": "x" * 79}], 0),
        ([{"score": 1.0, "n": "x" * 80}], 1),
    ],
)
def test_14_exactly_100_characters_are_offloaded_and_99_are_kept(out, content, count):
    assert offload_tool_results([user(result(content))], out).offloaded_count == count


def test_17_calls_are_independent_and_do_not_change_the_input(tmp_path):
    messages = [user(result(LARGE, "x"), result(SMALL, "x"), result(blocks_of_length(300), "y"))]
    before = copy.deepcopy(messages)

    first, second = (offload_tool_results(messages, tmp_path / name) for name in ("one", "two"))

    assert first.messages == second.messages
    assert files_in(tmp_path / "one") == files_in(tmp_path / "two")
    assert first.offloaded_count == second.offloaded_count == 2
    assert messages == before


def test_18_files_in_the_folder_are_the_only_effect(tmp_path, monkeypatch):
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))

    offload_tool_results([user(result(LARGE))], out)

    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == [
        "home",
        "out",
        "out/tool-result-toolu_01AbC.md",
    ]


# As `length` of Node counts them.
@pytest.mark.parametrize(
    ("text", "length"),
    [("é" * 100, 100), ("漢" * 99, 99), ("🙂" * 50, 100), ("🙂" * 49 + "x", 99), ("\ud83d" * 100, 100)],
)
def test_20_a_string_has_its_length_in_javascript(out, text, length):
    done = offload_tool_results([user(result(text))], out)

    assert done.freed_chars == (length if length >= 100 else 0)
    assert all(Path(f).read_bytes() == text.encode("utf-8", "surrogatepass") for f in done.files)


# The JSON that Node's JSON.stringify gives for these texts.
@pytest.mark.parametrize(
    ("content", "stringified"),
    [
        (
            [
                {
                    "type": "text",
                    "text": 'tab\t "quoted" back\\slash \u0001 \u007f é 🙂 </x> \u2028' + "." * 80,
                }
            ],
            '[{"type":"text","text":"tab\\t \\"quoted\\" back\\\\slash \\u0001 \u007f é 🙂 </x> \u2028'
            + "." * 80
            + '"}]',
        ),
        (
            [
                {
                    "type": "text",
                    "text": "half \ud83d" + "." * 80,
                    "cache_control": None,
                    "is": [True, False, 7, {}],
                }
            ],
            '[{"type":"text","text":"half \\ud83d'
            + "." * 80
            + '","cache_control":null,"is":[true,false,7,{}]}]',
        ),
        (
            [1.0, 0.1, 1e-07, 1e16, 1e21, 1.5e-10, 123456.0, -0.0, math.nan, -math.inf, 2**60, "." * 80],
            '[1,0.1,1e-7,10000000000000000,1e+21,1.5e-10,123456,0,null,null,1152921504606846976,"'
            + "." * 80
            + '"]',
        ),
    ],
    ids=["escapes", "lone surrogate", "numbers"],
)
def test_21_blocks_have_the_length_of_their_json_which_is_in_the_file(out, content, stringified):
    done = offload_tool_results([user(result(content))], out)

    assert files_in(out) == {"tool-result-toolu_01AbC.md": stringified}
    assert done.freed_chars == len(stringified.encode("utf-16-le")) // 2


def test_24_the_path_in_a_message_is_relative_to_the_folder_which_is_created_with_its_parents(tmp_path):
    messages = [user(result(LARGE))]

    one = offload_tool_results(messages, tmp_path / "one")
    other = offload_tool_results(messages, tmp_path / "another" / "b" / "c")

    assert one.messages == other.messages
    name = shown(one.messages)[0].removeprefix("[Content offloaded to: ").removesuffix("]")
    assert (
        (tmp_path / "one" / name).read_text()
        == (tmp_path / "another" / "b" / "c" / name).read_text()
        == LARGE
    )


def test_25_a_string_replaces_a_list_of_blocks(out):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 50}}
    block = {**result([{"type": "text", "text": "a plot"}, image], "x"), "is_error": False}

    done = offload_tool_results([user(block)], out)

    assert done.messages == [user({**block, "content": "[Content offloaded to: ./tool-result-x.md]"})]
    assert json.loads(files_in(out)["tool-result-x.md"]) == block["content"]


def test_27_the_freed_characters_are_the_sum_of_the_originals(out):
    messages = [user(result("x" * 150, "a"), result(SMALL, "b")), user(result(blocks_of_length(211), "c"))]

    assert offload_tool_results(messages, out).freed_chars == 150 + 211


def test_28_files_are_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = offload_tool_results([user(result(LARGE, "a"), result(LARGE, "a"))], "sub/../out")

    assert done.files == [str(tmp_path / "out" / name) for name in ("tool-result-a.md", "tool-result-a-1.md")]
    assert [Path(file).read_text() for file in done.files] == [LARGE, LARGE]


def test_29_concurrent_calls_into_a_missing_folder_lose_nothing(tmp_path):
    out, writers = tmp_path / "a" / "b", 8
    texts = [f"{n} {LARGE}" for n in range(writers)]
    done: dict[int, list[str]] = {}
    start = threading.Barrier(writers)

    def write(n: int) -> None:
        start.wait()
        done[n] = offload_tool_results([user(result(texts[n], "x"))], out).files

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [Path(done[n][0]).read_text() for n in range(writers)] == texts
    assert sorted(files_in(out).values()) == texts


# Umask 002 makes folders of mode 0775, a shared one may have 0777, and /tmp has a sticky bit.
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o777, 0o1777], ids=oct)
def test_30_an_existing_folder_keeps_its_files_and_mode_and_new_files_are_their_owners_alone(
    out, mode, no_umask
):
    out.mkdir()
    out.chmod(mode)
    (out / "notes.txt").write_text("mine")

    done = offload_tool_results([user(result(LARGE, "a"))], out)

    assert done.files == [str(out / "tool-result-a.md")]
    assert files_in(out) == {"notes.txt": "mine", "tool-result-a.md": LARGE}
    assert out.stat().st_mode & 0o7777 == mode
    assert (out / "tool-result-a.md").stat().st_mode & 0o777 == 0o600


HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..",
    "",
    "a\0b",
    "x" * 5000,
    "ä",
    "a\nb",
    "\ud800",
    "a b",
]


@pytest.mark.parametrize("call", HOSTILE, ids=lambda call: ascii(call)[:20])
def test_31_a_hostile_id_names_a_file_in_the_folder_and_nowhere_else(tmp_path, call):
    out = tmp_path / "deep" / "out"

    done = offload_tool_results([user(result(LARGE, call))], out)

    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [Path(done.files[0])]
    assert Path(done.files[0]).parent == out
    name = Path(done.files[0]).name
    assert shown(done.messages) == [f"[Content offloaded to: ./{name}]"]
    assert name.isascii()
    assert name.isprintable()
    assert len(name) <= 255


def test_32_two_ids_never_share_a_file(out):
    calls = [*HOSTILE, "=", "a=2fb", "a-1", "a", "a", "x" * 5001, "A", "B", "b"]
    messages = [user(result(f"{n} {LARGE}", call)) for n, call in enumerate(calls)]

    done = offload_tool_results(messages, out)

    assert len(set(done.files)) == len(calls)
    assert [Path(file).read_text() for file in done.files] == [f"{n} {LARGE}" for n in range(len(calls))]


def test_33_the_same_messages_give_the_same_names_again_and_no_file_is_overwritten(out):
    messages = [user(result(LARGE, "x"), result("other " + LARGE, "x"), result(LARGE, "x"))]

    first, second = offload_tool_results(messages, out), offload_tool_results(messages, out)
    later = offload_tool_results([user(result("third " + LARGE, "x"))], out)

    assert first == second
    assert shown(later.messages) == ["[Content offloaded to: ./tool-result-x-3.md]"]
    assert [Path(file).read_text() for file in [*first.files, *later.files]] == [
        *(LARGE, "other " + LARGE, LARGE),
        "third " + LARGE,
    ]


@pytest.mark.parametrize("call", ["toolu_01AbC", "x" * 120, "ä" * 30])
def test_35_a_placeholder_is_not_offloaded_again(out, call):
    first = offload_tool_results([user(result(LARGE, call), result("other " + LARGE, call))], out)

    second = offload_tool_results(first.messages, out)

    assert second.messages[0] is first.messages[0]
    assert len(files_in(out)) == 2


def test_36_a_text_that_contains_a_placeholder_is_offloaded(out):
    offload_tool_results([user(result(LARGE, "x"))], out)
    texts = [
        f"[Content offloaded to: ./tool-result-x.md]{LARGE}",
        f"[Content offloaded to: ./tool-result-{'y' * 90}.md]",
    ]

    done = offload_tool_results([user(*(result(text, "x") for text in texts))], out)

    assert [Path(file).read_text() for file in done.files] == texts


def test_37_files_and_new_folders_are_their_owners_alone(tmp_path, no_umask):
    offload_tool_results([user(result(LARGE))], tmp_path / "a" / "b")

    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "a").rglob("*")}
    assert modes == {"b": "0o700", "tool-result-toolu_01AbC.md": "0o600"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("text", [LARGE, "other"])
def test_38_a_file_of_another_user_is_not_taken_for_ones_own(out, text):
    out.mkdir()
    out.chmod(0o777)
    planted = out / "tool-result-a.md"
    planted.write_text(text)
    os.chown(planted, 12345, 12345)

    done = offload_tool_results([user(result(LARGE, "a"))], out)

    assert done.files == [str(out / "tool-result-a-1.md")]
    assert files_in(out) == {"tool-result-a.md": text, "tool-result-a-1.md": LARGE}


@pytest.mark.parametrize("kind", ["link to the same text", "dangling link", "folder", "pipe"])
def test_39_foreign_files_are_neither_followed_nor_replaced(tmp_path, out, kind):
    out.mkdir(mode=0o700)
    planted, outside = out / "tool-result-x.md", tmp_path / "outside"
    if kind == "folder":
        planted.mkdir()
    elif kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.symlink_to(outside)
    if kind == "link to the same text":
        outside.write_text(LARGE)
    before = planted.lstat()

    done = offload_tool_results([user(result(LARGE, "x"))], out)

    assert done.files == [str(out / "tool-result-x-1.md")]
    assert (out / "tool-result-x-1.md").read_text() == LARGE
    assert planted.lstat() == before
    assert outside.exists() == (kind == "link to the same text")


def test_40_a_name_belongs_to_a_whole_file_wherever_a_writer_is_killed(tmp_path):
    program = """
import os, sys
from offload.agent.presets.tool_results import offload_tool_results
seen, last = 0, int(sys.argv[1])
def count(event, arguments):
    global seen
    is_begun = seen or sys.argv[2] in str(arguments)
    if is_begun and event in ("open", "os.mkdir", "os.chmod", "os.link", "os.remove", "os.rename"):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), 9)
block = {"type": "tool_result", "tool_use_id": "X", "content": "y" * 300_000}
messages = [{"role": "user", "content": [block]}]
offload_tool_results(messages, sys.argv[2] + "-first")  # which imports what is imported late
sys.addaudithook(count)
offload_tool_results(messages, sys.argv[2])
"""
    killed_at = 0
    for last in range(1, 30):
        out = tmp_path / str(last)
        killed = subprocess.run([sys.executable, "-c", program, str(last), str(out)], check=False)
        named = list(out.glob("tool-result-*"))
        assert all(path.read_text() == "y" * 300_000 for path in named)
        assert named or killed.returncode == -9
        if killed.returncode == 0:
            break
        killed_at += 1
    assert killed_at >= 8
    assert killed.returncode == 0


def test_41_nothing_is_written_before_all_messages_are_read(out):
    with pytest.raises(MessageError, match=r'messages\[1\].content\[0\]: .* string "tool_use_id", got None'):
        offload_tool_results([user(result(LARGE)), user(result(LARGE, None))], out)
    with pytest.raises(MessageError, match=r"messages\[1\].content\[0\].content: blocks must be valid JSON"):
        offload_tool_results([user(result(LARGE)), user(result([{"type": "text", "text": b"x"}]))], out)

    assert not out.exists()


def test_43_blocks_of_an_sdk_are_written_by_their_fields(out):
    class TextBlock(BaseModel):
        type: str
        text: str
        annotations: None = None

    offload_tool_results([user(result([TextBlock(type="text", text="x" * 90)], "a"))], out)

    assert files_in(out) == {"tool-result-a.md": '[{"type":"text","text":"' + "x" * 90 + '"}]'}


@pytest.mark.parametrize("path", [None, 5, b"out", "a\0b"])
def test_44_a_folder_is_given_by_its_path(path):
    with pytest.raises(ConfigError, match="output_dir must"):
        offload_tool_results([user(result(LARGE))], path)


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "memory://", "file:///tmp/x"])
def test_44_a_url_is_refused(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="local folder"):
        offload_tool_results([user(result(LARGE))], url)

    assert list(tmp_path.iterdir()) == []


def test_47_new_and_existing_names_are_durable_when_the_call_returns(out, monkeypatch):
    sync, durable = os.fsync, set()

    def watched(handle: int) -> None:
        sync(handle)
        if Path(f"/proc/self/fd/{handle}").is_dir():
            durable.update(os.listdir(handle))

    monkeypatch.setattr(os, "fsync", watched)
    for _ in ("written", "found"):
        durable.clear()
        done = offload_tool_results([user(result(LARGE, "a"), result(LARGE, "b"))], out)
        assert durable >= {Path(file).name for file in done.files}


def test_48_names_that_may_not_be_durable_raise(out, monkeypatch):
    offload_tool_results([user(result(LARGE))], out)

    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)

    with pytest.raises(StoreError, match="Input/output error"):
        offload_tool_results([user(result(LARGE))], out)


@pytest.mark.parametrize("wrong", [None, 5, "text", b"text", {"role": "user", "content": []}])
def test_what_is_no_list_of_messages_is_refused(tmp_path, wrong):
    with pytest.raises(MessageError, match="expected a list of messages, got"):
        offload_tool_results(wrong, tmp_path)
