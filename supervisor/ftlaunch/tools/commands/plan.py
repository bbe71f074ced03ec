"""The command `ftctl plan`: computes how often to save, and which share of the time will be training.

The module turns options into figures, and prints the plan; `tools.planner` computes the plan. Nothing runs a job.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import click

from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.durations import parse_duration
from ftlaunch.common.rates import parse_rate, parse_size
from ftlaunch.history import goodput, runs, timeline
from ftlaunch.policy.restart_policy import Backoff
from ftlaunch.spec.keys import default
from ftlaunch.tools.planner import figures as known
from ftlaunch.tools.planner import view
from ftlaunch.tools.planner.figures import DAY, Figures, complete, from_run, nodes_of
from ftlaunch.tools.planner.plan import plan as make_plan
from ftlaunch.tools.planner.simulation import Scene, lives

_DEFAULT_DAYS = 30.0  # length of a simulated run
_MAX_FAULTS = 1e6  # drawn faults of a simulation, which takes about a minute
_GIVEN = "given"


def _parsed(parse: Callable[[str], float], example: str) -> Any:
    def read(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write {example}") from None

    return read


def _number(least: float, most: float) -> Any:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not least <= number <= most:  # also refuses nan
            raise ValueError(f"{text!r} is not between {least:g} and {most:g}")
        return number

    return _parsed(parse, f"a number from {least:g} to {most:g}")


_SECONDS: dict[str, Any] = {"callback": _parsed(parse_duration, "90s or 5m"), "metavar": "DURATION"}
_RATE: dict[str, Any] = {"callback": _parsed(parse_rate, "20GB/s"), "metavar": "RATE"}
_SHARE: dict[str, Any] = {"callback": _number(0.0, 1.0), "metavar": "SHARE"}
_AMOUNT: dict[str, Any] = {"callback": _number(1e-9, 1e15), "metavar": "NUMBER"}
_DAYS_OPTION: dict[str, Any] = {"callback": _number(1e-3, 36500.0), "metavar": "NUMBER"}


@click.command(short_help="Plan intervals and restarts for a job of any size.")
@click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs of the job")
@click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs of one node [default: 8]")
@click.option("--mtbf-hours", **_AMOUNT,
              help="hours of one GPU to a failure of any kind (of the whole job it is so many times less)"
              " [default: 50677, as published of Llama 3]")  # fmt: skip
@click.option("--failures", type=click.IntRange(1), help="instead: so many failures, in --days, on --observed-gpus")
@click.option("--stops", type=click.IntRange(0), help="planned stops in --days [default: 0]")
@click.option("--days", **_DAYS_OPTION, help="days of --failures and --stops, and of a simulated run [default: 30]")
@click.option("--observed-gpus", type=click.IntRange(1), help="GPUs that --failures were seen on [default: --gpus]")
@click.option("--share-of-node-loss", **_SHARE,
              help="share of failures, hangs aside, that take the node's memory along [default: 0.78]")  # fmt: skip
@click.option("--share-of-hangs", **_SHARE, help="share of failures that are hangs [default: 0.017]")
@click.option("--step-seconds", **_SECONDS, help="a training step [default: 5]")
@click.option("--state-size", "state", callback=_parsed(parse_size, "2TiB"), metavar="SIZE",
              help="a checkpoint of the whole job")  # fmt: skip
@click.option("--storage-bandwidth", "bandwidth", **_RATE, help="how fast all nodes together write to storage")
@click.option("--load-bandwidth", **_RATE, help="how fast they read [default: as they write]")
@click.option("--detect-seconds", **_SECONDS,
              help=f"failure to reaction [default: {known.NODE_DETECT * 1000:g} ms on one node,"
              f" else {known.FLEET_DETECT:g} s]")  # fmt: skip
@click.option("--hang-detect-seconds", **_SECONDS, help=f"the same of a hang [default: {known.HANG_DETECT:g} s]")
@click.option("--restart-seconds", **_SECONDS,
              help=f"reaction to training again, without loading [default: {known.NODE_RESTART:g} s on one node,"
              f" else {known.FLEET_RESTART:g} s]")  # fmt: skip
@click.option("--replace-seconds", **_SECONDS, help=f"so much more where a node is lost [default: {known.REPLACE:g} s]")
@click.option("--stall-per-snapshot", **_SECONDS,
              help="training waits for one [default: 13.4 ms a GiB of a GPU's state, at least 0.8 ms]")  # fmt: skip
@click.option("--stall-per-checkpoint", **_SECONDS, help="and so much more for a checkpoint [default: the same]")
@click.option("--memory/--no-memory", default=True, show_default=True, help="whether there are snapshots in memory")
@click.option("--copies", is_flag=True, help="every snapshot is copied to another node (--peer-interval)")
@click.option("--network-bandwidth", **_RATE,
              help=f"how fast one node sends to another [default: {known.NETWORK / 1e9:g}GB/s]")  # fmt: skip
@click.option("--copy-slowdown", **_SHARE,
              help="training is slower by so much while a copy is sent"
              f" [default: {known.COPY_SLOWDOWN:g}]")  # fmt: skip
@click.option(
    "--run",
    "run_name",
    metavar="RUN",
    shell_complete=complete_run,
    help="take what is not given from this run dir or job, as measured",
)
@click.option("--simulate", "count", type=click.IntRange(0), default=0, metavar="RUNS",
              help="also simulate so many runs, by the real state machine and policy")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="of the simulation")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def plan(run_name: str | None, count: int, seed: int, as_json: bool, **options: Any) -> int:
    """Compute the best snapshot and storage intervals, the expected effective training time, and where the rest goes.

    Every figure is printed with where it comes from: given, measured, published or assumed.
    """
    memory = options["memory"]
    copies = options["copies"]
    if copies and not memory:
        raise click.UsageError("--copies and --no-memory exclude each other")
    figures = _figures(options, run_name)
    if copies and nodes_of(figures) == 1:
        raise click.UsageError("--copies is for jobs of several nodes: this one has one (--gpus, --gpus-per-node)")
    made = make_plan(figures, memory=memory, copies=copies)
    backoff = Backoff(default("backoff_first"), default("backoff_max"))
    scene = Scene(
        job=made.job,
        intervals=made.chosen,
        seconds=(options["days"] or _DEFAULT_DAYS) * DAY,
        limits=made.limits,
        backoff=backoff,
    )
    faults = count * scene.seconds * (made.job.rate + made.job.stops)
    if faults > _MAX_FAULTS:
        raise click.UsageError(f"--simulate {count} would draw {faults:.2g} faults, {_MAX_FAULTS:.0e} are allowed: "
                               "take fewer runs or --days")  # fmt: skip
    drawn = list(lives(scene, random.Random(seed).random, count))  # noqa: S311 - a simulation
    click.echo(json.dumps(view.data(made, drawn), indent=1) if as_json else "\n".join(view.lines(made, drawn)))
    return 0


def _figures(options: dict[str, Any], run_name: str | None) -> Figures:
    """Collect the figures: from options, then from a run's measurements, then from defaults.

    Args:
        options: values of the command's options, by name.
        run_name: the run to take measurements from, or None.

    Raises:
        click.UsageError: options contradict each other, or a figure without a default is missing.
    """
    figures = Figures()
    figures.add("gpus", options["gpus"], _GIVEN)
    _add_rates(figures, options)
    for option, name in (
        ("gpus_per_node", "gpus_per_node"),
        ("share_of_node_loss", "share_of_node_loss"), ("share_of_hangs", "share_of_hangs"),
        ("step_seconds", "step_seconds"), ("state", "state_bytes"), ("bandwidth", "storage_bytes_per_second"),
        ("load_bandwidth", "load_bytes_per_second"), ("detect_seconds", "detect_seconds"),
        ("hang_detect_seconds", "hang_detect_seconds"), ("restart_seconds", "restart_seconds"),
        ("replace_seconds", "replace_seconds"), ("stall_per_snapshot", "snapshot_stall_seconds"),
        ("stall_per_checkpoint", "checkpoint_stall_seconds"), ("network_bandwidth", "network_bytes_per_second"),
        ("copy_slowdown", "copy_slowdown"),
    ):  # fmt: skip
        if options[option] is not None:
            figures.add(name, options[option], _GIVEN)
    if run_name is not None:
        line = timeline.moments(runs.find(run_name).events)
        from_run(figures, name=run_name, story=goodput.build_story(line), moments=line)
    for name, option in (("state_bytes", "--state-size"), ("storage_bytes_per_second", "--storage-bandwidth")):
        if name not in figures:
            run = "" if run_name is None else f": {run_name} has committed no checkpoint"
            raise click.UsageError(f"it takes {option}, or a --run that has measured it{run}")
    if figures.known.get("step_seconds") is not None and figures["step_seconds"] <= 0:
        raise click.UsageError("--step-seconds must be more than 0")
    complete(figures)
    return figures


def _add_rates(figures: Figures, options: dict[str, Any]) -> None:
    """Add the rates of failures and of planned stops, if options give them.

    Raises:
        click.UsageError: options contradict each other.
    """
    hours = options["mtbf_hours"]
    failures = options["failures"]
    days = options["days"]
    if hours is not None and failures is not None:
        raise click.UsageError("--mtbf-hours and --failures exclude each other")
    if options["observed_gpus"] is not None and failures is None:
        raise click.UsageError("--observed-gpus goes with --failures")
    if days is None and (failures is not None or options["stops"]):
        raise click.UsageError("--failures and --stops go with --days")
    if hours is not None:
        figures.add("gpu_hours_per_failure", hours, _GIVEN)
    if failures is not None:
        seen = options["observed_gpus"] or options["gpus"]
        source = f"{_GIVEN}: {failures} failures of {seen} GPUs in {days:g} days"
        figures.add("gpu_hours_per_failure", seen * days * 24 / failures, source)
    if options["stops"] is not None:
        stops = options["stops"]
        figures.add("planned_stops_per_day", stops / days if stops else 0.0, f"{_GIVEN}: {stops} in {days or 0:g} days")
