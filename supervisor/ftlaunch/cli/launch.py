"""The command `ftlaunch`: reads the command line, resolves the job spec, runs the job, returns the exit code.

Everything here runs on the main thread of the process that becomes the supervisor. `ftlaunch_ray` calls `run_command`
with another way to start the job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
import yaml
from click.shell_completion import shell_complete

from ftlaunch.cli.options import Request, command, read_command_line
from ftlaunch.extensions import (
    CHECK_MACHINE,
    COULD_RUN,
    OPTIONS_OF_HOSTS,
    RUN_ON_HOSTS,
    RUN_ON_NODES,
    SAY_CHECKS,
    STEP_BEHIND_INIT,
    WHY_UNFIT,
    load,
)
from ftlaunch.spec.checks import missing_module
from ftlaunch.spec.errors import shown
from ftlaunch.spec.job_spec import JobSpec, SpecError, resolved
from ftlaunch.spec.keys import OPTIONS
from ftlaunch.spec.notify_targets.notify_target import check_targets
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.job_token import with_lines
from ftlaunch.system.process_end import leave
from ftlaunch.system.systemd import Priority, leads_to_journal, with_priority
from ftlaunch_contract.protocol import EXIT_BUG, EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

_STDERR = 2
COMPLETE = "_FTLAUNCH_COMPLETE"
"""environment variable that asks for completion of words; the scripts of `ftctl completion` set it"""
Begun = Callable[[], None]
"""Is called once the job has begun: its run dir is locked, and its journal holds `job_started`."""
Start = Callable[[JobSpec, Request, Mapping[str, str], Begun], int]
"""Runs the requested job with the given environment and returns its exit code. Raises SpecError."""


def main() -> NoReturn:
    """Run the job that the command line asks for, and exit with its code."""
    if (instruction := os.environ.get(COMPLETE)) is not None:
        sys.exit(
            shell_complete(command, ctx_args={}, prog_name="ftlaunch", complete_var=COMPLETE, instruction=instruction)
        )
    leave(run_command(sys.argv[1:], os.environ, start_job))


def run_command(argv: Sequence[str], environ: Mapping[str, str], start: Start, own: Sequence[click.Option] = ()) -> int:
    """Read a command line and start the job. Errors of the user become one sentence on stderr.

    Args:
        argv: the words of the command line, without the program's name.
        environ: the environment that the spec is resolved with.
        start: runs the job.
        own: options besides those of `ftlaunch`; their values are in `Request.own`.

    Returns:
        The exit code, also of a refused command line.
    """

    def read() -> int:
        request = read_command_line(argv, own)
        job_environ = with_lines(environ, sys.stdin)
        _check_word(request)
        spec = resolve(request.target, request.args, request.flags, job_environ)
        _check_targets(spec)
        _say_notes(request)
        if request.dry_run:
            return _print(spec)

        def run(begun: Begun) -> int:
            return _saying_errors(lambda: start(spec, request, job_environ, begun), spec)

        if not request.detach:
            return run(lambda: None)
        from ftlaunch.cli.terminal.detach import detach  # noqa: PLC0415 - what others need not carry along

        return detach(spec, run)

    return _saying_errors(read, None)


def _saying_errors(run: Callable[[], int], spec: JobSpec | None) -> int:
    """Call `run` and return its exit code; turn an exception into a message and an exit code.

    Args:
        run: what to call.
        spec: the job's spec, if known already; a bug's traceback goes to its run dir.
    """
    try:
        return run()
    except click.exceptions.Exit as done:
        return done.exit_code
    except SpecError as error:
        _say(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        _say("stopped by Ctrl-C")
        return EXIT_STOPPED
    except Exception as error:  # noqa: BLE001 - the last resort: whatever gets here is a bug, and is told so
        return _report_bug(error, spec)


def _check_word(request: Request) -> None:
    """Refuse a missing script that has the name of a command of `ftctl`.

    Raises:
        SpecError: the user probably meant `ftctl`.
    """
    if "." in request.target or "/" in request.target or {"module", "no_python"} & request.flags.keys():
        return
    if not Path(request.target).exists():
        from ftlaunch.cli.terminal.help import COMMANDS  # noqa: PLC0415 - as below

        if request.target in COMMANDS:
            raise SpecError(f"cannot run {request.target}: there is no such script; did you mean"
                            f" `ftctl {request.target}`?")  # fmt: skip


def _check_module(spec: JobSpec) -> None:
    """Check that the ranks' Python will find the module to run, because otherwise every attempt would fail.

    Raises:
        SpecError: the module is missing.
    """
    launch = spec.launch
    if launch.kind != "module" or launch.python != sys.executable:
        return
    if missing := missing_module(launch.target, {**os.environ, **launch.env}):
        raise SpecError(
            f"cannot run module {launch.target}: there is no module {missing} in {Path.cwd()}, on PYTHONPATH or in"
            f" {launch.python}; change into the folder that it lies in, or install it"
        )


def _check_targets(spec: JobSpec) -> None:
    """Check that the notify targets can be used; with `--hosts` each host checks its own.

    Raises:
        SpecError: a target cannot be used.
    """
    if not spec.nodes.hosts:
        check_targets(spec.notify)


def start_job(spec: JobSpec, request: Request, environ: Mapping[str, str], begun: Begun) -> int:
    """Run a job on this machine, as one node of several, or on the hosts of `--hosts`. This is a `Start`.

    Raises:
        SpecError: the job cannot run as its spec says.
    """
    if spec.nodes.hosts:  # each host makes the checks below for itself
        words = request.words(without=load(OPTIONS_OF_HOSTS))
        return int(load(RUN_ON_HOSTS)(spec, words, environ))
    _check_module(spec)
    if not _is_fit(spec, environ):
        return EXIT_SAVED
    return _run(spec, begun) if not request.check or _could_run(spec) else EXIT_GIVEN_UP


def _run(spec: JobSpec, begun: Begun) -> int:
    # Imported here so that a refused spec, --help and --dry-run answer without loading the engine.
    from ftlaunch.engine.workspace import Unusable  # noqa: PLC0415

    if spec.nodes.several:
        run: Callable[[JobSpec, Begun], int] = load(RUN_ON_NODES)
        load(STEP_BEHIND_INIT)()
    else:
        from ftlaunch.engine.main import run  # noqa: PLC0415
    try:
        return run(spec, begun)
    except Unusable as error:
        _say(str(error))
        return EXIT_USAGE


def _is_fit(spec: JobSpec, environ: Mapping[str, str]) -> bool:
    """Run the job's own node check. Return whether this node may have ranks."""
    launch = spec.launch
    if launch.node_check is None:
        return True
    why = load(WHY_UNFIT)(launch.node_check, launch.node_check_timeout, {**environ, **launch.env})
    if why:
        _say(f"this node gets no ranks: its check (`{shown(launch.node_check)}`): {why}")
    return not why


