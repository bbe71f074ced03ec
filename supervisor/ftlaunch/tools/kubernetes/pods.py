"""The pods of a job, and what they share: one container each, with one agent. Pure."""

from __future__ import annotations

import math
from typing import Any

from ftlaunch.spec.yaml_file import spec_text
from ftlaunch.tools.kubernetes.names import quantity
from ftlaunch.tools.kubernetes.workload import PORT, Workload
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

CONTAINER = "node"
"""Kubeflow's Trainer puts its variables into the container that is called so"""
SHM = "/dev/shm"  # noqa: S108 - where the volume is mounted
SPEC_DIR = "/etc/ftlaunch"
SPEC_FILE = "job.yaml"
_USER = 1000
_LAST_WORDS = 30  # seconds besides, to end processes and to write the last lines
_PATIENCE = 10  # seconds for which a pod stays bound to a node that Kubernetes does not hear
_TRIES = 100  # pods that may end in another way, such as killed for lack of memory; Kubernetes waits longer each time
_PROBE_PERIOD, _PROBE_TIMEOUT = 30, 10  # seconds; a head that does not answer is an answer after 3 s


def labels(job: Workload) -> dict[str, str]:
    """By which the pods of the job are found."""
    return {"app.kubernetes.io/name": "ftlaunch", "app.kubernetes.io/instance": job.name}


def spec_map(job: Workload) -> dict[str, Any]:
    """The ConfigMap that holds the job spec."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _spec_name(job), "labels": labels(job)},
        "data": {SPEC_FILE: spec_text(job.spec)},
    }  # fmt: skip


def job_spec(job: Workload, pods: int) -> dict[str, Any]:
    """The spec of a native Job of so many pods, all at once."""
    return {
        "backoffLimit": _TRIES,
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "podFailurePolicy": {"rules": _failure_rules(job.no_requeue_code)},
        "podReplacementPolicy": "Failed",
        "template": {"metadata": {"labels": labels(job)}, "spec": _pod_spec(job)},
    }


def _failure_rules(no_requeue_code: int) -> list[dict[str, Any]]:
    """A pod that was evicted, or that says `run me again`, is replaced and not counted; a job given up ends."""

    def ended_with(codes: list[int], action: str) -> dict[str, Any]:
        return {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": codes}}

    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ended_with([EXIT_SAVED, EXIT_STOPPED], "Ignore"),
        ended_with(sorted({EXIT_GIVEN_UP, EXIT_USAGE, no_requeue_code}), "FailJob"),
    ]


def _pod_spec(job: Workload) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        # else the agent is process 1 of its container: it adopts the head, and ends it with what ranks leave behind
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": grace_period(job.grace),
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
        },
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": _PATIENCE,
            }
            for trouble in ("not-ready", "unreachable")
        ],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels(job)},
        }],
        "containers": [_container(job)],
        "volumes": [
            {"name": "spec", "configMap": {"name": _spec_name(job)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(job.shm)}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": job.claim}},
        ],
    }  # fmt: skip


def grace_period(grace: float) -> int:
    """Seconds from SIGTERM to SIGKILL: the ranks' grace, as long for storage that shows no sign of work, and a rest."""
    return math.ceil(2 * grace) + _LAST_WORDS


def _container(job: Workload) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": job.image,
        "command": ["ftlaunch", f"{SPEC_DIR}/{SPEC_FILE}"],
        "env": [
            {
                "name": "FTLAUNCH_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": f"{job.name}-token", "key": "token"}},
            },
            *_names_of_pod(job),
        ],
        **({} if job.kind == "trainjob" or job.pods == 1 else {"ports": [{"name": "head", "containerPort": PORT}]}),
        "resources": resources(job),
        "readinessProbe": {
            "exec": {"command": ["ftctl", "status", job.run_dir]},
            "periodSeconds": _PROBE_PERIOD, "timeoutSeconds": _PROBE_TIMEOUT,
        },
        "volumeMounts": [
            {"name": "spec", "mountPath": SPEC_DIR, "readOnly": True},
            {"name": "shm", "mountPath": SHM},
            {"name": "shared", "mountPath": job.path},
        ],
    }  # fmt: skip


def _names_of_pod(job: Workload) -> list[dict[str, Any]]:
    """The names by which metrics of a rank are joined with those of its pod and its GPU, and what JobSet says."""
    paths = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    if job.kind != "job":  # a TrainJob is made of a JobSet
        paths["JOBSET_RESTART_ATTEMPT"] = "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]


def resources(job: Workload) -> dict[str, Any]:
    """A CPU for each rank, the GPUs, and the memory, of which /dev/shm is a part."""
    requests: dict[str, Any] = {"cpu": job.ranks}
    limits: dict[str, Any] = {}
    if job.memory is not None:
        requests["memory"] = limits["memory"] = quantity(job.memory)
    if job.gpus:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = job.gpus
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _spec_name(job: Workload) -> str:
    return f"{job.name}-spec"
