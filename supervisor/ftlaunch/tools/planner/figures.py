"""The figures that a plan is computed from, each with its source: given, measured, published or assumed. Pure.

The command adds given figures first, then `from_run` those of a run, then `complete` the defaults; `job` turns the
figures into the model's input. Names carry units; shares are between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ftlaunch.history.story import Story
from ftlaunch.history.timeline import Moment
from ftlaunch.tools.planner.model import FailureKind, PlannedJob

DAY = 86400.0
_LLAMA = "published: The Llama 3 Herd of Models, 2024"
_MEASURED = "measured on 2 CPU cores, 2026-11-21"
_AUTOPSY_SECONDS = 3.0  # the longest time of a hung job's autopsy
# Defaults, which the help of `ftctl plan` repeats.
NODE_DETECT = 0.00269
"""seconds from a failure to the reaction, on one node"""
NODE_RESTART = 0.23
"""seconds from the reaction to training again, on one node, without loading"""
FLEET_DETECT = 10.0
"""seconds from a failure to the reaction, on several nodes"""
FLEET_RESTART = 150.0
"""seconds from the reaction to training again, on several nodes, without loading"""
HANG_DETECT = 600.0 + _AUTOPSY_SECONDS
"""seconds from the begin of a hang to the reaction"""
REPLACE = 120.0
"""seconds that replacing a lost node adds to a restart"""
NETWORK = 10e9
"""bytes per second that one node sends to another"""
COPY_SLOWDOWN = 0.1
"""share of training speed that is lost while a copy is sent"""


@dataclass(frozen=True)
class Figure:
    """A number and its source. The unit is part of the name under which `Figures` keeps the figure."""

    value: float
    source: str


@dataclass
class Figures:
    """Figures by name. The first figure that is added under a name stays."""

    known: dict[str, Figure] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.known[name].value

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def add(self, name: str, value: float, source: str) -> None:
        """Add a figure, unless there is one of that name."""
        self.known.setdefault(name, Figure(value, source))


def from_run(figures: Figures, name: str, story: Story, moments: Sequence[Moment]) -> None:
    """Add the figures that a run has measured.

    Args:
        figures: receives the figures.
        name: the run as the user named it, for the source.
        story: the run's story, from `goodput.build_story`.
        moments: the run's time line.
    """
    source = f"measured in {name}, {story.ranks} rank{'s' * (story.ranks != 1)}"
    step = story.step_seconds
    if step:
        figures.add("step_seconds", step, source)
    times = [incident.recovered_after for incident in story.incidents if incident.source == "memory"]
    restarts = [seconds - (step or 0.0) for seconds in times if seconds is not None]
    if restarts:
        figures.add("restart_seconds", max(median(restarts), 0.0), f"{source}: median of {len(restarts)}")
    seen = [incident.seen_after for incident in story.incidents if incident.kind == "hang"]
    hangs = [seconds for seconds in seen if seconds is not None]
    if hangs:
        figures.add("hang_detect_seconds", median(hangs), f"{source}: median of {len(hangs)}")
    saves = [moment.fields for moment in moments if moment.event == "checkpoint_committed"]
    saves = [fields for fields in saves if _positive(fields, "bytes") and _positive(fields, "seconds")]
    if saves:
        figures.add("state_bytes", float(saves[-1]["bytes"]), f"{source}: its last checkpoint")
        speed = median(fields["bytes"] / fields["seconds"] for fields in saves)
        figures.add("storage_bytes_per_second", speed, f"{source}: median of {len(saves)} checkpoints")


def _positive(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name)
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def complete(figures: Figures) -> None:
    """Add defaults for all figures that are still missing.

    `gpus`, `state_bytes` and `storage_bytes_per_second` have no default, and must be there.
    """
    add = figures.add
    add("gpus_per_node", 8, "assumed")
    alone = figures["gpus"] <= figures["gpus_per_node"]
    add("gpu_hours_per_failure", 16384 * 54 * 24 / 419, f"{_LLAMA}: 419 failures of 16,384 GPUs in 54 days")
    add("share_of_node_loss", 0.78, f"{_LLAMA}: 78 % were hardware; assumed: each takes its node's memory")
    add("share_of_hangs", 7 / 419, f"{_LLAMA}: 7 NCCL timeouts of 419")
    add("step_seconds", 5.0, "assumed")
    if alone:
        add("detect_seconds", NODE_DETECT, f"{_MEASURED}: death of a rank to reaction (make bench-costs)")
        add("restart_seconds", NODE_RESTART, f"{_MEASURED}: 2 ranks of the example job, from memory (make bench)")
    else:
        add("detect_seconds", FLEET_DETECT, "assumed: a lost node is seen by its silence")
        add("restart_seconds", FLEET_RESTART, "published: FlashRecovery, 2025: 4,800 devices")
    add("hang_detect_seconds", HANG_DETECT, "default of --hang-timeout auto, and the autopsy")
    add("replace_seconds", REPLACE, "assumed: a spare node stands ready")
    add("load_bytes_per_second", figures["storage_bytes_per_second"], "assumed: reads as fast as it writes")
    share = figures["state_bytes"] / figures["gpus"]
    add(
        "snapshot_stall_seconds", max(0.0134 * share / (1 << 30), 0.0008),
        f"{_MEASURED}: 13.4 ms a GiB of a rank's state, or 0.8 ms (docs/benchmarks.md)",
    )  # fmt: skip
    add("checkpoint_stall_seconds", figures["snapshot_stall_seconds"], "assumed: as long as for a snapshot")
    add("planned_stops_per_day", 0.0, "assumed")
    add("network_bytes_per_second", NETWORK, "assumed: of one node")
    add("copy_slowdown", COPY_SLOWDOWN, "assumed: so much slower is training while a copy is sent")


def nodes_of(figures: Figures) -> int:
    """Return the number of nodes of the job."""
    return math.ceil(figures["gpus"] / figures["gpus_per_node"])


def copy_seconds(figures: Figures) -> float:
    """Return the seconds that sending a node's share of the state to another node takes."""
    return figures["state_bytes"] / nodes_of(figures) / figures["network_bytes_per_second"]


