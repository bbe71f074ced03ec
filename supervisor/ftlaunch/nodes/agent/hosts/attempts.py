"""What the end of a host's session means, and when its agent is started again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_STOPPED, EXIT_USAGE

SSH_FAILED = 255
"""what ssh ends with where it could not connect, or has lost the connection"""
_SHELL_SIGNAL = 128  # plus the number of a signal
_FIRST_WAIT, _LONGEST_WAIT = 5.0, 60.0  # seconds before the agent of a host is started again


def was_lost(code: int) -> bool:
    """Whether an agent did not end by itself: no connection, or a signal that it cannot answer."""
    return code == SSH_FAILED or code < 0 or (code > _SHELL_SIGNAL and code != EXIT_STOPPED)


def wait_before(tries: int) -> float:
    """Seconds before the next try, after so many in a row that did not reach the host."""
    return float(min(_FIRST_WAIT * 2 ** min(tries - 1, 10), _LONGEST_WAIT))


def job_code(ended: Sequence[int], reached: bool, stopped: bool) -> int:
    """The exit code of the job. ended: the codes of agents that ended by themselves, in that order.

    The last one counts: agents that end before the job does were drained or refused. reached: whether any host was.
    stopped: by a signal to the command.
    """
    if ended:
        return ended[-1]
    if stopped and not reached:
        return EXIT_STOPPED
    return EXIT_GIVEN_UP if reached else EXIT_USAGE
