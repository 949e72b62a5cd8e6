"""Google ADK: offloading as a plugin of an app or runner, and an artifact service on any store."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

from offload.agent._refusals import repairs
from offload.base.threads.calls import in_thread
from offload.base.threads.locks import Recent
from offload.engine.settings.options import SessionArguments
from offload.errors import ExistsError, needs_extra
from offload.integrations._objects import ObjectStore, StorageOptions
from offload.integrations._sessions import Sessions, agent_named, is_error, model_named
from offload.offloader import Offloader
from offload.storage.layout import FILE, encode_part
from offload.storage.registry import open_store

with needs_extra("google-adk"):
    from google.adk.artifacts import BaseArtifactService, artifact_util
    from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
    from google.adk.errors.input_validation_error import InputValidationError
    from google.adk.flows.llm_flows.functions import AF_FUNCTION_CALL_ID_PREFIX
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools import BaseTool
    from google.adk.tools.agent_tool import AgentTool
    from google.genai import types
    from pydantic import BaseModel

# A reference may point to another reference; ADK's own services follow as many.
_MAX_REFERENCES = 5
_USER_SCOPE = "user:"
_LENGTH_BYTES = 4
# Contents of a missing file; ADK saves the second one when a session is rewound.
_ABSENT = (
    types.Part(),
    types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=b"")),
)

__all__ = ["AdkOffloadPlugin", "OffloadArtifactService"]


# Sessions of agents that are tools, known at once.
_CALLED = 16_384
# Calls that ADK makes itself, whose results its code reads.
_OWN_CALLS = "adk_request_"


@dataclass(eq=False)
class _AgentToolCall:
    """A call of an agent that is a tool: the session of the caller, and its session service."""

    session: str
    service: Any
    is_running: bool = True


_call: ContextVar[_AgentToolCall | None] = ContextVar("offload_adk_call", default=None)


class AdkOffloadPlugin(BasePlugin):
    """Offloads the contents of an app's sessions, each into its own `offload` session.

    A placeholder replaces a tool result in its event before the session appends it, also one that the host
    sends for a long-running tool. All other placeholders are only in the model's request; the events keep the
    original. A result that ends a turn (`skip_summarization`) is for the user and is kept.
    `offloader(session).restore([event.content for event in session.events])` restores the originals.

    Arguments and errors are those of `Offloader`. Without `session`, each ADK session has its own, which
    agents that are tools (`AgentTool`) share with the agent that calls them.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        super().__init__(name="offload")
        self._sessions = Sessions(store, **options)
        self._prompt = self._sessions.own.prompt()
        self._tools = [
            _RetrievalTool(each, self.offloader) for each in self._sessions.own.tools.definitions()
        ]
        # By the session of an agent that is a tool, the session of the agent that calls it.
        self._callers: Recent[str, str] = Recent(_CALLED)

    def offloader(self, session: Any) -> Offloader:
        """Return the `Offloader` of an ADK session, by its app, user and id."""
        return self._named(session, "events")

    async def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> Any:
        """Offload the results that the host sends for long-running tools."""
        self._note_caller(invocation_context)
        responses = [part.function_response for part in user_message.parts or () if part.function_response]
        if not responses or any((each.name or "").startswith(_OWN_CALLS) for each in responses):
            return None
        return await self._placed(invocation_context, user_message)

    async def before_tool_callback(self, *, tool: Any, tool_context: Any, **_: Any) -> None:
        """Note the caller of an agent that is a tool."""
        if isinstance(tool, AgentTool):
            context = tool_context._invocation_context  # noqa: SLF001 # AgentTool reads it too
            _call.set(_AgentToolCall(self._name_of(context.session), context.session_service))

    async def after_tool_callback(self, *, tool: Any, **_: Any) -> None:
        """Note that a call ended."""
        call = _call.get()
        if call is not None and isinstance(tool, AgentTool):
            call.is_running = False

    on_tool_error_callback = after_tool_callback
    """Note that a call failed."""

    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        """Offload the tool results of an event before the session appends it, and report a reply's usage."""
        if event.usage_metadata and not event.partial:
            self._of_request(invocation_context.session).report_usage(event)
        if event.get_function_responses() and not event.is_final_response():
            event.content = await self._placed(invocation_context, event.content)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Offload the contents of a request, and add the retrieval tools and instructions."""
        await self._offload_request(callback_context, llm_request)
        llm_request.append_tools(self._tools)
        llm_request.append_instructions([self._prompt])

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Any) -> Any:
        """Ask a model once more that refused thinking, without what it refused; return its whole reply."""
        offloader = self._of_request(callback_context.session)
        if not await in_thread(repairs, offloader, llm_request.contents, error):
            return None
        await self._offload_request(callback_context, llm_request)
        agent = callback_context.get_invocation_context().agent
        replies = [reply async for reply in agent.canonical_model.generate_content_async(llm_request)]
        return replies[-1]

    async def _offload_request(self, context: Any, request: Any) -> None:
        offloader = self._of_request(context.session)
        model = model_named(offloader, request.model)
        agent = agent_named(offloader, context.agent_name)
        request.contents = (
            await offloader.aoffload(request.contents, model=model, agent_name=agent)
        ).messages

    async def _placed(self, context: Any, content: types.Content) -> types.Content:
        """Return a content with placeholders, as the next one of the session's events."""
        before = [each.content for each in context.session.events if each.content]
        sent = [_as_sent(each) for each in (*before, content)]
        offloader = self.offloader(context.session)
        model = getattr(getattr(context.agent, "canonical_model", None), "model", None)
        out = await offloader.aoffload(
            sent,
            model=model_named(offloader, model),
            agent_name=agent_named(offloader, getattr(context.agent, "name", None)),
            is_sent=False,
        )
        return _with_ids(content, out.messages[-1])

    def _note_caller(self, context: Any) -> None:
        """Note the caller of an agent that is a tool, whose session is a new one in a service of its own."""
        call = _call.get()
        if call is not None and call.is_running and call.service is not context.session_service:
            self._callers.put(_space_of_session(context.session), call.session)
            call.is_running = False

    def _of_request(self, session: Any) -> Offloader:
        return self._named(session, "request")

    def _named(self, session: Any, messages: str) -> Offloader:
        # An agent that is a tool has messages of its own.
        return self._sessions.named(self._name_of(session), f"{messages} {session.id}")

    def _name_of(self, session: Any) -> str:
        space = _space_of_session(session)
        return self._callers.get(space) or space


