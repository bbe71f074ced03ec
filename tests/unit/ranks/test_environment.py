"""The environment of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.ranks.environment import rank_env, warm_env
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import on_one_node
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.job_token import TOKEN_VARIABLE


def spec(tmp_path: Path, environ: dict[str, str]) -> JobSpec:
    (tmp_path / "train.py").touch()
    flags = {"virtual_local_rank": "true", "nproc_per_node": "2", "run_dir": str(tmp_path / "run")}
    return resolve(str(tmp_path / "train.py"), [], flags, environ)


@pytest.mark.parametrize(
    ("environ", "seen"),
    [({}, ["0", "1"]), ({"CUDA_VISIBLE_DEVICES": "4, 6,7"}, ["4", "6"]),
     ({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, ["GPU-1a", "GPU-2b"])],
)  # fmt: skip
def test_a_rank_sees_its_own_of_the_visible_gpus(tmp_path: Path, environ: dict[str, str], seen: list[str]) -> None:
    """Taken out: every rank sees the GPU of its number, which may be another job's."""
    job = spec(tmp_path, environ)
    place = on_one_node(2, "127.0.0.1", 1)
    found = [rank_env(job, environ, rank, 0, place, tmp_path, tmp_path, restarts=0) for rank in range(2)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == seen
    assert {env["LOCAL_RANK"] for env in found} == {"0"}


def test_neither_a_rank_nor_the_warm_parent_gets_the_token(tmp_path: Path) -> None:
    environ = {TOKEN_VARIABLE: "5ecret-of-the-job", "CUDA_VISIBLE_DEVICES": "0,1", "MINE": "x"}
    job = spec(tmp_path, environ)
    assert job.nodes.token is not None
    rank = rank_env(job, environ, 0, 0, on_one_node(2, "127.0.0.1", 1), tmp_path, tmp_path, restarts=0)
    warm = warm_env(job, environ, tmp_path)
    assert "5ecret" not in f"{rank}{warm}"
    assert (rank["MINE"], warm["MINE"]) == ("x", "x")


@pytest.mark.parametrize("visible", ["3", ""])
def test_fewer_gpus_than_ranks_are_refused(tmp_path: Path, visible: str) -> None:
    with pytest.raises(SpecError, match="CUDA_VISIBLE_DEVICES"):
        spec(tmp_path, {"CUDA_VISIBLE_DEVICES": visible})
