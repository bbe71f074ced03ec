"""A node's own check keeps the node out, or lets it have ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

from ftlaunch.system.processes import children
from ftlaunch.tools.preflight.node_check import why_unfit


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("true", ""),
        ("echo all is well; exit 0", ""),
        ("echo GPU 3 is lost; echo; exit 3", "it ends with exit code 3: GPU 3 is lost"),
        ("echo first >&2; printf 'bell \\a' >&2; exit 1", "it ends with exit code 1: bell \\x07"),
        ("exit 4", "it ends with exit code 4"),
        ("kill -TERM $$", "it was killed by SIGTERM"),
        ("/no/such/program", "it ends with exit code 127: /bin/sh: 1: /no/such/program: not found"),
        ("yes | head -c 10000000; echo; echo end; exit 1", "it ends with exit code 1: end"),
    ],
)
def test_the_exit_code_decides_and_the_last_line_says_why(command: str, why: str) -> None:
    assert why_unfit(command, 60.0, os.environ) == why


def test_a_check_that_does_not_end_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    assert why_unfit(f"sleep 1000 & echo $! > {noted}; wait", 1.0, os.environ) == "it gives no answer within 1s"
    assert int(noted.read_text()) not in children(os.getpid())
    wait_for(lambda: not Path(f"/proc/{int(noted.read_text())}").exists(), "the end of what the check had started")


def test_what_the_check_leaves_behind_is_not_waited_for() -> None:
    assert why_unfit("sleep 5 & exit 0", 60.0, os.environ) == ""


def test_a_node_that_is_not_fit_gets_no_ranks(job: FtJob) -> None:
    """Taken out: the job trained on a node whose check had failed."""
    script = job.home / "train.py"
    script.write_text("from pathlib import Path; Path('trained').touch()")
    unfit = ("--node-check", 'echo $FLAW on $HOSTNAME_OF_TEST; test -z "$FLAW"', "--no-warm")
    job.start(*unfit, script=script, args=(), ranks=1, env={"FLAW": "ECC errors", "HOSTNAME_OF_TEST": "node7"})
    assert job.wait() == 75
    assert "this node gets no ranks: its check (`echo $FLAW" in job.stderr
    assert "): it ends with exit code 1: ECC errors on node7" in job.stderr
    assert not (job.home / "trained").exists()
    assert not job.run_dir.exists()
    job.start(*unfit, script=script, args=(), ranks=1, env={"FLAW": ""})
    assert job.wait() == 0, job.stderr
    assert (job.home / "trained").exists()
