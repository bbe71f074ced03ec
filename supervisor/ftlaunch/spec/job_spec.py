"""What a job is: one frozen JobSpec, and how to print it as a job spec again.

`resolve.resolve` makes one from flags, job spec, environment and defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ftlaunch.policy.fault_rules import FaultRule
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
    """What is run, by how many ranks, and what they are given."""

    kind: TargetKind
    target: str
    args: tuple[str, ...]
    nproc: int
    """ranks on this node"""
    run_id: str
    """what ranks are told as TORCHELASTIC_RUN_ID"""
    env: Mapping[str, str] = field(default_factory=dict)
    """for the ranks, besides the supervisor's own environment"""
    python: str = sys.executable
    warm: bool | Literal["auto"] = default("warm")
    preload: tuple[str, ...] = ()
    auto_attach: bool = default("auto_attach")
    omp_threads: int | None = None
    """OMP_NUM_THREADS to give to ranks; None leaves the environment as it is"""
    role: str = default("role")
    master_addr: str = default("master_addr")
    master_port: int | None = default("master_port")
    """None is a fresh one for every attempt"""
    tee_ranks: frozenset[int] | None = None
    """local ranks to follow on the terminal; None is rank 0 and those that fail"""
    log_line_prefix_template: str = default("log_line_prefix_template")
    """what comes before a rank's lines there, with torchrun's macros; empty is `[${rank}] `"""
    stop_signals: tuple[str, ...] = default("signals_to_handle")
    virtual_local_rank: bool = default("virtual_local_rank")
    preempt_when: str | None = None
    """a file, or a command; None is not asked for"""
    preempt_every: float = default("preempt_every")
    node_check: str | None = None
    """a command of /bin/sh; None is not asked for"""
    node_check_timeout: float = default("node_check_timeout")


@dataclass(frozen=True)
class RestartSpec:
    """When a failed job is started again, and when no more."""

    max_restarts: int = default("max_restarts")
    max_hang_restarts: int | None = None
    """None: hangs count as `max_restarts`"""
    max_same_error: int = default("max_same_error")
    """times in a row; 0 is off"""
    max_without_progress: int = default("max_without_progress")
    """restarts in a row; 0 is off"""
    no_requeue_code: int = default("no_requeue_code")
    """exit code of a job given up for a reason that would come again elsewhere"""
    restart_window: float | None = default("restart_window")
    """None is off"""
    refill_after: int = default("refill_after")
    """steps; 0 is off"""
    restart_policy: str = default("restart_policy")
    restart_scope: str = default("restart_scope")
    fault_rules: tuple[FaultRule, ...] = ()
    """the job's own, which come before the built-in ones"""
    backoff_first: float = default("backoff_first")
    backoff_max: float = default("backoff_max")


@dataclass(frozen=True)
class LimitSpec:
    """How long ranks may take, and what is done about a slow one."""

    hang_timeout: float | Literal["auto"] | None = default("hang_timeout")
    """None is off"""
    startup_timeout: float | Literal["auto"] | None = default("startup_timeout")
    """None is off"""
    eval_timeout: float | Literal["auto"] | None = default("eval_timeout")
    """None is off"""
    checkpoint_timeout: float | Literal["auto"] | None = default("checkpoint_timeout")
    """None is off"""
    teardown_timeout: float | Literal["auto"] | None = default("teardown_timeout")
    """None is off"""
    exit_timeout: float | Literal["auto"] | None = default("exit_timeout")
    """None is off"""
    log_timeout: float | None = default("log_timeout")
    """None is off"""
    idle_timeout: float | None = default("idle_timeout")
    """None is off"""
    on_slow: str = default("on_slow")
    """warn, restart or off"""


@dataclass(frozen=True)
class NumberSpec:
    """What counts as wrong in losses and replicas, and what is done about it."""

    on_nan: str = default("on_nan")
    on_spike: str = default("on_spike")
    spike_deviations: float = default("spike_deviations")
    spike_steps: int = default("spike_steps")
    skip_bad_data: bool = default("skip_bad_data")
    compare_replicas: int | Literal["auto"] = default("compare_replicas")
    """steps; 0 is off"""
    on_divergence: str = default("on_divergence")
    on_difference: str = default("on_difference")
    """continue or stop"""


