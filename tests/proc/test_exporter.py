"""The exporter beside real jobs: what it says, and what becomes of it where something breaks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tests.support.disks import needs_root, tmpfs
from tests.support.harness import FtJob
from tests.support.leftovers import assert_ended
from tests.support.prometheus import OPEN_METRICS, PROMTOOL, get, samples, start, url_of, value
from tests.support.waiting import wait_for

from ftlaunch.views.metrics.catalogue import COUNTER, HISTOGRAM, ROWS

pytestmark = pytest.mark.long


def exporters(job: FtJob) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(job.supervisor.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper that has ended since
            if "ftlaunch.views.metrics.exporter" in child.cmdline():
                found.append(child)
    return found


def stop(job: FtJob) -> None:
    job.supervisor.terminate()
    job.wait()


def step_of(url: str) -> float:
    return value(url, "ftlaunch_newest_step", where="completed") or -1


def test_a_job_with_a_killed_rank_is_told_in_numbers(job: FtJob) -> None:
    start(job, {"ranks": True}, FAULT="1 30")
    url = url_of(job)
    job.wait_event("recovered")
    wait_for(lambda: value(url, "ftlaunch_incidents_total", kind="killed") == 1, "the incident")
    wait_for(lambda: step_of(url) > 5, "steps of the second attempt")
    kind, text = get(url)
    page = samples(text)
    assert kind.startswith("text/plain; version=0.0.4")
    told = {labels["state"] for labels, number in page["ftlaunch_job_state"] if number}
    assert told == {"running"}
    lost = job.events("resumed")[1]["steps_lost"]
    assert page["ftlaunch_steps_lost_total"] == [({}, lost)]
    assert page["ftlaunch_restart_to_first_step_seconds_count"] == [({}, 1)]
    assert page["ftlaunch_restart_to_first_step_seconds_sum"] == [({}, job.events("recovered")[0]["seconds"])]
    left = {labels["after"]: number for labels, number in page["ftlaunch_restarts_left"]}
    assert left == {"failure": 2, "hang": 2}
    assert page["ftlaunch_ranks_alive"] == [({}, 2)]
    assert sorted(labels["rank"] for labels, _ in page["ftlaunch_rank_step"]) == ["0", "1"]
    assert page["ftlaunch_supervisor_process_resident_memory_bytes"][0][1] > 1e6
    stop(job)


def test_every_metric_of_the_table_is_told_and_promtool_is_content(job: FtJob) -> None:
    """Those aside that a job of one node, without torch and without an end, cannot have."""
    start(job, {"ranks": True}, JOBSET_RESTART_ATTEMPT="1")
    url = url_of(job)
    wait_for(lambda: step_of(url) > 5 and "ftlaunch_progress_age_seconds" in get(url)[1], "steps")
    text = get(url)[1]
    names = {f"{row.name}_count" if row.kind == HISTOGRAM else row.name for row in ROWS}
    absent = {
        "ftlaunch_nodes",
        "ftlaunch_job_ended_timestamp_seconds",
        "ftlaunch_checkpoint_committed_timestamp_seconds",
    }
    assert names - samples(text).keys() == absent
    if PROMTOOL is not None:
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=text, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    kind, text = get(url, OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    counters = [row.name for row in ROWS if row.kind == COUNTER]
    assert [name for name in counters if f"# TYPE {name.removesuffix('_total')} counter" not in text] == []
    stop(job)


def test_an_exporter_that_is_killed_is_started_again_and_has_forgotten_nothing(job: FtJob) -> None:
    """What it counts is in the journal."""
    start(job, None, FAULT="1 30")
    url = url_of(job)
    wait_for(lambda: value(url, "ftlaunch_incidents_total", kind="killed") == 1, "the incident")
    (first,) = exporters(job)
    first.kill()
    ended = job.wait_event("outlet_ended")
    assert (ended["what"], ended["why"], ended["again"]) == ("metrics", "exit status -9", 1.0)
    said = "cannot tell metrics: exit status -9; trying again in 1.0 s, and the job goes on"
    wait_for(lambda: said in job.stderr, "the sentence")
    again = url_of(job, 2)
    assert wait_for(lambda: value(again, "ftlaunch_incidents_total", kind="killed"), "the numbers") == 1
    assert len(job.events("incident")) == 1, "training has not noticed"
    stop(job)


@pytest.mark.slow
def test_an_exporter_that_dies_again_and_again_is_given_up(job: FtJob, tmp_path: Path) -> None:
    """A Python without prometheus_client has no exporter: the job goes on all the same."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/prometheus_client.py").write_text("raise ImportError('no such library')")
    start(job, None, PYTHONPATH=str(tmp_path / "broken"))
    first, second = (job.wait_event("outlet_ended", count) for count in (1, 2))
    assert (first["why"], first["again"], second["again"]) == ("exit status 1", 1.0, 2.0)
    last = wait_for(lambda: job.events("outlet_ended")[4:], "the fifth death")[0]
    assert last["again"] is None
    said = "cannot tell metrics: exit status 1; there are none from now on, and the job goes on"
    wait_for(lambda: said in job.stderr, "the sentence on the terminal, which is behind the journal")
    assert job.events("incident") == job.events("metrics_served") == []
    stop(job)


