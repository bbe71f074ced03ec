"""What docs/extending says is enough: its code runs, and touches no other file of the product."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.agents import free_port
from tests.support.checkpoints import assert_whole, commit
from tests.support.harness import FtJob
from tests.support.waiting import DEADLINE

from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import OvertakenError, StoredCheckpoints
from ftlaunch.nodes.channel import arbiter
from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.notify.client import NotifierLink
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec import checkpoint_stores
from ftlaunch.spec.errors import RefusedError, SpecError
from ftlaunch.spec.job_spec import JobSpec, resolved
from ftlaunch.spec.meeting_stores import table as stores
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.spec.notify_targets import table
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.schedulers import table as schedulers

PAGES = Path(__file__).parents[2] / "docs/extending"


def shell_script_of(page: str) -> str:
    """Return the shell script that a page shows."""
    (script,) = re.findall(r"```sh\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return str(script)


def python_of(page: str) -> str:
    """Return the text of the module that a page shows."""
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return str(code)


def code_of(page: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a page shows."""
    module = ModuleType(f"shown_by_{Path(page).stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(python_of(page), page, "exec"), module.__dict__)
    return module


def asked(tmp_path: Path, file: str) -> JobSpec:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(f"script: {tmp_path}/train.py\nnotify: {{file: '{file}', on: [incident]}}\n")
    return resolve(str(tmp_path / "job.yaml"), (), {"run_dir": str(tmp_path)}, {})


def test_a_notify_target_that_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="the keys here are command, url, apprise, link"):
        asked(tmp_path, "/x")
    target = code_of("notify-target.md", monkeypatch).FileTarget
    monkeypatch.setitem(table.WAYS, target.key, target)
    with pytest.raises(SpecError, match=r"`notify\.file` is set; it must be the absolute path of a file"):
        asked(tmp_path, "notices")
    notices = tmp_path / "notices"
    spec = asked(tmp_path, str(notices))
    shown = resolved(spec)["notify"]
    assert [one["file"] for one in shown] == [str(notices)]
    notifier = NotifierLink(HelperProcesses(), spec, dict(os.environ))
    try:
        for sentence in ("rank 1 died", "rank 0 died"):
            notifier.hand({"event": "incident", "sentence": sentence})
    finally:
        outcomes = notifier.close()
    assert [(one.kind, one.target, one.error) for one in outcomes] == [("incident", str(notices), "")] * 2
    told = [json.loads(line) for line in notices.read_text().splitlines()]
    assert [one["sentence"] for one in told] == ["rank 1 died", "rank 0 died"]


class Incident(JobEvent):
    name = "incident"


class Other(JobEvent):
    name = "other"


def test_a_sink_that_counts_incidents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "incidents"
    files = FileThread(tmp_path)
    sink = code_of("event-sink.md", monkeypatch).IncidentCounter(path, files)
    for event in (Incident(), Other(), Incident()):
        sink.handle(event, None)
    assert files.flush(DEADLINE)
    assert path.read_text() == "2\n"
    files.close()


CLUSTER = {"CLUSTER_JOB": "41", "CLUSTER_HOSTS": "10.0.0.7,10.0.0.8", "CLUSTER_RANK": "1"}


def test_a_scheduler_that_is_a_shell_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes_of(environ: dict[str, str]) -> NodesSpec:
        return resolve("train.py", (), {"run_dir": str(tmp_path)}, environ).nodes

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert nodes_of(CLUSTER) == NodesSpec(), "nobody knows this scheduler yet"
    monkeypatch.setattr(schedulers, "SCHEDULERS", [code_of("scheduler.md", monkeypatch).Cluster()])
    assert nodes_of(CLUSTER) == NodesSpec(least=2, most=2, rank=1, address="10.0.0.7", port=29400, backend="c10d")
    assert nodes_of({**CLUSTER, "CLUSTER_HOSTS": "10.0.0.7"}) == NodesSpec()
    with pytest.raises(SpecError, match="cannot use CLUSTER_RANK=last: it must be a node's place"):
        nodes_of({**CLUSTER, "CLUSTER_RANK": "last"})