@dataclass(frozen=True)
class SavingSpec:
    """When state is saved, what is kept of it, and what a job begins with."""

    memory_interval: int | Literal["auto"] = default("memory_interval")
    """steps; 0 is off"""
    storage_interval: StorageInterval = default("storage_interval")  # noqa: RUF009 - a named tuple does not change
    """both None is off; never both set"""
    keep: int = default("keep")
    keep_every: int = default("keep_every")
    """steps; 0 is off"""
    storage_bandwidth: float | None = default("storage_bandwidth")
    """bytes a second; None is off"""
    fresh: bool = default("fresh")
    load_checkpoint: Path | None = None
    """a checkpoint, or a folder of some"""
    resume_training: bool = default("resume_training")
    verify_resume: str = default("verify_resume")
    """auto, on or off"""
    given: Mapping[str, str] = field(default_factory=dict)
    """the settings that were given, of those that a script may ask for by a call: they hold, in a spec's words"""


@dataclass(frozen=True)
class JobSpec:
    """One job, resolved: every value is final, every folder absolute, every time in seconds."""

    job_id: str
    run_dir: Path
    checkpoint_dir: Path
    log_dir: Path
    """holds attempt_<n>/rank_<r>.log"""
    launch: LaunchSpec
    nodes: NodesSpec = NodesSpec()  # noqa: RUF009 - it is frozen
    restarts: RestartSpec = RestartSpec()
    limits: LimitSpec = LimitSpec()
    numbers: NumberSpec = NumberSpec()
    saving: SavingSpec = SavingSpec()
    grace: float = default("grace")
    notify: tuple[NotifyTarget, ...] = ()
    report_page: bool = default("report_page")
    """report.html is written at the end"""
    metrics: MetricsSpec | None = None
    """None: there are none"""
    traces: TracesSpec | None = None
    """None: there are none"""
    trainjob_status: str = default("trainjob_status")
    """auto or off"""
    log_max_size: int | None = default("log_max_size")
    """bytes; None is off"""

    @property
    def command(self) -> Command:
        """Which training is meant, by its command line: what supervises it may change from start to start."""
        load = self.saving.load_checkpoint
        launch = self.launch
        return Command(launch.kind, launch.target, launch.args, load="" if load is None else str(load))


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
"""the titles of the parts of a job spec, as help and docs list its keys"""
_PART_OF = {item.name: part for part, kind in PARTS.items() for item in fields(kind)}
_TOP = {item.name for item in fields(JobSpec)} - PARTS.keys()


def part_of(key: Key) -> str:
    """The part of a job spec in which a key is listed, as `TITLES` names it."""
    return key.group if key.group != "ours" else _PART_OF.get(key.field, "")


def value_of(spec: JobSpec, name: str) -> Any:
    """The value of the field `name`, in whichever part it lies."""
    return getattr(spec if name in _TOP else getattr(spec, _PART_OF[name]), name)


def resolved(spec: JobSpec) -> dict[str, object]:
    """The keys and values of a YAML spec that asks for exactly `spec`, but for its masked secrets."""
    fitting = (key for key in YAML_KEYS.values() if key.field in _TOP or key.field in _PART_OF)
    return {
        spec.launch.kind: spec.launch.target,
        **{key.name: key.show(value_of(spec, key.field)) for key in fitting},
        **_meeting(spec.nodes),
        # given in words that depend on more than one field
        "log_dir": None if spec.log_dir == spec.run_dir / "logs" else str(spec.log_dir.parent),
        **_followed(spec.launch.tee_ranks),
    }


def _meeting(nodes: NodesSpec) -> dict[str, object]:
    where = None if nodes.address is None else str(Endpoint(nodes.address, nodes.port))
    if nodes.etcd is not None:
        where = str(nodes.etcd)
    return {"nnodes": shown.node_range(nodes.least, nodes.most), "rdzv_endpoint": where}


def _followed(ranks: frozenset[int] | None) -> dict[str, object]:
    if ranks is None:
        return {}
    return {"local_ranks_filter": ",".join(map(str, sorted(ranks)))} if ranks else {"redirects": 3}