def job(figures: Figures, *, memory: bool, copies: bool) -> PlannedJob:
    """Compute the model's input from complete figures.

    Args:
        figures: the figures, completed by `complete`.
        memory: whether there are snapshots in memory.
        copies: whether each snapshot is copied to another node.
    """
    get = figures.__getitem__
    rate = get("gpus") / (get("gpu_hours_per_failure") * 3600)
    hangs = rate * get("share_of_hangs")
    nodes = (rate - hangs) * get("share_of_node_loss")
    load = get("state_bytes") / get("load_bytes_per_second")
    write = get("state_bytes") / get("storage_bytes_per_second")
    back = get("restart_seconds") + (0.0 if memory else load)
    lost = get("restart_seconds") + get("replace_seconds")
    detect = get("detect_seconds")
    hang = get("hang_detect_seconds")
    copy = copy_seconds(figures) if copies else 0.0
    both = _chance_of_both(nodes / nodes_of(figures), detect + lost + 2 * copy) if copies else 1.0
    kinds = (
        FailureKind(name="process", rate=rate - hangs - nodes, detect=detect, restart=back, from_memory=memory),
        FailureKind(name="hang", rate=hangs, detect=hang, restart=back, from_memory=memory),
        # Ranks go on with the last step that was copied whole, so what was trained during the copy is lost as well.
        FailureKind(name="node", rate=nodes * (1 - both), detect=detect, restart=lost + 2 * copy, from_memory=True),
        FailureKind(
            name="two nodes" if copies else "node",
            rate=nodes * both,
            detect=detect,
            restart=lost + load,
            from_memory=False,
        ),
    )
    stall = get("checkpoint_stall_seconds")
    return PlannedJob(
        step=get("step_seconds"),
        snapshot_stall=get("snapshot_stall_seconds") + copy * get("copy_slowdown") if memory else 0.0,
        checkpoint_stall=stall,
        write=max(write, stall),
        kinds=tuple(kind for kind in kinds if kind.rate > 0),
        stops=get("planned_stops_per_day") / DAY,
        stop_cost=write + get("restart_seconds") + load,
        least_steps=max(math.ceil(copy / get("step_seconds")), 1),
    )


def _chance_of_both(rate: float, seconds: float) -> float:
    """Return the chance that the loss of a node is followed by the loss of a node that shares copies with it.

    Two nodes share copies with the lost node: the keeper of its copies, and the node whose copies it kept.

    Args:
        rate: losses of one node per second.
        seconds: time from the first loss until all copies are whole again.
    """
    return -math.expm1(-2 * rate * seconds)
