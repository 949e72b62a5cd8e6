"""Texts that look like placeholders: those of this session, look-alikes, and undecidable ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import answer_to, chat_result, from_model, from_user, tool_result, tool_turn
from kit.store import ActingStore, CountedStore, failing

from offload import (
    CorruptError,
    ExpiredError,
    NotFoundError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Restored,
    Retention,
    Rule,
    StoreError,
    StoreUnavailableError,
    estimate_tokens,
)
from offload.maintenance.retention import collect, delete
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

LOG = "".join(f"line {n} of a result that is long\n" for n in range(400))


def called(call: str = "c1", name: str = "Bash") -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": name, "input": {}}]}


def made(call: str, text: str) -> list[dict[str, Any]]:
    return tool_turn(call, text, "Bash", {"command": f"make {call}"})


def shown(message: dict[str, Any]) -> str:
    text = message["content"][0]["content"]
    assert isinstance(text, str)
    return text


def look_alike(ref: str) -> str:
    return f"[Offloaded: Bash result, 9 lines, 900 characters, id {ref}]\nsomething\n[Read it: x]"


def stored(store: Any, session: str = "s", **arguments: Any) -> tuple[list[Any], list[Any], str]:
    """Offload one result; return the messages, the output and the ref."""
    messages = [called(), answer_to(LOG)]
    out = Offloader(store, session=session, **arguments).offload(messages)
    assert len(out.records) == 1
    return messages, out.messages, out.records[0].ref


def record_file(root: Path) -> Path:
    [path] = (root / "r" / "s").iterdir()
    return path


# What restore says


def test_restore_with_the_wrong_session_names_the_messages_the_refs_and_the_place(tmp_path: Path) -> None:
    _, out, ref = stored(tmp_path)
    other = Offloader(tmp_path, session="other")

    with pytest.raises(NotFoundError) as raised:
        other.restore(out)

    for part in ("messages[1]", ref, "'other'", str(tmp_path), "another session"):
        assert part in str(raised.value)
    assert raised.value.messages == out
    [missing] = raised.value.missing
    assert (missing.message, missing.block, missing.ref) == (1, 0, ref)
    assert isinstance(missing.error, NotFoundError)


@pytest.mark.parametrize(("how", "error"), [("gone", NotFoundError), ("damaged", CorruptError)])
def test_of_a_list_that_is_restored_in_part_the_error_has_what_could_be(
    tmp_path: Path, how: str, error: type[OffloadError]
) -> None:
    messages = [called(), answer_to(LOG), called("c2"), answer_to(LOG * 2, "c2")]
    out = Offloader(tmp_path, session="s").offload(messages)
    bad = next(p for p in (tmp_path / "r" / "s").iterdir() if out.records[0].ref in p.name)
    if how == "gone":
        bad.unlink()
    else:
        bad.write_bytes(bad.read_bytes()[:-40])

    with pytest.raises(error) as raised:
        Offloader(tmp_path, session="s").restore(out.messages)

    assert list(raised.value.messages) == [called(), out.messages[1], called("c2"), answer_to(LOG * 2, "c2")]
    assert [(m.message, m.ref) for m in raised.value.missing] == [(1, out.records[0].ref)]


def test_what_is_missing_is_kept_if_that_is_asked_for(tmp_path: Path) -> None:
    messages, out, ref = stored(tmp_path)
    other = Offloader(tmp_path, session="other")
    kept = other.restore(out, on_missing="keep")
    whole = Offloader(tmp_path, session="s").restore(out, on_missing="keep")

    assert isinstance(kept, Restored)
    assert kept == out
    assert [(m.message, m.ref) for m in kept.missing] == [(1, ref)]
    assert whole == messages
    assert whole.missing == []
    with pytest.raises(ValueError, match="on_missing must be one of"):
        other.restore([], on_missing="ignore")  # type: ignore[arg-type]


def test_a_placeholder_whose_text_was_cut_is_missing(tmp_path: Path) -> None:
    _, out, _ = stored(tmp_path)
    cut = [called(), answer_to(shown(out[1])[:-10])]

    with pytest.raises(NotFoundError, match="has another placeholder"):
        Offloader(tmp_path, session="s").restore(cut)


def test_a_store_that_cannot_be_asked_raises_what_it_raised_with_the_list() -> None:
    store = MemoryStore()
    _, out, ref = stored(store)
    broken = Offloader(FaultyStore(store, verb="keys", is_lasting=True), session="s")

    with pytest.raises(StoreError) as raised:
        broken.restore(out)

    assert list(raised.value.messages) == out
    assert [m.ref for m in raised.value.missing] == [ref]
    assert broken.restore(out, on_missing="keep").missing[0].ref == ref


def test_a_collected_record_is_told_as_expired_with_the_list() -> None:
    store = MemoryStore()
    _, out, ref = stored(store)
    delete(store, "s")

    with pytest.raises(ExpiredError) as raised:
        Offloader(store, session="s").restore(out)

    assert raised.value.reason == "deleted"
    assert [m.ref for m in raised.value.missing] == [ref]


# What is none


PLACES: dict[str, Any] = {
    "result": lambda text: [called("c9"), answer_to(text, "c9")],
    "error": lambda text: [called("c9"), from_user([tool_result("c9", text, is_error=True)])],
    "reader": lambda text: [called("c9", "read_file"), answer_to(text, "c9")],
    "blocks": lambda text: [called("c9"), answer_to([{"type": "text", "text": text}], "c9")],
    "user": lambda text: [from_user(text)],
    "assistant": lambda text: [from_model([{"type": "text", "text": text}])],
    "openai": lambda text: [chat_result("c9", text)],
    "responses": lambda text: [{"type": "function_call_output", "call_id": "c9", "output": text}],
    "langchain": lambda text: [{"type": "tool", "tool_call_id": "c9", "content": text}],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("of", ["unknown", "own", "quoted"])
def test_what_only_looks_like_a_placeholder_is_stored_and_comes_back(
    tmp_path: Path, place: str, of: str
) -> None:
    _, out, ref = stored(tmp_path)
    text = {"unknown": look_alike("abcdefghij"), "own": look_alike(ref), "quoted": shown(out[1])}[of]
    messages = [*out, *PLACES[place](text)]
    original = copy.deepcopy(messages)
    first = Offloader(tmp_path, session="s")

    sent = first.offload(messages)

    assert messages == original
    assert sent.errors == []
    assert text not in [str(value) for value in _texts(sent.messages[len(out) :])]
    for off in (first, Offloader(tmp_path, session="s")):
        assert off.restore(sent.messages[len(out) :]) == messages[len(out) :]
        assert off.offload(messages).messages == sent.messages
        assert off.offload(sent.messages).messages == sent.messages


def _texts(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield thing
    for inner in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ():
        yield from _texts(inner)


IMAGE_LINE = "[Offloaded: image of Shot, image/png, 9 bytes, id abcdefghij. It cannot be shown again]"
PARTS = [{"type": "text", "text": IMAGE_LINE}, {"type": "text", "text": "beside it"}]


@pytest.mark.parametrize(
    ("messages", "pinned"),
    [
        ([{"role": "system", "content": look_alike("abcdefghij")}, {"role": "user", "content": "hi"}], []),
        ([called(), answer_to(look_alike("abcdefghij"))], ["c1"]),
        ([called(), answer_to(PARTS), {"role": "user", "content": PARTS}], []),
    ],
    ids=["system prompt", "pinned", "image"],
)
def test_a_look_alike_that_is_not_offloaded_stays_and_restores_on_another_machine(
    tmp_path: Path, messages: list[Any], pinned: list[str]
) -> None:
    off = Offloader(tmp_path, session="s")

    out = off.offload(messages, pinned=pinned)

    assert (out.messages, out.errors, out.records) == (messages, [], [])
    for reader in (off, Offloader(tmp_path, session="s"), Offloader(tmp_path, session="s").fork("t")):
        assert reader.restore(out.messages) == messages


@pytest.mark.parametrize("how", ["deleted", "emptied", "damaged"])
def test_a_look_alike_that_names_a_record_that_is_gone_or_damaged_harms_nothing_else(
    tmp_path: Path, how: str
) -> None:
    _, out, ref = stored(tmp_path)
    off = Offloader(tmp_path, session="s")
    if how == "damaged":
        record_file(tmp_path).write_bytes(b"x" * 300)
    else:
        delete(off.store, "s", [ref])
    if how == "emptied":
        collect(off.store, Retention(grace=0), session="s")
    messages = [called("c2"), answer_to(LOG * 2, "c2"), {"role": "user", "content": shown(out[1])}]

    sent = Offloader(tmp_path, session="s").offload(messages)

    assert sent.errors == []
    assert Offloader(tmp_path, session="s").restore(sent.messages) == messages


def test_a_look_alike_that_names_a_large_record_loads_nothing_of_it(tmp_path: Path) -> None:
    store = CountedStore()
    off = Offloader(store, session="s")
    with off.open_sink(tool_name="Bash", tool_use_id="c1") as sink:
        for n in range(80):
            sink.write("".join(f"{hash((n, i)):x}\n" for i in range(6000)))
    assert sink.info is not None
    assert sink.info.stored_bytes > 3_000_000
    messages = [called("c2"), answer_to(look_alike(sink.info.ref), "c2")]
    store.sizes.clear()

    far = Offloader(store, session="s")
    out = far.offload(messages)

    assert far.restore(out.messages) == messages
    assert sum(store.sizes) < 1_000_000


# What cannot be told


@pytest.mark.parametrize("verb", ["keys", "get"])
def test_a_placeholder_that_cannot_be_proven_now_is_kept_with_an_error_and_proven_later(verb: str) -> None:
    store = ActingStore(MemoryStore())
    messages, out, _ = stored(store)
    records = {found.key for found in store.keys("r/")}
    off = Offloader(store, session="s")
    store.act = failing(StoreUnavailableError("down"), verb)

    first = off.offload(out)

    assert first.messages == out
    assert len(first.errors) == 1
    with pytest.raises(StoreError):
        off.restore(first.messages)
    store.act = None
    second = off.offload([*out, called("c2")])
    assert second.messages == [*out, called("c2")]
    assert second.errors == []
    assert {found.key for found in store.keys("r/")} == records
    assert off.restore(out) == messages


def test_a_placeholder_that_cannot_be_proven_now_is_not_what_a_crowded_turn_gives_up() -> None:
    store = ActingStore(MemoryStore())
    _, out, _ = stored(store)
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=10**6)}, max_view_tokens=1, min_saving=0)
    off = Offloader(store, session="s", policy=policy)
    store.act = failing(StoreUnavailableError("down"), "keys")

    sent = off.offload([*out, called("c2"), answer_to("some lines\n" * 50, "c2")])

    assert sent.messages[: len(out)] == out


def test_a_placeholder_that_another_call_quoted_first_is_still_one_where_it_stands(tmp_path: Path) -> None:
    messages, out, _ = stored(tmp_path)
    off = Offloader(tmp_path, session="s")
    quoted = [called("c9"), answer_to(shown(out[1]), "c9")]

    sent = off.offload([*quoted, *out])

    assert sent.messages[2:] == out
    assert off.restore(sent.messages) == [*quoted, *messages]


def test_the_placeholder_of_a_deleted_record_is_no_content_and_resolves_when_its_item_is_stored_anew() -> (
    None
):
    store = MemoryStore()
    messages, out, ref = stored(store)
    delete(store, "s", [ref])
    collect(store, Retention(grace=0), session="s")

    sent = Offloader(store, session="s").offload(out)
    again = Offloader(store, session="s").offload(messages)

    assert sent.messages == again.messages == out
    assert [type(e) for e in sent.errors] == [ExpiredError]
    assert Offloader(store, session="s").restore(out) == messages


def test_what_another_session_hands_over_resolves_if_it_is_shared_or_forked(tmp_path: Path) -> None:
    messages, out, ref = stored(tmp_path)
    parent = Offloader(tmp_path, session="s")
    parent.share(ref, "helper")
    parent.fork("twin")

    for name in ("helper", "twin"):
        off = Offloader(tmp_path, session=name)
        sent = off.offload([{"role": "user", "content": "go on"}, *out])
        assert sent.messages[1:] == out
        assert off.restore(sent.messages)[1:] == messages


def test_what_offload_text_returned_before_the_call_had_an_id_stays_and_restores(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    placeholder = off.offload_text(LOG, tool_name="Bash")

    sent = off.offload([called(), answer_to(placeholder)])

    assert shown(sent.messages[1]) == placeholder
    assert len(off.records()) == 1
    for far in (off, Offloader(tmp_path, session="s")):
        assert far.restore(sent.messages) == [called(), answer_to(LOG)]


# What left stays away


@pytest.mark.parametrize(
    "changed",
    [
        {"token_counter": lambda text: len(text) // 2},
        {"policy": OffloadPolicy(types={"tool_result": Rule(min_tokens=1500, ttl="30d")})},
        {"policy": OffloadPolicy(types={"tool_result": Rule(min_tokens=1500, preview_chars=100)})},
        {"policy": OffloadPolicy(types={"tool_result": Rule(min_tokens=10**6)})},
        {"policy": OffloadPolicy(min_saving=100_000)},
        {"codec": "json"},
    ],
    ids=["counter", "ttl", "preview", "threshold", "saving", "codec"],
)
def test_an_item_that_left_under_other_settings_keeps_its_placeholder_and_its_record(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    messages, out, _ = stored(tmp_path)
    before = [path.name for path in (tmp_path / "r" / "s").iterdir()]

    again = Offloader(tmp_path, session="s", **changed).offload(messages)

    assert again.messages == out
    assert [path.name for path in (tmp_path / "r" / "s").iterdir()] == before


def test_an_item_whose_call_was_trimmed_keeps_its_placeholder(tmp_path: Path) -> None:
    messages, out, _ = stored(tmp_path)
    rest = [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "go on"}]
    first = Offloader(tmp_path, session="s")
    first.offload([*messages, *rest])

    for off in (first, Offloader(tmp_path, session="s")):
        assert off.offload([messages[1], *rest]).messages == [out[1], *rest]
        assert len(off.records()) == 1


@pytest.mark.parametrize("how", ["veto", "excluded"])
def test_a_record_is_not_taken_up_for_what_is_to_stay(tmp_path: Path, how: str) -> None:
    messages, _, _ = stored(tmp_path)
    settings: dict[str, dict[str, Any]] = {
        "veto": {"should_offload": lambda _: False},
        "excluded": {"policy": OffloadPolicy(exclude_tools=("Bash",))},
    }

    out = Offloader(tmp_path, session="s", **settings[how]).offload(messages)

    assert out.messages == messages


# One item's failure is one item's


BAD = "<|endoftext|>"


def refuse(is_bad: bool) -> bool:
    if is_bad:
        raise ValueError("special token")
    return True


FUNCTIONS: dict[str, dict[str, Any]] = {
    "counter": {"token_counter": lambda text: refuse(BAD in text) and estimate_tokens(text)},
    "veto": {"should_offload": lambda facts: refuse(facts.tool_use_id == "a")},
    "redaction": {"redact": lambda text: refuse(BAD in text) and text},
    "redaction of a title": {"redact": lambda text: refuse(text == "make a") and text},
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_of_the_caller_that_fails_for_one_item_costs_that_item_its_offload_alone(
    tmp_path: Path, function: dict[str, Any]
) -> None:
    bad = LOG + BAD
    messages = [*made("a", bad), *made("b", LOG)]
    off = Offloader(tmp_path, session="s", **function)

    out = off.offload(messages)
    later = off.offload([*messages, *made("c", LOG * 2)])

    assert out.messages[1] is messages[1]
    assert shown(out.messages[3]).startswith("[Offloaded:")
    named = f"messages[1]: tool_result of Bash (a): {next(iter(function))}: ValueError: special token"
    assert [str(e) for e in out.errors] == [named]
    assert out.tokens_before > out.tokens_after > estimate_tokens(bad) // 2
    assert shown(later.messages[5]).startswith("[Offloaded:")
    assert later.messages[1] is messages[1]


@pytest.mark.parametrize("hook", ["token_counter", "should_offload"])
def test_an_item_for_which_a_function_of_the_caller_failed_once_leaves_in_the_next_turn(
    tmp_path: Path, hook: str
) -> None:
    asked: list[Any] = []

    def function(given: Any) -> Any:
        if hook == "should_offload" or given == LOG:
            asked.append(given)
            if len(asked) == 1:
                raise OSError("busy")
        return True if hook == "should_offload" else estimate_tokens(given)

    messages = [called(), answer_to(LOG)]
    hooks: Any = {hook: function}
    off = Offloader(tmp_path, session="s", **hooks)
    fresh = Offloader(tmp_path / "other", session="s").offload(messages)

    assert off.offload(messages).messages == messages
    second = off.offload(messages)
    off.offload(messages)

    assert second.messages == fresh.messages
    assert (second.tokens_before, second.tokens_after) == (fresh.tokens_before, fresh.tokens_after)
    assert hook == "token_counter" or len(asked) == 2


class Picky:
    """Fails for what holds the word `poison`, or for the first ref, wherever it meets it."""

    def __init__(self, where: str) -> None:
        self.where, self.bad = where, ""

    def render(self, facts: Any) -> str:
        if self.where == "ref" and facts.ref != "x" * 10:
            self.bad = self.bad or facts.ref
        if (self.where == "render" and "poison" in facts.ends) or facts.ref == self.bad:
            raise RuntimeError("no")
        return f"<gone {facts.ref}>"

    def find_ref(self, text: str) -> str | None:
        if self.where == "find_ref" and "poison" in text:
            raise RuntimeError("no")
        return text[6:-1] if text.startswith("<gone ") and len(text) < 40 else None


@pytest.mark.parametrize("where", ["render", "find_ref", "ref"])
def test_a_renderer_that_fails_for_one_item_or_ref_costs_that_item_its_offload_alone(
    tmp_path: Path, where: str
) -> None:
    messages = [called("a"), answer_to(LOG + "poison", "a"), called("b"), answer_to(LOG, "b")]
    off = Offloader(tmp_path, session="s", placeholder=Picky(where))

    out = off.offload(messages)

    assert out.messages[1] is messages[1]
    assert shown(out.messages[3]).startswith("<gone ")
    assert [len(out.errors), len(out.records)] == [1, 1]
    assert where == "find_ref" or off.restore(out.messages) == messages


def test_a_summary_that_takes_what_the_placeholder_saves_is_left_out(tmp_path: Path) -> None:
    text = "a short but not tiny result\n" * 45
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=100, preview_chars=50)}, min_saving=100)
    off = Offloader(tmp_path, session="s", policy=policy, summarizer=lambda _: "words " * 200)

    out = off.offload([called(), answer_to(text)])

    assert "[Summary:" not in shown(out.messages[1])
    assert len(shown(out.messages[1])) < len(text)
    assert out.tokens_before - out.tokens_after >= 100


LOOK_ALIKE = (
    "[Offloaded: Bash result, 60 lines, 1970 characters, id rklojlodlz]\nline\n[… 1962 characters left out …]"
    '\nong\n[Preview only; do not guess the rest. Continue: context_read(id="rklojlodlz", offset=4)]'
)


@pytest.mark.parametrize("text", [LOG * 3, LOOK_ALIKE], ids=["a log", "a look-alike"])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_equal_results_without_ids_of_two_tools_are_two_items(text: str, *, is_at_once: bool) -> None:
    messages: list[Any] = [
        {"type": "function", "content": text, "name": "Bash"},
        {"role": "user", "content": "And the other one?"},
        {"type": "function", "content": text, "name": "Terminal"},
    ]
    off = Offloader("memory://", session="s")
    if not is_at_once:
        off.offload(messages[:2])
    sent = off.offload(messages).messages

    refs = [info.ref for info in off.records()]
    assert len(set(refs)) == 2
    assert [sum(f"id {ref}]" in message["content"] for message in sent) for ref in refs] == [1, 1]
    for other in (off, Offloader(off.store, session="s")):
        assert other.restore(sent) == messages
        assert other.offload(messages).messages == sent
