"""The architecture page and that of the backends list what exists, and nothing else."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# `__main__` and `__init__` have no room of their own.
ROOMS = {
    f"{path.name}/" if path.is_dir() else path.name
    for path in (ROOT / "offload").iterdir()
    if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
}


def test_the_map_lists_every_room_and_no_other() -> None:
    assert set(re.findall(r"^- `([^`]+)`:", PAGE, re.MULTILINE)) == ROOMS


def test_every_file_on_the_page_exists() -> None:
    missing = []
    for paragraph in re.split(r"\n(?=- |\n)", PAGE):
        room = re.match(r"\n?- `(\w+/)`:", paragraph)
        folders = (ROOT, ROOT / "offload", ROOT / "offload" / (room[1] if room else ""))
        names = {name for name in re.findall(r"`([\w./]+)`", paragraph) if "/" in name and "NAME" not in name}
        missing += [name for name in names if not any((folder / name).exists() for folder in folders)]

    assert missing == []
    assert max(map(len, PAGE.splitlines())) <= 120


def test_the_glossary_has_each_term_once_with_a_module_that_exists() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!term|-)([^|]+) \| [A-Z][^|]+\. \| `([\w./]+)` \|$", page, re.MULTILINE)
    terms = [term for names, _ in rows for term in names.split(", ")]

    assert len(rows) == len(re.findall(r"^\| (?!term)\w", page, re.MULTILINE))
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert [module for _, module in rows if not (ROOT / "offload" / module).exists()] == []


# Private classes that do the same for another API or framework, and names that users import.
SHARED_NAMES = {"RetrievalTool", "Streamed", "Whole", "Request"}


def test_a_class_name_has_one_meaning() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "offload").rglob("*.py"))
    names = [
        node.name.removeprefix("_")
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]

    assert {name for name, count in Counter(names).items() if count > 1} == SHARED_NAMES


def test_the_rooms_are_few() -> None:
    packages = {room for room in ROOMS if room.endswith("/")}

    # `__main__` and `__init__` are the other two modules.
    assert (len(packages), ROOMS - packages) == (14, {"errors.py", "offloader.py"})


def test_the_page_of_the_backends_lists_every_scheme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "backends" / "README.md").read_text(encoding="utf-8")

    schemes = project["entry-points"]["offload.backends"].keys() - {"fsspec"}
    assert schemes == set(re.findall(r"`([a-z0-9]+)://", page))


def imported(name: str, path: Path) -> set[str]:
    """Return the modules of the backends that a module may import, for types too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = {
        each for node in found for each in (node.module, *(f"{node.module}.{a.name}" for a in node.names))
    }
    # What stands in a package loads it, and takes nothing of it.
    return {each for each in names if each and not f"{name}.".startswith(f"{each}.")}


def test_no_backend_imports_in_a_circle_even_for_types() -> None:
    root = ROOT / "backends"
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
    below = {name: imported(name, path) & files.keys() for name, path in files.items()}

    assert set(TopologicalSorter(below).static_order()) == files.keys()
