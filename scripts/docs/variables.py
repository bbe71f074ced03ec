"""Renders the product's environment variables as Markdown: names are read from the code, meanings are written here."""

from __future__ import annotations

import ast
import re

from house import SOURCES
from lists import environment as contract_variables

from ftlaunch.spec.keys import KEYS

_RANKS = SOURCES["ftlaunch"] / "ranks/environment.py"
_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
# What ranks are given beside the variables of the contract: what torchrun gives to its workers, and a little more.
_GIVEN = {
    "RANK": "the rank's number among all ranks of the job",
    "WORLD_SIZE": "how many ranks the job has",
    "LOCAL_RANK": "its number on its node",
    "LOCAL_WORLD_SIZE": "how many ranks its node has",
    "GROUP_RANK": "the place of its node among the nodes",
    "GROUP_WORLD_SIZE": "how many nodes the attempt has",
    "ROLE_RANK": "as RANK: there is one role",
    "ROLE_WORLD_SIZE": "as WORLD_SIZE",
    "ROLE_NAME": "`role` of the spec",
    "MASTER_ADDR": "where rank 0 opens the store of torch.distributed",
    "MASTER_PORT": "its port, another one in each attempt, unless `master_port` says one",
    "TORCHELASTIC_RESTART_COUNT": "how many restarts the rank has seen: 0 in the first attempt",
    "TORCHELASTIC_MAX_RESTARTS": "`max_restarts` of the spec",
    "TORCHELASTIC_RUN_ID": "`rdzv_id` of the spec, or the job id",
    "TORCHELASTIC_ERROR_FILE": "where torch's `@record` leaves the exception of the rank",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "`signals_to_handle` of the spec",
    "TORCHELASTIC_USE_AGENT_STORE": "False: rank 0 of each attempt opens a store of its own",
    "CUDA_VISIBLE_DEVICES": "one GPU, with `virtual_local_rank`; else as it was",
    "OMP_NUM_THREADS": "`omp_threads` of the spec: 1 where there are several ranks and nobody has said",
    "PYTHONFAULTHANDLER": "1, unless it was set: a crash in C leaves a Python stack",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1, unless it was set: a module that asks for CUDA can still be forked",
    "PYTHONHASHSEED": "0, unless it was set: a set has the same order in every attempt, and on every node",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1, unless it was set",
    "PYTHONPATH": "begins with the folder of our `sitecustomize.py`, which takes it out again: it seeds what draws"
    " without a seed, and with `auto_attach` installs the adapters' import hook",
}
_READ = {
    "XDG_STATE_HOME": "where [the list of jobs](../guide/daemon.md#the-list-of-jobs) is; `~/.local/state` where it is"
    " not set",
    "TERM": "`dumb`, or nothing: `ftctl top` and progress are shown in plain lines",
    "PATH": "where a program of the spec is looked for",
    "FTLAUNCH_TOKEN": "the secret by which nodes know each other where they share no run dir, 16 characters or more;"
    " `-`: a line of standard input. Never given to ranks",
    "FTLAUNCH_ETCD_USER": "by which etcd knows a job, where etcd asks. Never given to ranks",
    "FTLAUNCH_ETCD_PASSWORD": "likewise",
    "FTLAUNCH_STOP_COMMAND": "set by a unit of `ftctl systemd`: the command that stops the job for good, as systemd"
    " starts it again after each end; `ftctl stop` refuses, and names it",
    "JOURNAL_STREAM": "set by systemd: where it names standard error, lines have priorities",
    "SHARED_PATHS": "MindSpore Transformers' name of what nodes share: run dir and checkpoints of a job of several"
    " nodes are in `runs/<job-id>` below its first path, unless `--run-dir` or `--checkpoint-dir` says another place",
    "CUDA_VISIBLE_DEVICES": "which GPUs `--nproc-per-node gpu` counts",
    "NOTIFY_SOCKET": "where systemd is told that the service is ready, alive, stopping, and how it is"
    " ([systemd](../guide/daemon.md#systemd)). Never given to ranks",
    "WATCHDOG_USEC, WATCHDOG_PID": "how often systemd wants a sign of life, and of which process. Never given to ranks",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT": "where traces go, unless `traces` of the spec"
    " says it ([metrics and traces](../guide/metrics.md)). OpenTelemetry itself reads its other variables, such as"
    " OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_SERVICE_NAME": "the name of the service in traces; `ftlaunch` where it is not set",
    "_FTLAUNCH_COMPLETE, _FTCTL_COMPLETE": "set by the shell that completes words ([`ftctl completion`](commands.md))",
    "NODE_NAME, POD_NAME, POD_NAMESPACE": "the names of Kubernetes in"
    " [`ftlaunch_rank_info`](../guide/metrics.md#beside-dcgm); manifests of `ftctl kubernetes` set them",
    "JOBSET_RESTART_ATTEMPT": "how often JobSet has started the pods again; likewise",
    "KUBEFLOW_TRAINER_SERVER_URL, KUBEFLOW_TRAINER_SERVER_CA_CERT, KUBEFLOW_TRAINER_SERVER_TOKEN": "set by Kubeflow's"
    " Trainer: where it is told [how far the job is](../guide/kubernetes.md#what-trainer-and-jobset-are-told-and-tell)",
    "RAY_ADDRESS": "which Ray cluster `python -m ftlaunch_ray` uses",
    "SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES, SLURM_JOB_NUM_NODES, SLURM_NNODES": "whether this is a step of several"
    " nodes with one task on each, and of how many",
    "SLURM_STEP_ID, SLURM_JOB_ID, SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID": "the name of the run; the task of an array"
    " is a job of its own",
    "SLURM_NODEID, SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST": "this node's place, and where they meet",
}


def table() -> str:
    """Return the tables of all variables. Raises ValueError if _GIVEN differs from what ranks are given."""
    given = _given_in_the_code()
    if given != _GIVEN.keys():
        raise ValueError(f"cannot describe the variables of a rank: {sorted(given ^ _GIVEN.keys())} differ")
    head = ["| variable | what it says |", "| --- | --- |"]
    keys = [(variable, key.name) for key in KEYS for variable in key.env]
    return "\n".join(
        [
            "## Read by ftlaunch", "", *head, *(f"| {_names(name)} | {meaning} |" for name, meaning in _READ.items()),
            "", "## Read in place of an option", "",
            "As torchrun's. An option and a key of the spec win over them ([options](../guide/spec.md)).", "",
            "| variable | key |", "| --- | --- |", *(f"| `{variable}` | `{name}` |" for variable, name in keys),
            "", "## Given to every rank", "", *head, *(f"| `{name}` | {meaning} |" for name, meaning in _GIVEN.items()),
            "", "## Between supervisor and ranks", "",
            "Under a supervisor nobody sets them; without one some of them are settings"
            " ([without the supervisor](../guide/without-supervisor.md)).", "",
            contract_variables(),
        ]
    )  # fmt: skip


def _names(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _given_in_the_code() -> set[str]:
    """Return the variables that `rank_env` sets, without those of the contract."""
    keys = {
        key.value
        for node in ast.walk(ast.parse(_RANKS.read_bytes())) if isinstance(node, ast.Dict)
        for key in node.keys if isinstance(key, ast.Constant)
    }  # fmt: skip
    return {str(key) for key in keys if _NAME.fullmatch(str(key))}


def described() -> set[str]:
    """Return every variable that the page names."""
    return set(re.findall(r"`(_?[A-Z][A-Z0-9_]+)`", table()))
