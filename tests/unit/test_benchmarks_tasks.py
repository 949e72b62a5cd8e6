"""The scripted agent of the benchmarks: its tasks, and that nothing but the messages leads it."""

import json
import pickle
import re
from itertools import pairwise, product

import bench_loca
import pytest
from _shares import svg
from peers._agent import next_step
from peers._editing import PAGE_LINES, edited, formatted
from peers._families import CHARS_PER_TOKEN, EDITING, FAMILIES, cases
from peers._solving import Conversation, WindowFullError
from peers.ours_in_a_loop import VARIANTS
from peers.plain import Everything
from peers.plain_cut import Cut

_TOKENS = 8_000
OURS = VARIANTS["default"]


@pytest.fixture
def talk(tmp_path):
    """Give a task to the agent with a candidate."""

    def talk(peer, family, tokens=_TOKENS, window=32_000, without=()):
        def opened(home, session):
            return peer(str(home), session, None)

        return Conversation(opened, tmp_path / "home", cases(family, tokens, 5), window, without=without)

    return talk


def _answer(conversation):
    """Run it to its end; where it leaves, the candidate is opened again."""
    while (answer := conversation.run()) is None:
        pass
    return answer


@pytest.mark.parametrize("family", [*FAMILIES, *EDITING])
def test_a_seed_always_makes_the_same_task_of_the_size_asked_for_without_its_answer(family):
    case = cases(family, _TOKENS, 3)
    assert case == cases(family, _TOKENS, 3) != cases(family, _TOKENS, 4)
    chars = sum(map(len, [*case["outputs"], *case.get("files", {}).values()]))
    assert 0.7 < chars / (_TOKENS * CHARS_PER_TOKEN) < 1.4
    known = json.dumps([case["ops"], *case.get("agents", ())])
    answers = re.findall(r"# review (\w+)", "".join(case.get("files", {}).values())) or [case["answer"]]
    assert not any(re.search(rf"\b{re.escape(answer)}\b", known) for answer in answers)


@pytest.mark.parametrize("family", [family for family in FAMILIES if "compactions" not in family])
def test_a_task_is_solved_where_everything_is_in_view(talk, family):
    assert _answer(talk(Everything, family)) == cases(family, _TOKENS, 5)["answer"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_is_solved_with_offloading_by_the_messages_of_each_request_alone(talk, family):
    conversation = talk(OURS, family)
    told = []

    def think(messages):
        step = next_step(messages)
        told.append((json.dumps(messages), step))
        return step

    conversation._think = think
    assert _answer(conversation) == conversation.case["answer"]
    assert len(told) == conversation.requests
    assert [next_step(json.loads(messages)) for messages, _ in told] == [step for _, step in told]


def test_a_sum_of_which_rows_are_cut_out_has_no_answer(talk):
    assert talk(Cut, "sum over CSV").run() == ""


def test_a_search_goes_on_until_it_has_shown_all(talk):
    conversation = talk(OURS, "sum over CSV", tokens=20_000, without=("query",))
    assert conversation.run() == cases("sum over CSV", 20_000, 5)["answer"]
    assert conversation.requests > 4


def test_what_was_in_view_before_a_compaction_is_gone_without_a_library(talk):
    assert talk(Everything, "large result before two compactions").run() == ""


def test_a_conversation_goes_on_from_what_another_process_was_told(talk, tmp_path):
    first, other = (talk(OURS, "continue on another machine") for _ in range(2))
    assert first.run() is None
    vars(other).update(pickle.loads(pickle.dumps(first.state())))  # noqa: S301 # made here
    assert other.run() == other.case["answer"]
    assert [path.name for path in tmp_path.iterdir()] == ["home-elsewhere"]


def test_a_request_above_the_window_ends_the_task(talk):
    conversation = talk(Everything, "error in a build log", window=4_000)
    with pytest.raises(WindowFullError):
        conversation.run()
    assert conversation.requests == 1


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("[handle 'a': 239 matching line(s); showing 200]", "200"),
        ("[handle 'a': 239 matching line(s); showing 200, output capped]", None),
        ("[handle 'a': 12 matching line(s); showing 12]", ""),
        ('"matching_all_words": 220, "returned": 10', "50"),
        ('"matching_all_words": 10, "returned": 10', ""),
        ('"has_more": true', "50"),
        ('"match": "phrase", "occurrences": 3, "has_more": false', None),
        ("(more follow; narrow the pattern):", None),
        (">  7| 5 east 5\n[output truncated, narrow your search]", "7"),
        ("[output truncated, narrow your search]", None),
        ("Note: it stopped early. Narrow the search, or raise max_count.", "100000"),
        ('[answer full: repeat with cursor="abc:9"]', "abc:9"),
        ("[no more matches]", ""),
    ],
)
def test_a_partial_search_goes_on_as_each_library_says(said, more):
    rows = {"op": "rows", "of": [0], "pattern": r"(\d+) (\w+) (\d+)", "where": "east", "rows": 900, "sql": ""}
    ops = [{"op": "call", "argument": ""}, rows]
    task = {"ops": ops, "verbs": ["find"], "page_chars": 1, "language": "sql"}
    read = {"tool": "read back", "of": 0, "verb": "find", "argument": "east", "more": ""}
    texts = [task, {"tool": "call"}, "a placeholder", read, f"{said}\n1 east 5\n2 east 6"]
    roles = ("user", "assistant", "user", "assistant", "user")
    messages = [
        {"role": role, "content": text if isinstance(text, str) else json.dumps(text)}
        for role, text in zip(roles, texts, strict=True)
    ]
    answer = {None: {"answer": ""}, "": {"answer": "11"}}
    assert next_step(messages) == answer.get(more, {**read, "more": more})


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_way_to_use_it_solves_the_task_that_pages_can_solve(talk, variant):
    family = "continue in a new process"
    assert _answer(talk(VARIANTS[variant], family)) == cases(family, _TOKENS, 5)["answer"]


