"""`AdkOffloadPlugin` in an app of Google ADK, and `OffloadArtifactService`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from frameworks import scenario
from frameworks.objects_story import ObjectsStory
from frameworks.scenario import QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("google.adk", reason="in the environment of the group integration-google-adk")

from frameworks.adk_model import ScriptedModel, tool
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from pydantic import BaseModel

from offload.integrations.google_adk import AdkOffloadPlugin, OffloadArtifactService, _ArtifactFile
from offload_backends.memory import MemoryStore


class Running:
    """An app with one agent, and one session of a user's."""

    def __init__(
        self,
        script,
        plugin,
        *tools,
        user="alice",
        name="s",
        events=(),
        artifacts=None,
        has_ids=True,
        **options,
    ):
        model = ScriptedModel(script=script, has_ids=has_ids)
        agent = LlmAgent(name="seller", model=model, tools=list(tools) or [tool()], **options)
        self.sessions = InMemorySessionService()
        self.runner = Runner(
            app=App(name="app", root_agent=agent, plugins=[plugin]),
            session_service=self.sessions,
            artifact_service=artifacts,
        )
        self.user = user
        self.name = asyncio.run(self._fill(name, events))

    async def _fill(self, name, events):
        session = await self.sessions.create_session(app_name="app", user_id=self.user, session_id=name)
        for event in events:
            await self.sessions.append_event(session, event)
        return session.id

    def run(self, text=QUESTION):
        return list(self.runner.run(**self._asked(text)))

    def arun(self, text=QUESTION):
        async def all_events():
            return [event async for event in self.runner.run_async(**self._asked(text))]

        return asyncio.run(all_events())

    def session(self):
        where = {"app_name": "app", "user_id": self.user, "session_id": self.name}
        return asyncio.run(self.sessions.get_session(**where))

    def contents(self):
        return [event.content for event in self.session().events]

    def _asked(self, text):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        return {"user_id": self.user, "session_id": self.name, "new_message": message}


RUNS = pytest.mark.parametrize("run", [Running.run, Running.arun])
OWNERS = ("alice", "bob", "mallory")


def responses(contents):
    parts = [part for content in contents for part in content.parts]
    return [part.function_response for part in parts if part.function_response is not None]


def results(contents):
    return [response.response.get("result") for response in responses(contents)]


def ask_helper(request=lambda _: "Look.", name="helper"):
    return lambda texts: Call(name, {"request": request(texts)}, "h")


def helper_of(script, _plugin, *tools, name="helper"):
    """Return an agent as a tool; the plugin is that of the app."""
    model = ScriptedModel(script=script)
    return AgentTool(LlmAgent(name=name, description="H.", model=model, tools=list(tools)))


# AgentTool itself makes a runner so.
CALLS_AGENT = pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")


@CALLS_AGENT
class TestStory(Story):
    extra, without, failure = "google-adk", "google.adk.artifacts", RuntimeError
    tool = staticmethod(tool)
    ways = (Running.run, Running.arun)
    own_arguments: ClassVar = {"self": 1, "tool_context": {}}
    agents: ClassVar = ["seller"]
    errors: ClassVar = ({"error": report()},)
    unnamed: ClassVar = (None, "", "  ")
    instructs = "instruction"
    helpers: ClassVar = ((helper_of, {}), (helper_of, {"session": "team"}))
    # The framework makes no text of it: tested below.
    left_out: ClassVar = ("test_a_value_is_offloaded_as_the_text_that_the_framework_makes_of_it",)

    def plugin(self, store, **options):
        return AdkOffloadPlugin(store, **options)

    def told_helper(self, text):
        return {"request": text}

    def play(
        self, script, plugin, *tools, way=Running.run, owner="alice", asked=QUESTION, saved=(), **options
    ):
        events = [Event.model_validate_json(each) for each in saved or ()]
        where = {"user": owner} if owner in OWNERS else {"user": "", "name": owner}
        app = Running(script, plugin, *tools, **where, events=events, **options)
        answer = way(app, asked)[-1].content.parts[0].text
        session, contents = app.session(), app.contents()
        off = plugin.offloader(session)
        saved = [event.model_dump_json() for event in session.events]
        question = contents[0].parts[0].text
        return Told(answer, off, results(contents), lambda: results(off.restore(contents)), saved, question)


