"""The command `ftctl systemd`: writes the systemd unit of a job to stdout, and installs nothing."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import click

from ftlaunch import __version__
from ftlaunch.cli.parameters import BadSpec
from ftlaunch.common.suggestions import did_you_mean
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.resolve import is_spec_file, resolve
from ftlaunch.system.systemd import STOP_COMMAND
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

_MAX_SAVE_SECONDS = 600.0  # time for the last checkpoint, on top of the grace
_MIN_WATCHDOG_SECONDS = 60.0

_UNIT = """\
# Written by `ftctl systemd` of ftlaunch {version}. {where}
[Unit]
Description=ftlaunch job {job_id}
Wants=network-online.target
After=network-online.target
# five starts an hour, then systemd gives up
StartLimitIntervalSec=1h
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
{user}WorkingDirectory={folder}
ExecStart={command}
# lines have priorities there: `journalctl {manager}-u {unit} -p err` shows failures
StandardOutput=journal
SyslogIdentifier=ftlaunch
# what `ftctl stop` tells: after a stop of its own the job would be started again
Environment="{stop_variable}=systemctl {manager}stop %n"
# ready once the ranks run: those of several nodes wait for each other
TimeoutStartSec=infinity
# a supervisor whose loop is stuck is killed, and started again
WatchdogSec={watchdog}
# {saved}, {stopped}: stopped on request, or this machine is taken away. `systemctl stop` never starts it again
SuccessExitStatus={saved} {stopped}
Restart=on-failure
RestartSec=10
RestartForceExitStatus={saved} {stopped}
# {given_up}: given up; {usage}: the spec is wrong. Both would come again
RestartPreventExitStatus={given_up} {usage}
# SIGTERM to the supervisor only: it has the ranks save their step. SIGKILL to all that is left
KillMode=mixed
# the grace of the job, and {save:.0f} s for its last checkpoint
TimeoutStopSec={stop}
# a rank that the kernel kills for lack of memory is an incident of the job, not the end of the service
OOMPolicy=continue
TasksMax=infinity

[Install]
WantedBy={target}
"""


def _job_spec(_context: click.Context, _param: click.Parameter, name: str) -> str:
    """Check that an argument names an existing job spec; a click callback.

    Raises:
        BadSpec: there is no such file, or the file is no job spec.
    """
    path = Path(name)
    if not path.exists():
        there = [str(path.with_name(spec.name)) for spec in path.parent.glob("*") if is_spec_file(spec.name)]
        raise BadSpec(f"cannot write a unit: there is no {name}{did_you_mean(name, sorted(there))}")
    if not is_spec_file(name):
        raise BadSpec(f"cannot write a unit of {name}: it is no job spec; write a job.yaml with `script: {name}` and"
                      " the options, and name that")  # fmt: skip
    return name


@click.command(short_help="Write the systemd unit of a job.")
@click.argument("spec", metavar="JOB.yaml", type=click.Path(dir_okay=False), callback=_job_spec)
@click.option("--user", "name", metavar="NAME", help="a unit of the system that runs as this user [default: a unit of "
              "your own, for `systemctl --user`]")  # fmt: skip
def systemd(spec: str, name: str | None) -> int:
    """Write the systemd unit of a job to stdout.

    The job runs in this folder, by the Python that runs this command.
    """
    try:
        job = resolve(spec, (), {}, os.environ)
    except SpecError as error:
        raise BadSpec(str(error)) from None
    if name is not None and not name.replace("-", "").replace("_", "").isalnum():
        raise click.BadParameter(f"{name!r} is no name of a user", param_hint="'--user'")
    click.echo(unit_of(job, spec=Path(spec).absolute(), folder=Path.cwd(), user=name), nl=False)
    return 0


def unit_of(job: JobSpec, spec: Path, folder: Path, user: str | None) -> str:
    """Return the text of a unit.

    Args:
        job: the job.
        spec: absolute path of the job spec.
        folder: working directory of the job.
        user: the user that a system unit runs as; None for a unit of `systemctl --user`.

    Raises:
        BadSpec: a path or name has characters that no line of a unit can hold.
    """
    unit = f"ftlaunch-{job.job_id}.service"
    return _UNIT.format(
        version=__version__,
        where=f"It belongs into /etc/systemd/system/{unit}"
        if user
        else f"It belongs into ~/.config/systemd/user/{unit}",
        job_id=_literal(job.job_id),
        unit=unit,
        stop_variable=STOP_COMMAND,
        manager="" if user else "--user ",
        user="" if user is None else f"User={user}\n",
        folder=_literal(str(folder)),
        command=" ".join(map(_word, (sys.executable, "-m", "ftlaunch", str(spec)))),
        watchdog=math.ceil(max(_MIN_WATCHDOG_SECONDS, 2 * job.grace)),
        saved=EXIT_SAVED,
        stopped=EXIT_STOPPED,
        given_up=" ".join(map(str, sorted({EXIT_GIVEN_UP, job.restarts.no_requeue_code}))),
        usage=EXIT_USAGE,
        save=_MAX_SAVE_SECONDS,
        stop=math.ceil(job.grace + _MAX_SAVE_SECONDS),
        target="default.target" if user is None else "multi-user.target",
    )


def _literal(text: str) -> str:
    """Escape systemd's specifiers in a text.

    Raises:
        BadSpec: the text has characters that no line of a unit can hold.
    """
    if not text.isprintable():
        raise BadSpec(f"cannot write a unit: {text!r} has characters that no line of a unit can hold")
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """Quote a word of a command line for a unit."""
    escaped = _literal(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
