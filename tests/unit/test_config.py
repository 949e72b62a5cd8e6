"""Settings: their sources, priorities and errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import prepared
import pytest

from offload import ConfigError, Offloader, OffloadPolicy, open_store
from offload.engine.settings.loader import Config, load_config
from offload.storage.registry import default_path

SECRET = "hunter2-canary"  # noqa: S105 # must not appear in any output


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the settings files of the user who runs the tests."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    here = tmp_path / "project" / "part"
    here.mkdir(parents=True)
    return here


@pytest.fixture
def users(empty_home: Path) -> Path:
    """Return the path of the user's file."""
    file = empty_home / "config" / "offload" / "config.toml"
    file.parent.mkdir(parents=True)
    return file


def config(folder: Path, environ: Mapping[str, str] | None = None, **arguments: Any) -> Config:
    return load_config(folder=folder, environ=environ or {}, arguments=arguments)


def named(file: Path, environ: Mapping[str, str] | None = None, **arguments: Any) -> Config:
    return load_config(file=file, environ=environ or {}, arguments=arguments)


def origins(found: Config) -> dict[str, str]:
    return {value.path: value.origin for value in found.values()}


def test_without_sources_settings_equal_the_defaults_of_the_offloader(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("tool = 3\n")
    found = config(folder)
    assert found.sources == ()
    assert found.settings.store is None
    assert found.settings.policy == OffloadPolicy()
    assert set(origins(found).values()) == {"default"}
    assert next(each.value for each in found.values() if each.path == "store") == str(default_path())


def test_each_source_overrides_the_one_before_it(
    folder: Path, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "offload.toml").write_text('codec = "json"\n')
    assert config(folder).settings.codec == "json"
    (folder.parent / "pyproject.toml").write_text('[tool.offload]\ncodec = "raw"\n')
    assert config(folder).settings.codec == "raw"
    users.write_text('codec = "zstd"\n')
    assert config(folder).settings.codec == "zstd"
    environ = {"OFFLOAD_CODEC": "json"}
    assert config(folder, environ).settings.codec == "json"
    monkeypatch.chdir(folder)
    found = config(Path(), environ, codec="raw")
    assert found.settings.codec == "raw"
    assert str(folder.parent / "pyproject.toml") in {source.name for source in found.sources}
    assert origins(found)["codec"] == "arguments"


FOREIGN = """
store = "s3://elsewhere/x"
session = "theirs"
on_error = "truncate"
max_answer_chars = 4000
[storage_options]
endpoint_url = "http://127.0.0.1:1"
secret = "hunter2-canary"
[policy]
min_saving = 7
[policy.retention]
store_records = 1
"""


@pytest.mark.parametrize("name", ["offload.toml", "pyproject.toml"])
def test_a_file_of_the_working_folder_sets_the_policy_but_not_the_store(
    folder: Path, users: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    inner = FOREIGN.replace("[", "[tool.offload.")
    content = f"[tool.offload]{inner}" if name == "pyproject.toml" else FOREIGN
    (folder / name).write_text(content)

    alone = config(folder)
    assert alone.settings.store is None
    assert alone.settings.session is None
    assert alone.settings.storage_options == {}
    assert alone.settings.on_error == "keep"
    assert alone.settings.policy.retention == OffloadPolicy().retention
    assert alone.settings.policy.min_saving == 7
    assert alone.settings.max_answer_chars == 4000

    environ = {"OFFLOAD_STORE": "s3://mine", "OFFLOAD_STORAGE_OPTIONS__KEY": "k"}
    assert config(folder, environ).settings.store == "s3://mine"
    assert config(folder, environ).settings.storage_options == {"key": "k"}
    users.write_text('store = "s3://mine"\n[storage_options]\nkey = "k"\n')
    assert config(folder).settings.store == "s3://mine"
    assert config(folder).settings.storage_options == {"key": "k"}

    refused = {value.path: value.value for value in alone.refused()}
    assert refused.keys() == {
        "store",
        "session",
        "on_error",
        "storage_options.endpoint_url",
        "storage_options.secret",
        "policy.retention.store_records",
    }
    assert {value.origin for value in alone.refused()} == {str(folder / name)}
    assert SECRET not in repr(alone.refused())
    [record] = caplog.records
    assert str(folder / name) in record.getMessage()
    for key in ("store", "session", "storage_options", "on_error", "policy.retention"):
        assert key in record.getMessage()
    assert SECRET not in record.getMessage()


def test_without_log_handlers_refused_settings_are_reported_on_stderr(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.offload]\nstore = "s3://elsewhere"\n')
    code = "from offload import load_config; print(load_config(environ={}).settings.store)"
    done = prepared.run(code, folder=folder)
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert f"{folder / 'pyproject.toml'} sets store: ignored" in done.stderr


@pytest.mark.parametrize("name", ["offload.toml", "pyproject.toml"])
def test_a_file_named_by_the_host_may_set_everything_and_is_the_only_one(
    folder: Path, users: Path, name: str
) -> None:
    users.write_text('session = "users"\n')
    (folder / "offload.yaml").write_text("codec: json\n")
    content = (
        f"[tool.offload]{FOREIGN.replace('[', '[tool.offload.')}" if name == "pyproject.toml" else FOREIGN
    )
    file = folder.parent / name
    file.write_text(content)
    for found in (
        load_config(folder=folder, file=file, environ={}),
        load_config(folder=folder, environ={"OFFLOAD_CONFIG": str(file)}),
    ):
        assert found.settings.store == "s3://elsewhere/x"
        assert found.settings.session == "theirs"
        assert found.settings.codec == "zstd"
        assert found.settings.policy.retention.store_records == 1
        assert found.refused() == []
    assert load_config(file=file, environ={"OFFLOAD_STORE": "s3://mine"}).settings.store == "s3://mine"


def test_sources_give_parts_of_one_table_and_each_value_has_its_origin(folder: Path, users: Path) -> None:
    users.write_text("max_answer_chars = 5000\n")
    (folder / "offload.toml").write_text("[policy]\nmin_saving = 7\nmax_view_tokens = 900\n")
    found = config(folder, {"OFFLOAD_POLICY__MIN_SAVING": "8"})
    assert found.settings.max_answer_chars == 5000
    assert found.settings.policy.min_saving == 8
    assert found.settings.policy.max_view_tokens == 900
    assert origins(found)["max_answer_chars"] == str(users)
    assert origins(found)["policy.min_saving"] == "environment"
    assert origins(found)["policy.max_view_tokens"] == str(folder / "offload.toml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("offload.toml", 'codec = "json"'),
        ("offload.yaml", "codec: json"),
        ("offload.json", '{"codec": "json"}'),
    ],
)
def test_a_file_is_toml_yaml_or_json(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    assert config(folder).settings.codec == "json"


def test_a_policy_may_name_a_preset_or_a_file_in_the_same_folder(folder: Path) -> None:
    (folder / "offload.toml").write_text('policy = "economy"\n')
    assert config(folder).settings.policy == OffloadPolicy.preset("economy")
    (folder / "mine.toml").write_text("min_saving = 55\n")
    (folder / "offload.toml").write_text('policy = "mine.toml"\n')
    assert config(folder).settings.policy.min_saving == 55


def test_variables_are_texts_numbers_lists_and_tables_with_their_fields(folder: Path) -> None:
    environ = {
        "OFFLOAD_SESSION": "42",
        "OFFLOAD_MAX_ANSWER_CHARS": "4000",
        "OFFLOAD_TOOLS": '["context_grep"]',
        "OFFLOAD_STORE": "s3://bucket",
        "OFFLOAD_STORAGE_OPTIONS": '{"key": "k", "region": "a"}',
        "OFFLOAD_STORAGE_OPTIONS__REGION": "b",
    }
    settings = config(folder, environ).settings
    assert (settings.session, settings.max_answer_chars) == ("42", 4000)
    assert settings.tools == ["context_grep"]
    assert settings.storage_options == {"key": "k", "region": "b"}


@pytest.mark.parametrize("name", ["folder", "file"])
def test_a_file_or_folder_of_settings_is_given_by_its_path(name: str) -> None:
    arguments: dict[str, Any] = {name: 5}
    with pytest.raises(ConfigError, match=f"{name} must be a path, got int"):
        Offloader.from_config(**arguments)


def test_an_error_begins_with_the_source_and_the_setting(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^environment: tools: Input should be a valid list, got 'context_grep'$"
    ):
        config(folder, {"OFFLOAD_TOOLS": "context_grep"})


def test_a_source_with_a_store_discards_storage_options_of_earlier_sources(folder: Path, users: Path) -> None:
    users.write_text('store = "s3://bucket"\n[storage_options]\nendpoint_url = "http://127.0.0.1:1"\n')
    assert config(folder).settings.storage_options == {"endpoint_url": "http://127.0.0.1:1"}
    assert config(folder, store="./here").settings.storage_options == {}
    assert config(folder, {"OFFLOAD_STORAGE_OPTIONS__KEY": "k"}).settings.storage_options == {
        "endpoint_url": "http://127.0.0.1:1",
        "key": "k",
    }


def test_values_that_may_be_secret_are_hidden(folder: Path) -> None:
    file = folder / "mine.toml"
    file.write_text(
        f'store = "ftp://me:{SECRET}@host/x"\n[storage_options]\nsecret = "{SECRET}"\n'
        f'endpoint_url = "http://me:{SECRET}@host"\nclient_kwargs = {{ token = "{SECRET}" }}\nanon = true\n'
    )
    found = named(file)
    assert found.settings.storage_options["secret"] == SECRET
    assert SECRET not in repr(found.values())
    shown = {value.path: value.value for value in found.values()}
    assert shown["storage_options.anon"] is True
    assert shown["storage_options.secret"] == "(hidden)"
    assert shown["store"] == "ftp://(hidden)@host/x"


def test_from_config_applies_settings_to_the_offloader(
    folder: Path, users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.write_text(f'store = "{tmp_path / "kept"}"\nsession = "s"\n')
    monkeypatch.chdir(folder)
    text = "line of a log\n" * 5000
    off = Offloader.from_config(token_counter=len)
    assert off.session == "s"
    assert off.offload_text(text, tool_name="Bash") != text
    assert len(list((tmp_path / "kept" / "r" / "s").iterdir())) == 1
    assert Offloader.from_config(session="other").session == "other"
    (folder / "mine.toml").write_text('store = "memory://"\nsession = "named"\n')
    assert Offloader.from_config(file="mine.toml").session == "named"
    store = open_store(tmp_path / "mine")
    assert Offloader.from_config(folder=folder, store=store).store is store


@pytest.mark.parametrize("name", ["offload.toml", "pyproject.toml"])
def test_a_relative_store_path_does_not_depend_on_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table = "[tool.offload]\n" if name == "pyproject.toml" else ""
    (folder.parent / name).write_text(f'{table}store = "./context"\n')
    kept = str(folder.parent / "context")
    assert named(folder.parent / name).settings.store == kept
    monkeypatch.chdir(folder)
    assert named(Path("..") / name).settings.store in {kept, str(folder / ".." / "context")}
    for url in ("s3://bucket/prefix", "memory://name", "zip://x::file:///y.zip", "/data/x"):
        (folder.parent / name).write_text(f'{table}store = "{url}"\n')
        assert named(folder.parent / name).settings.store == url


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("offload.toml", "sesion = 1\n", "no such field"),
        ("offload.toml", 'on_error = "ignore"\n', "on_error"),
        ("offload.toml", "[policy.types.tool_result]\nmin_tokens = -1\n", "types.tool_result.min_tokens"),
        ("offload.toml", "session = [\n", "cannot be read"),
        ("offload.yaml", "1: 2\n", "no such field"),
        ("offload.yaml", "policy:\n  types:\n    2024-01-01: {}\n", "cannot be read"),
        ("offload.yaml", "policy:\n  types:\n    tool_result:\n      1: 2\n", "no such field"),
        ("offload.json", "[" * 100_000, "cannot be read"),
        ("offload.toml", 'store = "s3:/bucket"\n', "'s3://bucket'"),
        ("offload.toml", '[store]\nurl = "s3://bucket"\n', "must be a URL, a path or an OffloadStore"),
    ],
)
def test_an_invalid_value_is_reported_with_its_file(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        config(folder, {"OFFLOAD_CODEC": "json"})
    assert str(folder / name) in str(caught.value)
    assert message in str(caught.value)
    assert "function" not in str(caught.value)
    assert "environment" not in str(caught.value)


def test_without_a_home_folder_a_store_must_be_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert config(folder).settings.store is None
    with pytest.raises(ConfigError, match="name a store"):
        open_store()
    for source in ("~/x.toml", "~nobody-here/x.toml"):
        with pytest.raises(ConfigError, match="home"):
            config(folder, {"OFFLOAD_CONFIG": source})


def test_a_deleted_working_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="working folder was deleted"):
        load_config(environ={})