def _space_of_session(session: Any) -> str:
    return _space(session.app_name, session.user_id, session.id)


def _as_sent(content: types.Content) -> types.Content:
    """Return a content as requests have it: without the ids that ADK makes for calls without one."""
    if not any(_is_own_id(call.id) for call in _calls_of(content)):
        return content
    copied = content.model_copy(deep=True)
    for call in _calls_of(copied):
        call.id = None if _is_own_id(call.id) else call.id
    return copied


def _with_ids(content: types.Content, replaced: types.Content) -> types.Content:
    copied = replaced.model_copy(deep=True)
    for call, original in zip(_calls_of(copied), _calls_of(content), strict=True):
        call.id = original.id
    return copied


def _calls_of(content: types.Content) -> list[types.FunctionCall | types.FunctionResponse]:
    parts = content.parts or ()
    return [call for part in parts if (call := part.function_call or part.function_response) is not None]


def _is_own_id(call_id: str | None) -> bool:
    return (call_id or "").startswith(AF_FUNCTION_CALL_ID_PREFIX)


class _RetrievalTool(BaseTool):
    def __init__(self, definition: Mapping[str, Any], offloader: Any) -> None:
        super().__init__(name=definition["name"], description=definition["description"])
        self._schema = definition["input_schema"]
        self._offloader = offloader

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._schema
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> str | dict[str, str]:
        answer: str = await in_thread(self._offloader(tool_context.session).tools.call, self.name, args)
        return {"error": answer} if is_error(answer) else answer


