"""What a rank is started with: argv and environment (torchrun's, and ours)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch.system.job_token import without_secrets
from ftlaunch.system.programs import program
from ftlaunch_contract import protocol, saving_request
from ftlaunch_contract.checkpoint import seeds

_COMPARE_EVERY = 10  # steps between comparisons of replicas, unless the spec says


def rank_argv(spec: JobSpec) -> list[str]:
    """The command of a rank."""
    if spec.launch.kind == "program":
        return [spec.launch.target, *spec.launch.args]
    if spec.launch.kind == "module":
        return [spec.launch.python, "-u", "-m", spec.launch.target, *spec.launch.args]
    return [spec.launch.python, "-u", spec.launch.target, *spec.launch.args]


def rank_env(
    spec: JobSpec,
    base: Mapping[str, str],
    rank: int,
    attempt: int,
    place: Placement,
    memory_dir: Path,
    control: Path,
    *,
    restarts: int,
) -> dict[str, str]:
    """The environment of one rank of one attempt.

    place: of its node; the port is known. restarts: how many it is told there were.
    """
    everybodys = _everybodys(spec, base)
    return {
        **everybodys,
        **_torchrun(spec, rank, attempt, place, everybodys.get("CUDA_VISIBLE_DEVICES")),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        **_ours(spec, attempt, memory_dir, control),
        protocol.ENV_RANK: f"{rank}/{place.world}",
        **_early(spec, everybodys),
        **({protocol.ENV_NODE_RANKS: f"{place.first}:{place.count}"} if place.nodes > 1 else {}),
    }


def warm_env(spec: JobSpec, base: Mapping[str, str], memory_dir: Path) -> dict[str, str]:
    """The environment of the warm parent: a rank's, without what makes a process a rank."""
    return {**_everybodys(spec, base), protocol.ENV_MEMORY_DIR: str(memory_dir)}


def _everybodys(spec: JobSpec, base: Mapping[str, str]) -> dict[str, str]:
    return {
        **without_secrets(base),
        **({} if spec.launch.omp_threads is None else {"OMP_NUM_THREADS": str(spec.launch.omp_threads)}),
        # the order of a set is one for all ranks, attempts and nodes, in the fork server as well
        "PYTHONHASHSEED": base.get("PYTHONHASHSEED") or seeds.HASH_SEED,  # Python takes an empty one for none
        "PYTHONFAULTHANDLER": base.get("PYTHONFAULTHANDLER", "1"),  # a crash in C leaves a Python stack
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **spec.launch.env,
    }


def visible_device(rank: int, visible: str | None) -> str:
    """The one GPU that a rank is to see: of those that CUDA_VISIBLE_DEVICES (None: not set) names, its own.

    Raises IndexError where there are fewer.
    """
    return str(rank) if visible is None else visible.split(",")[rank].strip()


def _torchrun(spec: JobSpec, rank: int, attempt: int, place: Placement, visible: str | None) -> dict[str, str]:
    world, on_node = str(place.world), rank - place.first
    local = {"LOCAL_RANK": str(on_node)}
    if spec.launch.virtual_local_rank:
        local = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": visible_device(on_node, visible)}
    return {
        **local,
        "RANK": str(rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(place.count),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": spec.launch.role,
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.restarts.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.launch.run_id,
        "TORCHELASTIC_ERROR_FILE": str(error_file(spec, attempt, rank)),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(spec.launch.stop_signals),
        # rank 0 hosts the store: one that outlived its attempt would hand out dead addresses
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _ours(spec: JobSpec, attempt: int, memory_dir: Path, control: Path) -> dict[str, str]:
    pid = os.getpid()
    return {
        protocol.ENV_JOB_ID: spec.job_id,
        protocol.ENV_RUN_DIR: str(spec.run_dir),
        protocol.ENV_CHECKPOINT_DIR: str(spec.checkpoint_dir),
        protocol.ENV_LOAD_CHECKPOINT: str(spec.saving.load_checkpoint or ""),
        protocol.ENV_MEMORY_DIR: str(memory_dir),
        protocol.ENV_CONTROL: str(control),
        protocol.ENV_ATTEMPT: str(attempt),
        protocol.ENV_SUPERVISOR: f"{pid}:{protocol.process_start_time(pid)}",
        protocol.ENV_MEMORY_INTERVAL: str(spec.saving.memory_interval),
        protocol.ENV_GIVEN: saving_request.write_given(spec.saving.given),
        protocol.ENV_GRACE: str(spec.grace),
        protocol.ENV_VERIFY_RESUME: spec.saving.verify_resume,
        protocol.ENV_SPIKE: ""
        if spec.numbers.on_spike == "off"
        else f"{spec.numbers.spike_deviations!r} {spec.numbers.spike_steps}",
        protocol.ENV_COMPARE_REPLICAS: str(
            _COMPARE_EVERY if spec.numbers.compare_replicas == "auto" else spec.numbers.compare_replicas
        ),
    }


def _early(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str]:
    """Return what has Python run our sitecustomize.py before the script: the first one on PYTHONPATH is run.

    A forked rank does the same by itself.
    """
    if spec.launch.kind == "program" or not (spec.launch.auto_attach or env.get(seeds.ENV_SEED)):
        return {}
    early = str(program("early/sitecustomize").parent)
    path = os.pathsep.join(filter(None, (early, env.get("PYTHONPATH"))))
    return {**({protocol.ENV_AUTO_ATTACH: "1"} if spec.launch.auto_attach else {}), "PYTHONPATH": path}


def error_file(spec: JobSpec, attempt: int, rank: int) -> Path:
    """Where a rank's `@record` leaves its exception."""
    return spec.log_dir / f"attempt_{attempt}" / f"rank_{rank}.error.json"