def test_a_call_without_an_id_has_one_record_and_one_placeholder(store):
    plugin, script = AdkOffloadPlugin(store), scenario.whole_run()
    app = Running(script, plugin, has_ids=False)

    app.run()

    scenario.check_whole_run(script)
    offloader = plugin.offloader(app.session())
    assert len(offloader.records()) == 1
    assert all(response.id for response in responses(app.contents()))
    assert results(offloader.restore(app.contents()))[0] == report()


def test_names_that_would_join_to_one_text_are_two_sessions(store):
    plugin = AdkOffloadPlugin(store)
    apps = [Running(Script([scenario.end]), plugin, user=user) for user in ("a/s", "a=2fs", "A/s")]

    assert len({plugin.offloader(app.session()).session for app in apps}) == 3


def test_a_result_of_many_fields_is_offloaded_as_json_and_restored_equal(store):
    given = {"status": "ok", "rows": [{"n": n, "name": f"row {n}"} for n in range(5000)]}
    plugin = AdkOffloadPlugin(store)
    script = Script([scenario.ask(), scenario.end])
    app = Running(script, plugin, tool(returns=lambda: given))

    app.run()

    assert scenario.refs(script.seen[1])
    [restored] = responses(plugin.offloader(app.session()).restore(app.contents()))
    assert (restored.id, restored.name, restored.response) == ("call_0", QUERY, given)


@RUNS
def test_a_result_that_ends_the_turn_is_kept_in_full(store, run):
    def show_report(tool_context: ToolContext) -> str:
        """Sales."""
        tool_context.actions.skip_summarization = True
        return report()

    script = Script([scenario.ask("show_report"), scenario.ask(call="call_1"), scenario.end])
    app = Running(script, AdkOffloadPlugin(store), FunctionTool(show_report), tool())

    events = run(app)
    run(app)

    assert results([events[-1].content]) == [report()]
    shown, usual = results(app.contents())
    assert shown == report()
    assert usual.startswith("[Offloaded:")


class Sales(BaseModel):
    text: str


def test_a_structured_answer_comes_to_the_user_in_full(store):
    answer = Call("set_model_response", {"text": report()}, "call_1")
    script = Script([scenario.ask(), lambda _: answer])

    events = Running(script, AdkOffloadPlugin(store), output_schema=Sales).run()

    assert json.loads(events[-1].content.parts[0].text) == {"text": report()}


def test_a_failed_retrieval_is_reported_as_an_error(store):
    script = Script([lambda _: Call("context_read", {"id": "abcdefghij"}, "c"), scenario.end])
    app = Running(script, AdkOffloadPlugin(store))

    app.run()

    [response] = responses(app.contents())
    assert response.response["error"].startswith("Error: ")


@CALLS_AGENT
def test_an_agent_that_a_called_agent_calls_shares_the_session_of_the_first(store):
    plugin = AdkOffloadPlugin(store)
    innermost = Script([scenario.ask(), scenario.tell])
    middle = Script([ask_helper(name="deep"), scenario.search_told, scenario.tell, scenario.end])
    outer = Script([ask_helper(), scenario.search_told, scenario.end])

    deep = helper_of(innermost, plugin, tool(), name="deep")
    Running(outer, plugin, helper_of(middle, plugin, deep)).run()

    assert needle("alice") in middle.seen[2][-1]
    assert needle("alice") in outer.seen[2][-1]


