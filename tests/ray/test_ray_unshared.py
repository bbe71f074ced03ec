"""The guide's recipe for a Ray cluster whose nodes share no directory: folders of their own, and a real bucket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import buckets, ray_cluster
from tests.support.agents import NodesJob
from tests.support.buckets import BucketServer
from tests.support.harness import TINY, FtJob
from tests.support.ray_cluster import RayCluster, lose
from tests.support.recipes import recipe
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(240), buckets.needs_server]

OWN = Path("/var/tmp")
RUN = OWN / "run"


class ApartRayJob(NodesJob):
    """A job by the recipe of the guide. The driver is on no node of the job, and has the script, too."""

    def __init__(self, home: Path) -> None:
        """Prepare the job. home: a directory for files."""
        super().__init__(home)
        self.work = home / "work"
        """the directory in which the command is given"""
        self.work.mkdir()
        self.install(self.work)

    def install(self, folder: Path) -> None:
        """Put the script into a folder."""
        shutil.copy(TINY, folder / "train.py")
        shutil.copy(TINY.parent / "quick.py", folder)

    def type(self, cluster: RayCluster, bucket: BucketServer) -> None:
        """Type the recipe, and find the run dir on the head's node."""
        for raylet in cluster.raylets:
            self.install(cluster.path(raylet, self.work))
        script = recipe("ray.md", "--run-dir /var/tmp/run", {
            "--nproc-per-node 8 --use-gpu": f"--nproc-per-node {self.ranks}",
            "BUCKET/PREFIX": f"{buckets.BUCKET}/run",
            "train.py": f"train.py --out {self.out} --steps 30 --step-time 0.3",
        })  # fmt: skip
        name, _, value = self.tag.partition("=")
        env = {"RAY_ADDRESS": cluster.address, "GLOO_SOCKET_IFNAME": "lo", name: value}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, **buckets.environment(bucket.endpoint), **env, "PATH": path}
        with (self.home / "stdout_0").open("w") as out, (self.home / "stderr_0").open("w") as err:
            command = ["bash", "-c", script]
            self.supervisors.append(
                subprocess.Popen(command, cwd=self.work, env=environ, stdout=out, stderr=err, text=True)
            )
        self.head_raylet = wait_for(lambda: self._with_the_head(cluster), "the head's node")
        """the node with the head: any of the three, as all have the address of this machine"""
        self.run_dir = cluster.path(self.head_raylet, RUN)
        started = self.wait_event("job_started")
        self.job_id = started["job_id"]
        self.memory = Path(started["memory_dir"])

    def _with_the_head(self, cluster: RayCluster) -> int | None:
        """Return the node in whose run dir the head has left its sign; None if no head has left one yet."""
        assert self.supervisor.poll() is None, self.stderr
        signs = {raylet: cluster.path(raylet, RUN / "head/sign.json") for raylet in cluster.raylets}
        return next((raylet for raylet, sign in signs.items() if sign.exists()), None)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ApartRayJob]:
    job = ApartRayJob(tmp_path)
    yield job
    job.dispose()


@pytest.fixture
def cluster(job: ApartRayJob) -> Iterator[RayCluster]:
    """Three nodes, of which one stands by."""
    yield from ray_cluster.made(job, 3, own=(OWN, job.work))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[BucketServer]:
    with buckets.bucket_server(tmp_path / "bucket") as server:
        yield server


def assert_ended_well(job: ApartRayJob, alone: FtJob) -> None:
    """The job has ended as the undisturbed one, and has said that its nodes share no directory."""
    assert job.wait() == 0, job.transcript
    job.assert_same_end(alone)
    assert "the nodes do not all share the run dir" in job.stderr, job.transcript
    assert job.events("checkpoint_stored"), job.transcript
    assert not RUN.exists(), "nothing is left where no node is"


@pytest.mark.slow
def test_a_rank_that_dies_costs_nothing(
    job: ApartRayJob, cluster: RayCluster, bucket: BucketServer, alone: FtJob
) -> None:
    job.type(cluster, bucket)
    job.wait_step(5)
    os.kill(job.ranks_of(1)[0], signal.SIGKILL)
    assert_ended_well(job, alone)
    (incident,) = job.events("incident")
    assert incident["rank"] == 2
    run_dirs = [cluster.path(raylet, RUN) for raylet in cluster.raylets]
    assert len({(path / "events.jsonl").read_bytes() for path in run_dirs}) == 1
    (run_dirs[0] / "only here").touch()
    assert not (run_dirs[1] / "only here").exists(), "the guard of the tests here: the nodes share no run dir"


@pytest.mark.slow
def test_a_machine_that_dies_is_replaced_by_one_that_has_nothing(
    job: ApartRayJob, cluster: RayCluster, bucket: BucketServer, alone: FtJob
) -> None:
    job.type(cluster, bucket)
    job.wait_step(5)
    wait_for(lambda: "this node stands by" in job.stderr, "a node that stands by")
    training = [cluster.agent_of(job.ranks_of(node)) for node in range(job.nodes)]
    raylet, agent = next(each for each in training if each[0] != job.head_raylet)
    lost = lose(agent)
    cluster.kill(raylet)
    job.wait_gone(lost)
    assert_ended_well(job, alone)
    assert len(job.events("attempt_started")) == 2, job.transcript
