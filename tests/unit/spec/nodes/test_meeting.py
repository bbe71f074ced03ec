"""How many nodes, which of them this is, and where they meet: from options, job spec and PET_* variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ftlaunch.spec.job_spec import JobSpec, SpecError, resolved
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.job_token import TOKEN_VARIABLE

TWO = {"nnodes": "2", "rdzv_endpoint": "h"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def ask(flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> JobSpec:
    return resolve("train.py", [], flags or {}, environ or {})


def test_one_node_meets_nobody() -> None:
    assert ask().nodes == NodesSpec()
    assert not ask().nodes.several
    alone = ask({"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "nnodes": "1:1", "node_rank": "0"}).nodes
    assert (alone.several, alone.address, alone.rank) == (False, None, 0)
    assert (alone.wait, alone.timeout) == (600.0, 2.0)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (TWO, (2, 2, "h", 29400, "c10d")),
        ({"nnodes": "2:4", "rdzv_endpoint": "h:7"}, (2, 4, "h", 7, "c10d")),
        ({"nnodes": "1:4", "rdzv_endpoint": "h:7", "rdzv_backend": "c10d"}, (1, 4, "h", 7, "c10d")),
        ({"nnodes": "2", "rdzv_endpoint": "localhost:7"}, (2, 2, "localhost", 7, "c10d")),
        ({"nnodes": "2", "rdzv_endpoint": "[fe80::1%br-1.2]:7"}, (2, 2, "fe80::1%br-1.2", 7, "c10d")),
        ({"nnodes": "2", "rdzv_endpoint": "[::1]"}, (2, 2, "::1", 29400, "c10d")),
        ({"nnodes": "2", "master_addr": "m"}, (2, 2, "m", 29500, "static")),
        ({"nnodes": "2", "master_addr": "m", "master_port": "9"}, (2, 2, "m", 9, "static")),
        ({"nnodes": "2", "master_addr": "m", "rdzv_endpoint": "h"}, (2, 2, "h", 29400, "c10d")),
        ({**TWO, "rdzv_backend": "static"}, (2, 2, "h", 29500, "static")),
    ],
)  # fmt: skip
def test_where_nodes_meet(flags: dict[str, str], expected: tuple[int, int, str, int, str]) -> None:
    spec = ask(flags)
    nodes = spec.nodes
    assert nodes.several
    assert (nodes.least, nodes.most, nodes.address, nodes.port, nodes.backend) == expected
    Path("job.yaml").write_text(yaml.safe_dump(resolved(spec)))
    assert resolve("job.yaml", [], {}, {}) == spec, "what --dry-run prints is a spec of the same job"


def test_the_port_at_which_nodes_meet_is_not_the_ranks() -> None:
    static = {"nnodes": "2", "master_addr": "m", "master_port": "9"}
    assert ask(static).launch.master_port is None
    assert ask({**TWO, "master_port": "29400"}).launch.master_port is None
    assert ask({**TWO, "master_port": "9"}).launch.master_port == 9
    assert ask({"master_port": "9"}).launch.master_port == 9


def test_variables_of_torchrun_say_the_same() -> None:
    trainer = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0-0.job",
               "PET_MASTER_PORT": "29400"}  # fmt: skip
    spec = ask({}, trainer)
    assert spec.launch.nproc == 4
    assert spec.nodes == NodesSpec(2, 2, 1, "job-0-0.job", 29400, "static")
    others = {"PET_NNODES": "1:3", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "h:5", "PET_RDZV_ID": "r",
              "PET_NODE_TIMEOUT": "3s", "PET_NODE_WAIT": "1m"}  # fmt: skip
    spec = ask({}, others)
    assert (spec.nodes, spec.launch.run_id) == (NodesSpec(1, 3, None, "h", 5, "c10d", 60.0, 3.0), "r")
    assert ask({"nnodes": "1"}, {"PET_NNODES": "2"}).nodes == NodesSpec()
    assert ask({}, {"PET_RDZV_ENDPOINT": ""}).nodes == NodesSpec(), "torchrun's default"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"nnodes": "3:2"}, "cannot use `--nnodes 3:2`: MIN must not be above MAX in MIN:MAX"),
        ({"nnodes": "0"}, "cannot use `--nnodes 0`: it must be a number of nodes, 1 or more, or MIN:MAX"),
        ({"nnodes": "0:2"}, "cannot use `--nnodes 0:2`: it must be a number of nodes, 1 or more, or MIN:MAX"),
        ({"nnodes": "2"},
         "cannot use `--nnodes 2`: where do the nodes meet? give `--rdzv-endpoint HOST:PORT`, the same on every node"),
        ({"nnodes": "2", "rdzv_backend": "static"},
         "cannot use `--nnodes 2`: where do the nodes meet? give `--master-addr`, the same on every node"),
        ({"nnodes": "2", "rdzv_backend": "c10d", "master_addr": "m"}, "where do the nodes meet? give `--rdzv-endpoint"),
        ({**TWO, "rdzv_endpoint": "h:65536"},
         "cannot use `--rdzv-endpoint h:65536`: it must be HOST or HOST:PORT with a port from 1 to 65535"),
        ({**TWO, "rdzv_endpoint": "h:0"},
         "cannot use `--rdzv-endpoint h:0`: the other nodes cannot know a free port; give a port from 1 to 65535"),
        ({**TWO, "rdzv_endpoint": "h:"}, "cannot use `--rdzv-endpoint h:`: it must be HOST or HOST:PORT"),
        ({**TWO, "rdzv_endpoint": ":29400"}, "cannot use `--rdzv-endpoint :29400`: it names no host"),
        ({**TWO, "rdzv_endpoint": "a,b"}, "cannot use `--rdzv-endpoint a,b`: it must be HOST or HOST:PORT"),
        ({**TWO, "rdzv_endpoint": "fe80::1"}, "cannot use `--rdzv-endpoint fe80::1`: it must be HOST or HOST:PORT"),
        ({"master_port": "65536"}, "cannot use `--master-port 65536`: it must be a port from 1 to 65535"),
        ({**TWO, "node_rank": "2"}, "cannot use `--node-rank 2`: it must be below the number of nodes, which is 2"),
        ({**TWO, "node_rank": "-1"}, "cannot use `--node-rank -1`: it must be a whole number, 0 or more"),
        ({"node_rank": "1"}, "cannot use `--node-rank 1`: it must be below the number of nodes, which is 1"),
        ({"rdzv_backend": "etcd-v2"},
         "cannot use `--rdzv-backend etcd-v2`: v2 of etcd's protocol is not spoken; `etcd` speaks v3"),
        ({"rdzv_backend": "mpi"}, "cannot use `--rdzv-backend mpi`: it must be c10d, static or etcd"),
        ({**TWO, "restart_scope": "rank"},
         "cannot use `--restart-scope rank`: it needs a job of one node, and `nnodes` is 2; use job"),
        ({**TWO, "standalone": "true"}, "cannot use `--standalone`: it means one node, and `nnodes` is 2"),
        ({**TWO, "node_timeout": "500ms"}, "cannot use `--node-timeout 500ms`: it must be a duration, 1s or more"),
        ({**TWO, "node_wait": "0"}, "cannot use `--node-wait 0`: it must be a duration above zero such as 10m"),
        ({**TWO, "node_wait": "1s"},
         "cannot use `--node-wait 1s`: `node_wait` (1s) must not be shorter than `node_timeout` (2s)"),
        ({**TWO, "node_timeout": "1h"}, "cannot use `--node-timeout 1h`: `node_wait` (10m) must not be shorter than"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(flags: dict[str, str], expected: str) -> None:
    with pytest.raises(SpecError) as refused:
        ask(flags)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_token_is_taken_and_never_shown() -> None:
    secret = "5ecret-of-the-job"
    spec = ask(TWO, {TOKEN_VARIABLE: secret})
    assert spec.nodes.token == secret
    assert secret not in repr(spec)
    assert secret not in yaml.safe_dump(resolved(spec))
    assert ask(TWO).nodes.token is None


@pytest.mark.parametrize("token", ["", "s3cr3t", "5ecret-of-a-job"])
def test_a_token_that_is_too_short_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(SpecError) as refused:
        ask(TWO, {TOKEN_VARIABLE: token})
    reason = f"it has {len(token)} characters, and 16 are the fewest allowed"
    assert str(refused.value) == f"cannot use FTLAUNCH_TOKEN: {reason}"
