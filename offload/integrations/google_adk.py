"""Google ADK: offloading as a plugin of an app or runner, and an artifact service on any store.

    runner = Runner(
        app=App(name="app", root_agent=agent, plugins=[AdkOffloadPlugin("s3://bucket/prefix")]),
        session_service=sessions,
        artifact_service=OffloadArtifactService("s3://bucket/prefix"),
    )

A large tool result leaves when its event is appended: the session, and so its database, holds its
placeholder. What leaves later, by age or in a sweep, leaves what the model is sent. Every agent of the app
gets the tools that read back, and the lines of the instructions that explain them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Unpack

from offload.errors import ExistsError, MissingExtraError, NotFoundError
from offload.integrations._objects import ObjectStore
from offload.integrations._sessions import Sessions, is_error
from offload.layout import FILE, encode_part
from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store
from offload.threads import in_thread

try:
    from google.adk.artifacts import BaseArtifactService, artifact_util
    from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
    from google.adk.errors.input_validation_error import InputValidationError
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools import BaseTool
    from google.genai import types
    from pydantic import BaseModel
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[google-adk]'") from error

# A reference may name a reference; as deep as ADK's own services follow it.
_MAX_REFERENCES = 5
_USER_SCOPE = "user:"
_LENGTH_BYTES = 4
# What stands for a file that is not there: the second is what ADK saves where a session is rewound.
_ABSENT = (
    types.Part(),
    types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=b"")),
)

__all__ = ["AdkOffloadPlugin", "OffloadArtifactService"]


class AdkOffloadPlugin(BasePlugin):
    """Offloads the contents of every session of an app, each in a session of its own.

    The caller's policy decides as anywhere. A tool result that leaves is replaced in its event; of all that
    leaves later the events keep the original, and the model alone sees the placeholder. A result that ends a
    turn (`skip_summarization`) is for the user: its event keeps it too.
    `offloader(session).restore([event.content for event in session.events])` gives the originals back.

    Args:
        store: as for `Offloader`.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes: `policy`, `on_error`, `redact` and so on.

    Raises:
        ConfigError: as for `Offloader`.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        super().__init__(name="offload")
        opened = open_store(store, storage_options=storage_options)
        # The events of a session and what an agent is sent of it are two lists, each with a history.
        self._events = Sessions(opened, None, None, options)
        self._requests = Sessions(opened, None, None, options)
        self._prompt = self._events.own.prompt()
        self._tools = [_RetrievalTool(each, self._answer) for each in self._events.own.tools.definitions()]

    def offloader(self, session: Any) -> Offloader:
        """Return the `Offloader` of an ADK session, by its app, its user and its id."""
        return self._events.named(_space(session.app_name, session.user_id, session.id))

    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        """Offload the tool results of an event before it is appended to its session."""
        if not event.get_function_responses() or event.is_final_response():
            return
        session = invocation_context.session
        before = [each.content for each in session.events if each.content]
        out = await self.offloader(session).aoffload([*before, event.content])
        event.content = out.messages[-1]

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Make of a request what the model is sent: after offloading, with the tools that read back."""
        session = callback_context.session
        offloader = self._requests.named(_space(session.app_name, session.user_id, session.id))
        out = await offloader.aoffload(llm_request.contents)
        llm_request.contents = out.messages
        llm_request.append_tools(self._tools)
        llm_request.append_instructions([self._prompt])

    def _answer(self, session: Any, name: str, arguments: Mapping[str, Any]) -> str:
        return self.offloader(session).tools.call(name, arguments)


class _RetrievalTool(BaseTool):
    """A tool that reads back. Whatever a model makes its arguments gets an answer."""

    def __init__(self, told: Mapping[str, Any], answer: Any) -> None:
        super().__init__(name=told["name"], description=told["description"])
        self._schema = told["input_schema"]
        self._answer = answer

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._schema
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> str | dict[str, str]:
        answer: str = await in_thread(self._answer, tool_context.session, self.name, args)
        return {"error": answer} if is_error(answer) else answer


class _File(NamedTuple):
    """A file by its names, as ADK gives them."""

    app_name: str
    user_id: str
    filename: str
    session_id: str | None = None

    @property
    def space(self) -> str:
        """The space that its versions are in. Raises `InputValidationError` if it lacks a session."""
        if self.filename.startswith(_USER_SCOPE):
            return _space(self.app_name, self.user_id)
        if self.session_id is None:
            raise InputValidationError(f"a file outside a session begins with {_USER_SCOPE!r}")
        return _space(self.app_name, self.user_id, self.session_id)

    def check(self, part: types.Part) -> None:
        """Raise `InputValidationError` for what is no artifact, or refers to one out of reach."""
        if part.inline_data is None and part.text is None and part.file_data is None:
            raise InputValidationError("an artifact has inline_data, text or file_data")
        uri = _reference(part)
        if uri is not None:
            self.target(uri)

    def target(self, uri: str, remaining: int = _MAX_REFERENCES) -> tuple[_File, int]:
        """Return the file and the version that a reference names. Raises `InputValidationError`."""
        found = artifact_util.resolve_artifact_reference(
            file_uri=uri,
            app_name=self.app_name,
            user_id=self.user_id,
            session_id=self.session_id,
            remaining_depth=remaining,
        )
        return _File(found.app_name, found.user_id, found.filename, found.session_id), found.version

    def described(self, part: types.Part, version: int, metadata: dict[str, Any]) -> ArtifactVersion:
        """Return what is known of a version."""
        session = None if self.filename.startswith(_USER_SCOPE) else self.session_id
        names = (self.app_name, self.user_id, self.filename, version, session)
        holder = part.inline_data or part.file_data
        return ArtifactVersion(
            version=version,
            canonical_uri=artifact_util.get_artifact_uri(*names),
            custom_metadata=metadata,
            mime_type="text/plain" if holder is None else holder.mime_type,
        )


class _Stored(BaseModel):
    """What an artifact is, without its bytes: they stand behind it as they are."""

    version: ArtifactVersion
    part: types.Part


class OffloadArtifactService(BaseArtifactService):
    """The artifacts of ADK's sessions and users, on any store.

    Names are data: any text is a file's name, a user's, a session's. Every save is a version of its own, also
    of two at once. What the store says of a failure comes through as `offload.StoreError`.

    Args:
        store: a path, a URL or a store, as for `offload.Offloader`.
        storage_options: as for `offload.Offloader`.

    Raises:
        ConfigError: an argument that cannot work. Nothing is read or written before the first call.
    """

    def __init__(self, store: Any = None, *, storage_options: Mapping[str, Any] | None = None) -> None:
        self._open = partial(ObjectStore, open_store(store, storage_options=storage_options), FILE)

    async def save_artifact(self, *, artifact: Any, custom_metadata: Any = None, **where: Any) -> int:
        """Store an artifact as the next version of its file; return the version, from 0."""
        return await in_thread(self._save, _File(**where), ensure_part(artifact), custom_metadata or {})

    async def load_artifact(self, *, version: int | None = None, **where: Any) -> types.Part | None:
        """Return a version of a file, without one the latest; None if there is none."""
        return await in_thread(self._load, _File(**where), version)

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of a user's files and, with a session, of its own, sorted."""
        spaces = [_space(app_name, user_id)]
        if session_id is not None:
            spaces.append(_space(app_name, user_id, session_id))
        names = await in_thread(lambda: [each.name for space in spaces for each in self._open(space).list()])
        return sorted({name.rpartition("/")[0] for name in names})

    async def delete_artifact(self, **where: Any) -> None:
        """Remove all versions of a file; nothing there is success."""
        await in_thread(self._delete, _File(**where))

    async def list_versions(self, **where: Any) -> list[int]:
        """Return the versions of a file, in order."""
        return await in_thread(self._versions, _File(**where))

    async def list_artifact_versions(self, **where: Any) -> list[ArtifactVersion]:
        """Return what is known of each version of a file, in order. Reads them all."""
        file = _File(**where)
        versions = await in_thread(self._versions, file)
        found = [await in_thread(self._read, file, version) for version in versions]
        return [each.version for each in found if each is not None]

    async def get_artifact_version(
        self, *, version: int | None = None, **where: Any
    ) -> ArtifactVersion | None:
        """Return what is known of a version of a file, without one of the latest; None if there is none."""
        found = await in_thread(self._read, _File(**where), version)
        return None if found is None else found.version

    def _save(self, file: _File, part: types.Part, metadata: dict[str, Any]) -> int:
        file.check(part)
        files = self._open(file.space)
        version = max(self._versions(file), default=-1) + 1
        while True:
            content = _packed(file.described(part, version, metadata), part)
            try:
                files.create(f"{file.filename}/{version}", content)
            except ExistsError:  # another process saved it meanwhile
                version += 1
            else:
                return version

    def _load(self, file: _File, version: int | None, remaining: int = _MAX_REFERENCES) -> types.Part | None:
        found = self._read(file, version)
        if found is None or found.part in _ABSENT:
            return None
        uri = _reference(found.part)
        if uri is not None:
            return self._load(*file.target(uri, remaining), remaining - 1)
        return found.part

    def _read(self, file: _File, version: int | None) -> _Stored | None:
        if version is None:
            version = max(self._versions(file), default=-1)
        try:
            return _unpacked(self._open(file.space).get(f"{file.filename}/{version}"))
        except NotFoundError:
            return None

    def _delete(self, file: _File) -> None:
        for version in self._versions(file):
            self._open(file.space).delete(f"{file.filename}/{version}")

    def _versions(self, file: _File) -> list[int]:
        names = (each.name.rpartition("/") for each in self._open(file.space).list())
        return sorted(int(version) for name, _, version in names if name == file.filename)


def _space(*names: str) -> str:
    """Return a name for what has several; no two rows of names share one."""
    return "/".join(encode_part(name) for name in names)


def _reference(part: types.Part) -> str | None:
    """Return the address of the artifact that `part` stands for, None if it is one itself."""
    uri = part.file_data and part.file_data.file_uri
    return uri if uri and artifact_util.is_artifact_ref(part) else None


def _packed(version: ArtifactVersion, part: types.Part) -> bytes:
    blob = part.inline_data
    bare = blob and part.model_copy(update={"inline_data": blob.model_copy(update={"data": b""})})
    head = _Stored(version=version, part=bare or part).model_dump_json(exclude_none=True).encode()
    return len(head).to_bytes(_LENGTH_BYTES) + head + ((blob and blob.data) or b"")


def _unpacked(stored: bytes) -> _Stored:
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES])
    found = _Stored.model_validate_json(stored[_LENGTH_BYTES:end])
    if found.part.inline_data is not None:
        found.part.inline_data.data = stored[end:]
    return found
