"""The supervisor stays small: nothing of it loads torch, or what only ranks need."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ["cli", "runner", "ctl", "saver", "notifier", "webhook", "checking", "check_disk"]


@pytest.mark.parametrize("module", MODULES)
def test_importing_loads_no_torch(module: str) -> None:
    code = (
        f"import sys, ftlaunch.{module}\n"
        "print(*sorted({'torch', 'numpy', 'safetensors', 'ftlaunch_hooks.job.job'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
