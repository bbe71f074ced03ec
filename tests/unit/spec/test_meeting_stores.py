"""Which etcd the nodes meet in: endpoints, settings of the rendezvous, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ftlaunch.spec.job_spec import SpecError, resolved
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.job_token import ETCD_PASSWORD, ETCD_USER, without_secrets

ETCD = {"nnodes": "2", "rdzv_backend": "etcd", "rdzv_endpoint": "a"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1",
         "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def ask(flags: Mapping[str, str] = ETCD, environ: Mapping[str, str] | None = None, **more: str) -> NodesSpec:
    return resolve("train.py", [], {**flags, **more}, environ or {}).nodes


@pytest.mark.parametrize(
    ("given", "members", "told"),
    [
        ("a", [("a", 2379)], "a:2379"),
        ("a:1,b,10.0.0.1:3", [("a", 1), ("b", 2379), ("10.0.0.1", 3)], "a:1,b:2379,10.0.0.1:3"),
        ("[::1]:5,[fe80::1]", [("::1", 5), ("fe80::1", 2379)], "[::1]:5,[fe80::1]:2379"),
        ("a,a:2379", [("a", 2379)], "a:2379"),
    ],
)  # fmt: skip
def test_one_endpoint_or_several(given: str, members: list[tuple[str, int]], told: str) -> None:
    nodes = ask(rdzv_endpoint=given)
    assert nodes.several
    assert (nodes.address, nodes.store) == (None, EtcdSpec(tuple(members)))
    assert str(nodes.store) == told


def test_what_dry_run_prints_is_a_spec_of_the_same_job() -> None:
    spec = resolve("train.py", [], {**ETCD, "rdzv_endpoint": "a:1,[::1]"}, {})
    Path("job.yaml").write_text(yaml.safe_dump(resolved(spec)))
    assert resolve("job.yaml", [], {}, {}) == spec


def test_torchruns_settings_and_variables_count() -> None:
    conf = "protocol=https, cacert=/c/ca.pem,cert=/c/me.pem,key=/c/me.key,last_call_timeout=7,read_timeout=3"
    told = {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "etcd", "PET_RDZV_ENDPOINT": "a,b", "PET_RDZV_CONF": conf}
    nodes = ask({}, {**told, ETCD_USER: "me", ETCD_PASSWORD: "5ecret"})
    members = ("a", 2379), ("b", 2379)
    assert nodes.store == EtcdSpec(members, True, "/c/ca.pem", "/c/me.pem", "/c/me.key", "me", "5ecret")
    assert nodes.last_call == 7.0


def test_a_password_is_never_shown_and_never_passed_on() -> None:
    environ = {ETCD_USER: "me", ETCD_PASSWORD: "5ecret", "OTHER": "x"}
    spec = resolve("train.py", [], ETCD, environ)
    assert spec.nodes.store is not None
    assert spec.nodes.store.password == "5ecret"
    assert "5ecret" not in repr(spec) + str(spec.nodes.store)
    assert "5ecret" not in yaml.safe_dump(resolved(spec))
    assert without_secrets(environ) == {"OTHER": "x"}


def test_in_a_slurm_step_etcd_is_where_it_was_said_to_be() -> None:
    nodes = ask({"rdzv_backend": "etcd", "rdzv_endpoint": "a"}, SLURM)
    assert (nodes.most, nodes.rank, str(nodes.store)) == (2, 1, "a:2379")
    with pytest.raises(SpecError, match="where is etcd"):
        ask({"rdzv_backend": "etcd"}, SLURM)


def test_one_node_meets_nobody() -> None:
    assert ask(nnodes="1").store is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"rdzv_endpoint": ""}, "cannot use `--rdzv-backend etcd`: where is etcd? give `--rdzv-endpoint HOST:PORT"),
        ({"rdzv_endpoint": "a,"}, "cannot use `--rdzv-endpoint a,`: it must be HOST or HOST:PORT"),
        ({"rdzv_endpoint": "a:0"}, "cannot use `--rdzv-endpoint a:0`: etcd listens at a port from 1 to 65535"),
        ({"rdzv_endpoint": "http://a"}, "cannot use `--rdzv-endpoint http://a`: it must be HOST or HOST:PORT"),
        ({"rdzv_endpoint": "a," * 32 + "a"}, "it names 33 members of etcd, and 32 are the most"),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": "a,b"}, "only `--rdzv-backend etcd` takes several"),
        ({"nnodes": "1", "rdzv_backend": "c10d", "rdzv_endpoint": "a,b"}, "only `--rdzv-backend etcd` takes several"),
        ({"rdzv_conf": "protocol=ftp"}, "cannot use `--rdzv-conf protocol=ftp`: `protocol` must be http or https"),
        ({"rdzv_conf": "cacert=/c"}, "`cacert` is for protocol=https, and the protocol is http"),
        ({"rdzv_conf": "protocol=https,cacert="}, "`cacert` must be the path of a file"),
        ({"rdzv_conf": "protocol=https,key=/k"}, "`key` is the key of a certificate; give `cert`, too"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(more: dict[str, str], expected: str) -> None:
    with pytest.raises(SpecError) as refused:
        ask(**more)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("given", "missing"), [(ETCD_USER, ETCD_PASSWORD), (ETCD_PASSWORD, ETCD_USER)])
def test_a_user_without_a_password_is_refused_and_not_shown(given: str, missing: str) -> None:
    with pytest.raises(SpecError, match=f"cannot use {given}: {missing} is not set") as refused:
        ask(ETCD, {given: "5ecret"})
    assert "5ecret" not in str(refused.value)
