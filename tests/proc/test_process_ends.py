"""Causes told from what real processes leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ftlaunch.policy.failure_diagnosis import Evidence, classify
from ftlaunch.spec.parsing.rule_parser import builtin


def left_by(source: str, tmp_path: Path) -> Evidence:
    """What a real process that runs `source` leaves behind."""
    script = tmp_path / "train.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Evidence(rank=0, returncode=done.returncode, log_tail=done.stdout, step=5, seen=0, error_file=None, order=0)


@pytest.mark.parametrize(
    ("source", "kind", "sentence", "trace_has"),
    [
        ("print('step 5')\ndef f():\n    raise ValueError('bad batch 17')\nf()\n", "exception",
         "rank 0 failed with ValueError: bad batch 17 after step 5", "in f"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x')\n", "exception",
         "failed with KeyError: 'x'", "KeyError"),
        ("raise RuntimeError('CUDA error: out of memory\\n  Compile with X to see more.')\n", "gpu-memory",
         "failed with RuntimeError: CUDA error: out of memory", "Compile with X"),
        ("import no_such_module_here\n", "exception", "failed with ModuleNotFoundError: No module named", "import"),
        ("def f(:\n", "exception", "failed with SyntaxError: invalid syntax", "def f(:"),
        ("if 1:\npass\n", "exception", "failed with IndentationError: expected an indented block", "pass"),
        ("import sys; sys.exit(3)\n", "exit", "rank 0 exited with code 3 after step 5", ""),
        ("import sys; sys.exit('no data')\n", "exit", "rank 0 exited with code 1", ""),
        ("print('done')\n", "left-early", "left with exit code 0 before its training loop was over", ""),
        ("import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)\n", "signal",
         "rank 0 crashed with SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("import ctypes; ctypes.string_at(0)\n", "signal", "rank 0 crashed with SIGSEGV", ""),
        ("import os; os.abort()\n", "signal", "SIGABRT", ""),
        ("import os; os.kill(os.getpid(), 9)\n", "killed", "killed by SIGKILL", ""),
        ("import os; os.kill(os.getpid(), 15)\n", "preempted", "rank 0 was ended by SIGTERM", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN)\n", "signal", "ended by signal 34", ""),
        ("import socket as s\na, b = s.socket(), s.socket()\na.bind(('127.0.0.1', 0)); a.listen()\n"
         "b.bind(a.getsockname())\n", "port", "OSError: [Errno 98] Address already in use", "b.bind"),
    ],
)  # fmt: skip
def test_ends_of_real_processes(source: str, kind: str, sentence: str, trace_has: str, tmp_path: Path) -> None:
    cause = classify(left_by(source, tmp_path), builtin())
    assert cause.kind == kind
    assert sentence in cause.sentence
    assert trace_has in cause.trace
    assert bool(trace_has) == bool(cause.trace)