class _ArtifactFile(NamedTuple):
    """An artifact file, identified by ADK's names."""

    app_name: str
    user_id: str
    filename: str
    session_id: str | None = None

    @property
    def space(self) -> str:
        """The object space of its versions. Raises `InputValidationError` for an invalid or missing id."""
        if self.filename.startswith(_USER_SCOPE):
            return _space_of(self.app_name, self.user_id)
        if self.session_id is None:
            raise InputValidationError(
                f"a file without a session must start with {_USER_SCOPE!r}, got {self.filename!r:.80}"
            )
        return _space_of(self.app_name, self.user_id, self.session_id)

    def target(self, part: types.Part, remaining: int = _MAX_REFERENCES) -> tuple[_ArtifactFile, int] | None:
        """Return the file and the version to which `part` refers, None if it is an artifact itself.

        Raises `InputValidationError` for an inaccessible one.
        """
        uri = part.file_data and part.file_data.file_uri
        if not uri or not artifact_util.is_artifact_ref(part):
            return None
        target = artifact_util.resolve_artifact_reference(
            file_uri=uri,
            app_name=self.app_name,
            user_id=self.user_id,
            session_id=self.session_id,
            remaining_depth=remaining,
        )
        return _ArtifactFile(
            target.app_name, target.user_id, target.filename, target.session_id
        ), target.version

    def described(self, part: types.Part, version: int, metadata: dict[str, Any]) -> ArtifactVersion:
        session = None if self.filename.startswith(_USER_SCOPE) else self.session_id
        names = (self.app_name, self.user_id, self.filename, version, session)
        holder = part.inline_data or part.file_data
        return ArtifactVersion(
            version=version,
            canonical_uri=artifact_util.get_artifact_uri(*names),
            custom_metadata=metadata,
            mime_type="text/plain" if holder is None else holder.mime_type,
        )


class _Artifact(BaseModel):
    """Head of a stored artifact; the bytes of its data follow."""

    version: ArtifactVersion
    part: types.Part


