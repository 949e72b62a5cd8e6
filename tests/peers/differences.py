"""Tests of other projects that fail here on purpose: names as globs `Class::test`, and the reason."""

_DISK = "is about folders, modes and symbolic links of a disk; files here are objects of a store"
_LANGGRAPH = "looks into the LangGraph store, or counts its calls; the files are in a store of offload"
_URI = "expects the memory:// address of ADK's service; the address here is artifact://"

DIFFERENCES: dict[str, list[tuple[str, str]]] = {
    "anthropic": [
        ("*symlink*", _DISK),
        ("*mkdir_parents*", _DISK),
        (
            "*Async*_preserves_crlf_*",
            "writes its file on the disk; the same test of the synchronous tool runs",
        ),
    ],
    "deepagents": [
        ("*_legacy_list*", "is about files of earlier versions in a LangGraph store"),
        ("*_intercept_large_tool_result", _LANGGRAPH),
        ("*_single_batch_call", _LANGGRAPH),
        ("*_namespace_*", _LANGGRAPH),
        ("*_factory_*outside_graph", _LANGGRAPH),
        ("*_rejects_wildcard_namespace", "any text is a valid session name"),
        ("*_reads_mkv_as_binary*", "media is read as base64, also if it was written as text"),
    ],
    "google-adk": [
        ("*rejects_reserved_user_as_session_id*", "a session named user has files of its own"),
        ("*list_artifact_versions_and_get*", _URI),
        ("*list_artifact_versions_with_user_prefix*", _URI),
        ("*rejects_cross_session_on_load*", "changes the fields of ADK's service in memory"),
    ],
    "langchain": [],
    "strands": [
        ("*_key_normalization", "any text is a valid key, and no two texts are the same one"),
        ("*_rejects_*", "any text is a valid key, and no two texts are the same one"),
        ("*_clear*", "InMemoryStorage alone has `clear`"),
        ("*strategy*", "InMemoryStorage alone takes a search strategy"),
    ],
}
