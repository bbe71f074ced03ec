"""Builds the documents of a manifest, one builder for each kind of object that runs the pods. Pure.

The documents are nested dicts in the order of the manifest; `writing.manifest` turns them into YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.tools.kubernetes import pods
from ftlaunch.tools.kubernetes.workload import PORT, Kind, Workload

_Documents = list[dict[str, Any]]
_TRAINER = "trainer.kubeflow.org"


def documents(job: Workload) -> _Documents:
    """Return all documents that `kubectl apply` needs, except the Secret and the volume."""
    return [pods.spec_map(job), *_KINDS[job.kind](job)]


def _job_set(job: Workload) -> _Documents:
    """Build a JobSet with a native Job of one pod for each node, so that each node is replaced alone."""
    node = {"name": pods.CONTAINER, "replicas": job.pods, "template": {"spec": pods.job_spec(job, 1)}}
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "Any", "targetReplicatedJobs": [pods.CONTAINER]},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [node],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(job), "spec": spec}]


def _train_job(job: Workload) -> _Documents:
    """Build a TrainingRuntime, whose torch policy gives the pods their PET_* variables, and its TrainJob."""
    node = {
        "name": pods.CONTAINER,
        "template": {
            "metadata": {"labels": {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}},
            "spec": _job_of_all_pods(job),
        },
    }
    template = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [node],
    }
    runtime = {
        "apiVersion": f"{_TRAINER}/v1alpha1", "kind": "TrainingRuntime",
        "metadata": {"name": job.name, "labels": {**pods.labels(job), f"{_TRAINER}/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": job.nodes, "torch": {}}, "template": {"spec": template}},
    }  # fmt: skip
    train_job = {
        "apiVersion": f"{_TRAINER}/v1alpha1", "kind": "TrainJob", "metadata": _metadata(job),
        "spec": {
            "runtimeRef": {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": job.name},
            "trainer": {
                "image": job.image, "numNodes": job.nodes, "numProcPerNode": job.ranks,
                "resourcesPerNode": pods.resources(job),
            },
        },
    }  # fmt: skip
    return [runtime, train_job]


def _indexed_job(job: Workload) -> _Documents:
    """Build a native Job of all pods, and the Service that gives the pods DNS names."""
    spec = _job_of_all_pods(job)
    spec["template"]["spec"]["subdomain"] = job.name
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": job.name},
        "ports": [{"name": "head", "port": PORT}],
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job), "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job), "spec": spec},
    ]


def _job_of_all_pods(job: Workload) -> dict[str, Any]:
    """Return the spec of one Job of all pods, which is done when any pod is: all pods end with the same code."""
    return {**pods.job_spec(job, job.pods), "successPolicy": {"rules": [{"succeededCount": 1}]}}


def _metadata(job: Workload) -> dict[str, Any]:
    return {"name": job.name, "labels": pods.labels(job)}


_KINDS: Mapping[Kind, Callable[[Workload], _Documents]] = {
    "jobset": _job_set,
    "trainjob": _train_job,
    "job": _indexed_job,
}
