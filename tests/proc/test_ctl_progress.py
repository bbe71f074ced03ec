"""How far long work has come: a bar in a terminal, lines in a pipe, and nothing that is in the way."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.checkpoints import commit
from tests.support.leftovers import mark
from tests.support.terminals import Terminal

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.private_dir import make_private
from ftlaunch_contract.protocol import memory_root

pytestmark = pytest.mark.long


# ten pieces; the bar is drawn ten times a second, so that the last stays on the screen until a line is read
WORK = """
import sys
from ftlaunch.cli.terminal.progress import progress
from ftlaunch_contract import progress as lines
lines.FIRST_SECONDS = lines.INTERVAL_SECONDS = 0.0
with progress("verifying [step] 7\\x1b", 10 << 20) as advance:
    for _ in range(5):
        advance(1 << 20)
    if len(sys.argv) > 1:
        sys.stdin.readline()
    advance(5 << 20)
print("over")
"""


def test_a_terminal_shows_a_bar_that_goes_away() -> None:
    with Terminal([sys.executable, "-c", WORK, "wait"], 24, 80) as terminal:
        shown = terminal.wait_for("5.0 of 10.0 MiB, ")
        assert "MiB/s" in shown
        assert "MB" not in shown, "one unit"
        assert "verifying [step] 7\\x1b" in shown
        terminal.type("\x04")  # the end of its input, which the terminal does not echo
        assert "verifying" not in terminal.wait_for("over")


def test_counted_work_has_a_rate_and_a_time(tmp_path: Path) -> None:
    counted = WORK.replace("10 << 20)", '10, "kills")').replace("1 << 20", "1").replace("5 << 20", "5")
    with Terminal([sys.executable, "-c", counted, "wait"], 24, 80) as terminal:
        shown = terminal.wait_for("5 of 10 kills, ")
        assert " kills/s, " in shown
        assert " s left" in shown
        terminal.type("\x04")  # the end of its input, which the terminal does not echo
        terminal.wait_for("over")


@pytest.mark.parametrize("columns", [20, 5])
def test_a_narrow_terminal_is_no_error(columns: int) -> None:
    with Terminal([sys.executable, "-c", WORK], 10, columns) as terminal:
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text


def run(*argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, text=True, timeout=60, check=False, **{"capture_output": True, **more})  # type: ignore[call-overload, no-any-return]


def test_a_pipe_gets_lines_on_standard_error_only() -> None:
    done = run(sys.executable, "-c", WORK)
    assert (done.returncode, done.stdout) == (0, "over\n")
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("verifying [step] 7\\x1b: 1.0 of 10.0 MiB, ")
    assert last.startswith("verifying [step] 7\\x1b: 10.0 MiB in 0 s, ")


def test_a_dumb_terminal_gets_lines_too() -> None:
    master, slave = pty.openpty()
    done = run(sys.executable, "-c", WORK, capture_output=False, stdout=slave, stderr=slave,
               env={**os.environ, "TERM": "dumb"})  # fmt: skip
    os.close(slave)
    text = os.read(master, 1 << 16).decode()
    os.close(master)
    assert done.returncode == 0
    assert "5.0 of 10.0 MiB" in text
    assert "\x1b[" not in text


def test_closed_output_is_no_error(tmp_path: Path) -> None:
    commit(tmp_path, 5)
    verify = f'"{sys.executable}" -m ftlaunch.cli.ctl checkpoints "{tmp_path}/checkpoints" verify'
    assert run("bash", "-c", f"{verify} 2>&-").returncode == 0
    assert "Traceback" not in run("bash", "-c", f"{verify} >&-").stderr


def at_once(*words: str) -> subprocess.CompletedProcess[str]:
    """ftctl, which says from the first moment on how far it is."""
    code = (
        "import sys\nfrom ftlaunch_contract import progress\n"
        "progress.FIRST_SECONDS = progress.INTERVAL_SECONDS = 0.0\n"
        "from ftlaunch.cli import ctl\nctl.main(sys.argv[1:])\n"
    )
    return run(sys.executable, "-c", code, *words)


def test_verify_says_how_far_it_is(tmp_path: Path) -> None:
    """Each checkpoint has a total of its own: all of its bytes are counted, once."""
    commit(tmp_path, 5, size=1 << 20)
    done = at_once("checkpoints", str(tmp_path / "checkpoints"), "verify", "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[-2].startswith("verifying step 5: 4.0 of 4.0 MiB, ")
    assert lines[-1].startswith("verifying step 5: 4.0 MiB in ")
    assert '"verified": true' in done.stdout


def test_prune_says_how_far_it_is(tmp_path: Path) -> None:
    """What it keeps is verified before anything is deleted."""
    for step in (5, 6):
        commit(tmp_path, step, size=1 << 20)
    done = at_once("checkpoints", str(tmp_path / "checkpoints"), "prune", "--keep", "1")
    assert done.returncode == 0, done.stderr
    assert "verifying step 6: 4.0 of 4.0 MiB, " in done.stderr
    assert "6" in done.stdout


def test_clean_says_how_far_it_is(tmp_path: Path) -> None:
    """Of a job of which only memory is left; the bytes of its snapshots are counted."""
    job_id = f"test-{mark()}-clean"
    memory = memory_root(os.getuid()) / job_id
    make_private(memory)
    try:
        slot = layout.slot_dir(memory, 0, 0)
        slot.mkdir()
        (slot / layout.COMMON).write_bytes(bytes(1 << 20))
        done = at_once("clean", job_id)
        assert done.returncode == 0, done.stderr
        assert f"removing {job_id}: 1.0 of 1.0 MiB" in done.stderr
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    assert not memory.exists()


def test_the_saver_says_how_far_its_verifying_is(tmp_path: Path) -> None:
    """On the terminal of the job, from which its find is waited for."""
    commit(tmp_path, 5, size=1 << 20)
    code = (
        "import sys\nfrom ftlaunch_contract import progress\n"
        "progress.FIRST_SECONDS = progress.INTERVAL_SECONDS = 0.0\n"
        "from ftlaunch.checkpoints import saver\nprint(saver.find({'checkpoint_dir': sys.argv[1]})['step'])\n"
    )
    done = run(sys.executable, "-c", code, str(tmp_path / "checkpoints"))
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    said = f"ftlaunch: verifying checkpoints in {tmp_path / 'checkpoints'}: "
    assert f"{said}4.0 of 4.0 MiB, " in done.stderr
    assert f"{said}4.0 MiB in " in done.stderr
