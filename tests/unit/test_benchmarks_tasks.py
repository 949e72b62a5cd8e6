"""The scripted agent of the benchmarks: its tasks, and that nothing but the messages leads it."""

import json
import re
from functools import partial

import pytest
from peers._agent import next_step
from peers._families import CHARS_PER_TOKEN, FAMILIES, cases
from peers._solving import Conversation, WindowFullError
from peers.ours import Ours
from peers.plain import Everything
from peers.plain_cut import Cut

_TOKENS = 8_000


@pytest.fixture
def talk(tmp_path):
    """Give a task to the agent with a candidate."""

    def talk(peer, family, tokens=_TOKENS, window=32_000, without=()):
        opened = partial(peer, str(tmp_path), "one", None)
        return Conversation(opened, cases(family, tokens, 5), window, without)

    return talk


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_always_makes_the_same_task_of_the_size_asked_for(family):
    case = cases(family, _TOKENS, 3)
    assert case == cases(family, _TOKENS, 3) != cases(family, _TOKENS, 4)
    chars = sum(map(len, case["outputs"]))
    assert 0.7 < chars / (_TOKENS * CHARS_PER_TOKEN) < 1.4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_does_not_stand_in_what_the_agent_knows_of_its_task(family):
    case = cases(family, _TOKENS, 3)
    assert not re.search(rf"\b{re.escape(case['answer'])}\b", json.dumps(case["ops"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_is_solved_where_everything_is_in_view(talk, family):
    assert talk(Everything, family).run() == cases(family, _TOKENS, 5)["answer"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_is_solved_where_results_are_offloaded(talk, family):
    assert talk(Ours, family).run() == cases(family, _TOKENS, 5)["answer"]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_step_follows_from_the_messages_of_its_request_alone(talk, family):
    conversation = talk(Ours, family)
    answer = conversation.run()
    steps = [next_step(json.loads(json.dumps(sent))) for sent in conversation.sent]
    told = [json.loads(message["content"]) for message in conversation.sent[-1][1::2]]
    assert steps == [*told, {"answer": answer}]


def test_a_sum_of_which_rows_are_cut_out_has_no_answer(talk):
    assert talk(Cut, "sum over CSV").run() == ""


def test_a_search_that_says_it_is_partial_gives_no_answer(talk):
    assert talk(Ours, "sum over CSV", tokens=20_000, without=("query",)).run() == ""


def test_a_request_above_the_window_ends_the_task(talk):
    conversation = talk(Everything, "error in a build log", window=4_000)
    with pytest.raises(WindowFullError):
        conversation.run()
    assert conversation.requests == 1


@pytest.mark.parametrize(
    ("said", "is_partial"),
    [
        ("[handle 'a': 239 matching line(s); showing 200]", True),
        ("[handle 'a': 12 matching line(s); showing 12]", False),
        ('"matching_all_words": 220, "returned": 10', True),
        ('"matching_all_words": 10, "returned": 10', False),
        ('"has_more": true', True),
        ("(more follow; narrow the pattern):", True),
        ("[output truncated, narrow your search]", True),
        ("[no more matches]", False),
    ],
)
def test_a_partial_search_is_known_by_what_each_library_says_of_it(said, is_partial):
    rows = {"op": "rows", "of": [0], "pattern": r"(\d+) (\w+) (\d+)", "where": "east", "rows": 900, "sql": ""}
    task = {"ops": [{"op": "call", "argument": ""}, rows], "verbs": ["find"], "page_chars": 1}
    call, read = {"tool": "call"}, {"tool": "read back", "of": 0, "verb": "find", "argument": "east"}
    texts = [task, call, "a placeholder", read, f"{said}\n1 east 5\n2 east 6"]
    messages = [{"content": text if isinstance(text, str) else json.dumps(text)} for text in texts]
    assert next_step(messages) == {"answer": "" if is_partial else "11"}
