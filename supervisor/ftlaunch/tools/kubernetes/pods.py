"""Builds the pods of a job and their ConfigMap. Each pod has one container, which runs one agent. Pure."""

from __future__ import annotations

import math
from typing import Any

from ftlaunch.spec.yaml_file import spec_text
from ftlaunch.tools.kubernetes.names import quantity
from ftlaunch.tools.kubernetes.workload import PORT, Workload
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

CONTAINER = "node"
"""name of the container; Kubeflow's Trainer sets its variables in the container of this name"""
SHM = "/dev/shm"  # noqa: S108 - where the volume is mounted
SPEC_DIR = "/etc/ftlaunch"
SPEC_FILE = "job.yaml"
_USER = 1000
_SHUTDOWN_SECONDS = 30  # added to the grace period, for ending processes and writing the last lines
_UNREACHABLE_SECONDS = 10  # how long a pod stays bound to a node that Kubernetes cannot reach
_BACKOFF_LIMIT = 100  # pods that may fail otherwise, such as by lack of memory; Kubernetes waits longer each time
_PROBE_PERIOD_SECONDS = 30
_PROBE_TIMEOUT_SECONDS = 10  # `ftctl status` gives up on a silent head after 3 s


def labels(job: Workload) -> dict[str, str]:
    """Return the labels by which the pods of the job are selected."""
    return {"app.kubernetes.io/name": "ftlaunch", "app.kubernetes.io/instance": job.name}


def spec_map(job: Workload) -> dict[str, Any]:
    """Build the ConfigMap that holds the job spec."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _spec_name(job), "labels": labels(job)},
        "data": {SPEC_FILE: spec_text(job.spec)},
    }  # fmt: skip


def job_spec(job: Workload, pods: int) -> dict[str, Any]:
    """Return the spec of a native Job whose `pods` pods run at the same time."""
    return {
        "backoffLimit": _BACKOFF_LIMIT,
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "podFailurePolicy": {"rules": _failure_rules(job.no_requeue_code)},
        "podReplacementPolicy": "Failed",
        "template": {"metadata": {"labels": labels(job)}, "spec": _pod_spec(job)},
    }


def _failure_rules(no_requeue_code: int) -> list[dict[str, Any]]:
    """Return the rules for failed pods.

    A pod that was evicted, or that ended with `run me again`, is replaced without being counted. A job that was given
    up ends.
    """

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
        # Without a shared namespace the agent is process 1 of its container: it would adopt the head, and end the head
        # together with the processes that ranks leave behind.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": grace_period(job.grace),
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
        },
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": _UNREACHABLE_SECONDS,
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
            _volume(job),
        ],
    }  # fmt: skip


def _volume(job: Workload) -> dict[str, Any]:
    """Return the volume of the run dir."""
    if job.claim is None:
        return {"name": "own", "emptyDir": {}}
    return {"name": "shared", "persistentVolumeClaim": {"claimName": job.claim}}


def grace_period(grace: float) -> int:
    """Return the seconds from SIGTERM to SIGKILL.

    The time is the ranks' grace, the same again for storage that shows no sign of work, and 30 seconds for the rest.
    """
    return math.ceil(2 * grace) + _SHUTDOWN_SECONDS


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
        # The credentials of the checkpoint store, as variables; a pod whose service account may use it needs none.
        **({} if job.claim else {"envFrom": [{"secretRef": {"name": store_secret(job), "optional": True}}]}),
        **({} if job.kind == "trainjob" or job.pods == 1 else {"ports": [{"name": "head", "containerPort": PORT}]}),
        "resources": resources(job),
        "readinessProbe": {
            "exec": {"command": ["ftctl", "status", job.run_dir]},
            "periodSeconds": _PROBE_PERIOD_SECONDS, "timeoutSeconds": _PROBE_TIMEOUT_SECONDS,
        },
        "volumeMounts": [
            {"name": "spec", "mountPath": SPEC_DIR, "readOnly": True},
            {"name": "shm", "mountPath": SHM},
            {"name": _volume(job)["name"], "mountPath": job.path},
        ],
    }  # fmt: skip


def store_secret(job: Workload) -> str:
    """Return the name of the Secret with the credentials of the job's checkpoint store."""
    return f"{job.name}-store"


def _names_of_pod(job: Workload) -> list[dict[str, Any]]:
    """Return variables with the names of node and pod, which metrics carry, and with JobSet's restart attempt."""
    paths = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    if job.kind != "job":  # a TrainJob is made of a JobSet
        paths["JOBSET_RESTART_ATTEMPT"] = "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]


def resources(job: Workload) -> dict[str, Any]:
    """Return a pod's resources: a CPU for each rank, the GPUs, and the memory, which includes /dev/shm."""
    requests: dict[str, Any] = {"cpu": job.ranks}
    limits: dict[str, Any] = {}
    if job.memory is not None:
        requests["memory"] = limits["memory"] = quantity(job.memory)
    if job.gpus:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = job.gpus
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _spec_name(job: Workload) -> str:
    return f"{job.name}-spec"
