"""The committed manifests against the schemas of Kubernetes, JobSet and Kubeflow's Trainer; no API server is asked."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIGS = Path(__file__).parents[4] / "configs/kubernetes"
KINDS = ("jobset", "trainjob", "job")
OLDEST, NEWEST = "1.31", "1.37"  # where podFailurePolicy is stable; the newest that kubernetes-validate ships
MODELS = {
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
    "Job": "io_k8s_api_batch_v1_job.IoK8sApiBatchV1Job",
    "ConfigMap": "io_k8s_api_core_v1_config_map.IoK8sApiCoreV1ConfigMap",
    "Service": "io_k8s_api_core_v1_service.IoK8sApiCoreV1Service",
}


def documents(kind: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CONFIGS / f"{kind}.yaml").read_text()))


def jobs(document: Any) -> list[dict[str, Any]]:
    """The specs of native Jobs in a document of another kind."""
    if isinstance(document, list):
        return [job for item in document for job in jobs(item)]
    if not isinstance(document, dict):
        return []
    if "podFailurePolicy" in document:
        return [document]
    return [job for value in document.values() for job in jobs(value)]


def unknown(given: Any, kept: Any, at: str = "") -> list[str]:
    """The places of a document that a model did not take over: names that it does not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [
            place
            for name, value in given.items()
            for place in (unknown(value, kept[name], f"{at}.{name}") if name in kept else [f"{at}.{name}"])
        ]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [place for one, other in zip(given, kept, strict=True) for place in unknown(one, other, f"{at}[]")]
    return [] if given == kept else [at]


def checked(document: dict[str, Any]) -> list[str]:
    """What Kubeflow's models do not know of a document; raises where a type is wrong."""
    pytest.importorskip(
        "kubeflow_trainer_api", reason="kubeflow-trainer-api is not installed (pip install kubeflow-trainer-api)"
    )
    module, _, name = MODELS[document["kind"]].partition(".")
    model = getattr(importlib.import_module(f"kubeflow_trainer_api.models.{module}"), name)
    return unknown(document, model.from_dict(document).to_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_the_models_of_trainer_and_jobset_know_every_field(kind: str) -> None:
    assert [place for document in documents(kind) for place in checked(document)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_does_not_exist_is_found(kind: str) -> None:
    """The check is one: a misspelt field of the pods is told."""
    for document in documents(kind):
        for job in jobs(document):
            job["template"]["spec"]["terminationGracePeriodSecond"] = 1
            assert any("terminationGracePeriodSecond" in place for place in checked(document))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_of_kubernetes_hold(kind: str, version: str) -> None:
    """What is native as it is; of the others the Jobs that they hold, as Jobs of their own."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (make extras)")
    found = documents(kind)
    native = [document for document in found if document["apiVersion"] in ("v1", "batch/v1")]
    held = [job for document in found if document not in native for job in jobs(document)]
    native += [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": job} for job in held]
    assert len(native) >= 2
    for document in native:
        validator.validate(document, version, strict=True)
