"""Decides what the end of a host's ssh session means, and when its agent is started again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_STOPPED, EXIT_USAGE

SSH_FAILED = 255
"""the exit code of ssh when it could not connect, or has lost the connection"""
_SHELL_SIGNAL = 128  # a shell's exit code for a killed process, without the number of the signal
_FIRST_WAIT_SECONDS = 5.0  # before the agent of a host is restarted; doubled each time up to _LONGEST_WAIT_SECONDS
_LONGEST_WAIT_SECONDS = 60.0


def was_lost(code: int) -> bool:
    """Return whether the exit code means that the connection was lost or the agent was killed."""
    return code == SSH_FAILED or code < 0 or (code > _SHELL_SIGNAL and code != EXIT_STOPPED)


def compute_wait_seconds(tries: int) -> float:
    """Return the seconds to wait before the next try, after `tries` in a row that did not reach the host."""
    return float(min(_FIRST_WAIT_SECONDS * 2 ** min(tries - 1, 10), _LONGEST_WAIT_SECONDS))


def choose_job_code(ended: Sequence[int], reached: bool, stopped: bool) -> int:
    """Return the exit code of the job.

    Args:
        ended: the exit codes of agents that ended by themselves, in the order of their ends. The last code counts,
            because agents that end before the job were drained or refused.
        reached: whether any host was reached.
        stopped: whether a signal has told this command to stop.
    """
    if ended:
        return ended[-1]
    if stopped and not reached:
        return EXIT_STOPPED
    return EXIT_GIVEN_UP if reached else EXIT_USAGE
