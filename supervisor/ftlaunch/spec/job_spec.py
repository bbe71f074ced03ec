"""What a job is: one frozen JobSpec, and how to print it as a job spec again.

`spec_resolve.resolve` makes one from flags, job spec, environment and defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ftlaunch.common.durations import format_duration
from ftlaunch.common.masking import masked_args, masked_env
from ftlaunch.common.rates import format_rate
from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.keys import default
from ftlaunch.spec.notify_targets import NotifyTarget, as_spec

__all__ = ["JobSpec", "SpecError", "TargetKind", "resolved"]

TargetKind = Literal["script", "module", "program"]


@dataclass(frozen=True)
class JobSpec:
    """One job, resolved: every value is final, every folder absolute, every time in seconds."""

    kind: TargetKind
    target: str
    args: tuple[str, ...]
    nproc: int
    """ranks on this node"""
    job_id: str
    run_dir: Path
    checkpoint_dir: Path
    log_dir: Path
    """holds attempt_<n>/rank_<r>.log"""
    run_id: str
    """what ranks are told as TORCHELASTIC_RUN_ID"""
    max_restarts: int = default("max_restarts")
    max_hang_restarts: int = default("max_restarts")
    max_same_error: int = default("max_same_error")
    """times in a row; 0 is off"""
    max_without_progress: int = default("max_without_progress")
    """restarts in a row; 0 is off"""
    restart_window: float | None = default("restart_window")
    """None is off"""
    refill_after: int = default("refill_after")
    """steps; 0 is off"""
    fault_rules: tuple[FaultRule, ...] = ()
    """the job's own, which come before the built-in ones"""
    restart_policy: str = default("restart_policy")
    restart_scope: str = default("restart_scope")
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
    on_nan: str = default("on_nan")
    on_spike: str = default("on_spike")
    spike_deviations: float = default("spike_deviations")
    spike_steps: int = default("spike_steps")
    skip_bad_data: bool = default("skip_bad_data")
    compare_replicas: int | Literal["auto"] = default("compare_replicas")
    """steps; 0 is off"""
    on_divergence: str = default("on_divergence")
    grace: float = default("grace")
    backoff_first: float = default("backoff_first")
    backoff_max: float = default("backoff_max")
    memory_interval: int | Literal["auto"] = default("memory_interval")
    """steps; 0 is off"""
    storage_interval_steps: int | None = default("storage_interval")[0]
    storage_interval_seconds: float | None = default("storage_interval")[1]
    """both None is off; never both set"""
    keep: int = default("keep")
    keep_every: int = default("keep_every")
    """steps; 0 is off"""
    storage_bandwidth: float | None = default("storage_bandwidth")
    """bytes a second; None is off"""
    warm: bool | Literal["auto"] = default("warm")
    preload: tuple[str, ...] = ()
    fresh: bool = default("fresh")
    load_checkpoint: Path | None = None
    """a checkpoint, or a folder of some"""
    resume_training: bool = default("resume_training")
    env: Mapping[str, str] = field(default_factory=dict)
    """for the ranks, besides the supervisor's own environment"""
    omp_threads: int | None = None
    """OMP_NUM_THREADS to give to ranks; None leaves the environment as it is"""
    role: str = default("role")
    master_addr: str = default("master_addr")
    master_port: int | None = default("master_port")
    """None is a fresh one for every attempt"""
    tee_ranks: frozenset[int] | None = None
    """local ranks to follow on the terminal; None is rank 0 and those that fail"""
    stop_signals: tuple[str, ...] = default("signals_to_handle")
    virtual_local_rank: bool = default("virtual_local_rank")
    python: str = sys.executable
    notify: tuple[NotifyTarget, ...] = ()


def resolved(spec: JobSpec) -> dict[str, object]:
    """The keys and values of a YAML spec that asks for exactly `spec`, but for its masked secrets."""
    return {
        spec.kind: spec.target,
        "args": masked_args(spec.args),
        "env": masked_env(spec.env),
        "python": spec.python,
        "job_id": spec.job_id,
        "run_dir": str(spec.run_dir),
        "checkpoint_dir": str(spec.checkpoint_dir),
        "log_dir": None if spec.log_dir == spec.run_dir / "logs" else str(spec.log_dir.parent),
        "max_restarts": spec.max_restarts,
        "max_hang_restarts": spec.max_hang_restarts,
        "max_same_error": spec.max_same_error or "off",
        "max_without_progress": spec.max_without_progress or "off",
        "restart_window": _limit(spec.restart_window),
        "refill_after": spec.refill_after or "off",
        "restart_policy": spec.restart_policy,
        "fault_rules": [rule.row() for rule in spec.fault_rules] or None,
        "restart_scope": spec.restart_scope,
        "hang_timeout": _limit(spec.hang_timeout),
        "startup_timeout": _limit(spec.startup_timeout),
        "eval_timeout": _limit(spec.eval_timeout),
        "checkpoint_timeout": _limit(spec.checkpoint_timeout),
        "teardown_timeout": _limit(spec.teardown_timeout),
        "exit_timeout": _limit(spec.exit_timeout),
        "log_timeout": _limit(spec.log_timeout),
        "idle_timeout": _limit(spec.idle_timeout),
        "on_slow": spec.on_slow,
        "grace": format_duration(spec.grace),
        "backoff_first": format_duration(spec.backoff_first),
        "backoff_max": format_duration(spec.backoff_max),
        "on_nan": spec.on_nan,
        "on_spike": spec.on_spike,
        "spike_deviations": f"{spec.spike_deviations:g}",
        "spike_steps": spec.spike_steps,
        "skip_bad_data": spec.skip_bad_data,
        "compare_replicas": spec.compare_replicas,
        "on_divergence": spec.on_divergence,
        "memory_interval": spec.memory_interval,
        "storage_interval": spec.storage_interval_steps or _limit(spec.storage_interval_seconds),
        "keep": spec.keep,
        "keep_every": spec.keep_every or "off",
        "storage_bandwidth": "off" if spec.storage_bandwidth is None else format_rate(spec.storage_bandwidth),
        "warm": spec.warm,
        "preload": list(spec.preload) or None,
        "fresh": spec.fresh,
        "load_checkpoint": None if spec.load_checkpoint is None else str(spec.load_checkpoint),
        "resume_training": spec.resume_training,
        "omp_threads": spec.omp_threads or "auto",
        "nproc_per_node": spec.nproc,
        "nnodes": 1,
        "role": spec.role,
        "master_addr": spec.master_addr,
        "master_port": spec.master_port,
        "rdzv_id": spec.run_id,
        **_followed(spec.tee_ranks),
        "signals_to_handle": ",".join(spec.stop_signals),
        "virtual_local_rank": spec.virtual_local_rank,
        "notify": [as_spec(target) for target in spec.notify] or None,
    }


def _limit(seconds: float | str | None) -> str:
    if isinstance(seconds, str):
        return seconds
    return "off" if seconds is None else format_duration(seconds)


def _followed(ranks: frozenset[int] | None) -> dict[str, object]:
    if ranks is None:
        return {}
    return {"local_ranks_filter": ",".join(map(str, sorted(ranks)))} if ranks else {"redirects": 3}
