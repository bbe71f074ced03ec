"""An agent tells which torch its node has, and does not import it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = """\
import sys
from ftlaunch.nodes.cluster.membership.facts import gather
from ftlaunch.spec.resolve import resolve
found = gather(resolve(sys.argv[1], (), {}, {}))
assert "torch" not in sys.modules
print(found.torch)
"""


def told(first: Path) -> str:
    """What is said of torch, where a folder is looked at before all others."""
    paths = os.pathsep.join([str(first), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", PROGRAM, __file__]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def test_the_version_of_torch_is_the_installed_one(tmp_path: Path) -> None:
    assert told(tmp_path).strip() == torch.__version__


@pytest.mark.parametrize(
    ("content", "version"),
    [
        ("__version__ = '9.1.0+cu130'\ncuda = '13.0'\n", "9.1.0+cu130"),
        ("from .other import __version__\n", ""),
        ("", ""),
    ],
)
def test_it_is_read_from_a_file_and_torch_is_not_imported(tmp_path: Path, content: str, version: str) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    if content:
        (package / "version.py").write_text(content)
    assert told(tmp_path).strip() == version
