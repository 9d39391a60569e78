"""The pages of the project are true: their code runs, their links and names exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CONTRACT = (ROOT / "docs" / "contract.md").read_text("utf-8")
PAGES = [
    "README.md",
    "benchmarks/README.md",
    "docs/cluster.md",
    "docs/coming-from.md",
    "docs/contract.md",
]
COMING_FROM = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README + COMING_FROM, re.MULTILINE | re.DOTALL)


def title(block: str) -> str:
    """The first line that says more than an import, to name the test."""
    lines = [line for line in block.splitlines() if not re.match(r"import|from|$", line)]
    return lines[0]


@pytest.mark.parametrize("block", BLOCKS, ids=title)
def test_every_example_of_the_readme_runs_as_shown(block, tmp_path):
    if "stable_baselines3" in block and importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("stable_baselines3 is not installed")
    script = tmp_path / "example.py"
    script.write_text(block, "utf-8")
    # A script of its own, without a guard against being run twice; warnings are errors.
    command = [sys.executable, "-W", "error", script.name]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
    promised = [text for text in expected if re.match(r"[(\[]|True|\d", text)]
    for text in promised:
        assert text.partition(":")[0] in result.stdout


def test_the_readme_has_examples():
    assert len(BLOCKS) == (README + COMING_FROM).count("```python") >= 8


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_exist(page):
    text = (ROOT / page).read_text("utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / file if file else ROOT / page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_targets_of_make_that_the_readme_names_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_sections_of_the_contract_that_the_code_cites_exist():
    headings = set(re.findall(r"^#+ (.*)$", CONTRACT, re.MULTILINE))
    cited = set()
    for package in ("swm_async", "workers/swm_workers", "tests"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            cited |= set(re.findall(r"docs/contract\.md`*, ([A-Z]\w*(?: \w+)?)", text))
    assert cited
    # A citation may go on with words of the sentence around it.
    assert {name for name in cited if not headings & {name, name.split()[0]}} == set()


@pytest.mark.parametrize(
    "heading",
    [
        "EnvPool",
        "Observations",
        "Infos",
        "Envs and calls",
        "Failures",
        "Worker environment",
        "World",
        "Rollout",
        "Evaluate",
        "Dataset evaluation",
        "VectorEnv",
        "VecEnv",
        "Not yet",
    ],
)
def test_the_contract_has_its_sections(heading):
    assert f"\n## {heading}\n" in CONTRACT
