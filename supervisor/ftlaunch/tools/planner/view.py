"""Formats a plan as text for a person, and as data for `--json`. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Any

from ftlaunch.common.durations import format_duration
from ftlaunch.common.formatting import duration, size, table
from ftlaunch.common.rates import format_rate
from ftlaunch.tools.planner.figures import DAY, Figures
from ftlaunch.tools.planner.model import Intervals
from ftlaunch.tools.planner.plan import CopiesWorth, SavingPlan
from ftlaunch.tools.planner.simulation import Life

_WIDTH = 100


def _rate(value: float) -> str:
    return format_rate(value) if value % 1e6 == 0 else f"{size(value)}/s"


_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "gpus": ("GPUs", lambda value: f"{value:.0f}"),
    "gpus_per_node": ("GPUs of a node", lambda value: f"{value:.0f}"),
    "gpu_hours_per_failure": ("hours of one GPU to a failure", lambda value: f"{value:.0f} h"),
    "share_of_node_loss": ("failures that take a node's memory", lambda value: f"{value:.1%}"),
    "share_of_hangs": ("failures that are hangs", lambda value: f"{value:.1%}"),
    "planned_stops_per_day": ("planned stops a day", lambda value: f"{value:.2f}"),
    "step_seconds": ("a step", duration),
    "state_bytes": ("state of the job", size),
    "storage_bytes_per_second": ("storage writes", _rate),
    "load_bytes_per_second": ("storage reads", _rate),
    "detect_seconds": ("failure to reaction", duration),
    "hang_detect_seconds": ("hang to reaction", duration),
    "restart_seconds": ("reaction to training again", duration),
    "replace_seconds": ("and for a node's replacement", duration),
    "snapshot_stall_seconds": ("training waits for a snapshot", duration),
    "checkpoint_stall_seconds": ("and more for a checkpoint", duration),
    "network_bytes_per_second": ("a node sends to another", _rate),
    "copy_slowdown": ("training is slower while it copies", lambda value: f"{value:.1%}"),
}
_SHARES = {
    "useful": "steps that count",
    "saving": "training waits for a snapshot or a checkpoint",
    "detecting": "failure to reaction",
    "restarting": "reaction to training again",
    "lost": "training that has to be made again",
    "stopping": "planned stops, from the request to training again",
}


def lines(plan: SavingPlan, lives: Sequence[Life]) -> list[str]:
    """Return the lines that `ftctl plan` prints. lives: simulated lives, may be empty."""
    return [*_figures(plan), "", *_intervals(plan), "", *_time_shares(plan, lives), "", *_advice(plan)]


def data(plan: SavingPlan, lives: Sequence[Life]) -> dict[str, Any]:
    """Return the plan for `--json`: times in seconds, sizes in bytes, shares between 0 and 1."""
    job = plan.job
    chosen = plan.choices[0]
    result = {
        "figures": {name: asdict(plan.figures.known[name]) for name in _FIGURES},
        "seconds_between_failures": 1 / job.rate,
        "checkpoint_write_seconds": job.write,
        "intervals": [
            {
                "method": choice.name,
                "snapshot_steps": choice.intervals.steps if plan.memory else None,
                "storage_seconds": choice.intervals.storage_seconds(job) if plan.storage_needed else None,
                "effective": choice.effective,
            }
            for choice in plan.choices
        ],
        "effective": chosen.effective,
        "shares": asdict(plan.shares),
        "max_restarts": plan.limits.restarts,
        "max_hang_restarts": plan.limits.hang_restarts,
        "options": options(plan),
    }
    if plan.worth is not None:
        result["copies_worth"] = asdict(plan.worth)
    if lives:
        result["simulated"] = _simulated(lives)
    return result


def options(plan: SavingPlan) -> str:
    """Return the options of `ftlaunch` that follow from the plan."""
    seconds = plan.chosen.storage_seconds(plan.job)
    interval = format_duration(float(math.ceil(seconds))) if plan.storage_needed else "off"
    return (
        f"--memory-interval {plan.chosen.steps if plan.memory else 0} --storage-interval {interval}"
        f"{f' --peer-interval {plan.chosen.steps}' if plan.copies else ''}"
        f" --max-restarts {plan.limits.restarts} --max-hang-restarts {plan.limits.hang_restarts} --restart-window 24h"
    )


def _figures(plan: SavingPlan) -> Iterator[str]:
    known = plan.figures.known
    rows = [(label, show(known[name].value), known[name].source) for name, (label, show) in _FIGURES.items()]
    for label, shown, source in rows:
        yield from textwrap.wrap(
            source, _WIDTH, initial_indent=f"{label:<36}{shown:>12}   ", subsequent_indent=" " * 51,
            break_on_hyphens=False,
        )  # fmt: skip


def _intervals(plan: SavingPlan) -> Iterator[str]:
    between = duration(1 / plan.job.rate)
    write = duration(plan.job.write)
    yield f"the job fails every {between} in the mean; storage takes {write} for a checkpoint"
    rows = [("", "a snapshot every", "a checkpoint every", "effective")]
    for choice in plan.choices:
        rows.append((choice.name, _steps(plan, choice.intervals), _storage(plan, choice.intervals), _percent(choice)))
    yield from table(rows, left=(0,))
    if plan.storage_needed and plan.chosen.storage_seconds(plan.job) < plan.job.write * 1.1 + plan.job.step:
        yield "no checkpoint begins before the last is written: that, and nothing else, keeps them this far apart"


def _steps(plan: SavingPlan, intervals: Intervals) -> str:
    if not plan.memory:
        return "-"
    count = f"{intervals.steps} step{'s' * (intervals.steps != 1)}"
    return f"{count} ({duration(intervals.work(plan.job))})"


def _storage(plan: SavingPlan, intervals: Intervals) -> str:
    return duration(intervals.storage_seconds(plan.job)) if plan.storage_needed else "none needed"


def _worth(worth: CopiesWorth, figures: Figures) -> str:
    """Say from which size of state and which rate of failures on copies are worthwhile."""
    gain = f"copies of snapshots on other nodes: {worth.with_copies:.2%} with them, {worth.without:.2%} without;"
    if worth.gpu_hours <= 0 and worth.state_bytes == math.inf:
        return f"{gain} they are worth less than 0.1 % at any rate of failures and any size of state"
    often = duration(worth.gpu_hours * 3600 / figures["gpus"])
    rate = f"where the job fails every {often} or more often" if worth.gpu_hours > 0 else "at no rate of failures"
    state = f"from a state of {size(worth.state_bytes)} on" if worth.state_bytes < math.inf else "at no size of state"
    return f"{gain} they are worth 0.1 % and more {rate}, and {state} at this rate"


def _percent(choice: Any) -> str:
    return f"{choice.effective:.2%}"


def _time_shares(plan: SavingPlan, lives: Sequence[Life]) -> Iterator[str]:
    computed = asdict(plan.shares)
    head = ("where the wall time goes", "computed", "simulated", "")
    drawn = _simulated(lives)["shares"] if lives else {}
    rows = [head if lives else (*head[:2], "", "")]
    for name, meaning in _SHARES.items():
        rows.append((f"  {name}", f"{computed[name]:.2%}", f"{drawn[name]:.2%}" if lives else "", meaning))
    yield from table(rows, left=(0, 3))
    yield f"effective training time: {plan.choices[0].effective:.2%} computed"
    if lives:
        yield from textwrap.wrap(_simulation_sentence(_simulated(lives)), _WIDTH)


def _simulation_sentence(drawn: dict[str, Any]) -> str:
    ended = f"; {drawn['gave_up']} of them gave up: {drawn['sentence']}" if drawn["gave_up"] else "; none gave up"
    faults = ", ".join(f"{number} x {name}" for name, number in drawn["faults"].items())
    return (
        f"{drawn['effective']:.2%} simulated (+- {drawn['standard_error']:.2%}): {drawn['runs']} runs of"
        f" {duration_days(drawn['seconds'])} by the real state machine and policy, {drawn['restarts']} restarts after"
        f" {faults or 'no fault'}, {drawn['stops']} stops{ended}"
    )


def duration_days(seconds: float) -> str:
    """Format seconds as days, for example `54 days`."""
    return f"{seconds / DAY:.3g} days"


def _simulated(lives: Sequence[Life]) -> dict[str, Any]:
    """Return means over all simulated lives."""
    every = [life.effective for life in lives]
    ended = [life.gave_up for life in lives if life.gave_up]
    return {
        "runs": len(lives),
        "seconds": fmean(life.wall for life in lives),
        "effective": fmean(every),
        "standard_error": stdev(every) / math.sqrt(len(every)) if len(every) > 1 else 0.0,
        "shares": {name: fmean(life.seconds[name] / life.wall for life in lives) for name in _SHARES},
        "faults": {name: sum(life.faults[name] for life in lives) for name in lives[0].faults},
        "restarts": sum(life.restarts for life in lives),
        "stops": sum(life.stops for life in lives),
        "gave_up": len(ended),
        "sentence": ended[0] if ended else None,
    }


def _advice(plan: SavingPlan) -> Iterator[str]:
    if plan.worth is not None:
        yield from textwrap.wrap(_worth(plan.worth, plan.figures), _WIDTH)
    day = plan.job.rate * DAY
    yield f"failures to expect: {day:.2f} a day; the budget below lasts but for one day in a million"
    yield f"ftlaunch {options(plan)}"
