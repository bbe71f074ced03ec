"""`ftctl kubernetes`: what it writes is what is committed, is asked for by the pods, and what it refuses."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftlaunch.cli import ctl
from ftlaunch.spec.resolve import resolve

ROOT = Path(__file__).parents[4]
HERE = "configs/kubernetes"
SPEC = f"{HERE}/train_gpt.yaml"
COMMITTED = ("jobset", "trainjob", "job")
FITTING = "script: scripts/train_gpt.py\njob_id: j\nrun_dir: /shared/j\n"


class Ftctl:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self._folder = folder

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        with pytest.raises(SystemExit) as end:
            ctl.main(["kubernetes", *words])
        told = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, told.out, told.err

    def of(self, text: str, *words: str) -> tuple[int, str, str]:
        """Run the command on a job spec with the content `text`; return its exit code, stdout and stderr."""
        path = self._folder / "a.yaml"
        path.write_text(text)
        return self(str(path), *words)

    def documents(self, text: str, *words: str) -> dict[str, Any]:
        """What is written, by kind."""
        code, out, err = self.of(text, *words)
        assert code == 0, err
        return {document["kind"]: document for document in yaml.safe_load_all(out)}


@pytest.fixture
def ftctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ftctl:
    monkeypatch.chdir(ROOT)
    return Ftctl(capsys, tmp_path)


def committed(kind: str) -> str:
    return (ROOT / HERE / f"{kind}.yaml").read_text()


@pytest.mark.parametrize("kind", COMMITTED)
def test_the_committed_manifests_are_what_the_command_in_their_first_line_writes(ftctl: Ftctl, kind: str) -> None:
    first, _, rest = committed(kind).partition("\n")
    program, name, *words = shlex.split(first.removeprefix("#"))
    assert (program, name) == ("ftctl", "kubernetes")
    code, out, err = ftctl(*words)
    assert (code, err) == (0, "")
    assert out == rest, f"write it anew: python -m ftlaunch.cli.ctl kubernetes {shlex.join(words)}"


@pytest.mark.parametrize("kind", COMMITTED)
def test_a_pod_asks_for_what_the_command_was_given(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job spec of the ConfigMap, resolved as the first pod does, with /shared elsewhere."""
    documents = {document["kind"]: document for document in yaml.safe_load_all(committed(kind))}
    text = documents["ConfigMap"]["data"]["job.yaml"].replace("/shared", str(tmp_path))
    path = tmp_path / "job.yaml"
    path.write_text(text)
    trainer = {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "train-gpt-node-0-0.train-gpt", "PET_MASTER_PORT": "29500",
    }  # fmt: skip
    monkeypatch.chdir(ROOT)
    spec = resolve(str(path), (), {}, trainer if kind == "trainjob" else {})
    first, port, backend, rank = {
        "jobset": ("train-gpt-node-0-0.train-gpt", 29400, "c10d", None),
        "trainjob": ("train-gpt-node-0-0.train-gpt", 29500, "static", 1),
        "job": ("train-gpt-0.train-gpt", 29400, "c10d", None),
    }[kind]
    assert (spec.nodes.least, spec.nodes.most, spec.launch.nproc) == (2, 2, 2)
    assert (spec.nodes.address, spec.nodes.port, spec.nodes.backend, spec.nodes.rank) == (first, port, backend, rank)
    assert (spec.job_id, spec.run_dir, spec.saving.memory_interval) == ("train-gpt", tmp_path / "runs/train-gpt", 1)


def pod_of(documents: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = documents["Job"]["spec"]["template"]["spec"]
    return pod


def test_gpus_sizes_grace_and_volume(ftctl: Ftctl) -> None:
    text = "script: train.py\njob_id: j\nrun_dir: /data/j\nnproc_per_node: gpu\ngrace: 90s\n"
    options = (
        "--gpus",
        "8",
        "--shm",
        "64GiB",
        "--memory",
        "256GiB",
        "--volume",
        "lustre:/data",
        "--image",
        "r:5000/i:1",
    )
    documents = ftctl.documents(text, "--kind", "job", "--nodes", "4", "--standby", "1", *options)
    pod = pod_of(documents)
    container = pod["containers"][0]
    assert container["image"] == "r:5000/i:1"
    assert container["resources"]["limits"] == {"memory": "256Gi", "nvidia.com/gpu": 8}
    assert pod["shareProcessNamespace"]  # an agent that is process 1 ends the head: it takes it for a rank's child
    assert pod["terminationGracePeriodSeconds"] == 2 * 90 + 30
    assert pod["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert pod["volumes"][2]["persistentVolumeClaim"] == {"claimName": "lustre"}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/dev/shm", "/etc/ftlaunch"}
    assert documents["Job"]["spec"]["parallelism"] == 5
    asked = yaml.safe_load(documents["ConfigMap"]["data"]["job.yaml"])
    assert (asked["nnodes"], asked["nproc_per_node"]) == (4, 8)


def test_exit_codes_that_mean_run_again_are_not_counted(ftctl: Ftctl) -> None:
    spec = ftctl.documents(FITTING, "--kind", "job")["Job"]["spec"]
    rules = [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]]
    assert rules == [("Ignore", None), ("Ignore", [75, 143]), ("FailJob", [1, 2])]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # the only one that podFailurePolicy allows


def test_a_job_that_says_not_to_be_queued_again_fails(ftctl: Ftctl) -> None:
    spec = ftctl.documents(f"{FITTING}no_requeue_code: 93\n", "--kind", "job")["Job"]["spec"]
    assert spec["podFailurePolicy"]["rules"][-1]["onExitCodes"]["values"] == [1, 2, 93]


