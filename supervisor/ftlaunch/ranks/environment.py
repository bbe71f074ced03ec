"""Makes the command and the environment of a rank: torchrun's variables, and those that the worker hooks read.

Nothing here starts a process. `LocalRanks` uses the results for each rank, and the fork server's client for itself.
"""

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

_COMPARE_EVERY = 10  # steps between comparisons of replicas if the spec says "auto"


def rank_argv(spec: JobSpec) -> list[str]:
    """Return the command of a rank."""
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
    """Return the environment of one rank of one attempt.

    Args:
        spec: the job.
        base: the environment that the job was started with.
        rank: the global rank.
        attempt: number of the attempt.
        place: the ranks of this node; the port is known.
        memory_dir: directory of the pages and snapshots.
        control: path of the control socket.
        restarts: number of earlier restarts, for TORCHELASTIC_RESTART_COUNT.

    Raises:
        IndexError: the job uses virtual local ranks, and CUDA_VISIBLE_DEVICES names fewer GPUs than the node has ranks.
    """
    shared = _shared_variables(spec, base)
    visible = shared.get("CUDA_VISIBLE_DEVICES")
    variables = {
        **shared,
        **_torchrun_variables(spec, rank=rank, attempt=attempt, place=place, visible=visible),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        **_hook_variables(spec, attempt=attempt, memory_dir=memory_dir, control=control),
        protocol.ENV_RANK: f"{rank}/{place.world}",
        **_sitecustomize_variables(spec, shared),
    }
    if place.nodes > 1:
        variables[protocol.ENV_NODE_RANKS] = f"{place.first}:{place.count}"
    return variables


def warm_env(spec: JobSpec, base: Mapping[str, str], memory_dir: Path) -> dict[str, str]:
    """Return the environment of the warm parent: a rank's, without the variables that make a process a rank."""
    return {**_shared_variables(spec, base), protocol.ENV_MEMORY_DIR: str(memory_dir)}


def _shared_variables(spec: JobSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all ranks and the warm parent have in common."""
    return {
        **without_secrets(base),
        **({} if spec.launch.omp_threads is None else {"OMP_NUM_THREADS": str(spec.launch.omp_threads)}),
        # Sets are iterated in the same order on all ranks, attempts and nodes, and in the fork server as well. Python
        # takes an empty seed for none.
        "PYTHONHASHSEED": base.get("PYTHONHASHSEED") or seeds.HASH_SEED,
        "PYTHONFAULTHANDLER": base.get("PYTHONFAULTHANDLER", "1"),  # a crash in C leaves a Python stack
        # torch.cuda.is_available() then asks NVML: a module that asks it when it is imported can still be forked.
        "PYTORCH_NVML_BASED_CUDA_CHECK": base.get("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **spec.launch.env,
    }


def visible_device(rank: int, visible: str | None) -> str:
    """Return the one GPU that a rank is to see.

    Args:
        rank: the rank on its node.
        visible: value of CUDA_VISIBLE_DEVICES; None if the variable is not set.

    Raises:
        IndexError: `visible` names too few GPUs.
    """
    return str(rank) if visible is None else visible.split(",")[rank].strip()


def _torchrun_variables(
    spec: JobSpec, rank: int, attempt: int, place: Placement, visible: str | None
) -> dict[str, str]:
    """Return the variables that torchrun sets, but for TORCHELASTIC_RESTART_COUNT. Raises IndexError."""
    world = str(place.world)
    on_node = rank - place.first
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
        # Rank 0 hosts the store: a store that outlived its attempt would hand out dead addresses.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _hook_variables(spec: JobSpec, attempt: int, memory_dir: Path, control: Path) -> dict[str, str]:
    """Return the variables that the worker hooks read."""
    pid = os.getpid()
    numbers = spec.numbers
    spike = "" if numbers.on_spike == "off" else f"{numbers.spike_deviations!r} {numbers.spike_steps}"
    compare_every = _COMPARE_EVERY if numbers.compare_replicas == "auto" else numbers.compare_replicas
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
        protocol.ENV_SPIKE: spike,
        protocol.ENV_COMPARE_REPLICAS: str(compare_every),
    }


def _sitecustomize_variables(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Python run our sitecustomize.py before the script, if the job needs that.

    Python runs the first sitecustomize.py on PYTHONPATH. A forked rank does the same work without these variables.
    """
    if spec.launch.kind == "program" or not (spec.launch.auto_attach or env.get(seeds.ENV_SEED)):
        return {}
    folder = str(program("early/sitecustomize").parent)
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, (folder, env.get("PYTHONPATH"))))}
    if spec.launch.auto_attach:
        variables[protocol.ENV_AUTO_ATTACH] = "1"
    return variables


def error_file(spec: JobSpec, attempt: int, rank: int) -> Path:
    """Return the file to which torch's `@record` writes the exception of a rank."""
    return spec.log_dir / f"attempt_{attempt}" / f"rank_{rank}.error.json"
