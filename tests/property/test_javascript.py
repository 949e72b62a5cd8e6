"""JSON as JavaScript writes it, against Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from offload.agent.presets._javascript import length, number, stringify

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="compared with Node.js, which this machine has not")

# Numbers as JSON can carry them, and values near the borders of the notations.
scaled = st.builds(
    lambda digits, power: digits * 10.0**power, st.integers(-(10**6), 10**6), st.integers(-30, 30)
)
finite = st.floats(allow_nan=False, allow_infinity=False) | scaled
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text(st.characters(codec="utf-8")),
    # A name that is a number would come first in JavaScript.
    lambda inner: st.lists(inner) | st.dictionaries(st.text('abcé🙂"\\', min_size=1), inner),
)


def in_node(program: str, value: object) -> list[object]:
    """Return what a program makes of JSON that it has as `value`."""
    script = (
        f"const value = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify({program}))"
    )
    done = subprocess.run(
        [str(NODE), "-e", script], input=json.dumps(value), capture_output=True, text=True, check=True
    )
    answer: list[object] = json.loads(done.stdout)
    return answer


@needs_node
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(finite, min_size=50, max_size=200))
def test_numbers_are_written_as_node_writes_them(numbers: list[float]) -> None:
    assert [number(each) for each in numbers] == in_node("value.map(String)", numbers)


@needs_node
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(values, min_size=5, max_size=10))
def test_values_have_the_json_and_the_length_that_they_have_in_node(contents: list[object]) -> None:
    texts = [stringify(each) for each in contents]

    program = "value.map((each) => JSON.stringify(each)).map((text) => [text, text.length])"
    assert [[text, length(text)] for text in texts] == in_node(program, contents)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.0, "1"),
        (100.0, "100"),
        (1e-06, "0.000001"),
        (1e-07, "1e-7"),
        (1.5e-07, "1.5e-7"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (-0.0, "0"),
        (-2.5, "-2.5"),
        (float("nan"), "null"),
        (float("-inf"), "null"),
    ],
)
def test_a_number_has_the_notation_of_javascript(value: float, written: str) -> None:
    assert number(value) == written


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), {(1, 2): 3}])
def test_what_has_no_form_in_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        stringify(value)
