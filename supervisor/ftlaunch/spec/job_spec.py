"""JobSpec, the frozen description of a job, and its conversion back to the keys of a YAML job spec. Pure.

`resolve.resolve` makes a JobSpec from flags, job spec, environment and defaults. All times are in seconds. A key is a
row of the table in `keys.py` and a field of one part of the JobSpec: 58 flat fields were once repeated in
up to 13 files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.policy.numa_binding import Mode
from ftlaunch.spec import shown
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.key import Key
from ftlaunch.spec.keys import YAML_KEYS, default
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.spec.notify_targets.notify_target import NotifyTarget
from ftlaunch.spec.parsers import Endpoint, StorageInterval
from ftlaunch.spec.parsing.outlets import MetricsSpec, TracesSpec
from ftlaunch_contract.checkpoint.fresh_start import Command

__all__ = ["JobSpec", "SpecError", "TargetKind", "resolved"]

TargetKind = Literal["script", "module", "program"]


@dataclass(frozen=True)
class LaunchSpec:
    """What to run, by how many ranks, and with which environment."""

    kind: TargetKind
    target: str
    """path of the script, or name of the module or program"""
    args: tuple[str, ...]
    nproc: int
    """number of ranks on this node"""
    run_id: str
    """TORCHELASTIC_RUN_ID of the ranks"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables for the ranks, added to the supervisor's own environment"""
    python: str = sys.executable
    """Python interpreter of the ranks"""
    warm: bool | Literal["auto"] = default("warm")
    preload: tuple[str, ...] = ()
    auto_attach: bool = default("auto_attach")
    omp_threads: int | None = None
    """OMP_NUM_THREADS of the ranks; None leaves the environment as it is"""
    role: str = default("role")
    master_addr: str = default("master_addr")
    master_port: int | None = default("master_port")
    """None for a fresh port in every attempt"""
    tee_ranks: frozenset[int] | None = None
    """local ranks to follow on the terminal; None for rank 0 and those that fail"""
    log_line_prefix_template: str = default("log_line_prefix_template")
    """prefix of a rank's lines on the terminal, with torchrun's macros; empty for `[${rank}] `"""
    stop_signals: tuple[str, ...] = default("signals_to_handle")
    virtual_local_rank: bool = default("virtual_local_rank")
    numa_binding: Mode | None = None
    """to which CPUs ranks are bound; None: to none"""
    preempt_when: str | None = None
    """a file or a command that says whether this machine is about to be taken away; None for neither"""
    preempt_every: float = default("preempt_every")
    """seconds between checks of `preempt_when`"""
    node_check: str | None = None
    """a command for /bin/sh that checks a node; None for no check"""
    node_check_timeout: float = default("node_check_timeout")
    """seconds"""


@dataclass(frozen=True)
class RestartSpec:
    """When a failed job is restarted, and when it is given up."""

    max_restarts: int = default("max_restarts")
    max_hang_restarts: int | None = None
    """restarts after hangs; None if hangs count towards `max_restarts`"""
    max_same_error: int = default("max_same_error")
    """times in a row; 0 for off"""
    max_without_progress: int = default("max_without_progress")
    """restarts in a row; 0 for off"""
    no_requeue_code: int = default("no_requeue_code")
    """exit code of a job that is given up for a reason that would recur elsewhere"""
    restart_window: float | None = default("restart_window")
    """seconds whose restarts count; None for off"""
    refill_after: int = default("refill_after")
    """steps without a failure after which no restart counts as used; 0 for off"""
    restart_policy: str = default("restart_policy")
    """on-failure, by-cause or never"""
    restart_scope: str = default("restart_scope")
    """job or rank"""
    fault_rules: tuple[FaultRule, ...] = ()
    """the job's own rules, which precede the built-in ones"""
    backoff_first: float = default("backoff_first")
    """seconds before the first restart"""
    backoff_max: float = default("backoff_max")
    """most seconds before a restart"""