def test_a_scrape_every_millisecond_holds_up_nobody(job: FtJob) -> None:
    """Each answer is whole, and the job makes steps all the while. `make bench-metrics` measures what they cost."""
    start(job, {"ranks": True})
    url = url_of(job)
    scrapes, begin = 0, step_of(url)
    while scrapes < 200 or step_of(url) < begin + 100:
        kind, text = get(url, OPEN_METRICS)
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        assert "ftlaunch_job_info" in text
        scrapes += 1
        time.sleep(0.001)
    assert job.events("incident") == job.events("outlet_ended") == []
    stop(job)


@pytest.mark.slow
def test_clients_that_say_nothing_do_not_take_all_room(job: FtJob) -> None:
    start(job, None)
    url = url_of(job)
    port = int(url.rpartition(":")[2].partition("/")[0])
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
        silent[-1].settimeout(60)
        assert silent[-1].recv(1) == b"", "one too many is hung up on"
        assert exporters(job)[0].num_threads() < 30
    wait_for(lambda: value(url, "ftlaunch_supervisor_answers") == 1, "an answer once they have gone")
    stop(job)


def test_a_port_that_is_taken_is_said_and_had_once_it_is_free(job: FtJob) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        start(job, {"port": port})
        said = f"cannot serve metrics at 127.0.0.1:{port}: address already in use; the job goes on"
        wait_for(lambda: said in job.stderr, "the sentence")
        assert job.supervisor.poll() is None
    assert url_of(job) == f"http://127.0.0.1:{port}/metrics"
    stop(job)
    assert job.stderr.count("cannot serve metrics") == 1


def test_the_end_is_shown_for_a_while(job: FtJob) -> None:
    """Nobody waits for that: the supervisor has ended, and its output is closed."""
    start(job, {"linger": "60s"}, args=("200", "0.01"))
    url = url_of(job)
    (exporter,) = exporters(job)
    assert job.wait() == 0
    wait_for(lambda: value(url, "ftlaunch_job_state", state="done") == 1, "the end")
    assert value(url, "ftlaunch_newest_step", where="completed") == -1
    assert value(url, "ftlaunch_job_ended_timestamp_seconds")
    held = [os.readlink(f"/proc/{exporter.pid}/fd/{number}") for number in (1, 2)]
    assert held == ["/dev/null"] * 2
    exporter.kill()


def test_the_next_run_of_a_job_gets_the_port_of_the_one_before(job: FtJob) -> None:
    """The exporter that shows the end leaves when the job begins again. Counters go on where they were."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    start(job, {"port": port, "linger": "100s"}, args=("50", "0.01"))
    assert job.wait() == 0
    start(job, {"port": port}, "--fresh")
    url = url_of(job, 2)
    wait_for(lambda: value(url, "ftlaunch_job_runs_total") == 2, "the second run")
    assert value(url, "ftlaunch_job_state", state="running") == 1
    stop(job)
    assert "cannot serve" not in job.stderr


def test_with_a_supervisor_that_is_killed_the_exporter_goes(job: FtJob) -> None:
    start(job, {"linger": "100s"})
    url_of(job)
    (exporter,) = exporters(job)
    job.supervisor.kill()
    assert_ended([exporter.pid])


@pytest.mark.long
def test_a_supervisor_that_does_not_answer_is_seen(job: FtJob) -> None:
    start(job, None)
    url = url_of(job)
    wait_for(lambda: value(url, "ftlaunch_supervisor_answers") == 1, "an answer")
    job.supervisor.send_signal(signal.SIGSTOP)
    wait_for(lambda: value(url, "ftlaunch_supervisor_answers") == 0, "the silence")
    before = step_of(url)
    wait_for(lambda: step_of(url) > before, "steps, which are read without the supervisor")
    job.supervisor.send_signal(signal.SIGCONT)
    wait_for(lambda: value(url, "ftlaunch_supervisor_answers") == 1, "an answer")
    stop(job)
    assert job.events("outlet_ended") == [], "one exporter has seen it all"


def test_a_textfile_is_whole_and_shows_the_end(job: FtJob, tmp_path: Path) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    start(job, {"port": None, "textfile": str(folder)}, args=("200", "0.01"))
    path = folder / f"ftlaunch_{job.job_id}.prom"
    page = samples(wait_for(lambda: path.exists() and path.read_text(), "the file"))
    assert page["ftlaunch_supervisor_answers"] == [({}, 1)]
    assert job.wait() == 0
    done = 'state="done"} 1.0'
    wait_for(lambda: done in path.read_text(), "the end in the file")
    assert [entry.name for entry in folder.iterdir()] == [path.name]
    assert job.events("metrics_served") == []


@pytest.mark.parametrize("trouble", ["gone", pytest.param("full", marks=needs_root)])
def test_a_textfile_that_cannot_be_written_is_said_and_the_job_goes_on(
    job: FtJob, tmp_path: Path, trouble: str
) -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tmpfs(tmp_path / "small", "64k")) if trouble == "full" else tmp_path / "not there"
        if trouble == "full":
            (folder / "filler").write_bytes(b"x" * os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize)
        start(job, {"textfile": str(folder)})
        path = folder / f"ftlaunch_{job.job_id}.prom"
        why = {"gone": "no such file or directory", "full": "no space left on device"}[trouble]
        wait_for(lambda: f"cannot write {path}: {why}; the job goes on" in job.stderr, "the sentence")
        assert value(url_of(job), "ftlaunch_supervisor_answers") == 1
        stop(job)
        assert not path.exists()
        if trouble == "full":  # the exporter, which ends after the job, may try once more
            wait_for(lambda: [entry.name for entry in folder.iterdir()] == ["filler"], "the end of the last try")
