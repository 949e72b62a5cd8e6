"""The scripted agent of the benchmarks: its tasks, and that nothing but the messages leads it."""

import json
import pickle
import re
from itertools import pairwise

import bench_loca
import pytest
from _shares import svg
from peers._agent import next_step
from peers._families import CHARS_PER_TOKEN, FAMILIES, cases
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_always_makes_the_same_task_of_the_size_asked_for_without_its_answer(family):
    case = cases(family, _TOKENS, 3)
    assert case == cases(family, _TOKENS, 3) != cases(family, _TOKENS, 4)
    chars = sum(map(len, case["outputs"]))
    assert 0.7 < chars / (_TOKENS * CHARS_PER_TOKEN) < 1.4
    known = [case["ops"], *case.get("agents", ())]
    assert not re.search(rf"\b{re.escape(case['answer'])}\b", json.dumps(known))


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
