"""`Offloader.resolve`: content in place of references, in the fields that the host allows and no other."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
from answers import damage

from offload import ConfigError, Offloader, ReferenceRefusedError
from offload.base.events import ContextEvent
from offload.errors import CorruptError, ExpiredError, NotFoundError
from offload.maintenance.retention import delete
from offload_backends.memory import MemoryStore

ALLOWED = ("write_file.content", "edit.changes.text")
TEXT = "".join(f"line {n}\n" for n in range(1, 3001))
ROWS = [{"id": n, "name": f"name {n}", "$ref": "abcdefghij"} for n in range(1000)]


def opened(text: str = TEXT, **options: Any) -> tuple[Offloader, str]:
    off = Offloader(MemoryStore(), session="s", **{"reference_fields": ALLOWED} | options)
    off.offload_text(text, tool_name="Bash", tool_use_id="t1")
    return off, off.records()[0].ref


def refused(off: Offloader, arguments: Any, tool: str | None = "write_file", **options: Any) -> str:
    with pytest.raises(ReferenceRefusedError) as caught:
        off.resolve(arguments, tool, **options)
    return str(caught.value)


def test_a_reference_is_replaced_by_the_text_and_the_arguments_are_unchanged() -> None:
    off, ref = opened()
    arguments = {"path": "a.txt", "content": {"$ref": ref}}
    before = copy.deepcopy(arguments)

    assert off.resolve(arguments, "write_file") == {"path": "a.txt", "content": TEXT}
    assert off.resolve(json.dumps(arguments), "write_file") == {"path": "a.txt", "content": TEXT}
    assert asyncio.run(off.aresolve(arguments, "write_file"))["content"] == TEXT
    assert arguments == before


@pytest.mark.parametrize(
    ("lines", "expected"),
    [("10-11", "line 10\nline 11\n"), ("1", "line 1\n"), ("3000", "line 3000\n"), ("1-3000", TEXT)],
)
def test_lines_are_whole_and_counted_from_1(lines: str, expected: str) -> None:
    off, ref = opened()
    assert off.resolve({"content": {"$ref": ref, "lines": lines}}, "write_file") == {"content": expected}


def test_a_pointer_gives_the_json_value_and_a_reference_in_content_is_content() -> None:
    off, ref = opened(json.dumps({"items": ROWS}))

    def value(pointer: str) -> Any:
        return off.resolve({"content": {"$ref": ref, "pointer": pointer}}, "write_file")["content"]

    assert value("/items") == ROWS
    assert value("/items/7") == ROWS[7]
    assert value("/items/7/name") == "name 7"
    assert value("/items/7/$ref") == "abcdefghij"
    assert off.resolve({"content": {"$ref": ref}}, "write_file")["content"] == json.dumps({"items": ROWS})


def test_fields_inside_objects_and_lists_may_have_references() -> None:
    off, ref = opened()
    piece = {"$ref": ref, "lines": "7"}
    arguments = {"changes": [{"text": piece, "line": 1}, {"text": [piece, "own"]}, {"text": "own"}]}

    assert off.resolve(arguments, "edit") == {
        "changes": [{"text": "line 7\n", "line": 1}, {"text": ["line 7\n", "own"]}, {"text": "own"}]
    }


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_file", {"path": "REF"}),
        ("write_file", {"content": {"more": "REF"}}),
        ("write_file", {"x": {"content": "REF"}}),
        ("write_file", "REF"),
        ("edit", {"content": "REF"}),
        ("edit", {"changes.text": "REF"}),
        ("edit", {"changes": {"text": {"text": "REF"}}}),
        ("Write_file", {"content": "REF"}),
        ("write_file.content", {"": "REF"}),
        ("bash", {"command": ["REF"]}),
    ],
)
def test_no_other_tool_or_field_gets_content(tool: str, arguments: Any) -> None:
    off, ref = opened()
    written = json.dumps(arguments).replace('"REF"', json.dumps({"$ref": ref}))
    said = refused(off, written, tool)
    assert "line 1" not in said
    assert "must" in said


def test_a_refusal_names_the_field_and_what_is_allowed() -> None:
    off, ref = opened()
    assert refused(off, {"path": {"$ref": ref}}) == (
        "path of write_file must not be a reference (allowed: write_file.content, edit.changes.text); "
        "write the text itself"
    )
    assert "(allowed: none)" in refused(off, {"content": {"$ref": ref}}, allow=())
    assert "(allowed: none)" in refused(off.with_options(reference_fields=()), {"content": {"$ref": ref}})
    assert off.resolve({"note": {"$ref": ref}}, "log", allow=["log.note"]) == {"note": TEXT}


def test_without_a_name_the_tool_is_the_only_one_of_the_allowed_fields() -> None:
    off, ref = opened()
    arguments = {"path": "a.txt", "content": {"$ref": ref}}
    one = ("write_file.content", "write_file.header")

    assert off.resolve(arguments, allow=one) == {"path": "a.txt", "content": TEXT}
    assert asyncio.run(off.aresolve(arguments, allow=one))["content"] == TEXT
    assert off.with_options(reference_fields=one).resolve(arguments)["content"] == TEXT
    assert "path of write_file must not be a reference" in refused(
        off, {"path": {"$ref": ref}}, None, allow=one
    )
    for fields, named in ((ALLOWED, "write_file, edit"), ((), "no tool")):
        with pytest.raises(ConfigError, match=f"name the tool .* the allowed fields name {named}$"):
            off.resolve(arguments, allow=fields)


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/definitions/name"}, {"$ref": "./other.json"}, {"$ref": 7}, {"$ref": None}, {"$ref": ["a"]}],
)
def test_another_use_of_the_key_is_data(schema: Any) -> None:
    off, _ = opened()
    assert off.resolve({"schema": schema, "n": [1, None, 2.5]}, "check") == {
        "schema": schema,
        "n": [1, None, 2.5],
    }


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"$ref": "zzzzzzzzzz"}, "content: unknown id 'zzzzzzzzzz'."),
        ({"$ref": "../../etc"}, "content: unknown id '../../etc'."),
        ({"$ref": 7}, "content: unknown id '7'."),
        ({"$ref": "R", "lines": "0-3"}, 'lines must be a text such as "10-40"'),
        ({"$ref": "R", "lines": 3}, 'lines must be a text such as "10-40"'),
        ({"$ref": "R", "lines": "3-2"}, "lines 3-2: the first line must come first: 2-3"),
        ({"$ref": "R", "lines": "3000-3001"}, "lines 3000-3001 are not in the item"),
        ({"$ref": "R", "lines": "1", "pointer": ""}, "lines or pointer"),
        ({"$ref": "R", "offset": 3}, "may have only"),
        ({"$ref": "R", "pointer": 3}, "pointer must be a text"),
        ({"$ref": "R", "pointer": "/a"}, "invalid JSON at character 0"),
    ],
)
def test_a_reference_that_names_nothing_is_refused_with_what_is_wrong(reference: Any, said: str) -> None:
    off, ref = opened()
    reference = {name: ref if value == "R" else value for name, value in reference.items()}
    assert said in refused(off, {"content": reference})


def test_deleted_damaged_and_redacted_records_are_refused_and_the_error_has_its_cause() -> None:
    off, ref = opened()
    damage(off.store, ref)
    with pytest.raises(ReferenceRefusedError, match="is damaged") as caught:
        off.with_options().resolve({"content": {"$ref": ref}}, "write_file")
    assert isinstance(caught.value.__cause__, CorruptError)
    delete(off.store, "s", [ref])
    other = Offloader(off.store, session="s", reference_fields=off.options.reference_fields)
    with pytest.raises(ReferenceRefusedError, match="Do not retry") as caught:
        other.resolve({"content": {"$ref": ref}}, "write_file")
    assert isinstance(caught.value.__cause__, ExpiredError)
    secret, secret_ref = opened("key sk-1234\n" * 3000, redact=lambda text: text.replace("sk-1234", "sk-…"))
    assert "was redacted before it was stored" in refused(secret, {"content": {"$ref": secret_ref}})


def test_the_content_of_a_call_is_bounded_before_it_is_read() -> None:
    off, ref = opened()
    assert f"the text has {len(TEXT)} characters, and 100 are left" in refused(
        off, {"content": {"$ref": ref}}, max_chars=100
    )
    twice = {"content": [{"$ref": ref}, {"$ref": ref}]}
    assert "and 7 are left" in refused(off, twice, max_chars=len(TEXT) + 7)
    assert off.resolve(twice, "write_file") == {"content": [TEXT, TEXT]}
    many = {"content": [{"$ref": ref, "lines": "1"}] * 101}
    assert "at most 100 references" in refused(off, many)
    deep: Any = {"$ref": ref}
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in refused(off, {"content": deep})


@pytest.mark.parametrize(
    "fields", ["write_file.content", ["write_file"], ["write_file."], [".content"], [3], 7, None, ["a.b\0c"]]
)
def test_fields_that_make_no_sense_are_refused(fields: Any) -> None:
    with pytest.raises(ConfigError, match=r"fields for references must be a list"):
        Offloader(MemoryStore(), reference_fields=fields)


def test_each_reference_is_reported_without_its_content() -> None:
    off, ref = opened()
    events: list[ContextEvent] = []
    off.events.subscribe(events.append)

    off.resolve({"content": {"$ref": ref, "lines": "7"}}, "write_file")
    refused(off, {"secret key": {"$ref": ref}})
    refused(off, {"content": {"$ref": "zzzzzzzzzz"}})

    assert [(event.event_type, dict(event.data)) for event in events] == [
        (
            "reference_resolved",
            {"session": "s", "ref": ref, "tool_name": "write_file", "field": "content", "chars": 7},
        ),
        ("reference_refused", {"session": "s", "tool_name": "write_file", "kind": "reference_refused"}),
        ("reference_refused", {"session": "s", "tool_name": "write_file", "kind": "not_found"}),
    ]


def test_the_prompt_has_one_line_more_and_at_most_15() -> None:
    off, _ = opened()
    plain = off.with_options(reference_fields=())
    assert off.prompt().startswith(plain.prompt() + "\n")
    assert off.prompt().count("\n") == plain.prompt().count("\n") + 1 <= 14
    assert '{"$ref": "ID"}' in off.prompt()
    own = off.with_options(prompt="Own words.")
    assert own.prompt().startswith("Own words.\nTo pass stored text to write_file.content, edit.changes.text")


def test_another_process_resolves_from_the_store_alone_and_another_session_does_not(tmp_path: Any) -> None:
    Offloader(tmp_path, session="s").offload_text(TEXT, tool_name="Bash", tool_use_id="t1")
    off = Offloader(tmp_path, session="s", reference_fields=ALLOWED)
    [info] = off.records()
    assert off.resolve({"content": {"$ref": info.ref}}, "write_file") == {"content": TEXT}
    other = off.with_options(session="other")
    answers = {
        refused(other, {"content": {"$ref": ref}}).replace(ref, "ID") for ref in (info.ref, "zzzzzzzzzz", "Z")
    }
    assert answers == {"content: unknown id 'ID'."}
    with pytest.raises(NotFoundError):
        off.content("zzzzzzzzzz")