@CALLS_AGENT
def test_a_run_that_follows_a_failed_call_of_an_agent_has_its_own_session(store):
    plugin = AdkOffloadPlugin(store)

    def fail(_: Any) -> str:
        raise RuntimeError("the model is away")

    first = Running(Script([ask_helper(), scenario.end]), plugin, helper_of(Script([fail]), plugin))
    second = Running(Script([scenario.ask(), scenario.end]), plugin, user="bob")

    async def both():
        with suppress(Exception):
            [_ async for _ in first.runner.run_async(**first._asked("Go."))]
        [_ async for _ in second.runner.run_async(**second._asked("Go."))]

    asyncio.run(both())

    assert plugin.offloader(first.session()).records() == []
    assert len(plugin.offloader(second.session()).records()) == 1


def start(job: str) -> dict[str, str]:
    """Start a job."""
    return {"status": "pending", "job": job}


def answered(app, name, response):
    """Send the result of the last call to a long-running tool, as a host does."""
    [*_, call] = [part.function_call for c in app.contents() for part in c.parts if part.function_call]
    part = types.Part(
        function_response=types.FunctionResponse(id=call.id, name=name, response={"result": response})
    )
    message = types.Content(role="user", parts=[part])
    return list(app.runner.run(user_id=app.user, session_id="s", new_message=message))


@pytest.mark.parametrize("has_ids", [True, False])
def test_the_result_of_a_long_running_tool_that_the_host_sends_is_offloaded_when_it_arrives(store, has_ids):
    plugin = AdkOffloadPlugin(store)
    ask = Call("start", {"job": "a"}, "call_s")
    script = Script([lambda _: ask, scenario.end, scenario.search, scenario.end])
    app = Running(script, plugin, LongRunningFunctionTool(start), has_ids=has_ids)
    app.run()

    answered(app, "start", report())

    kept = app.session().model_dump_json()
    assert "[Offloaded:" in kept
    assert "entry 01500" not in kept
    assert needle("alice") in script.seen[3][-1]
    restored = plugin.offloader(app.session()).restore(app.contents())
    assert [each.response for each in responses(restored) if each.name == "start"][-1] == {"result": report()}


# The artifact service

ALICE: dict[str, Any] = {"app_name": "app", "user_id": "alice", "session_id": "s"}


def called(coroutine):
    return asyncio.run(coroutine)


def blob(data, mime_type="image/png"):
    return types.Part(inline_data=types.Blob(data=data, mime_type=mime_type))


def reference(uri):
    return types.Part(file_data=types.FileData(file_uri=uri, mime_type="x/y"))


def told(service, filename, version=None):
    return called(service.get_artifact_version(version=version, filename=filename, **ALICE))


def saved(service, filename, part, **where):
    return called(service.save_artifact(**{**ALICE, **where}, filename=filename, artifact=part))


def loaded(service, filename, version=None, **where):
    return called(service.load_artifact(**{**ALICE, **where}, filename=filename, version=version))


def listed(service, **where):
    return called(service.list_artifact_keys(**{**ALICE, **where}))


class TestObjects(ObjectsStory):
    owners: ClassVar = (
        ({}, {"user_id": "bob"}),
        ({}, {"session_id": "t"}),
        ({}, {"app_name": "other"}),
        # Names that would join to one path.
        ({"user_id": "a/b", "session_id": "c"}, {"user_id": "a", "session_id": "b/c"}),
        ({"app_name": "app/x", "user_id": "y"}, {"app_name": "app", "user_id": "x/y"}),
    )
    verbs = ("put", "get", "keys")

    def space(self, store, owner=MappingProxyType({})):
        return OffloadArtifactService(store), owner

    def write(self, space, name, data):
        saved(space[0], name, blob(data), **space[1])

    def read(self, space, name):
        found = loaded(space[0], name, **space[1])
        return None if found is None else found.inline_data.data

    def listed(self, space):
        return listed(space[0], **space[1])


