"""The figures a plan is made from, and where each comes from: given, measured, published or assumed. Pure."""

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
_AUTOPSY = 3.0  # seconds that the autopsy of a hung job takes at most
# defaults in seconds, which the help of `ftctl plan` repeats
NODE_DETECT, NODE_RESTART = 0.00269, 0.23  # a job on one node
FLEET_DETECT, FLEET_RESTART = 10.0, 150.0  # a job on several nodes
HANG_DETECT, REPLACE = 600.0 + _AUTOPSY, 120.0
NETWORK, COPY_SLOWDOWN = (
    10e9,
    0.1,
)  # bytes a second of a node; part of a second of training that a second of copying costs


@dataclass(frozen=True)
class Figure:
    """A number and its source. The unit is in the name it goes by."""

    value: float
    source: str


@dataclass
class Figures:
    """Figures by name; the first one set stays."""

    known: dict[str, Figure] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.known[name].value

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def add(self, name: str, value: float, source: str) -> None:
        """Take a figure, unless there is a better one."""
        self.known.setdefault(name, Figure(value, source))


def from_run(figures: Figures, name: str, story: Story, moments: Sequence[Moment]) -> None:
    """Add what a run's journal has measured."""
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
    """Add the defaults of what is still unknown; gpus, state and bandwidth must be there."""
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
    """Nodes of the job."""
    return math.ceil(figures["gpus"] / figures["gpus_per_node"])


def copy_seconds(figures: Figures) -> float:
    """Seconds that a copy of a node's share of the state takes."""
    return figures["state_bytes"] / nodes_of(figures) / figures["network_bytes_per_second"]


def job(figures: Figures, *, memory: bool, copies: bool) -> PlannedJob:
    """What the model asks for. memory: there are snapshots. copies: each is copied to another node."""
    get = figures.__getitem__
    rate = get("gpus") / (get("gpu_hours_per_failure") * 3600)
    hangs = rate * get("share_of_hangs")
    nodes = (rate - hangs) * get("share_of_node_loss")
    load = get("state_bytes") / get("load_bytes_per_second")
    write = get("state_bytes") / get("storage_bytes_per_second")
    back = get("restart_seconds") + (0.0 if memory else load)
    lost = get("restart_seconds") + get("replace_seconds")
    detect, hang = get("detect_seconds"), get("hang_detect_seconds")
    copy = copy_seconds(figures) if copies else 0.0
    both = _chance_of_both(nodes / nodes_of(figures), detect + lost + 2 * copy) if copies else 1.0
    kinds = (
        FailureKind("process", rate - hangs - nodes, detect, back, memory),
        FailureKind("hang", hangs, hang, back, memory),
        # its ranks go on with the last step that was copied whole: what was trained during the copy is lost as well
        FailureKind("node", nodes * (1 - both), detect, lost + 2 * copy, True),
        FailureKind("two nodes" if copies else "node", nodes * both, detect, lost + load, False),
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
    """The chance that a node is lost, of a given rate, which keeps a lost node's copies or has its own there.

    seconds: from the loss until the copies of both are whole again.
    """
    return -math.expm1(-2 * rate * seconds)
