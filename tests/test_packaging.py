"""The wheel holds the two packages and nothing else, and the worker's one stands alone."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKER_MODULES = sorted((ROOT / "workers" / "swm_workers").rglob("*.py"))
# What a worker may load at its start; anything else makes it slow to start or drags in the agent.
WORKER_IMPORTS = {"cloudpickle", "gymnasium", "numpy", "swm_workers"} | sys.stdlib_module_names


def build(directory: Path, hook: str) -> zipfile.Path:
    """Run a build hook of PEP 517 or 660 in a process of its own, which needs no network."""
    code = f"import sys, hatchling.build; hatchling.build.{hook}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, directory], cwd=ROOT, check=True, text=True)
    (wheel,) = directory.glob("*.whl")
    return zipfile.Path(wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    return build(tmp_path_factory.mktemp("wheel"), "build_wheel")


def test_the_wheel_has_the_two_packages_and_its_metadata_at_the_top(wheel: zipfile.Path) -> None:
    names = {entry.name for entry in wheel.iterdir()}
    assert names == {"swm_async", "swm_workers", "swm_async-0.1.0.dist-info"}


def test_the_wheel_carries_every_module_of_the_tree(wheel: zipfile.Path) -> None:
    packages = {"swm_async": ROOT / "swm_async", "swm_workers": ROOT / "workers" / "swm_workers"}
    in_tree = {
        f"{package}/{path.relative_to(directory).as_posix()}"
        for package, directory in packages.items()
        for path in directory.rglob("*.py")
    }
    assert in_tree == {name for name in wheel.root.namelist() if name.endswith(".py")}


@pytest.mark.parametrize("package", ["swm_async", "swm_workers"])
def test_both_packages_are_marked_as_typed(wheel: zipfile.Path, package: str) -> None:
    assert (wheel / package / "py.typed").is_file()


def test_the_wheel_installs_the_command(wheel: zipfile.Path) -> None:
    entry_points = (wheel / "swm_async-0.1.0.dist-info" / "entry_points.txt").read_text("utf-8")
    assert entry_points.split() == ["[console_scripts]", "swm-async", "=", "swm_async.cli:main"]


def test_an_editable_install_is_two_plain_entries_of_the_path(tmp_path: Path) -> None:
    entries = build(tmp_path, "build_editable").iterdir()
    (path_file,) = (entry for entry in entries if entry.name.endswith(".pth"))
    assert set(path_file.read_text("utf-8").split()) == {str(ROOT), str(ROOT / "workers")}


def test_no_module_lies_directly_in_workers() -> None:
    assert list((ROOT / "workers").glob("*.py")) == []


@pytest.mark.parametrize("path", WORKER_MODULES, ids=lambda path: path.stem)
def test_the_worker_package_never_imports_the_agent(path: Path) -> None:
    assert "swm_async" not in imported_packages(ast.walk(ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize("path", WORKER_MODULES, ids=lambda path: path.stem)
def test_a_worker_module_loads_only_light_packages(path: Path) -> None:
    # Of the top level only: inside of a function, an import runs when an environment asks for it.
    assert imported_packages(iter(ast.parse(path.read_text("utf-8")).body)) <= WORKER_IMPORTS


def imported_packages(nodes: Iterator[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # A relative import stays within the package.
            package = node.module if node.level == 0 and node.module else "swm_workers"
            found.add(package.partition(".")[0])
    return found


def test_the_adapter_for_stable_baselines3_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "swm_async.sb3", raising=False)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)  # as if it were not installed
    with pytest.raises(ImportError, match=re.escape("pip install 'swm_async[sb3]'")):
        importlib.import_module("swm_async.sb3")
