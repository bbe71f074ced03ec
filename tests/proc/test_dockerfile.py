"""The image's recipe: no complaint of hadolint's, and the versions that the rest of the house names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs/kubernetes/Dockerfile"
LINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}") or shutil.which("hadolint")


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    if LINT is None:
        pytest.skip("hadolint is not installed (make extras)")
    return subprocess.run([LINT, "--no-color", str(path)], capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    found = lint(RECIPE)
    assert (found.returncode, found.stdout) == (0, "")


def test_hadolint_would_say_it(tmp_path: Path) -> None:
    worse = tmp_path / "Dockerfile"
    worse.write_text(re.sub(r"python:\S+", "python:latest", RECIPE.read_text()))
    found = lint(worse)
    assert found.returncode != 0
    assert "DL3007" in found.stdout


def test_it_runs_as_the_user_of_the_manifests_and_installs_the_torch_that_is_tested() -> None:
    text = RECIPE.read_text()
    torch = re.search(r"^torch==\S+$", (ROOT / "constraints/cpu.txt").read_text(), re.MULTILINE)
    assert torch is not None
    assert torch[0] in text.split()
    (user,) = re.findall(r"^USER (\d+):\1$", text, re.MULTILINE)
    for kind in ("jobset", "trainjob", "job"):
        assert f"runAsUser: {user}\n" in (RECIPE.parent / f"{kind}.yaml").read_text()
    assert len(re.findall(r"^FROM python:\d+\.\d+-slim-\w+", text, re.MULTILINE)) == 2
