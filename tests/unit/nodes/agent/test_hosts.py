"""Agents on other hosts: what they are told, when they are started again, and which exit code counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftlaunch.nodes.agent.hosts import attempts
from ftlaunch.nodes.agent.hosts.launcher import build_agent_order, build_agent_words
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch.system import job_token

SECRET = "sixteen characters or more"


def test_the_command_line_of_each_host(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    flags = {"hosts": "a:2,b:2,c:2", "nnodes": "1:2"}
    spec = resolve(str(tmp_path / "train.py"), (), flags, {})
    first, _, beyond = (build_agent_words(spec, number, ["train.py"]) for number in range(3))
    where = ["--rdzv-endpoint=a:29400", "--nproc-per-node=2", "train.py"]
    assert first == ["--nnodes=1:2", "--node-rank=0", *where]
    assert beyond == ["--nnodes=1:2", *where], "it stands by"


def resolved(folder: Path, **flags: str) -> JobSpec:
    """The spec of a job on two hosts. flags: further options."""
    (folder / "train.py").touch()
    return resolve(str(folder / "train.py"), (), {"hosts": "a,b", **flags}, {})


def test_secrets_are_in_no_environment_and_on_no_command_line(tmp_path: Path) -> None:
    environ = {"FTLAUNCH_TOKEN": SECRET, "FTLAUNCH_ETCD_PASSWORD": "etcd's", "NCCL_DEBUG": "INFO", "HOME": "/x"}
    order = build_agent_order(Path("/work"), ["train.py"], environ, resolved(tmp_path))
    assert order["env"] == {"FTLAUNCH_TOKEN": "-", "FTLAUNCH_ETCD_PASSWORD": "-", "NCCL_DEBUG": "INFO"}
    assert SECRET not in json.dumps([order["env"], order["argv"]])
    assert order["secrets"] == ["etcd's", SECRET]


@pytest.mark.parametrize(
    ("flags", "passed"),
    [
        ({}, set()),
        ({"checkpoint_dir": "file:///mnt"}, set()),
        ({"checkpoint_dir": "s3://bucket/run"}, {"AWS_REGION"}),
        ({"load_checkpoint": "gs://bucket/run"}, {"GOOGLE_SERVICE_ACCOUNT"}),
        ({"checkpoint_dir": "az://container/run", "load_checkpoint": "s3://b/run"}, {"AWS_REGION", "AZURE_ENDPOINT"}),
    ],
)
def test_agents_get_the_credentials_of_the_stores_that_the_job_has(
    flags: dict[str, str], passed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out (`credential_prefixes`): no agent can use a bucket whose keys are variables of the command."""
    monkeypatch.setattr("ftlaunch.spec.checks.find_spec", lambda name: name)
    environ = {"AWS_REGION": "r", "GOOGLE_SERVICE_ACCOUNT": "g", "AZURE_ENDPOINT": "e"}
    assert set(build_agent_order(Path("/work"), [], environ, resolved(tmp_path, **flags))["env"]) == passed  # type: ignore[call-overload]


def test_secrets_are_read_from_lines(tmp_path: Path) -> None:
    environ = {"FTLAUNCH_TOKEN": SECRET, "FTLAUNCH_ETCD_PASSWORD": "etcd's"}
    order = build_agent_order(Path("/work"), [], environ, resolved(tmp_path))
    lines = tmp_path / "stdin"
    lines.write_text("".join(f"{line}\n" for line in order["secrets"]))  # type: ignore[attr-defined]
    with lines.open() as stdin:
        read = job_token.with_lines(order["env"], stdin)  # type: ignore[arg-type]
    assert read == {"FTLAUNCH_TOKEN": SECRET, "FTLAUNCH_ETCD_PASSWORD": "etcd's"}


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        (0, False),
        (1, False),
        (2, False),
        (75, False),
        (127, False),
        (143, False),
        (255, True),
        (137, True),
        (-15, True),
    ],
)
def test_which_ends_are_no_word_of_the_agent(code: int, lost: bool) -> None:
    assert attempts.was_lost(code) is lost


def test_waits_between_tries_grow_and_are_bounded() -> None:
    assert [attempts.compute_wait_seconds(tries) for tries in (1, 2, 3, 4, 5, 5000)] == [5, 10, 20, 40, 60, 60]


def test_the_last_agents_code_is_the_jobs() -> None:
    assert attempts.choose_job_code([75, 0], reached=True, stopped=False) == 0, "the first was drained"
    assert attempts.choose_job_code([], reached=True, stopped=False) == 1
    assert attempts.choose_job_code([], reached=False, stopped=False) == 2
    assert attempts.choose_job_code([], reached=False, stopped=True) == 143
