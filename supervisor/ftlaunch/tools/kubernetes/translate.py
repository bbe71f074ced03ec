"""Translates a job spec and the options of `ftctl kubernetes` into a `Workload`, or refuses them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ftlaunch.common.masking import MASK
from ftlaunch.spec.errors import Given, SpecError, one_line
from ftlaunch.spec.keys import YAML_KEYS
from ftlaunch.spec.meeting_stores.table import STORES
from ftlaunch.spec.nodes.meeting import nodes_spec
from ftlaunch.spec.shown import node_range
from ftlaunch.tools.kubernetes.names import label_of
from ftlaunch.tools.kubernetes.pods import store_secret
from ftlaunch.tools.kubernetes.workload import PORT, Kind, Workload, meeting_place, trainer_variables
from ftlaunch_contract.protocol import scheme_of

_ONE_NODE_KEYS = {
    "node_rank": "the pods read the same job spec, and no two nodes can have one rank; leave it out",
    "topology": "the pods read the same job spec, and it says where one node is; leave it out",
    "master_addr": "the pods have names of their own and meet at the first one's; leave it out",
}
_FOLDERS = ("run_dir", "checkpoint_dir", "log_dir")


@dataclass(frozen=True)
class PodOptions:
    """The options of `ftctl kubernetes`: what a job spec cannot say about pods."""

    kind: Kind
    image: str
    nodes: int | None
    """number of nodes that train; None for the number in the spec"""
    standbys: int
    """number of pods that stand by"""
    gpus: int
    """GPUs of a node"""
    shm: float
    """bytes of /dev/shm"""
    memory: float | None
    """bytes of a pod, /dev/shm included; None for no limit"""
    claim: str | None
    """name of the PersistentVolumeClaim that all pods share; None: they share nothing"""
    path: str
    """absolute path at which the pods mount the volume"""


Ask = Callable[[Mapping[str, object], Mapping[str, str]], Mapping[str, Given]]
"""Reads raw keys as a node with the given variables would; returns the values by setting. Raises SpecError."""


def workload(raws: Mapping[str, object], stem: str, options: PodOptions, ask: Ask) -> tuple[Workload, list[str]]:
    """Translate a job spec into a workload.

    Args:
        raws: the job spec as written.
        stem: file name of the job spec without its suffix; the job id if the spec has none.
        options: the options of the command.
        ask: reads raw keys.

    Returns:
        The workload, and a sentence for each thing that differs from the spec.

    Raises:
        SpecError: pods cannot run the job as given.
    """
    _check_options(options)
    given = ask(raws, {})
    _check_keys(given, options)
    least, most = _nodes(given["nnodes"], options)
    job_id, notes = _job_id(given["job_id"], stem)
    name = label_of(job_id, most + options.standbys)
    if name != job_id:
        notes.append(
            f"the job is called {name} in Kubernetes: {job_id} is no DNS label, or leaves no room for its pods' names"
        )
    run_dir = str(given["run_dir"].value or PurePosixPath(options.path, "runs", job_id))
    if not given["run_dir"].asked:
        why = "all pods must share it" if options.claim else "each pod has one of its own"
        notes.append(f"the run dir is {run_dir}: the spec names none, and {why}")
    ranks = _ranks(given["nproc_per_node"], options)
    spec = {key: raw for key, raw in raws.items() if key != "nnodes"}
    spec |= {"job_id": job_id, "run_dir": run_dir, "nproc_per_node": str(ranks)}
    if options.kind != "trainjob" or least != most:
        spec["nnodes"] = str(node_range(least, most))
    place = meeting_place(options.kind, name)
    if most > 1 and place is not None and given["rdzv_backend"].value not in STORES:
        spec["rdzv_endpoint"] = place
    job = Workload(
        kind=options.kind,
        name=name,
        image=options.image,
        spec=spec,
        run_dir=run_dir,
        nodes=most,
        standbys=options.standbys,
        ranks=ranks,
        gpus=options.gpus,
        grace=given["grace"].value,
        no_requeue_code=given["no_requeue_code"].value,
        shm=options.shm,
        memory=options.memory,
        claim=options.claim,
        path=options.path,
    )
    if job.claim is None:
        notes.append(
            f"pods get the variables of the Secret {store_secret(job)}, if there is one: the credentials of"
            f" {given['checkpoint_dir'].value}"
        )
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
    for name, reason in _ONE_NODE_KEYS.items():
        if asked[name].asked:
            raise asked[name].error(name, reason)
    backend = asked["rdzv_backend"]
    endpoint = asked["rdzv_endpoint"]
    stores = " or ".join(STORES)
    if backend.value not in (None, *STORES) and backend.asked:
        raise backend.error(
            "rdzv_backend", f"pods meet at the first one's name, or in {stores}; leave it out, or use {stores}"
        )
    if endpoint.value is not None and backend.value not in STORES:
        raise endpoint.error("rdzv_endpoint", f"pods meet at the first one's name, port {PORT}; leave it out")
    store = asked["checkpoint_dir"]
    if options.claim is None and (store.value is None or scheme_of(store.value) in (None, "file")):
        raise store.error(
            "checkpoint_dir",
            "pods without a volume share nothing; give the address of a bucket, such as s3://BUCKET/PREFIX",
        )
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
    """Check that a folder lies in the volume that all pods share.

    Raises:
        SpecError: the folder lies elsewhere.
    """
    if given.value is None or scheme_of(given.value) is not None:
        return
    folder = PurePosixPath(given.value)
    if not folder.is_absolute() or ".." in folder.parts or not folder.is_relative_to(path):
        raise given.error(name, f"it must lie below {path}, where the pods have their volume (--volume CLAIM:PATH)")


def _nodes(given: Given, options: PodOptions) -> tuple[int, int]:
    """Return the least and the greatest number of nodes."""
    least, most = (options.nodes, options.nodes) if options.nodes else (given.value or (1, 1))
    if options.standbys and most == 1:
        raise SpecError("cannot use --standby: a job of one node has nobody who stands by; give --nodes 2 or more")
    return least, most


def _ranks(given: Given, options: PodOptions) -> int:
    """Return the number of ranks on a node: the number in the spec, or one for each GPU of `--gpus`.

    Raises:
        SpecError: the number would depend on the CPUs, of which a pod sees those of its whole machine.
    """
    if isinstance(given.value, int):
        if options.gpus and given.value > options.gpus:
            raise given.error("nproc_per_node", f"--gpus {options.gpus} are fewer; give a GPU for each rank")
        return given.value
    if given.value == "cpu" or not options.gpus:
        reason = "a pod sees the CPUs of its whole machine; write a number, or --gpus for one rank a GPU"
        raise given.error("nproc_per_node", reason)
    return options.gpus


def _job_id(given: Given, stem: str) -> tuple[str, list[str]]:
    """Return the job id and notes about it; without an id in the spec, the file's name becomes the id."""
    if given.value is not None:
        return given.value, []
    job_id: str = YAML_KEYS["job_id"].read(label_of(stem, 1))
    return job_id, [f"the job id is {job_id}, after the file: the spec names none"]