@dataclass(frozen=True)
class LimitSpec:
    """How long ranks may take, in seconds, and what is done about slow ones. None turns a limit off."""

    hang_timeout: float | Literal["auto"] | None = default("hang_timeout")
    startup_timeout: float | Literal["auto"] | None = default("startup_timeout")
    eval_timeout: float | Literal["auto"] | None = default("eval_timeout")
    checkpoint_timeout: float | Literal["auto"] | None = default("checkpoint_timeout")
    teardown_timeout: float | Literal["auto"] | None = default("teardown_timeout")
    exit_timeout: float | Literal["auto"] | None = default("exit_timeout")
    log_timeout: float | None = default("log_timeout")
    idle_timeout: float | None = default("idle_timeout")
    on_slow: str = default("on_slow")
    """warn, restart or off"""


@dataclass(frozen=True)
class NumberSpec:
    """Which losses and replicas count as wrong, and what is done then."""

    on_nan: str = default("on_nan")
    """off, warn, stop or rollback"""
    on_spike: str = default("on_spike")
    """off, warn, stop or rollback"""
    spike_deviations: float = default("spike_deviations")
    """scaled median absolute deviations above the median from which on a loss is a spike"""
    spike_steps: int = default("spike_steps")
    """number of such losses in a row that make a spike"""
    skip_bad_data: bool = default("skip_bad_data")
    """whether the samples of bad steps are left out after a rollback"""
    compare_replicas: int | Literal["auto"] = default("compare_replicas")
    """steps between comparisons; 0 for off"""
    on_divergence: str = default("on_divergence")
    """warn, stop or rollback"""
    on_difference: str = default("on_difference")
    """continue or stop"""


@dataclass(frozen=True)
class SavingSpec:
    """When state is saved, what is kept, and what a job begins with."""

    memory_interval: int | Literal["auto"] = default("memory_interval")
    """steps between snapshots in memory; 0 for off"""
    storage_interval: StorageInterval = default("storage_interval")  # noqa: RUF009 - a named tuple does not change
    """steps or seconds between checkpoints"""
    keep: int = default("keep")
    """number of checkpoints to keep, the newest ones"""
    keep_every: int = default("keep_every")
    """checkpoints whose step is a multiple of this are kept for ever; 0 for off"""
    storage_bandwidth: float | None = default("storage_bandwidth")
    """bytes a second that saving may write; None for no limit"""
    fresh: bool = default("fresh")
    """whether the job begins anew, whatever earlier runs have left"""
    load_checkpoint: Path | None = None
    """a checkpoint to begin with, or a folder of checkpoints"""
    load_address: str | None = None
    """address of a store from which it is to be brought to the path `load_checkpoint`; None: it is there"""
    resume_training: bool = default("resume_training")
    """whether `load_checkpoint` restores the whole training state, and not the weights only"""
    verify_resume: str = default("verify_resume")
    """auto, on or off"""
    checkpoint_store: str | None = None
    """address of the store in which committed checkpoints are kept, too; None: they are in their folder only"""
    checkpoint_cache_max_size: int | None = default("checkpoint_cache_max_size")
    """bytes of checkpoints that the folder beside a store keeps; None: only `keep` counts"""
    take_over_store: bool = default("take_over_store")
    """whether the store is taken over at once, although the job may still run on another machine"""
    given: Mapping[str, str] = field(default_factory=dict)
    """settings that somebody decided on and that a script could also set by a call, as a job spec writes them; these
    settings have precedence over the call"""


