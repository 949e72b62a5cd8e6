from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = [
    "fsspec",
    "s3fs",
    "aiobotocore",
    "boto3",
    "cryptography",
    "botocore",
    "aiohttp",
    "opentelemetry",
    "rich",
    "typer",
    "platformdirs",
    "re2",
]


def loaded_after(source):
    program = f"import sys\n{source}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def loaded_by_offload():
    return loaded_after("import offload\nfor name in offload.__all__: getattr(offload, name)")


@pytest.mark.parametrize("package", HEAVY)
def test_importing_offload_does_not_load(loaded_by_offload, package):
    assert "offload.offloader" in loaded_by_offload
    assert package not in loaded_by_offload


@pytest.mark.parametrize(
    "package",
    ["pydantic", "tarfile", "asyncio", "sqlite3", "difflib", "offload.tables", "offload.tools._tools"],
)
def test_importing_the_offloader_does_not_load(package):
    loaded = loaded_after("from offload import Offloader")

    assert "offload.engine.turn" in loaded
    assert package not in loaded


def test_importing_the_offloader_loads_few_modules():
    loaded = loaded_after("from offload import Offloader")

    assert len([name for name in loaded if name.partition(".")[0] == "offload"]) <= 110


def test_importing_the_offloader_makes_few_classes_from_source():
    source = (
        "import dataclasses, sys\n"
        "from offload import Offloader\n"
        "modules = [m for name, m in sys.modules.items() if name.partition('.')[0] == 'offload']\n"
        "classes = {c for m in modules for c in vars(m).values() if isinstance(c, type)}\n"
        "sys.modules = {c.__qualname__ for c in classes if dataclasses.is_dataclass(c)}"
    )

    assert len(loaded_after(source)) <= 11


def test_importing_the_offloader_compiles_no_pattern_of_its_own_but_those_of_keys():
    source = (
        "import re, sys\n"
        "compiled = []\n"
        "def note(frame, event, _):\n"
        "    if event == 'call' and frame.f_code is re.compile.__code__:\n"
        "        while frame.f_code.co_filename.endswith(('re/__init__.py', 'offload/patterns.py')):\n"
        "            frame = frame.f_back\n"
        "        compiled.append(frame.f_globals['__name__'])\n"
        "sys.setprofile(note)\n"
        "from offload import Offloader\n"
        "sys.setprofile(None)\n"
        "sys.modules = compiled"
    )

    compiled = {name for name in loaded_after(source) if name.partition(".")[0] == "offload"}

    assert compiled == {"offload.layout"}


def test_the_tools_are_loaded_with_the_first_offloader_and_not_before(tmp_path):
    tools = {"offload.tools._tools", "offload.tools.pointer", "offload.tools.answers"}

    assert not loaded_after("from offload import Offloader") & tools
    # A child that is forked while a thread imports a module can never import it.
    assert loaded_after(f"import offload; offload.Offloader({str(tmp_path)!r})") >= tools


@pytest.mark.parametrize("package", ["pydantic", "msgspec", "zstandard"])
def test_a_backend_that_imports_the_contract_does_not_load(package):
    assert package not in loaded_after("import offload.store, offload.layout, offload.errors")


@pytest.mark.parametrize("package", ["fsspec", "s3fs", "boto3", "aiobotocore", "http.client"])
def test_offloading_to_a_local_folder_does_not_load(tmp_path, package):
    source = (
        "import offload\n"
        f"off = offload.Offloader({str(tmp_path)!r}, session='one')\n"
        "text = off.offload_text('a line of output, rather long\\n' * 2000, tool_name='Bash')\n"
        "assert off.tools.tail(off.records()[0].ref)"
    )

    loaded = loaded_after(source)

    assert "offload_backends.local" in loaded
    assert package not in loaded


@pytest.mark.parametrize("package", ["pydantic", "msgspec", "rich", "offload.offloader"])
def test_the_list_of_commands_does_not_load(package):
    source = (
        "import sys\n"
        "from offload.__main__ import main\n"
        "sys.argv = ['offload', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass"
    )

    loaded = loaded_after(source)

    assert "offload.cli.app" in loaded
    assert package not in loaded


@pytest.mark.parametrize(
    "package", ["offload.offloader", "offload.engine", "offload.jobs", "multiprocessing", "re2"]
)
def test_a_list_of_records_does_not_load(tmp_path, package):
    source = (
        "import sys\n"
        "from offload.__main__ import main\n"
        f"sys.argv = ['offload', 'ls', '--store', {str(tmp_path)!r}]\n"
        "try: main()\n"
        "except SystemExit: pass"
    )

    loaded = loaded_after(source)

    assert {"offload.cli.listing", "offload_backends.local"} <= loaded
    assert package not in loaded


@pytest.mark.parametrize("package", ["fsspec", "re2", "typer"])
def test_the_names_are_those_under_which_the_packages_load(package):
    # A misspelt name above would be absent always.
    assert package in loaded_after(f"import {package}")