@pytest.mark.long
def test_a_job_of_two_nodes_under_a_scheduler_that_is_a_shell_script(tmp_path: Path) -> None:
    """Of the nodes, the command line names the meeting port only, because other tests run jobs at the same time."""
    (tmp_path / "cluster.sh").write_text(shell_script_of("scheduler.md"))
    (tmp_path / "cluster.py").write_text(python_of("scheduler.md"))
    (tmp_path / "with_cluster.py").write_text(
        "from cluster import Cluster\n"
        "from ftlaunch_contract.schedulers.table import SCHEDULERS\n"
        "SCHEDULERS.append(Cluster())\n"
        "from ftlaunch.cli.launch import main\n"
        "main()\n"
    )
    (tmp_path / "train.py").write_text("import os\nopen(f\"rank_{os.environ['RANK']}\", 'x').close()\n")
    port = free_port()
    ftlaunch = [sys.executable, "with_cluster.py", "--run-dir", "run", "--no-report-page"]
    done = subprocess.run(
        ["sh", "cluster.sh", "127.0.0.1,127.0.0.1", *ftlaunch, "--rdzv-endpoint", f"127.0.0.1:{port}", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert "has 2 nodes, 2 ranks" in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.glob("rank_*")) == ["rank_0", "rank_1"]
    assert "exit code 0" in done.stderr


SIGN = Sign(term=1, address="10.0.0.7", port=5, machine="m", pid=7, started=8, count=0)


def test_the_arbiter_of_a_rendezvous_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = code_of("meeting-store.md", monkeypatch)
    monkeypatch.setattr(page.SqliteStore, "arbiter", f"{page.__name__}:open_claims")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    flags = {"nnodes": "2", "rdzv_backend": "sqlite", "rdzv_endpoint": "localhost", "run_dir": str(tmp_path)}
    with pytest.raises(SpecError, match="it must be c10d, static or etcd"):
        resolve("train.py", (), flags, {})
    monkeypatch.setitem(stores.STORES, "sqlite", page.SqliteStore)
    with pytest.raises(SpecError, match="`file` must be the absolute path of the database"):
        resolve("train.py", (), flags, {})
    spec = resolve("train.py", (), {**flags, "rdzv_conf": f"file={tmp_path}/heads"}, {})
    first, second = arbiter.of(spec), arbiter.at(json.loads(json.dumps(arbiter.place_of(spec))))
    with pytest.raises(PermissionError, match="cannot be read"):
        first.check(1)
    assert first.next_term() == 1
    assert first.claim(SIGN)
    assert not second.claim(replace(SIGN, pid=9)), "the term is taken"
    assert second.read() == SIGN
    first.show(replace(SIGN, count=1))
    first.check(1)
    later = replace(SIGN, term=second.next_term(), address="10.0.0.8")
    assert second.claim(later)
    assert first.newer(1) == later
    with pytest.raises(PermissionError, match=r"another head has taken over the job, at 10\.0\.0\.8"):
        first.check(1)
    with pytest.raises(PermissionError, match="another head"):
        first.show(replace(SIGN, count=2))
    assert second.read() == later


@pytest.mark.long
def test_a_job_of_two_nodes_that_meet_in_a_new_backend(tmp_path: Path) -> None:
    (tmp_path / "sqlite_store.py").write_text(python_of("meeting-store.md"))
    (tmp_path / "with_store.py").write_text(
        "from sqlite_store import SqliteStore\n"
        "from ftlaunch.spec.meeting_stores.table import STORES\n"
        "SqliteStore.arbiter = 'sqlite_store:open_claims'\n"
        "STORES['sqlite'] = SqliteStore\n"
        "from ftlaunch.cli.launch import main\n"
        "main()\n"
    )
    (tmp_path / "train.py").write_text("import os\nopen(f\"rank_{os.environ['RANK']}\", 'x').close()\n")
    meeting = ["--rdzv-backend", "sqlite", "--rdzv-endpoint", "localhost", "--rdzv-conf", f"file={tmp_path}/heads"]
    ftlaunch = [sys.executable, "with_store.py", "--nnodes", "2", "--run-dir", "run", "--no-report-page", *meeting]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}
    agents = [
        subprocess.Popen([*ftlaunch, "train.py"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [agent.communicate(timeout=DEADLINE)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sorted(path.name for path in tmp_path.glob("rank_*")) == ["rank_0", "rank_1"]
    with closing(sqlite3.connect(tmp_path / "heads")) as database:
        ((sign,),) = database.execute("SELECT sign FROM heads").fetchall()
    assert (json.loads(sign)["term"], json.loads(sign)["over"]) == (1, 0), "a head has led the job to its end"


@pytest.mark.slow
def test_a_rank_group_that_starts_ranks_behind_a_prefix(tmp_path: Path) -> None:
    """One of its ranks is killed: the engine restarts the job, and ends it as with its own group."""
    (tmp_path / "prefixed_ranks.py").write_text(python_of("rank-group.md"))
    (tmp_path / "with_group.py").write_text(
        "from prefixed_ranks import PrefixedRanks\n"
        "from ftlaunch.engine import main as engine\n"
        "engine.RANKS_HERE = PrefixedRanks\n"
        "from ftlaunch.cli.launch import main\n"
        "main()\n"
    )
    job = FtJob(tmp_path)
    try:
        job.module = "with_group"
        environ = {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path)), "FAULT": "sigkill 1 12"}
        words = ("--out", str(job.out), "--steps", "30", "--step-time", "0.1")
        job.start("--no-warm", args=words, env=environ)
        job.wait_event("resumed")
        niceness = [os.getpriority(os.PRIO_PROCESS, pid) for pid in job.pids()]
        assert niceness == [os.getpriority(os.PRIO_PROCESS, 0) + 5] * 2
        assert job.wait() == 0, job.stderr
        assert job.fired() == ["sigkill 1 0"]
        (incident,) = job.events("incident")
        assert (incident["kind"], incident["rank"]) == ("killed", 1)
        assert [resumed["step"] for resumed in job.events("resumed")] == [0, 12]
        job.assert_clean()
    finally:
        job.dispose()


def test_a_checkpoint_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an empty disk goes on from what another one has stored, and the other one commits nothing more."""
    page = code_of("checkpoint-store.md", monkeypatch)
    address = f"sqlite://{tmp_path}/bucket"
    with pytest.raises(RefusedError, match="it must be a folder, or an address that begins with "):
        checkpoint_stores.address(address)
    monkeypatch.setitem(checkpoint_stores.STORES, "sqlite", f"{page.__name__}:SqliteStore")
    assert checkpoint_stores.address(address) == address
    first, second = (
        StoredCheckpoints(open_store(address), tmp_path / name / "checkpoints", job="net", owner=name)
        for name in ("first", "second")
    )
    first.claim()
    for step in (10, 20):
        commit(tmp_path / "first", step)
        first.publish(keep=1)
    second.claim()
    assert second.bring(newer_than=-1) == []
    assert_whole(layout.iteration_dir(tmp_path / "second/checkpoints", 20))
    assert [step for step, _ in layout.list_iterations(tmp_path / "second/checkpoints")] == [20]
    commit(tmp_path / "first", 30)
    with pytest.raises(OvertakenError, match="second has taken over"):
        first.publish(keep=1)
    assert second.newest == 20