def test_one_node_meets_nobody(ftctl: Ftctl) -> None:
    documents = ftctl.documents(FITTING)
    assert "rdzv_endpoint" not in documents["ConfigMap"]["data"]["job.yaml"]


def test_etcd_is_left_as_it_was_given(ftctl: Ftctl) -> None:
    text = FITTING + "nnodes: 2:4\nrdzv_backend: etcd\nrdzv_endpoint: e1,e2\n"
    lines = ftctl.documents(text, "--standby", "1")["ConfigMap"]["data"]["job.yaml"].splitlines()
    assert {"nnodes: 2:4", "rdzv_endpoint: e1,e2"} <= set(lines)


def test_what_is_changed_is_said(ftctl: Ftctl) -> None:
    code, out, err = ftctl.of("script: train.py\njob_id: My_Job\n")
    assert code == 0
    assert "called my-job in Kubernetes" in err
    assert "the run dir is /shared/runs/My_Job" in err
    assert "job_id: My_Job" in out
    _, _, err = ftctl.of("script: train.py\n")
    assert "the job id is a, after the file" in err


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        (FITTING.replace("/shared/j", "/home/j"), (), "must lie below /shared"),
        (FITTING.replace("/shared/j", "runs/j"), (), "must lie below /shared"),
        (FITTING.replace("/shared/j", "/shared/../j"), (), "must lie below /shared"),
        (FITTING + "checkpoint_dir: /ckpt\n", (), "must lie below /shared"),
        (FITTING + "load_checkpoint: ../old\n", (), "must lie below /shared"),
        (FITTING + "node_rank: 0\n", (), "no two nodes can have one rank"),
        (FITTING + "topology: rack1\n", (), "it says where one node is"),
        (FITTING + "master_addr: m\n", (), "names of their own"),
        (FITTING + "rdzv_endpoint: h:1\n", (), "meet at the first one's name"),
        (FITTING + "rdzv_backend: static\n", (), "use etcd"),
        (FITTING + "rdzv_backend: etcd\n", ("--nodes", "2"), "where is etcd?"),
        (FITTING + "restart_scope: rank\n", ("--nodes", "2"), "it needs a job of one node"),
        (FITTING + "nproc_per_node: auto\n", (), "the CPUs of its whole machine"),
        (FITTING + "nproc_per_node: cpu\n", ("--gpus", "2"), "the CPUs of its whole machine"),
        (FITTING + "nproc_per_node: 4\n", ("--gpus", "2"), "give a GPU for each rank"),
        (FITTING + "env: {API_KEY: abcdef}\n", (), "`env` holds a secret"),
        (FITTING + "args: [--hf-token, abcdef]\n", (), "`args` holds a secret"),
        (FITTING + "hosts: a,b\n", (), "`hosts` is not a key"),
        (FITTING + "keep: no\n", (), "`keep` is no"),
        (FITTING, ("--standby", "1"), "has nobody who stands by"),
        (FITTING, ("--kind", "trainjob", "--nodes", "2", "--standby", "1"), "counts every pod as a node"),
        (FITTING, ("--image", "r:5000/train"), "a tag that moves"),
        (FITTING, ("--image", "train:latest"), "a tag that moves"),
        (FITTING, ("--shm", "2GiB", "--memory", "2GiB"), "must be more than --shm"),
        (FITTING, ("--volume", "shared"), "write shared:/shared"),
        (FITTING, ("--volume", "shared:/"), "write shared:/shared"),
        (FITTING, ("--shm", "8"), "write 16GiB"),
        (FITTING, ("--hosts", "a,b"), "no such option"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(
    ftctl: Ftctl, text: str, words: tuple[str, ...], sentence: str
) -> None:
    code, out, err = ftctl.of(text, *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "cannot" in err
    assert err.count("\n") == 1


WITHOUT_VOLUME = "script: train.py\njob_id: j\nnnodes: 2\nnproc_per_node: 1\ncheckpoint_dir: s3://bucket/a\n"


def test_pods_that_share_nothing_have_a_folder_of_their_own_and_the_credentials_of_the_bucket(ftctl: Ftctl) -> None:
    words = ("--no-volume", "--kind", "job", "--image", "image:1")
    pod = ftctl.documents(WITHOUT_VOLUME, *words)["Job"]["spec"]["template"]["spec"]
    assert {volume["name"]: volume for volume in pod["volumes"]}["own"] == {"name": "own", "emptyDir": {}}
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    (container,) = pod["containers"]
    assert {"name": "own", "mountPath": "/shared"} in container["volumeMounts"]
    assert container["envFrom"] == [{"secretRef": {"name": "j-store", "optional": True}}]
    _, _, err = ftctl.of(WITHOUT_VOLUME, *words)
    assert "the spec names none, and each pod has one of its own" in err
    assert "pods get the variables of the Secret j-store, if there is one: the credentials of s3://bucket/a" in err


@pytest.mark.parametrize("folder", ["", "checkpoint_dir: /shared/c\n", "checkpoint_dir: file:///shared/c\n"])
def test_pods_that_share_nothing_need_a_bucket(ftctl: Ftctl, folder: str) -> None:
    spec = WITHOUT_VOLUME.replace("checkpoint_dir: s3://bucket/a\n", folder)
    code, out, err = ftctl.of(spec, "--no-volume", "--image", "image:1")
    assert (code, out) == (2, "")
    assert "pods without a volume share nothing; give the address of a bucket, such as s3://BUCKET/PREFIX" in err


def test_pods_with_a_volume_get_no_credentials(ftctl: Ftctl) -> None:
    pod = ftctl.documents(FITTING, "--kind", "job", "--nodes", "2", "--gpus", "1", "--image", "image:1")
    assert "envFrom" not in pod["Job"]["spec"]["template"]["spec"]["containers"][0]
