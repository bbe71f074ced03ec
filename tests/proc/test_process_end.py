"""The end of a process of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LEAVES = """\
import sys
from ftlaunch.system.process_end import leave
sys.stdout.write("the last line")
leave(7)
"""
AT_EXIT = "import atexit; atexit.register(print, 'Python ends by itself')\n"


def test_what_was_printed_is_written_and_pythons_own_end_is_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT + LEAVES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "the last line", "")


def test_lines_that_cannot_be_written_are_not_lost_without_a_word() -> None:
    """Taken out, where it raises: a head goes on as what it was forked from, an agent's starter of heads."""
    script = LEAVES.replace("leave(7)", "try:\n    leave(7)\nfinally:\n    print('came back', file=sys.stderr)")
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 120, "Python's exit code for it"
    assert done.stderr == "ftlaunch: cannot write what was printed: No space left on device\n"


def test_it_may_have_been_started_without_an_output() -> None:
    script = "import sys; from ftlaunch.system.process_end import leave; leave(7)"
    done = subprocess.run(["sh", "-c", f"exec {sys.executable} -c '{script}' >&-"], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (7, b"")
