"""A torchtitan whose checkpointer cannot be replaced by its config is refused with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_a_version_of_before_is_refused(tmp_path: Path) -> None:
    """It has its checkpointer in another module, as torchtitan 0.2 has."""
    components = tmp_path / "torchtitan" / "components"
    components.mkdir(parents=True)
    for name in ("__init__.py", "components/__init__.py", "components/checkpoint.py"):
        (tmp_path / "torchtitan" / name).touch()
    (tmp_path / "torchtitan-0.2.0.dist-info").mkdir()
    (tmp_path / "torchtitan-0.2.0.dist-info/METADATA").write_text("Name: torchtitan\nVersion: 0.2.0\n")
    command = [sys.executable, "-c", "import ftlaunch_hooks as ft; ft.torchtitan.CheckpointManager"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    said = "cannot keep this training: torchtitan 0.2.0 has no module torchtitan.components.checkpointer, which"
    assert said in done.stderr, done.stderr
