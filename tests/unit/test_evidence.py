"""Evidence: which values of a text a session has, where, and whether its model saw them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from forks import keys
from hypothesis import given, strategies as st
from kit.conversation import from_model, tool_use
from kit.store import ActingStore, failing
from strength import examples

from offload import (
    AgentConfig,
    ConfigError,
    ContextManager,
    MessageError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Rule,
    StoreUnavailableError,
)
from offload.agent.compaction import RoundCompactor, RoundConfig
from offload.messages.context import EventType
from offload.reading.evidence import Evidence, Value, session as checks
from offload.reading.evidence._values import values_of
from offload.reading.evidence.missing import missing_values
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=2_000, preview_chars=0)}, min_saving=0)
FILLER = "the job wrote its row and went on\n" * 100


def opened(store: Any = None, name: str = "s", **options: Any) -> Offloader:
    given: dict[str, Any] = {"policy": POLICY, "journal": True}
    return Offloader(MemoryStore() if store is None else store, session=name, **given | options)


def called(call: str, tool: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return from_model([tool_use(call, tool, arguments)])


def answered(call: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}


def asked(text: str = "go") -> dict[str, Any]:
    return {"role": "user", "content": text}


def states(found: Evidence) -> dict[str, str]:
    return {value.text: value.state for value in found.values}


# The values of a text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234 rows of 99 in 12.5 % and 0.12", ["number 1,234", "number 12.5"]),
        ("ranges 1234-1240 or 1234/1240, 2048MiB", ["number 1234", "number 1240"] * 2 + ["number 2048"]),
        ("at 10/Oct/2000:13:55:36", ["date 10/Oct/2000", "date 13:55:36"]),
        ("on 2026-11-27T12:30:45Z, 3 May 2026", ["date 2026-11-27", "date 12:30:45", "date 3 May 2026"]),
        ("`src/a.py:12`, ./b/c.txt: C:\\x\\y.md.", ["path src/a.py", "path ./b/c.txt", "path C:\\x\\y.md"]),
        ("and/or yes/no n/a e.g. i.e. /help word-by-word 10-20 12:30", []),
        ("b.py:114,139,197 and setup.cfg", ["path b.py", "path setup.cfg"]),
        ("/home/Müller/straße.txt:3,14 été/hiver naïve", ["path /home/Müller/straße.txt"]),
        ("C:\\Größe\\Jörg.md, résumé.pdf; данные/итог_2.csv.", [
            "path C:\\Größe\\Jörg.md", "path résumé.pdf", "path данные/итог_2.csv",
        ]),
        ("`文档/报告.md`。见 文档/表.csv。", ["path 文档/报告.md", "path 文档/表.csv"]),
        ("请打开文档/报告.md。文件src/a.py在", ["path src/a.py"]),
        ("파일 src/a.py를, Ä5,000 12345é", ["path src/a.py", "number 5,000", "number 12345"]),
        ('"see /x/é.md there" https://x.org/é/a.md', ["quote see /x/é.md there", "url https://x.org/é/a.md"]),
        ("call foo_bar(readFile, std::sort) of d1111b99", [
            "identifier foo_bar", "identifier readFile", "identifier std::sort", "identifier d1111b99",
        ]),
        ('it says "no such file" and "one"', ["quote no such file"]),
        ("“数据库 连接” 「連接 失敗」", ["quote 数据库 连接", "quote 連接 失敗"]),
        ("`code of words` and `a_name`", ["identifier a_name"]),
        ('```\nprint("some words", 12345)\n```\n"more words"', ["number 12345", "quote more words"]),
        ("see https://x.org/a/b?c=1.", ["url https://x.org/a/b?c=1"]),
        ("--max-tokens=1000", ["identifier --max-tokens", "number 1000"]),
    ],
)  # fmt: skip # a table
def test_the_exact_values_of_a_text_are(text: str, expected: list[str]) -> None:
    found = [*values_of(text)]

    assert [f"{value.kind} {value.text}" for value in found] == expected
    assert all(text[value.start :].startswith(value.text) for value in found)


SAME = [
    ("1,234", "n=1234"),
    ("1234", "total 1,234 rows"),
    ("1234567", "1'234'567"),
    ("1234", '{"out":"\\n1234\\t"}'),
    ("2048", "2048MiB"),
    ("12.5", "12.50 ms"),
    ("12.5 %", "share: .125"),
    ("12.5 %", "share: 0.125"),
    ("150 %", "ratio 1.50"),
    ("86.9 percent", "[0.869]"),
    ("5,000", "5000.00"),
    ("1234", "[1234,5678]"),
    ("2026-11-27", "27 Nov 2026"),
    ("November 27, 2026", "at 2026-11-27T10:00:00Z"),
    ("12:30:45", "2026-11-27T12:30:45Z"),
    ("13:55:36", "[10/Oct/2000:13:55:36 -0700]"),
    ("2000-10-10", "[10/Oct/2000:13:55:36 -0700]"),
    ("10/Oct/2000", "2000-10-10"),
    ("20260503", "3 May 2026"),
    ("20260503", "20,260,503 bytes"),
    ("2026-05-03", "20260503T101112Z"),
    ("src/a.py", "/repo/src/a.py:3"),
    ("./src/a.py", "src\\a.py"),
    ("src/deep/b.py", '"C:\\\\src\\\\deep\\\\b.py"'),
    ("/repo/src", "/repo/src/a.py"),
    ("données/été.csv", "/srv/donne\u0301es/e\u0301te\u0301.csv:3"),
    ("donne\u0301es/e\u0301te\u0301.csv", "données\\été.csv"),
    ("/home/Müller/straße.txt", '{"path": "/home/M\\u00fcller/stra\\u00dfe.txt"}'),
    ("文档/报告.md", '{"path": "文档/报告.md"}'),
    ("d1111b99", "commit d1111b99ab12cd34ef56"),
    ("read_file", '{"text":"\\nread_file()"}'),
    ('"no such file"', "error: no such\n  file"),
    ('"say Ünïcode words"', '{"t": "say \\u00dcn\\u00efcode words"}'),
    ('"un café fermé"', "un cafe\u0301 ferme\u0301"),
    ('"un cafe\u0301 ferme\u0301"', "un café fermé"),
    ("https://x.org/a", "<https://x.org/a/>"),
    ("1,234.5", "took \x1b[33m1234.5s\x1b[0m"),
    ("src/a.py", "\x1b[35m\x1b[Ksrc/\x1b[01;31m\x1b[Ka.py\x1b[m\x1b[K:12"),
    ("d1111b99", '{"out": "\\u001b[1md1111b99\\u001b[22m"}'),
]
OTHER = [
    ("1234", "12345 and 51234"),
    ("1234", "1234.5 and 0.1234"),
    ("345", "12,345 and 345,678"),
    ("345,678", "12,345,678"),
    ("1234", "v1234 and a1234b and id_1234"),
    ("12.5", "12.55 and 112.5"),
    ("12.5", "share: .125"),
    ("12.5 %", "share: 0.1251"),
    ("150 %", "ratio 1.501"),
    ("2026-11-27", "27 Oct 2026, 11/27/2026"),
    ("20260503", "2026-05-04, 202605031"),
    ("12:30:45", "12:30:45:99"),
    ("src/a.py", "my-src/a.py and src/a.pyc and src/a.py.bak and rc/a.py"),
    ("/src/a.py", "/repo/src/a.py"),
    ("données/été.csv", "données/étés.csv données/ete.csv donnees/été.csv"),
    ("readFile", "readFiles and read_file and readfile"),
    ("d1111b99", "ad1111b99"),
    ("1.2.3", "1.2.3.4 and 0.1.2.3"),
    ('"no such file"', "no such files"),
    ("https://x.org/a", "https://x.org/ab and https://x.org/a/b"),
]


@pytest.mark.parametrize(("value", "source", "state"), [
    *((*pair, "in_view") for pair in SAME), *((*pair, "not_found") for pair in OTHER),
])  # fmt: skip # two tables
def test_a_value_is_found_in_its_forms_and_in_no_other(value: str, source: str, state: str) -> None:
    off = opened()
    off.offload([asked(source)])

    [found] = off.evidence(value).values

    assert found.state == state


# Its state


def test_each_value_has_the_place_that_showed_it_last_and_its_record() -> None:
    off = opened()
    big = f"{FILLER}the port is 8443\n"
    first = [asked("host_a of /srv/app.log"), called("t1", file_path="/srv/own.txt"), answered("t1", big)]
    [info] = off.offload(first).records
    read = off.tools.read(info.ref, start_line=101, end_line=101)
    middle = [*first, called("t2", "context_read"), answered("t2", read), from_model("so 4711 it is")]
    off.offload([*middle, asked("on")])
    off.offload([asked("next"), *first[1:]])

    late = off.evidence("8443, host_a, own.txt, 4711, job_x")
    then = off.evidence("8443, host_a", at=2)

    assert late.request == 3
    assert late.values == [
        Value("8443", 0, "number", "shown", info.ref, 101, request=2, message=4),
        Value("host_a", 6, "identifier", "shown", None, 1, request=2, message=0),
        Value("own.txt", 14, "path", "called", None, 1, request=3, message=1),
        Value("4711", 23, "number", "not_found"),
        Value("job_x", 29, "identifier", "not_found"),
    ]
    assert then.values == [
        Value("8443", 0, "number", "read_back", info.ref, 101, request=2, message=4),
        Value("host_a", 6, "identifier", "in_view", None, 1, request=2, message=0),
    ]
    assert (late.records, late.unsearched) == (1, {})
    assert [value.text for value in late.not_found] == ["4711", "job_x"]
    assert late.marked() == (
        f"8443 [{info.ref}:101], host_a [message 0:1], own.txt [message 1:1], "
        ">>4711<< [not found], >>job_x<< [not found]"
    )


def test_without_a_journal_the_view_is_unknown_unless_the_messages_are_given() -> None:
    off = opened(journal=False)
    messages = [asked("host_a"), called("t1"), answered("t1", f"port 8443\n{FILLER}")]
    out = off.offload(messages)

    assert states(off.evidence("8443 4711 host_a")) == dict.fromkeys(("8443", "4711", "host_a"), "unknown")
    assert off.evidence("8443").values[0].ref == out.records[0].ref
    assert "no journal" in off.evidence("8443").why_unknown
    found = off.evidence("8443 4711 host_a", messages=out.messages)
    assert states(found) == {"8443": "unknown", "4711": "not_found", "host_a": "in_view"}
    assert found.request is None


def test_a_summary_is_no_source_but_shows_what_its_sources_have() -> None:
    off = opened(journal=False)
    config = AgentConfig(window_tokens=3_000, strategy="rounds", keep_recent_rounds=1)
    summary = "<summary>The port is 8443, the limit 9999.</summary>"
    manager = ContextManager(off, config, summarizer=lambda _: summary)
    for n in range(8):
        manager.add(asked(f"port {8443 + n} of the job\n{FILLER[:1500]}"))
        manager.before_model_call()
        manager.after_model_call(from_model("done"))
    assert manager.compaction_count

    manager.add(asked("which?"))
    manager.before_model_call()

    assert states(off.evidence("8443 and 9999")) == {"8443": "in_view", "9999": "not_found"}


@pytest.mark.parametrize("strategy", ["rounds", "selective"])
@pytest.mark.parametrize("grounding", ["off", "report", "retry"])
def test_a_summary_with_values_of_its_own_is_reported_or_made_again(strategy: str, grounding: str) -> None:
    prompts: list[str] = []
    found: list[Any] = []

    def summarize(messages: list[Any]) -> str:
        prompts.append(messages[-1]["content"])
        return f"<summary>The port is 8443{'' if '9999' in prompts[-1] else ', the limit 9999'}.</summary>"

    config = AgentConfig.model_validate({
        "window_tokens": 3_000, "strategy": strategy, "grounding": grounding
    })  # fmt: skip # settings
    manager = ContextManager(opened(journal=False), config, summarizer=summarize)
    manager.events.subscribe(found.append, EventType.UNGROUNDED_TEXT)
    for n in range(8):
        manager.add(asked(f"port 8443 of the job {n} in src/a.py"))
        manager.before_model_call()
        manager.after_model_call(from_model(f"done with step_{n}\n{FILLER[:1500]}"))

    result = manager.last_compaction
    assert result is not None
    assert ("9999" in result.summary) == (grounding != "retry")
    assert result.ungrounded == (("9999",) if grounding == "report" else ())
    assert [event.data for event in found][:1] == [
        {"where": "summary", "values": ["9999"]} for _ in result.ungrounded
    ]
    assert any("9999" in prompt for prompt in prompts) == (grounding == "retry")


def test_a_summary_of_an_offloaded_item_is_not_doubted_and_a_check_that_fails_costs_nothing() -> None:
    store = ActingStore(MemoryStore())
    off = opened(store, journal=False)
    off.offload([asked(), called("t1"), answered("t1", f"port 8443\n{FILLER}")])
    config = RoundConfig(max_context_tokens=1_500, keep_recent_rounds=1)
    compactor = RoundCompactor(off, lambda _: "<summary>port 8443, limit 9999</summary>", config)
    messages = [asked(f"a {FILLER}"), from_model(f"b {FILLER}"), asked("c"), from_model("d")]

    assert compactor.compact(messages).ungrounded == ("9999",)
    store.act = failing(StoreUnavailableError("no answer"), "get", part="~tool_result~")
    result = compactor.compact(messages)
    assert (result.ungrounded, result.error) == ((), None)


@pytest.mark.parametrize("resumable", [True, False])
def test_a_reply_is_checked_against_the_request_that_it_answers(*, resumable: bool) -> None:
    config = AgentConfig(check_replies=True, resumable=resumable)
    manager = ContextManager(opened(journal=False), config)
    found: list[Any] = []
    manager.events.subscribe(found.append, EventType.UNGROUNDED_TEXT)
    manager.add(asked("which port has host_a?"))
    manager.before_model_call()

    assert manager.after_model_call(from_model("host_a has port 8443")) == []
    assert manager.last_evidence is not None
    assert states(manager.last_evidence) == {"host_a": "in_view", "8443": "not_found"}
    assert [event.data for event in found] == [{"where": "reply", "values": ["8443"]}]


def test_all_but_the_assistants_own_words_are_sources_also_removed_and_offloaded_ones() -> None:
    off = opened(journal=False)
    messages = [
        asked(f"port 8443 {FILLER}"),
        from_model(f"limit 9999 {FILLER}"),
        asked("a"),
        from_model("b"),
        asked("c"),
    ]
    compactor = RoundCompactor(off, config=RoundConfig(max_context_tokens=1_500, keep_recent_rounds=1))
    result = compactor.compact(messages)
    [port, limit] = off.evidence("8443 and 9999").values
    assert (port.ref, port.line) == (result.ref, 1)
    assert limit.ref is None

    off = opened(policy=OffloadPolicy(types={"assistant_message": Rule(min_chars=2_000)}, min_saving=0))
    out = off.offload([asked(), from_model(f"{FILLER}port 8443\n{FILLER}"), asked("on")])
    assert len(out.records) == 1
    assert states(off.evidence("8443")) == {"8443": "not_found"}


def test_a_value_is_found_wherever_a_long_text_is_divided() -> None:
    for before in range(64 * 1024 - 12, 64 * 1024 + 2, 2):
        messages = [asked("x" * (before - 1) + " src/deep/a.py")]

        found = opened(journal=False).evidence("deep/a.py src/deep/a.py", messages=messages)

        assert states(found) == dict.fromkeys(("deep/a.py", "src/deep/a.py"), "in_view")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("of 345 and 678", ["345", "678"]),
        ("of 12,345 in src/alpha.py", []),
        ("on cut_off […] and cut_of_b […]", ["cut_of_b"]),
        ("files: lib/alpha.py", ["lib/alpha.py"]),
    ],
)
def test_a_value_of_a_summary_is_missing_unless_its_messages_have_it_or_its_beginning(
    text: str, missing: list[str]
) -> None:
    sources = ["12345 rows", "src/alpha.py and cut_off_name"]

    assert [value.text for value in missing_values(text, sources)] == missing


# What counts


def test_a_fork_and_a_grant_have_what_they_may_read_and_no_more() -> None:
    store = MemoryStore()
    off = opened(store, "a")
    texts = [f"port {n} is open\n{FILLER}" for n in (8443, 9443)]
    messages: list[Any] = [asked("host_a")]
    for n, text in enumerate(texts):
        messages += [called(f"t{n}"), answered(f"t{n}", text)]
        off.offload(messages)
    other = off.fork("b", at=1)
    stranger = opened(store, "c")
    stranger.offload([asked()])

    assert states(other.evidence("8443 9443 host_a")) == {
        "8443": "hidden", "9443": "not_found", "host_a": "in_view",
    }  # fmt: skip # one line each
    assert states(stranger.evidence("8443 host_a")) == {"8443": "not_found", "host_a": "not_found"}
    off.share(off.records()[0].ref, "c")
    assert states(stranger.evidence("8443 host_a")) == {"8443": "hidden", "host_a": "not_found"}


def test_with_a_text_that_cannot_be_searched_nothing_is_not_found() -> None:
    store = MemoryStore()
    off = opened(store)
    off.offload([asked("host_a"), called("t1"), answered("t1", f"port 8443\n{FILLER}")])
    [key] = keys(store, "r/")
    data = store.get(key)
    store.put(key, data[: len(data) // 2] + b"\0" * (len(data) // 2), overwrite=True)

    found = opened(store).evidence("8443 host_a")

    assert states(found) == {"8443": "unknown", "host_a": "in_view"}
    assert found.why_unknown == "not all of the session could be searched"
    assert list(found.unsearched.values()) == ["damaged"]


def test_a_record_that_was_never_shown_is_hidden_and_a_deleted_one_no_evidence() -> None:
    store = MemoryStore()
    off = opened(store)
    off.offload([asked("host_a"), called("t1"), answered("t1", f"port 8443\n{FILLER}")])
    [info] = off.records()
    assert off.evidence("8443").values == [Value("8443", 0, "number", "hidden", info.ref, 1)]
    for key in keys(store, "r/"):
        store.delete(key)
    assert states(off.evidence("8443")) == {"8443": "not_found"}

    [key] = keys(store, "j/")
    store.put(key, b"none", overwrite=True)
    found = opened(store).evidence("host_a")

    assert states(found) == {"host_a": "unknown"}
    assert "journal" in found.unsearched


def test_what_redact_removes_is_removed_from_the_text_too_also_encrypted_and_for_async_callers() -> None:
    for store in (MemoryStore(), EncryptingStore(MemoryStore(), b"k" * 32)):
        off = opened(store, redact=lambda text: text.replace("sk_secret_1", "[key]"))
        off.offload([asked("use sk_secret_1 of host_a")])

        found = off.evidence("sk_secret_1 of host_a")

        assert found.text == "[key] of host_a"
        assert found.values == [Value("host_a", 9, "identifier", "in_view", None, 1, 1, 0)]
        assert asyncio.run(off.aevidence("sk_secret_1 of host_a")) == found


@given(data=st.data())
@examples(10)
def test_a_check_that_goes_on_says_what_a_new_process_says(data: st.DataObject) -> None:
    store = MemoryStore()
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=300, after_replies=1)}, min_saving=0)
    off = opened(store, policy=policy)
    messages: list[Any] = [asked("start_0")]
    text = "start_0 step_1 step_2 step_3 step_4 step_5 1234"
    for n in range(1, 6):
        step = data.draw(st.sampled_from(["grow", "grow", "drop", "rewind", "edit"]))
        if step == "drop" and len(messages) > 3:
            del messages[1:3]
        elif step == "rewind" and n > 2:
            off.rewind(at=1)
        elif step == "edit":
            messages[0] = asked(f"start_0 again {n}")
        messages += [called(f"t{n}"), answered(f"t{n}", f"step_{n} is made\n" * 40)]
        sent = off.offload(messages).messages
        going_on = off.evidence(text)

        assert going_on == opened(store).evidence(text)
        for value in going_on.values:
            is_in_view = any(value.text in repr(message["content"]) for message in sent)
            assert (value.state == "in_view") == is_in_view


# Hostile texts


@pytest.mark.parametrize("unit", [
    '"', "`", "a/", "1,", "1,234", "x_", "..", "https://", "12:30:", "--a", "\\n", "/", ":1", "1.1", "“",
    "é", "/é/x.md ", "文档", "文档/a.md文 ", "a-é.", "é:1,2,",
])  # fmt: skip # a list of texts
@pytest.mark.timeout(30)
def test_a_hostile_text_is_checked_in_bounded_time(unit: str) -> None:
    off = opened()
    off.offload([asked(unit * (20_000 // len(unit)))])

    found = off.evidence(unit * (40_000 // len(unit)))

    assert len(found.values) <= checks.MAX_MENTIONS
    assert len({value.text for value in found.values}) <= checks.MAX_VALUES


def test_a_text_of_100_mb_is_checked_up_to_a_limit_and_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off = opened()
    off.offload([asked("host_a")])

    found = off.evidence("host_a " + "w" * 100_000_000)
    many = off.evidence(" ".join(f"name_{n}" for n in range(2_000)))
    monkeypatch.setattr(checks, "_SECONDS", -1)
    late = opened().evidence("host_a and host_a or host_b", messages=[asked("host_a")])

    assert (len(found.values), found.checked_chars) == (1, 1_000_000)
    assert len(many.values) == 500
    assert many.text[many.checked_chars :].startswith("name_500")
    assert [value.state for value in late.values] == ["in_view", "in_view"]
    assert late.text[late.checked_chars :] == "host_b"


def test_a_wrong_argument_is_refused() -> None:
    off = opened()
    off.offload([asked()])

    with pytest.raises(ConfigError, match="text must be a str, got bytes"):
        off.evidence(b"1234")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not both"):
        off.evidence("1234", at=1, messages=[])
    with pytest.raises(MessageError, match="list of messages"):
        off.evidence("1234", messages="text")
    with pytest.raises(NotFoundError, match="requests 1 to 1, got 2"):
        off.evidence("1234", at=2)
