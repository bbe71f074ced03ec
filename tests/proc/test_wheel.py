"""A wheel holds what the installed command reads."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ftlaunch.spec.parsing.rule_parser import builtin

ROOT = Path(__file__).parents[2]


def test_a_wheel_holds_the_fault_rules(tmp_path: Path) -> None:
    pytest.importorskip(
        "hatchling", reason="hatchling, which builds the wheel, is not installed (pip install hatchling)"
    )
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    assert (tmp_path / "ftlaunch" / "fault_rules.yaml").read_bytes() == (
        ROOT / "configs" / "fault_rules.yaml"
    ).read_bytes()
    check = "import ftlaunch.spec.parsing.rule_parser as r; print(r.__file__, len(r.builtin()))"
    done = subprocess.run([sys.executable, "-c", check], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
                          check=True, capture_output=True, text=True)  # fmt: skip
    parser = tmp_path / "ftlaunch" / "spec" / "parsing" / "rule_parser.py"
    assert done.stdout.split() == [str(parser), str(len(builtin()))]
