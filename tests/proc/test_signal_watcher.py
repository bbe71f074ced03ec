"""SIGTERM to a child that a rank has just forked is none to the rank."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, threading
from ftlaunch_hooks.process.signal_watcher import Watcher

def kill_the_child():
    if forks:
        os.kill(os.getpid(), signal.SIGTERM)

forks, told, mask = [], threading.Event(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
os.register_at_fork(after_in_child=kill_the_child)  # runs before the watcher's own, as hooks of a child run in order
watcher = Watcher(lambda signum: told.set(), lambda: None)

def forked():
    forks.append(True)
    child = os.fork()
    if child == 0:
        signal.pause()
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("as before", signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask)

forked()
thread = threading.Thread(target=forked)
thread.start()
thread.join()
watcher.catch_up()
print("told of the child's", told.is_set())
os.kill(os.getpid(), signal.SIGTERM)
print("told of its own", told.wait(60))
watcher.close()
"""


def test_sigterm_to_a_child_at_its_very_beginning() -> None:
    """A SIGTERM to a forked child does not wake the rank's watcher.

    Taken out: unless the signal is blocked while a rank forks, the child's handler writes to the rank's watcher.
    """
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "child -15",
        "as before True",
        "child -15",
        "as before True",
        "told of the child's False",
        "told of its own True",
    ], done.stderr
