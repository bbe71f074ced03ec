"""The last lines of jobs."""

from __future__ import annotations

from pathlib import Path

from ftlaunch.reporting import messages


def test_a_step_that_stays_in_memory_is_looked_for_where_it_is() -> None:
    """The memory of a job of several nodes is that of its agents; the head's own directory has nothing in it."""
    assert messages.unsaved(3, "the disk is full", Path("/memory")) == (
        "the last snapshot, of step 3, could not be saved: the disk is full; it stays in /memory: the same `ftlaunch`"
        " command goes on from it on this machine, until that is rebooted"
    )
    assert messages.unsaved(3, "the disk is full", None) == (
        "the last snapshot, of step 3, could not be saved: the disk is full; it stays in the memory of all nodes: the"
        " same `ftlaunch` command goes on from it on these machines, until one is rebooted"
    )
