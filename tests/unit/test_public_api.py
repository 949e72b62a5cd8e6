"""The public face: names, docstrings, the error tree, the README's code."""

from __future__ import annotations

import ast
import inspect
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import offload
from offload import errors
from offload.engine.settings.options import OptionArguments, Options

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("offload", "backends") for p in sorted((ROOT / folder).rglob("*.py"))]
NOT_OPTIONS = ("store", "session", "storage_options")
ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.OffloadError)]


def test_every_public_name_can_be_imported():
    assert set(offload.__all__) <= set(dir(offload))
    for name in offload.__all__:
        value = getattr(offload, name)
        # A type that is put together has no name.
        assert getattr(value, "__name__", name) == name
    with pytest.raises(AttributeError, match="no attribute 'Offlaoder'"):
        offload.Offlaoder  # noqa: B018 # the access raises


def test_type_checkers_see_every_public_name():
    tree = ast.parse((ROOT / "offload" / "__init__.py").read_text())
    seen = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offload.")
        for alias in node.names
    ]

    assert sorted(seen) == sorted(offload.__all__)


def test_every_public_function_and_class_has_a_docstring():
    bare = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        # An overload is documented by the function that follows it.
        and "overload" not in map(ast.unparse, node.decorator_list)
    ]

    assert bare == []


def test_every_error_is_exported_with_a_code_of_its_own():
    assert {e.__name__ for e in ERRORS} <= set(offload.__all__)
    assert len({e.kind for e in ERRORS}) == len(ERRORS)


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.MissingExtraError, ImportError),
        (errors.MessageError, ValueError),
        (errors.NotFoundError, KeyError),
        (errors.ExistsError, FileExistsError),
        (errors.StoreError, OSError),
        (errors.StorePermissionError, PermissionError),
    ],
)
def test_an_error_is_also_the_builtin_error_of_its_kind(ours, builtin):
    assert issubclass(ours, builtin)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_an_error_shows_its_message_and_survives_a_pickle(error):
    original = error("what was wrong; what would be right")

    copy = pickle.loads(pickle.dumps(original))  # noqa: S301 # pickled in this test

    assert str(copy) == "what was wrong; what would be right"
    assert type(copy) is error


def test_options_have_the_names_and_defaults_of_the_constructor():
    parameters = inspect.signature(offload.Offloader).parameters
    accepted = {name: p.default for name, p in parameters.items() if name not in NOT_OPTIONS}
    # In `Options` these defaults are made, not None.
    resolved = dict.fromkeys(("policy", "placeholder", "events"))

    options = dict(zip(Options.__struct_fields__, Options.__struct_defaults__, strict=True))
    assert options | resolved == accepted
    assert OptionArguments.__annotations__.keys() == accepted.keys()


def test_an_unknown_option_is_refused_with_the_one_that_it_may_be():
    mistyped: Any = {"polices": "balanced"}
    with pytest.raises(offload.ConfigError, match="no option 'polices'; did you mean 'policy'"):
        offload.Offloader("memory://", **mistyped)


# Stable names, and arguments that each of them accepts.
STABLE = {
    "offload:Offloader": (
        "store session policy storage_options placeholder codec token_counter summarizer redact "
        "should_offload on_error clock"
    ),
    "offload:Offloader.from_config": "folder file store",
    "offload:Offloader.offload": "messages pinned cache",
    "offload:Offloader.aoffload": "messages pinned cache",
    "offload:Offloader.offload_text": "text tool_name tool_use_id",
    "offload:Offloader.open_sink": "tool_name",
    "offload:Offloader.report_usage": "usage",
    "offload:Offloader.restore": "messages on_missing",
    "offload:Offloader.arestore": "messages on_missing",
    "offload:Offloader.content": "ref",
    "offload:Offloader.fork": "name",
    "offload:Offloader.gc": "dry_run",
    "offload:Offloader.prompt": "",
    "offload:Offloader.records": "",
    "offload:Offloader.stats": "",
    "offload:Offloader.verify": "",
    "offload:OffloadPolicy": "types tools exclude_tools tool_media min_saving max_view_tokens sweep cache",
    "offload:CacheModel": "read write ttl",
    "offload:OffloadPolicy.preset": "name",
    "offload:RecordInfo": "ref key item_type tool_name tool_use_id chars lines tokens bytes created_at",
    "offload:OffloadResult": "messages records tokens_before tokens_after chars_freed errors",
    "offload:Rule": "enabled min_tokens min_chars min_bytes after_replies keep_recent preview_chars ttl",
    "offload:Sweep": "trigger_tokens keep_recent clear_at_least",
    "offload:open_store": "storage_options",
    "offload:AgentConfig": "rules trigger_ratio target_ratio",
    "offload:ContextManager": "offloader config summarizer",
    "offload:ContextManager.restore": "",
    "offload:RoundCompactor": "offloader summarizer config events",
    "offload:RoundCompactor.compact": "",
    "offload:RoundConfig": "",
    "offload:SelectiveCompaction": "offloader summarizer threshold_tokens",
    "offload:SelectiveCompaction.compact": "",
    "offload:SelectiveCompaction.restore": "",
    "offload:load_config": "",
    "offload:ContextIR": "",
    "offload:EventBus": "",
    "offload:DefaultRenderer.render": "facts",
    "offload:ContextFileSystem": "session offload_token_threshold",
    "offload:ContextFileSystem.offload": "messages",
    "offload:ContextRefs": "root",
    "offload:ContextRefs.call": "name arguments",
    "offload:ContextRefs.clean_up": "",
    "offload:ContextRefs.offload_history": "messages",
    "offload:ContextRefs.restore": "messages",
    "offload:ContextRefs.tool_output": "",
    "offload:preview_of": "",
    "offload:collect": "",
    "offload:delete": "",
    "offload:Retention": "session_records live_for grace",
    "offload:Tools.call": "name arguments",
    "offload:Tools.definitions": "format",
    "offload:Tools.read": "id offset limit",
}


@pytest.mark.parametrize("name", STABLE)
def test_a_stable_name_can_be_imported_and_accepts_its_arguments(name):
    module, path = name.split(":")
    stable: Any = import_module(module)
    for part in path.split("."):
        stable = getattr(stable, part)

    assert set(STABLE[name].split()) <= set(inspect.signature(stable).parameters)