def test_a_placeholder_without_a_preview_shows_nothing_of_the_text(talk):
    conversation = talk(VARIANTS["previews"], "find one record")
    shown = []

    def think(messages):
        shown.append(messages[-1]["content"])
        return next_step(messages)

    conversation._think = think
    _answer(conversation)
    assert "[Offloaded:" in shown[1]
    assert "a note about this order" not in shown[1]


def _edits(conversation):
    """Return the edits that the agent made, as it made them."""
    return [step.call for step in conversation._steps if step.call["tool"] == "edit"]


@pytest.mark.parametrize(
    ("peer", "family"),
    [
        *product((Everything, OURS), EDITING),
        *product(VARIANTS.values(), ["after a compaction"]),
    ],
)
def test_all_edits_of_a_task_are_made(talk, peer, family):
    conversation = talk(peer, family, tokens=20_000, window=64_000)
    assert conversation.run() == "done"
    assert conversation.files == conversation.case["edited"] != conversation.case["files"]


@pytest.mark.parametrize("family", [family for family in EDITING if "compaction" not in family])
def test_an_edit_of_a_text_in_view_needs_no_other_request(talk, family):
    conversation = talk(Everything, family)
    conversation.run()
    assert (conversation.extra, conversation.failed) == (0, 0)
    assert conversation.requests == len(conversation.case["ops"])


def test_a_text_that_was_cut_out_is_read_again_from_the_file(talk):
    conversation = talk(Cut, "one file many times", tokens=20_000)
    conversation.run()
    assert conversation.files == conversation.case["edited"]
    assert conversation.extra > 0
    assert conversation.failed == 0


@pytest.mark.parametrize("peer", [Everything, OURS])
def test_what_was_read_or_written_before_a_file_changed_is_not_quoted(talk, peer):
    conversation = talk(peer, "a second version read since", tokens=20_000)
    conversation.run()
    assert conversation.failed == 0
    before, *after = _edits(conversation)
    assert before["old"] == formatted(before["old"]).replace("    ", "  ").replace("  #", " #")
    assert [edit["old"] for edit in after] == [formatted(edit["old"]) for edit in after]


def test_a_stored_text_that_an_edit_of_a_removed_message_changed_fails_once_and_is_read_again(talk):
    conversation = talk(OURS, "after a compaction", tokens=20_000)
    conversation.run()
    assert conversation.failed == 1
    assert conversation.files == conversation.case["edited"]


_LINES = ["def name(order):", "  limit = 4 # review 0000ff", "  return order.total > limit + 8"]


