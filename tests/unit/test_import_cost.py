from __future__ import annotations

import functools
import subprocess
import sys

HEAVY = {
    *("fsspec", "s3fs", "aiobotocore", "boto3", "cryptography", "botocore", "aiohttp", "opentelemetry"),
    *("rich", "typer", "platformdirs", "re2"),
}


@functools.cache
def loaded_after(source):
    program = f"import sys\n{source}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def loaded_by_command(*arguments):
    return loaded_after(
        "from offload.__main__ import main\n"
        f"sys.argv = {['offload', *arguments]}\n"
        "try: main()\n"
        "except SystemExit: pass"
    )


def test_importing_offload_does_not_load():
    loaded = loaded_after(
        "import offload, offload.storage.wrappers\nfor name in offload.__all__: getattr(offload, name)"
    )

    assert {"offload.offloader", "offload.storage.wrappers._encrypting"} <= loaded
    assert not loaded & HEAVY


def test_importing_the_offloader_loads_few_modules():
    loaded = loaded_after("from offload import Offloader")

    assert "offload.engine.turn" in loaded
    assert not loaded & {"pydantic", "tarfile", "asyncio", "sqlite3", "difflib", "pathlib", "urllib.parse"}
    assert not loaded & {"offload.reading", "offload.storage.registry"}
    assert len([name for name in loaded if name.partition(".")[0] == "offload"]) <= 123


def test_importing_the_offloader_makes_few_classes_and_patterns_from_source():
    source = (
        "import re\n"
        "compiled = []\n"
        "def note(frame, event, _):\n"
        "    if event == 'call' and frame.f_code is re.compile.__code__:\n"
        "        while frame.f_code.co_filename.endswith(('re/__init__.py', 'offload/base/patterns.py')):\n"
        "            frame = frame.f_back\n"
        "        compiled.append(frame.f_globals['__name__'])\n"
        "sys.setprofile(note)\n"
        "from offload import Offloader\n"
        "sys.setprofile(None)\n"
        "import dataclasses\n"
        "modules = [m for name, m in sys.modules.items() if name.partition('.')[0] == 'offload']\n"
        "classes = {c for m in modules for c in vars(m).values() if isinstance(c, type)}\n"
        "made = {'class:' + c.__qualname__ for c in classes if dataclasses.is_dataclass(c)}\n"
        "sys.modules = made | set(compiled)"
    )

    noted = loaded_after(source)

    assert 0 < len([name for name in noted if name.startswith("class:")]) <= 3
    assert {name for name in noted if name.partition(".")[0] == "offload"} == {"offload.storage.layout"}


def test_a_backend_that_imports_the_contract_does_not_load_what_reads_records():
    loaded = loaded_after("import offload.storage.store, offload.storage.layout, offload.errors")

    assert "offload.storage.store" in loaded
    assert not loaded & {"pydantic", "msgspec", "zstandard"}


def test_offloading_to_a_local_folder_does_not_load_a_network(tmp_path):
    source = (
        "import offload\n"
        f"off = offload.Offloader({str(tmp_path)!r}, session='one')\n"
        # A child that is forked while a thread imports a module can never import it.
        "names = ('_tools', 'pointer', 'answers')\n"
        "tools = {f'offload.reading.tools.{name}' for name in names}\n"
        "assert tools <= {*sys.modules}\n"
        "off.offload([])\n"
        "text = off.offload_text('a line of output, rather long\\n' * 2000, tool_name='Bash')\n"
        "assert off.tools.tail(off.records()[0].ref)"
    )

    loaded = loaded_after(source)

    assert "offload_backends.local" in loaded
    assert not loaded & {"fsspec", "s3fs", "boto3", "aiobotocore", "http.client", "sqlite3"}


def test_the_list_of_commands_does_not_load_what_they_use():
    loaded = loaded_by_command("--help")

    assert "offload.cli.app" in loaded
    assert not loaded & {"pydantic", "msgspec", "rich", "offload.offloader"}


def test_a_list_of_records_does_not_load_what_offloads(tmp_path):
    loaded = loaded_by_command("ls", "--store", str(tmp_path))

    assert {"offload.cli.listing", "offload_backends.local"} <= loaded
    assert not loaded & {
        "offload.offloader",
        "offload.engine.turn",
        "offload.maintenance.jobs",
        "multiprocessing",
        "re2",
    }


def test_the_names_are_those_under_which_the_packages_load():
    # A misspelt name above would be absent always.
    assert loaded_after("import fsspec, re2, typer") >= {"fsspec", "re2", "typer"}
