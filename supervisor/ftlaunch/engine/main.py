"""Runs one job to its end: places, terminal and signals around the supervisor, and the exit code."""

from __future__ import annotations

import errno

from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.engine.workspace import Unusable, Workspace
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.policy.states import JobState
from ftlaunch.reporting import messages
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import processes
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.signals import Signals
from ftlaunch_contract import protocol

# what a start of a process or a thread fails with where a limit is reached, and what is said then
_SHORT = (errno.EAGAIN, errno.ENOMEM)


_PROCESSES = "; the limit on processes (`ulimit -u`, or pids of the container) or memory is reached"


def run(spec: JobSpec) -> int:
    """Keep one job alive until it is over; returns the exit code (0, 1, 75 or 143). Raises Unusable."""
    processes.become_subreaper()
    try:
        terminal = Terminal()
    except RuntimeError as error:
        raise Unusable(f"cannot start: {error}{_PROCESSES}") from error
    try:
        with Signals(spec.launch.stop_signals) as signals:
            return _run(spec, terminal, signals)
    finally:
        terminal.close()


def _run(spec: JobSpec, terminal: Terminal, signals: Signals) -> int:
    home = Workspace(spec, lambda line: terminal.say(messages.PREFIX + line))
    helpers = HelperProcesses()
    reporter = Reporter(spec, home, terminal, helpers)
    try:
        runner = Supervisor(spec, home, reporter, signals, helpers)
    except OSError as error:
        hint = _PROCESSES if error.errno in _SHORT else ""
        refusal = Unusable(f"cannot start: {error.filename or 'the saver'}: {error.strerror}{hint}")
        reporter.log("job_failed", code=protocol.EXIT_USAGE, cause=None, sentence=str(refusal))
        reporter.farewell()
        home.leave(keep_memory=home.pages.newest_common() != NONE)
        raise refusal from error
    state = runner.run()
    runner.close()
    code = _exit_code(state, runner.saving.committed)
    reporter.ended(runner, code)
    reporter.farewell()
    home.leave(keep_memory=bool(runner.last_save.error))
    return code


def _exit_code(state: JobState, committed: int) -> int:
    if state is JobState.DONE:
        return protocol.EXIT_DONE
    if state is JobState.FAILED:
        return protocol.EXIT_GIVEN_UP
    return protocol.EXIT_STOPPED if committed == NONE else protocol.EXIT_SAVED