@pytest.mark.parametrize(
    ("answer", "verb"),
    [
        ("\n".join(_LINES), None),
        ("\n".join(f"{n}  {line}" for n, line in enumerate(_LINES, 9)), None),
        ("\n".join(f"> {n:>4}| {line}" for n, line in enumerate(_LINES, 9)), None),
        (json.dumps("\n".join(_LINES)).replace('"', "\n"), None),
        ("\n".join(_LINES).replace(">", "&gt;"), None),
        ("\n".join(f"{n} {line}" for n, line in zip((9, 10, 12), _LINES, strict=True)), "lines"),
        (f"/a/file:\n  9: {_LINES[0]}", "at"),
        (_LINES[0], "lines"),
        ("\n".join(_LINES[:2]), "lines"),
    ],
)
def test_three_lines_are_quoted_as_they_are_in_the_file_or_looked_for_again(answer, verb):
    pattern = r"^def name\(order\):\n *limit = \d+ # review \w{6}\n *return order\.total > limit \+ \d+$"
    edit = {"op": "edit", "path": "a.py", "key": _LINES[0], "pattern": pattern, "to": "5"}
    ops = [{"op": "read", "path": "a.py"}, edit]
    task = {"ops": ops, "verbs": ["find", "lines"], "page_chars": 1, "language": "sql"}
    search = {"tool": "read back", "of": 0, "verb": "near", "argument": "", "path": "a.py", "edit": 1}
    read = {"tool": "read", "path": "a.py"}
    texts = [json.dumps(task), json.dumps(read), "a placeholder", json.dumps(search), answer]
    roles = ("user", "assistant", "user", "assistant", "user")
    step = next_step([{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])
    assert step.get("verb") == verb
    assert verb or (step["old"], step["new"]) == ("\n".join(_LINES), "\n".join(_LINES).replace("4", "5"))


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("a placeholder", {"tool": "read back", "verb": "near", "at": 2}),
        ("x = 1\n" * PAGE_LINES, {"tool": "read", "first": PAGE_LINES - 1}),
        ("error: the file has fewer lines", {"answer": ""}),
    ],
)
def test_a_file_is_read_again_after_a_failed_edit_and_a_page_that_is_not_shown_is_searched(page, expected):
    edit = {"op": "edit", "path": "a.py", "key": "A = ", "pattern": r"^A = \d+$", "to": "5"}
    task = {"ops": [{"op": "read", "path": "a.py"}, edit], "verbs": ["find"], "page_chars": 1}
    calls = [
        {"tool": "read", "path": "a.py"},
        {"tool": "edit", "path": "a.py", "old": "A = 1", "new": "A = 5"},
        {"tool": "read", "path": "a.py", "first": 1, "edit": 1},
    ]
    messages = [{"role": "user", "content": json.dumps(task)}]
    for call, text in zip(calls, ("A = 1\n", "error: not there", page), strict=True):
        messages += [{"role": "assistant", "content": json.dumps(call)}, {"role": "user", "content": text}]
    assert next_step(messages).items() >= expected.items()


def test_an_edit_that_fails_twice_ends_the_task(talk):
    conversation = talk(Everything, "one file many times")
    whole = conversation._read
    conversation._read = lambda step: whole(step).replace(" = ", " = 1")
    assert conversation.run() == ""
    assert conversation.failed == 2


def test_a_text_is_replaced_only_if_it_is_there_once():
    assert edited("a b a", "b", "c") == "a c a"
    assert edited("a b a", "a", "c") is None
    assert edited("a b a", "d", "c") is None


def test_a_share_that_was_reached_is_drawn_at_its_height_and_no_name_covers_another():
    drawn = svg("Solved", "one", [8_000, 32_000], {"one": [1, 1], "two": [1, 1], "three": [0.5, 0]})
    heights = [float(y) for y in re.findall(r'x="530" y="([\d.]+)">', drawn)]
    assert drawn.count("<polyline") == 3
    assert len(heights) == 3
    assert min(b - a for a, b in pairwise(heights)) >= 15


def test_a_task_of_the_other_benchmark_is_made_from_the_data_of_its_generator(tmp_path):
    def generate(program, folder, **options):
        stock = [("low_selling", 5), ("normal_selling", 7), ("low_selling", 30)]
        made = [
            {"name": f"p{n}", "stock_quantity": left, "meta_data": [{"key": "product_type", "value": kind}]}
            for n, (kind, left) in enumerate(stock)
        ]
        (folder / "preprocess").mkdir()
        (folder / "preprocess" / "generated_products.json").write_text(json.dumps(made))

    case = bench_loca._filtered(generate, tmp_path, 1_000, 1)
    conversation = Conversation(lambda *names: Everything("", names[1], None), tmp_path, case, 32_000)
    assert conversation.run() == case["answer"] == "35"
