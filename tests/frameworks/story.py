"""The story that holds in every framework: its tests derive from `Story` and say how a run is made there.

Where a framework differs, its class overrides the test, or leaves it out and says why.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, READER, SHOWN_ONCE, Call, Script, needle, report

from offload import ConfigError, Offloader, OffloadPolicy, StoreUnavailableError
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

RESUMED = """
import json, sys
from frameworks import scenario
from frameworks.{module} import {story}

given = json.load(sys.stdin)
script = scenario.Script([scenario.search, scenario.read, scenario.end])
story = {story}()
plugin = story.plugin(given["url"], storage_options=given["options"])
story.play(script, plugin, asked="And then?", saved=given["saved"])
print(json.dumps(script.seen))
"""


@dataclass
class Told:
    """What is left of a run: its answer, results in the framework's messages, what its host saves as JSON."""

    answer: str
    offloader: Offloader
    results: Sequence[str] = ()
    restored: Callable[[], Sequence[str]] = tuple
    saved: Any = None
    question: str | None = None


class Story:
    """The tests; `play` is one run of an agent with a scripted model."""

    extra: ClassVar[str]
    without: ClassVar[str]
    tool: ClassVar[Any]
    # How a run can be made; the first is used where they do not differ.
    ways: ClassVar[Sequence[Any]] = (None,)
    # The ways in which some tests are run alone, by name.
    some_ways: ClassVar[dict[str, Sequence[Any]]] = {}
    # The ways in which a model is sent the same, if not in all.
    alike: ClassVar[Sequence[Any]] = ()
    # Options that name the session, where the owner of a run does not.
    named: ClassVar[dict[str, Any]] = {}
    # Whether the framework's messages keep what leaves in a later request than its first.
    keeps_late: ClassVar[bool] = True
    # The request in which an item leaves whose first try failed.
    second_try: ClassVar[int] = 1
    # What `on_error="raise"` raises, or has as its cause.
    failure: ClassVar[type[BaseException]] = StoreUnavailableError
    # Arguments of the framework's own that a model may try to set.
    own_arguments: ClassVar[dict[str, Any]] = {"self": 1}
    # The calls that a whole run's record names.
    calls: ClassVar[list[str | None]] = ["call_0"]
    refusal: ClassVar[str] = r"\AError: "
    # The agents that the record of a run names.
    agents: ClassVar[list[str | None]] = [None]
    # What a tool raises, or returns, to report the text of a report as its error.
    errors: ClassVar[Sequence[Any]] = (RuntimeError(report()),)
    # Options of a tool whose result is no text.
    values: ClassVar[Sequence[dict[str, Any]]] = (
        {"returns": lambda: {"rows": [report()]}},
        {"returns": lambda: [report()]},
    )
    # The owners of runs for which nobody names a session.
    unnamed: ClassVar[Sequence[Any]] = (None,)
    # Tools that the framework adds.
    own_tools: ClassVar[tuple[str, ...]] = ()
    # The arguments that a model must give to read an item.
    required: ClassVar[list[str]] = ["id"]
    # The agent's option for the system prompt of its host.
    instructs: ClassVar[str] = "instructions"
    # Functions that make a tool `helper` of an agent with a script, each with options of the integration.
    helpers: ClassVar[Sequence[tuple[Callable[..., Any], dict[str, Any]]]] = ()
    # Whether the framework shows requests to its extensions.
    shows_requests: ClassVar[bool] = True
    missed: ClassVar[list[int]] = [0, 0, 5301, 0]

    # The tests that have no meaning there.
    left_out: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        for name in cls.left_out:
            assert callable(getattr(cls, name))
            setattr(cls, name, None)

    def plugin(self, store: Any, **options: Any) -> Any:
        """Return the integration over a store."""
        raise NotImplementedError

    def play(
        self,
        script: Script,
        plugin: Any,
        *tools: Any,
        way: Any = None,
        owner: str = "alice",
        asked: str = QUESTION,
        saved: Any = None,
        **options: Any,
    ) -> Told:
        """Run an agent with options to its end, in the owner's session, from what a run before it saved."""
        raise NotImplementedError

    def forge(self, session: str) -> dict[str, Any]:  # noqa: ARG002 # for those who have such arguments
        """Return the arguments by which a model may try to read another session."""
        return {}

    def told_helper(self, text: str) -> dict[str, Any]:
        """Return the arguments of the tool `helper`."""
        return {"input": text}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "way" in metafunc.fixturenames:
            metafunc.parametrize("way", self.some_ways.get(metafunc.function.__name__, self.ways))
        for name in ("error", "value", "unnamed", "helper"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, getattr(self, name if name == "unnamed" else f"{name}s"))

    def reports(self, name: str = QUERY) -> Any:
        """Return a tool that returns the report of alice, then that of bob."""
        owners = iter(["alice", "bob"])
        return self.tool(name, returns=lambda: report(next(owners)))

    def test_a_model_searches_and_reads_an_offloaded_result(self, store, way):
        script = scenario.whole_run()

        told = self.play(script, self.plugin(store), way=way)

        scenario.check_whole_run(script)
        assert told.answer == ANSWER
        assert scenario.agents_of(told.offloader) == self.agents

    def test_what_the_host_saves_has_the_placeholder_and_never_the_original(self, store, way):
        script = Script([scenario.ask(), scenario.end])

        told = self.play(script, self.plugin(store), way=way)

        kept = json.dumps(told.saved)
        assert "[Offloaded:" in kept
        assert "entry 01500" in report()
        assert "entry 01500" not in kept
        assert scenario.refs(told.results) == scenario.refs(script.seen[1])
        assert list(told.restored()) == [report()]

    def test_the_placeholder_is_the_same_whenever_and_wherever_it_is_made(self, store):
        scripts = [Script([scenario.ask(), scenario.end]) for _ in range(3)]
        stores = store, store, MemoryStore()
        # The way does not matter either.
        for script, into, way in zip(scripts, stores, [*(self.alike or self.ways)] * 3, strict=False):
            self.play(script, self.plugin(into, **self.named), way=way, asked="Where is the needle?")

        first, again, elsewhere = (script.seen[1] for script in scripts)
        assert scenario.refs(first)
        assert first == again == elsewhere

    def test_two_sessions_with_one_call_id_read_their_own(self, store):
        plugin = self.plugin(store)
        scripts = {}
        for owner in ("alice", "bob"):
            scripts[owner] = scenario.whole_run()
            mine = self.tool(returns=lambda owner=owner: report(owner))
            told = self.play(scripts[owner], plugin, mine, owner=owner)
            assert scenario.calls_of(told.offloader) == self.calls

        for owner, other in (("alice", "bob"), ("bob", "alice")):
            scenario.check_whole_run(scripts[owner], owner)
            assert needle(other) not in scripts[owner].shown(4)

    def test_a_session_cannot_read_items_of_another(self, store):
        plugin = self.plugin(store)
        off = self.play(scenario.whole_run(), plugin).offloader
        [record] = off.records()
        forged = {"id": record.ref, **self.forge(off.session)}
        foreign = Script([lambda _: Call("context_read", forged, "c"), scenario.end])
        unknown = Script([lambda _: Call("context_read", {"id": "abcdefghij"}, "c"), scenario.end])

        for script in (foreign, unknown):
            self.play(script, plugin, owner="mallory")

        assert foreign.seen[1][-1].replace(record.ref, "abcdefghij") == unknown.seen[1][-1]
        assert re.search(self.refusal, foreign.seen[1][-1])

    def test_a_store_that_fails_in_the_middle_costs_no_result_and_ends_no_run(self, store, way, caplog):
        faulty = FaultyStore(store, verb="put", nth=2, is_lasting=True)
        script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])

        told = self.play(script, self.plugin(faulty), self.reports(), way=way)

        assert scenario.refs(script.seen[1])
        assert script.seen[2][-1] == report("bob")
        first, second = told.results
        assert scenario.refs([first]) == scenario.refs(script.seen[1])
        assert second == report("bob")
        assert "originals are kept" in caplog.text
        assert told.answer == ANSWER

    def test_an_item_that_could_not_be_stored_is_offloaded_as_soon_as_it_can(self, store):
        faulty = FaultyStore(store, verb="put", nth=1)
        script = Script([scenario.ask(), scenario.ask("lookup", "call_1"), scenario.end])
        lookup = self.tool("lookup", returns=lambda: "42")

        told = self.play(script, self.plugin(faulty), self.tool(), lookup)

        assert faulty.failures == 1
        late = [text for text in script.seen[self.second_try] if scenario.refs([text])]
        assert late
        assert told.results[0] == (report() if self.keeps_late else late[0])

    def test_the_caller_may_have_a_failure_end_the_run(self, store, way):
        faulty = FaultyStore(store, verb="put", is_lasting=True)

        with pytest.raises(self.failure) as told:
            self.play(scenario.whole_run(), self.plugin(faulty, on_error="raise"), way=way)

        assert isinstance(told.value, StoreUnavailableError) or isinstance(
            told.value.__cause__, StoreUnavailableError
        )

    def test_the_error_of_a_tool_is_kept(self, store, way, error):
        def fail() -> Any:
            if isinstance(error, Exception):
                raise error
            return error

        script = Script([scenario.ask(), scenario.end])

        told = self.play(script, self.plugin(store), self.tool(returns=fail), way=way)

        assert needle("alice") in script.shown(2)
        assert told.offloader.records() == []

    def test_a_new_process_continues_from_what_was_saved_and_the_store(self, s3_bucket):
        options = s3_bucket.storage_options
        script = Script([scenario.ask(), scenario.end])
        told = self.play(script, self.plugin(s3_bucket.url, storage_options=options))
        given = {"url": s3_bucket.url, "options": options, "saved": told.saved}
        module = Path(str(sys.modules[type(self).__module__].__file__)).stem

        assert needle("alice") not in json.dumps(given)
        seen = scenario.in_new_process(RESUMED.format(module=module, story=type(self).__name__), given)

        assert seen[0][: len(script.seen[1])] == script.seen[1]
        assert needle("alice") not in json.dumps(seen[0])
        assert needle("alice") in seen[1][-1]
        assert f"entry {scenario.NEEDLE_LINE + 1:05}" in seen[2][-1]

    def test_a_second_question_in_the_same_process_continues_from_what_was_saved(self, store, way):
        plugin = self.plugin(store)
        first = Script([scenario.ask(), scenario.end])
        told = self.play(first, plugin, way=way)
        second = Script([scenario.search, scenario.read, scenario.end])

        self.play(second, plugin, way=way, asked="And then?", saved=told.saved)

        assert second.seen[0][: len(first.seen[1])] == first.seen[1]
        assert needle("alice") in second.seen[1][-1]

    def test_a_file_reader_result_is_shown_once_in_full(self, store, way):
        script = Script([scenario.ask(READER), scenario.ask(READER, "call_1"), scenario.end])

        told = self.play(script, self.plugin(store, policy=SHOWN_ONCE), self.reports(READER), way=way)

        assert script.seen[1][-1] == report("alice")
        [late] = [text for text in script.seen[2] if scenario.refs([text])]
        assert needle("alice") not in script.shown(3)
        assert script.seen[2][-1] == report("bob")
        assert told.results[0] == (report("alice") if self.keeps_late else late)
        assert list(told.restored()) == [report("alice"), report("bob")]

    def test_a_long_user_message_is_offloaded_and_kept_by_the_framework(self, store):
        policy = OffloadPolicy.model_validate({"types": {"user_message": {"min_tokens": 1000}}})
        script = Script([scenario.end])

        told = self.play(script, self.plugin(store, policy=policy), asked=report())

        assert scenario.refs(script.seen[0])
        assert told.question == report()

    def test_results_of_concurrent_calls_are_all_offloaded(self, store, way):
        calls = [Call(QUERY, {"note": str(n)}, f"call_{n}") for n in range(8)]
        script = Script([lambda _: calls, scenario.end])
        texts = [report(str(n)) for n in range(8)]
        left = iter(texts)

        told = self.play(script, self.plugin(store), self.tool(returns=lambda: next(left)), way=way)

        assert len(set(scenario.refs(script.seen[1]))) == 8
        assert len({ref for text in told.results for ref in scenario.refs([text])}) == 8
        assert sorted(told.restored()) == texts

    @pytest.mark.parametrize("arguments", [{}, {"id": 7}, {"id": "abcdefghij"}, {"id": "../../etc/passwd"}])
    def test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run(self, store, way, arguments):
        if arguments.get("id") == "abcdefghij":
            arguments = {**arguments, **self.own_arguments}
        script = Script([lambda _: Call("context_read", arguments, "c"), scenario.end])

        told = self.play(script, self.plugin(store), way=way)

        assert re.search(self.refusal, script.seen[1][-1])
        assert told.answer == ANSWER

    def test_an_invalid_argument_is_reported_before_an_agent_is_created(self, store):
        with pytest.raises(ConfigError, match="on_error"):
            self.play(Script([]), self.plugin(store, on_error="shrug"))

    def test_without_the_framework_the_error_names_the_command(self):
        error = scenario.import_error(self.extra.replace("-", "_"), without=self.without)

        assert f"pip install 'offload[{self.extra}]'" in error

    def test_a_journal_has_each_request_of_the_model_or_is_refused(self, store, way):
        if not self.shows_requests:
            with pytest.raises(ConfigError, match="no journal can be kept"):
                self.play(Script([scenario.end]), self.plugin(store, journal=True), way=way)
            return
        script = scenario.whole_run()

        told = self.play(script, self.plugin(store, journal=True), way=way)

        timeline = told.offloader.timeline()
        sent = [str(timeline.at(number)) for number in range(1, len(timeline) + 1)]
        [ref] = {*scenario.refs(script.seen[-1])}
        assert len(sent) == len(script.seen)
        assert all(QUESTION in each for each in sent)
        assert [f"id {ref}]" in each for each in sent] == [bool(scenario.refs(seen)) for seen in script.seen]

    @pytest.mark.parametrize("given", [None, "Be brief."])
    def test_each_request_has_the_tools_and_a_prompt_once_after_the_host_s_own(self, store, given):
        script = scenario.whole_run()

        told = self.play(script, self.plugin(store), **({self.instructs: given} if given else {}))

        assert {*script.offered} == {QUERY, *TOOL_NAMES, *self.own_tools}
        assert script.offered["context_read"]["required"] == self.required
        assert len(script.system) == 4
        for system in script.system:
            own, *others = system.split(told.offloader.prompt())
            assert len(others) == 1
            assert (given or "") in own

    def test_runs_that_name_no_session_do_not_share_one(self, store, way, unnamed):
        plugin = self.plugin(store)
        first = Script([scenario.ask(), scenario.search, scenario.end])
        second = Script([*scenario.LOOK, scenario.end])

        told, other = (self.play(script, plugin, way=way, owner=unnamed) for script in (first, second))

        assert needle("alice") in first.seen[2][-1]
        assert "[0 stored" in second.seen[1][-1]
        assert needle("alice") not in second.shown(3)
        assert [len(each.offloader.records()) for each in (told, other)] == [1, 0]

    def test_a_session_that_is_named_is_that_of_every_run(self, store):
        scripts = [Script([scenario.ask(), scenario.end]), Script([*scenario.LOOK, scenario.end])]
        for script, owner in zip(scripts, ("alice", "bob"), strict=True):
            told = self.play(script, self.plugin(store, session="team"), owner=owner)

        assert told.offloader.session == "team"
        assert needle("alice") in scripts[1].seen[2][-1]

    def test_a_value_is_offloaded_as_the_text_that_the_framework_makes_of_it(self, store, way, value):
        plain, script = (Script([scenario.ask(), scenario.end]) for _ in range(2))
        self.play(plain, self.plugin(store, should_offload=lambda _: False), self.tool(**value), way=way)

        told = self.play(script, self.plugin(store), self.tool(**value), way=way, owner="bob")

        [record] = told.offloader.records()
        text = b"".join(told.offloader.content(record.ref)).decode()
        assert len(text) > 10_000
        assert plain.seen[1][-1].endswith(text)
        assert len(script.shown(2)) < 10_000
        assert list(told.restored()) in ([], [text])

    def test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items(self, store, way, helper):
        def pass_on(texts: Sequence[str]) -> Call:
            return Call("helper", self.told_helper(scenario.tell(texts)), f"call_{len(texts)}")

        made_by, options = helper
        plugin, query = self.plugin(store, **options), self.reports()
        looks = scenario.search_told, scenario.end
        inner = Script([scenario.search_told, scenario.ask(call="call_1"), scenario.tell, *looks])
        outer = Script([scenario.ask(), pass_on, scenario.search_told, pass_on, scenario.end])

        told = self.play(outer, plugin, query, made_by(inner, plugin, query), way=way)

        assert needle("alice") in inner.seen[1][-1]
        assert needle("bob") in outer.seen[3][-1]
        assert "needle of" in inner.seen[4][-1]
        assert len(told.offloader.records()) == len(list(store.keys("r/"))) == 2
        assert {*scenario.agents_of(told.offloader)} == {*self.agents, self.agents[0] and "helper"}

    def test_a_request_that_the_provider_s_cache_missed_is_noticed(self, store, way, monkeypatch):
        missed = scenario.missed_tokens(monkeypatch)

        self.play(scenario.run_with_a_miss(), self.plugin(store), way=way)

        assert missed == self.missed