def _could_run(spec: JobSpec) -> bool:
    """Check this machine for `--check`, and print the report to stderr, because stdout belongs to the ranks.

    Returns:
        Whether the job could run here.
    """
    began = time.monotonic()
    found = load(CHECK_MACHINE)(spec)
    click.echo(load(SAY_CHECKS)(found, time.monotonic() - began), err=True)
    if load(COULD_RUN)(found):
        return True
    worst = next(check for check in found if check.status == "bad")
    _say(f"cannot start: {worst.name}: {worst.found}" + (f": {worst.advice}" if worst.advice else ""))
    return False


def _print(spec: JobSpec) -> int:
    yaml.safe_dump(resolved(spec), sys.stdout, sort_keys=False, default_flow_style=False)
    return 0


def _say_notes(request: Request) -> None:
    """Warn about options that are accepted for torchrun's sake and have no effect here."""
    for name, key in OPTIONS.items():
        if key.note and (name in request.flags or any(variable in os.environ for variable in key.env)):
            _say(f"`--{name.replace('_', '-')}` has no effect: {key.note}", Priority.WARNING)


def _report_bug(error: Exception, spec: JobSpec | None) -> int:
    """Report an unexpected exception as a bug of ftlaunch; write the traceback to the run dir, or else to stderr."""
    import traceback  # noqa: PLC0415 - slow to load, and all but never needed

    text = "".join(traceback.format_exception(error))
    where = "below"
    if spec is not None and spec.run_dir.is_dir():
        try:
            (spec.run_dir / "bug.txt").write_text(text)
            where = f"in {spec.run_dir / 'bug.txt'}"
        except OSError:
            pass  # the disk may be what failed: stderr is left
    what = f"{type(error).__name__}: {error}"
    _say(f"a bug of ftlaunch's own: {what}; please report it, with the traceback {where}")
    if where == "below":
        sys.stderr.write(text)
    return EXIT_BUG


def _say(sentence: str, priority: Priority = Priority.ERROR) -> None:
    line = f"ftlaunch: {sentence}"
    to_journal = leads_to_journal(_STDERR, os.environ)
    click.echo(with_priority(line, priority) if to_journal else line, err=True)


if __name__ == "__main__":
    main()