@pytest.mark.parametrize(
    "part",
    [
        types.Part(text="text ä \n"),
        types.Part(
            inline_data=types.Blob(data=b"x", mime_type="a/b", display_name="n"), thought_signature=b"\xff"
        ),
        types.Part(file_data=types.FileData(file_uri="gs://bucket/file", mime_type="text/csv")),
    ],
)
def test_an_artifact_loads_as_it_was_saved_from_any_process(tmp_path, part):
    assert saved(OffloadArtifactService(tmp_path), "f", part) == 0

    assert loaded(OffloadArtifactService(tmp_path), "f") == part


def test_every_save_is_a_version_and_the_latest_is_loaded(store):
    service = OffloadArtifactService(store)

    assert [saved(service, "f", blob(b"%d" % n)) for n in range(12)] == list(range(12))

    assert called(service.list_versions(**ALICE, filename="f")) == list(range(12))
    assert loaded(service, "f").inline_data.data == b"11"
    assert loaded(service, "f", version=2).inline_data.data == b"2"
    assert loaded(service, "f", version=12) is None
    assert loaded(service, "g") is None


class Overtaken(MemoryStore):
    """Lets a rival write just before the first put, after its caller looked what there is."""

    rival: Callable[[], object] | None = None

    def put(self, key, data, *, overwrite=False):
        rival, self.rival = self.rival, None
        if rival is not None:
            rival()
        super().put(key, data, overwrite=overwrite)


def test_of_two_who_save_at_once_neither_is_overwritten():
    store = Overtaken()
    service = OffloadArtifactService(store)
    store.rival = lambda: service._save(_ArtifactFile("app", "alice", "f", "s"), blob(b"first"), {})

    assert saved(service, "f", blob(b"second")) == 1

    assert [loaded(service, "f", v).inline_data.data for v in (0, 1)] == [b"first", b"second"]


def test_a_file_of_the_user_is_seen_in_every_session_of_hers(store):
    service = OffloadArtifactService(store)
    saved(service, "user:f", blob(b"x"))
    saved(service, "g", blob(b"y"))

    assert loaded(service, "user:f", session_id="t").inline_data.data == b"x"
    assert loaded(service, "user:f", session_id=None).inline_data.data == b"x"
    assert listed(service) == ["g", "user:f"]
    assert listed(service, session_id="t") == listed(service, session_id=None) == ["user:f"]
    assert loaded(service, "user:f", user_id="bob") is None


@pytest.mark.parametrize(
    ("part", "where"),
    [
        (types.Part(), {}),
        (types.Part(inline_data=types.Blob(mime_type="image/png")), {}),
        (types.Part(file_data=types.FileData(file_uri="")), {}),
        (reference("artifact://apps/app/invalid"), {}),
        (reference("artifact://apps/app/users/bob/artifacts/user:f/versions/0"), {}),
        (reference("artifact://apps/app/users/alice/../bob/artifacts/user:f/versions/0"), {}),
        (blob(b"x"), {"session_id": None}),
    ],
)
def test_what_is_no_artifact_of_the_user_or_has_no_session_is_refused(store, part, where):
    with pytest.raises(InputValidationError):
        saved(OffloadArtifactService(store), "f", part, **where)
    assert list(store.keys()) == []


@pytest.mark.parametrize("field", ["app_name", "user_id", "session_id"])
@pytest.mark.parametrize("value", ["", "..", "a/../b", "/etc", "a\0b", "C:x", "victim/sessions/s1"])
def test_an_id_that_adks_own_services_refuse_is_refused_by_every_operation(store, field, value):
    service = OffloadArtifactService(store)
    where = {**ALICE, field: value}
    for operation in (
        service.save_artifact(**where, filename="f", artifact=blob(b"x")),
        service.load_artifact(**where, filename="f"),
        service.delete_artifact(**where, filename="f"),
        service.list_versions(**where, filename="f"),
        service.list_artifact_versions(**where, filename="f"),
        service.get_artifact_version(**where, filename="f"),
        service.list_artifact_keys(**where),
    ):
        with pytest.raises(InputValidationError, match=field):
            called(operation)


