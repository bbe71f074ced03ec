"""From a job spec and what was asked on the command line to a Workload, or to a refusal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ftlaunch.common.masking import MASK
from ftlaunch.spec.errors import Given, SpecError, one_line
from ftlaunch.spec.keys import YAML_KEYS
from ftlaunch.spec.nodes.meeting import nodes_spec
from ftlaunch.spec.shown import node_range
from ftlaunch.tools.kubernetes.names import label_of
from ftlaunch.tools.kubernetes.workload import PORT, Kind, Workload, meeting_place, trainer_variables

_OF_ONE_NODE = {
    "node_rank": "the pods read the same job spec, and no two nodes can have one rank; leave it out",
    "topology": "the pods read the same job spec, and it says where one node is; leave it out",
    "master_addr": "the pods have names of their own and meet at the first one's; leave it out",
}
_FOLDERS = ("run_dir", "checkpoint_dir", "log_dir")


@dataclass(frozen=True)
class PodOptions:
    """What a job spec does not say: the options of `ftctl kubernetes`."""

    kind: Kind
    image: str
    nodes: int | None
    """None is as many as the spec says"""
    standbys: int
    gpus: int
    """of a node"""
    shm: float
    """bytes"""
    memory: float | None
    """bytes"""
    claim: str
    path: str
    """absolute"""


Ask = Callable[[Mapping[str, object], Mapping[str, str]], Mapping[str, Given]]
"""Reads raw keys as a node with such variables does: what is asked for, by setting. Raises SpecError."""


def workload(raws: Mapping[str, object], stem: str, options: PodOptions, ask: Ask) -> tuple[Workload, list[str]]:
    """The job, and a sentence for everything that is not as it was given. Raises SpecError.

    raws: the job spec as it was written; stem: of the name of its file.
    """
    _check_options(options)
    asked = ask(raws, {})
    _check_keys(asked, options)
    least, most = _nodes(asked["nnodes"], options)
    job_id, notes = _job_id(asked["job_id"], stem)
    name = label_of(job_id, most + options.standbys)
    if name != job_id:
        notes.append(
            f"the job is called {name} in Kubernetes: {job_id} is no DNS label, or leaves no room for its pods' names"
        )
    run_dir = str(asked["run_dir"].value or PurePosixPath(options.path, "runs", job_id))
    if not asked["run_dir"].asked:
        notes.append(f"the run dir is {run_dir}: the spec names none, and all pods must share it")
    ranks = _ranks(asked["nproc_per_node"], options)
    spec = {key: raw for key, raw in raws.items() if key != "nnodes"}
    spec |= {"job_id": job_id, "run_dir": run_dir, "nproc_per_node": str(ranks)}
    if options.kind != "trainjob" or least != most:
        spec["nnodes"] = str(node_range(least, most))
    place = meeting_place(options.kind, name)
    if most > 1 and place is not None and asked["rdzv_backend"].value != "etcd":
        spec["rdzv_endpoint"] = place
    job = Workload(
        options.kind, name, options.image, spec, run_dir, most, options.standbys, ranks, options.gpus,
        asked["grace"].value, asked["no_requeue_code"].value, options.shm, options.memory, options.claim, options.path,
    )  # fmt: skip
    variables = trainer_variables(job) if options.kind == "trainjob" else {}
    nodes_spec(ask(spec, variables), variables)  # refuses now what the pods would refuse
    return job, notes


def _check_options(options: PodOptions) -> None:
    tag = options.image.rpartition("/")[2].partition(":")[2]
    if "@sha256:" not in options.image and tag in ("", "latest"):
        raise SpecError(
            f"cannot use --image {one_line(options.image)}: a tag that moves gives nodes other versions, which are"
            " refused; name a tag other than latest, or a digest"
        )
    if options.kind == "trainjob" and options.standbys:
        raise SpecError(
            "cannot write a TrainJob with --standby: Kubeflow's Trainer counts every pod as a node, and gives it a"
            " rank; use --kind jobset or job"
        )
    if options.memory is not None and options.memory <= options.shm:
        raise SpecError("cannot use --memory: /dev/shm is a part of it; it must be more than --shm")


def _check_keys(asked: Mapping[str, Given], options: PodOptions) -> None:
    for name, reason in _OF_ONE_NODE.items():
        if asked[name].asked:
            raise asked[name].error(name, reason)
    backend, endpoint = asked["rdzv_backend"], asked["rdzv_endpoint"]
    if backend.value not in (None, "etcd") and backend.asked:
        raise backend.error("rdzv_backend", "pods meet at the first one's name, or in etcd; leave it out, or use etcd")
    if endpoint.value is not None and backend.value != "etcd":
        raise endpoint.error("rdzv_endpoint", f"pods meet at the first one's name, port {PORT}; leave it out")
    for name in _FOLDERS:
        _check_shared(asked[name], name, options.path)
    if isinstance(asked["load_checkpoint"].value, str):
        _check_shared(asked["load_checkpoint"], "load_checkpoint", options.path)
    for name, given in asked.items():
        if name in YAML_KEYS and given.asked and MASK in str(YAML_KEYS[name].show(given.value)):
            raise SpecError(
                f"cannot write a manifest: `{name}` holds a secret, and a ConfigMap keeps none; take it out of the"
                " spec, and give it to the pods as a variable from a Secret"
            )


def _check_shared(given: Given, name: str, path: str) -> None:
    """A folder must lie in the volume that all pods share."""
    if given.value is None:
        return
    folder = PurePosixPath(given.value)
    if not folder.is_absolute() or ".." in folder.parts or not folder.is_relative_to(path):
        raise given.error(name, f"it must lie below {path}, the volume that all pods share (--volume CLAIM:PATH)")


def _nodes(given: Given, options: PodOptions) -> tuple[int, int]:
    """The least and the most nodes."""
    least, most = (options.nodes, options.nodes) if options.nodes else (given.value or (1, 1))
    if options.standbys and most == 1:
        raise SpecError("cannot use --standby: a job of one node has nobody who stands by; give --nodes 2 or more")
    return least, most


def _ranks(given: Given, options: PodOptions) -> int:
    """The ranks of a node: a number, as a pod sees the CPUs of the whole machine."""
    if isinstance(given.value, int):
        if options.gpus and given.value > options.gpus:
            raise given.error("nproc_per_node", f"--gpus {options.gpus} are fewer; give a GPU for each rank")
        return given.value
    if given.value == "cpu" or not options.gpus:
        reason = "a pod sees the CPUs of its whole machine; write a number, or --gpus for one rank a GPU"
        raise given.error("nproc_per_node", reason)
    return options.gpus


def _job_id(given: Given, stem: str) -> tuple[str, list[str]]:
    if given.value is not None:
        return given.value, []
    job_id: str = YAML_KEYS["job_id"].read(label_of(stem, 1))
    return job_id, [f"the job id is {job_id}, after the file: the spec names none"]