class OffloadArtifactService(BaseArtifactService):
    """The artifacts of ADK's sessions and users on any store.

    Any text is a valid file name. Ids of apps, users and sessions follow ADK's rules, else they raise its
    `InputValidationError`. Every save creates a version, also if two run at once. A failing store raises
    `offload.StoreError`.

    `store`, `storage_options` and errors are those of `offload.Offloader`.
    """

    def __init__(self, store: Any = None, *, storage_options: StorageOptions = None) -> None:
        self._open = partial(ObjectStore, open_store(store, storage_options=storage_options), FILE)

    async def save_artifact(self, *, artifact: Any, custom_metadata: Any = None, **where: Any) -> int:
        """Store an artifact as the next version of its file; return the version, from 0."""
        return await in_thread(self._save, _file(**where), ensure_part(artifact), custom_metadata or {})

    async def load_artifact(self, *, version: int | None = None, **where: Any) -> types.Part | None:
        """Return a version of a file, by default the latest; None if it does not exist."""
        return await in_thread(self._load, _file(**where), version)

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of a user's files and, if given, a session's files, sorted."""
        spaces = [_space_of(app_name, user_id)]
        if session_id is not None:
            spaces.append(_space_of(app_name, user_id, session_id.strip()))
        names = await in_thread(lambda: [each.key for space in spaces for each in self._open(space).list()])
        return sorted({name.rpartition("/")[0] for name in names})

    async def delete_artifact(self, **where: Any) -> None:
        """Delete all versions of a file; a missing file is success."""
        await in_thread(self._delete, _file(**where))

    async def list_versions(self, **where: Any) -> list[int]:
        """Return the versions of a file, in order."""
        return await in_thread(self._versions, _file(**where))

    async def list_artifact_versions(self, **where: Any) -> list[ArtifactVersion]:
        """Return the description of each version of a file, in order. Reads all of them."""
        file = _file(**where)
        versions = await in_thread(self._versions, file)
        artifacts = [await in_thread(self._read, file, version) for version in versions]
        return [each.version for each in artifacts if each is not None]

    async def get_artifact_version(
        self, *, version: int | None = None, **where: Any
    ) -> ArtifactVersion | None:
        """Return the description of a version, by default the latest; None if it does not exist."""
        artifact = await in_thread(self._read, _file(**where), version)
        return None if artifact is None else artifact.version

    def _save(self, file: _ArtifactFile, part: types.Part, metadata: dict[str, Any]) -> int:
        has_data = part.inline_data is not None and part.inline_data.data is not None
        has_uri = part.file_data is not None and bool(part.file_data.file_uri)
        if not has_data and not has_uri and part.text is None:
            raise InputValidationError(
                "artifact must have inline_data with data, text or file_data with a URI"
            )
        file.target(part)
        files = self._open(file.space)
        version = max(self._versions(file), default=-1) + 1
        while True:
            content = _packed(file.described(part, version, metadata), part)
            try:
                files.put(f"{file.filename}/{version}", content, overwrite=False)
            except ExistsError:  # another process saved it meanwhile
                version += 1
            else:
                return version

    def _load(
        self, file: _ArtifactFile, version: int | None, remaining: int = _MAX_REFERENCES
    ) -> types.Part | None:
        artifact = self._read(file, version)
        if artifact is None or artifact.part in _ABSENT:
            return None
        target = file.target(artifact.part, remaining)
        return artifact.part if target is None else self._load(*target, remaining - 1)

    def _read(self, file: _ArtifactFile, version: int | None) -> _Artifact | None:
        if version is None:
            version = max(self._versions(file), default=-1)
        stored = self._open(file.space).get(f"{file.filename}/{version}")
        return None if stored is None else _unpacked(stored)

    def _delete(self, file: _ArtifactFile) -> None:
        for version in self._versions(file):
            self._open(file.space).delete(f"{file.filename}/{version}")

    def _versions(self, file: _ArtifactFile) -> list[int]:
        names = (each.key.rpartition("/") for each in self._open(file.space).list())
        return sorted(int(version) for name, _, version in names if name == file.filename)


def _file(session_id: str | None = None, **where: Any) -> _ArtifactFile:
    """Return a file by ADK's names. Session services store a session under its id without outer spaces."""
    return _ArtifactFile(**where, session_id=None if session_id is None else session_id.strip())


def _space_of(app_name: str, user_id: str, *session_id: str) -> str:
    """Return the object space of a user or a session. Raises `InputValidationError` for an invalid id."""
    ids = (app_name, user_id, *session_id)
    for name, value in zip(("app_name", "user_id", "session_id"), ids, strict=False):
        artifact_util.validate_path_segment(value, name)
    return _space(*ids)


def _space(*names: str) -> str:
    """Return one name for several, injectively."""
    return "/".join(encode_part(name) for name in names)


def _packed(version: ArtifactVersion, part: types.Part) -> bytes:
    blob = part.inline_data
    bare = blob and part.model_copy(update={"inline_data": blob.model_copy(update={"data": b""})})
    head = _Artifact(version=version, part=bare or part).model_dump_json(exclude_none=True).encode()
    return len(head).to_bytes(_LENGTH_BYTES) + head + ((blob and blob.data) or b"")


def _unpacked(stored: bytes) -> _Artifact:
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES])
    artifact = _Artifact.model_validate_json(stored[_LENGTH_BYTES:end])
    if artifact.part.inline_data is not None:
        artifact.part.inline_data.data = stored[end:]
    return artifact
