"""The page of faults names tests that exist, and every kind has one."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "faults.md").read_text()
NAME = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def functions(file):
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists():
    named = NAME.findall(PAGE)
    assert len(named) > 100
    known = {file: functions(file) for file in {file for file, _ in named}}
    assert [f"{file}::{name}" for file, name in named if name not in known[file]] == []


def test_every_kind_names_a_test_or_a_measurement():
    kinds = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(kinds) > 60
    without = [kind for kind in kinds if not NAME.search(kind) and "benchmarks/" not in kind]
    assert set(without) == {"| kind | tests |"}


def test_every_test_of_faults_is_on_the_page():
    on_page = {f"{file}::{name}" for file, name in NAME.findall(PAGE)}
    written = {
        f"{path.name}::{name}"
        for path in TESTS.glob("test_faults_*.py")
        for name in functions(path.name)
        if name.startswith("test_") and path.name != "test_faults_docs.py"
    }
    assert written - on_page == set()