def test_an_id_of_a_session_with_spaces_around_it_names_the_same_session(store):
    service = OffloadArtifactService(store)
    saved(service, "f", blob(b"x"), session_id="s\n")
    uri = "artifact://apps/app/users/alice/sessions/s/artifacts/f/versions/0"
    saved(service, "link", reference(uri), session_id=" s")

    assert loaded(service, "link", session_id="s ").inline_data.data == b"x"
    assert listed(service) == listed(service, session_id=" s\n") == ["f", "link"]
    called(service.delete_artifact(**ALICE, filename="f"))
    assert loaded(service, "f", session_id="s\n") is None


def test_metadata_that_cannot_be_stored_leaves_no_version(store):
    service = OffloadArtifactService(store)
    nested: Any = {"a": 1}
    for _ in range(500):
        nested = {"a": nested}

    with pytest.raises(ValueError, match=r"recursion|depth"):
        called(service.save_artifact(**ALICE, filename="f", artifact=blob(b"x"), custom_metadata=nested))

    assert called(service.list_versions(**ALICE, filename="f")) == []


def test_a_deleted_file_is_gone_with_all_versions_and_no_other_file(store):
    service = OffloadArtifactService(store)
    for name in ("f", "f", "f/1", "g"):
        saved(service, name, blob(b"x"))

    for _ in range(2):
        called(service.delete_artifact(**ALICE, filename="f"))

    assert listed(service) == ["f/1", "g"]
    assert loaded(service, "f") is None


def test_a_version_has_a_description(store):
    service = OffloadArtifactService(store)
    metadata = {"source": "upload"}
    called(service.save_artifact(**ALICE, filename="f", artifact=blob(b"x"), custom_metadata=metadata))
    saved(service, "f", {"text": "as a dict"})

    first, second = called(service.list_artifact_versions(**ALICE, filename="f"))

    assert (first.version, first.mime_type, first.custom_metadata) == (0, "image/png", metadata)
    assert (second.version, second.mime_type, second.custom_metadata) == (1, "text/plain", {})
    assert first.canonical_uri.endswith("/sessions/s/artifacts/f/versions/0")
    assert told(service, "f") == second
    assert told(service, "f", version=0) == first
    assert told(service, "g") is None


def test_a_reference_loads_its_target_and_one_to_itself_ends(store):
    service = OffloadArtifactService(store)
    saved(service, "f", blob(b"x"))
    saved(service, "link", reference(told(service, "f").canonical_uri))
    saved(service, "self", reference(told(service, "f").canonical_uri.replace("/f/", "/self/")))

    assert loaded(service, "link").inline_data.data == b"x"
    with pytest.raises(InputValidationError, match="recursion"):
        loaded(service, "self")


def test_a_file_that_a_rewind_took_away_loads_as_absent(store):
    service = OffloadArtifactService(store)
    saved(service, "f", blob(b"x"))
    saved(service, "f", blob(b"", "application/octet-stream"))

    assert loaded(service, "f") is None
    assert loaded(service, "f", version=0).inline_data.data == b"x"


def test_a_tool_saves_and_loads_through_the_runner(s3_bucket):
    service = OffloadArtifactService(s3_bucket.url, storage_options=s3_bucket.storage_options)

    async def keep(tool_context):
        """Keep a picture."""
        await tool_context.save_artifact("picture", blob(b"x" * 100_000))
        return str(await tool_context.list_artifacts())

    script = Script([lambda _: Call("keep", {}, "c"), scenario.end])

    Running(script, AdkOffloadPlugin(MemoryStore()), keep, artifacts=service).run()

    assert script.seen[1][-1] == "['picture']"
    again = OffloadArtifactService(s3_bucket.url, storage_options=s3_bucket.storage_options)
    assert loaded(again, "picture") == blob(b"x" * 100_000)
