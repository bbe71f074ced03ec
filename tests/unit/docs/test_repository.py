"""What a repository has besides code says the same as the Makefile and .ci/run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_workflow_runs_what_everybody_runs() -> None:
    (job,) = loaded(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


def test_what_runs_before_a_commit_is_make_lint() -> None:
    (repository,) = loaded(".pre-commit-config.yaml")["repos"]
    hooks = [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in recipe[1].splitlines()]
    assert hooks == commands


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_asks_for_the_journal(template: Path) -> None:
    fields = {field["id"]: field for field in yaml.safe_load(template.read_text())["body"]}
    assert "events.jsonl" in str(fields["journal"]["attributes"])


def test_the_targets_of_a_release_are_there() -> None:
    named = set(re.findall(r"`make ([a-z-]+)`", (ROOT / "RELEASING.md").read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named and named <= targets


def test_the_version_is_one() -> None:
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    module = re.search(r'^__version__ = "(.+)"$', (ROOT / "supervisor/ftlaunch/__init__.py").read_text(), re.MULTILINE)
    assert project is not None
    assert module is not None
    assert project[1] == module[1]
