"""A dump that faulthandler really wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ftlaunch.autopsy.stacks import main_lines, main_thread, threads

DUMP = """\
import faulthandler, sys, threading
entered, over = threading.Event(), threading.Event()
def helper():
    entered.set()
    over.wait()
other = threading.Thread(target=helper)
other.start()
entered.wait()
def train():
    faulthandler.dump_traceback(all_threads=True)
train()
over.set()
"""


def test_a_real_dump(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DUMP)
    text = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stderr
    main = main_thread("some output\n" + text)
    assert main is not None
    assert [(frame.line, frame.function) for frame in main.frames] == [(10, "train"), (11, "<module>")]
    assert str(main.own) == "train.py:10 (in train)"
    helper = threads(text)[0]
    assert helper.wait == "lock"
    assert str(helper.own) == "train.py:5 (in helper)"
    assert main_lines(text)[0] == f'File "{script}", line 10 in train'
