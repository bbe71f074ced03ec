"""Services that Apprise knows are told; the address, which is a secret, comes out nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.support.harness import FtJob
from tests.support.notified import BEATS, SECRET, Hook, outcomes, start
from tests.support.packages import require
from tests.support.waiting import wait_for

require("apprise", reason="Apprise is not installed (pip install 'ftlaunch[apprise]')")


def json_address(hook: Hook) -> str:
    return f"json://me:{SECRET}@127.0.0.1:{hook.port}/{SECRET}"


def seen(processes: list[psutil.Process]) -> str:
    """What every user of the machine sees of processes, and what a child of one would inherit."""
    told = []
    for process in processes:
        try:
            told.append(" ".join([*process.cmdline(), *process.environ().values()]))
        except psutil.Error:  # it has ended
            continue
    return "\n".join(told)


@pytest.mark.long
def test_a_service_and_a_chat_are_told_of_a_failure_the_way_back_and_the_end(job: FtJob, hooks: list[Hook]) -> None:
    """Taken out by hand: with the address on the command line of through_apprise `seen` has the secret."""
    hooks.append(plain := Hook(200))
    hooks.append(chat := Hook(200))
    plain.free.clear()
    targets: list[dict[str, Any]] = [
        {"apprise": json_address(plain), "link": "https://dash.example/{job_id}", "timeout": "60s"},
        {"apprise": f"mmost://127.0.0.1:{chat.port}/{SECRET}", "on": ["recovered"]},
    ]
    start(job, *targets, FAULT="1 7")
    wait_for(lambda: plain.bodies, "its being asked")
    visible = seen(psutil.Process(job.supervisor.pid).children(recursive=True))
    assert "ftlaunch.notify.through_apprise" in visible, "one is under way"
    assert SECRET not in visible
    plain.free.set()
    assert job.wait() == 0, job.stderr
    (incident,) = job.events("incident")
    title = f"{job.job_id}: rank 1 failed (killed), restarting"
    assert plain.bodies[0]["title"] == title
    assert incident["sentence"][1:] in plain.bodies[0]["message"]
    assert f"More: https://dash.example/{job.job_id} or ftctl report {job.run_dir}" in plain.bodies[0]["message"]
    (recovered,) = job.events("recovered")
    (back,) = chat.bodies
    assert f"{job.job_id}: back at step {recovered['step']} after " in back["text"]
    assert "7 steps were lost and had to be made again." in back["text"]
    assert [body["title"].split(";")[0] for body in plain.bodies[2:]] == [f"{job.job_id}: done"]
    told = {("incident", "json://***"), ("recovered", "json://***"), ("done", "json://***")}
    assert set(outcomes(job, "notified")) == told | {("recovered", "mmost://***")}
    logs = "".join(path.read_text() for path in job.run_dir.rglob("*.log"))
    assert SECRET not in job.journal_text + job.stderr + job.stdout + logs
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["down", "refuses", "comes back"])
def test_a_service_that_fails(job: FtJob, hooks: list[Hook], kind: str) -> None:
    hooks.append(hook := Hook(*{"down": (200,), "refuses": (403,), "comes back": (503, 200)}[kind]))
    if kind == "down":
        hooks.remove(hook)
        hook.close()
    start(job, {"apprise": json_address(hook), "on": ["incident"], "retries": 1}, FAULT="1 7")
    assert job.wait() == 0, job.stderr
    (outcome,) = job.events("notified" if kind == "comes back" else "notify_failed")
    assert outcome["tries"] == (1 if kind == "refuses" else 2), "what cannot change is not tried again"
    says = {"down": "could not be reached, or did not take it", "refuses": "the service says 403", "comes back": ""}
    assert says[kind] in outcome.get("error", "")
    assert SECRET not in job.journal_text + job.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "says"),
    [
        (f"slak://{SECRET}", "Apprise knows no service `slak://`; did you mean `slack`?"),
        (f"slack://{SECRET}", "a part that `slack://` needs is missing or malformed"),
    ],
)
@pytest.mark.parametrize(
    "command", [["ftlaunch"], ["ftlaunch", "--dry-run"], ["ftlaunch.cli.ctl", "check"]], ids=" ".join
)
def test_an_address_that_apprise_does_not_take_is_refused_at_the_start(
    tmp_path: Path, command: list[str], address: str, says: str
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"script": str(BEATS), "notify": [{"apprise": address}]}))
    words = [sys.executable, "-m", *command, "job.yaml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_does_not_show_the_address(tmp_path: Path) -> None:
    spec = {"script": str(BEATS), "notify": {"apprise": f"json://me:{SECRET}@127.0.0.1/{SECRET}"}}
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    words = [sys.executable, "-m", "ftlaunch", "--dry-run", "job.yaml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert "apprise: json://***" in done.stdout
    assert SECRET not in done.stdout + done.stderr
