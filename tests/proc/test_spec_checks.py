"""Checks of a spec that need a process without root's rights."""

from __future__ import annotations

import subprocess
import sys


def test_a_folder_that_may_not_be_written_to() -> None:
    # In a child that gives up root's rights: to root, who runs tests in containers, nothing is forbidden.
    code = "import os; from pathlib import Path; from ftlaunch.spec.checks import why_not_writable\n"
    code += "if os.getuid() == 0: os.setuid(65534)\n"
    code += "print(why_not_writable(Path('/usr/x/y')))"
    answer = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert answer == "no permission to write in /usr\n"