@dataclass(frozen=True)
class JobSpec:
    """One resolved job: every value is final, every folder absolute, every time in seconds."""

    job_id: str
    run_dir: Path
    checkpoint_dir: Path
    log_dir: Path
    """directory of attempt_<n>/rank_<r>.log"""
    launch: LaunchSpec
    nodes: NodesSpec = NodesSpec()  # noqa: RUF009 - NodesSpec is frozen
    restarts: RestartSpec = RestartSpec()
    limits: LimitSpec = LimitSpec()
    numbers: NumberSpec = NumberSpec()
    saving: SavingSpec = SavingSpec()
    grace: float = default("grace")
    """seconds that a rank may take to stop before it is killed"""
    notify: tuple[NotifyTarget, ...] = ()
    report_page: bool = default("report_page")
    """whether report.html is written at the end"""
    metrics: MetricsSpec | None = None
    """None for no metrics"""
    traces: TracesSpec | None = None
    """None for no traces"""
    trainjob_status: str = default("trainjob_status")
    """auto or off"""
    log_max_size: int | None = default("log_max_size")
    """bytes of each rank's log that are kept; None for all"""

    @property
    def command(self) -> Command:
        """The command line that identifies the training; other settings may change from start to start."""
        load = self.saving.load_checkpoint
        launch = self.launch
        place = self.saving.load_address or ("" if load is None else str(load))
        return Command(launch.kind, launch.target, launch.args, load=place)


LOADED = "loaded"
"""the folder in a run dir that has the checkpoint from a store with which the job begins"""
PARTS: Mapping[str, type] = {
    "launch": LaunchSpec,
    "nodes": NodesSpec,
    "restarts": RestartSpec,
    "limits": LimitSpec,
    "numbers": NumberSpec,
    "saving": SavingSpec,
}
TITLES: Mapping[str, str] = {
    "target": "What to run",
    "": "The job and its places",
    "launch": "Ranks",
    "nodes": "Nodes",
    "restarts": "Restarts",
    "limits": "Hangs and slow ranks",
    "numbers": "Numbers",
    "saving": "Saving and resuming",
    "torchrun": "Taken over from torchrun",
    "accepted": "Accepted for torchrun's sake, without effect on one node",
}
"""titles of the parts of a job spec, under which help and docs list the keys"""
_PART_OF = {item.name: part for part, kind in PARTS.items() for item in fields(kind)}
_TOP = {item.name for item in fields(JobSpec)} - PARTS.keys()


def part_of(key: Key) -> str:
    """Return the part of a job spec in which a key is listed, a key of `TITLES`."""
    return key.group if key.group != "ours" else _PART_OF.get(key.field, "")


def value_of(spec: JobSpec, name: str) -> Any:
    """Return the value of a field of a JobSpec or of one of its parts."""
    return getattr(spec if name in _TOP else getattr(spec, _PART_OF[name]), name)


def resolved(spec: JobSpec) -> dict[str, object]:
    """Return the keys and values of a YAML spec that means exactly `spec`, except that secrets are masked."""
    keys = (key for key in YAML_KEYS.values() if key.field in _TOP or key.field in _PART_OF)
    return {
        spec.launch.kind: spec.launch.target,
        **{key.name: key.show(value_of(spec, key.field)) for key in keys},
        # keys whose values depend on more than one field
        **_meeting_keys(spec.nodes),
        **_store_keys(spec),
        "log_dir": None if spec.log_dir == spec.run_dir / "logs" else str(spec.log_dir.parent),
        **_terminal_keys(spec.launch.tee_ranks),
    }


def _meeting_keys(nodes: NodesSpec) -> dict[str, object]:
    """Return the keys for the number of nodes, and for the place at which they meet."""
    where = None if nodes.address is None else str(Endpoint(nodes.address, nodes.port))
    if nodes.store is not None:
        where = str(nodes.store)
    return {"nnodes": shown.node_range(nodes.least, nodes.most), "rdzv_endpoint": where}


def _store_keys(spec: JobSpec) -> dict[str, object]:
    """Return the keys for a job that keeps its checkpoints in a store, or begins with one that lies there."""
    load: dict[str, object] = {} if spec.saving.load_address is None else {"load_checkpoint": spec.saving.load_address}
    if spec.saving.checkpoint_store is None:
        return load
    return {
        **load,
        "checkpoint_dir": spec.saving.checkpoint_store,
        "checkpoint_cache": str(spec.checkpoint_dir),
    }


def _terminal_keys(ranks: frozenset[int] | None) -> dict[str, object]:
    """Return the keys that make the terminal follow these ranks."""
    if ranks is None:
        return {}
    if not ranks:
        return {"redirects": 3}
    return {"local_ranks_filter": ",".join(map(str, sorted(ranks)))}
