"""The tracer beside real jobs: a collector gets a trace of each restart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.agents import free_port
from tests.support.harness import FtJob
from tests.support.prometheus import BEATS
from tests.support.prometheus import start as start_job
from tests.support.waiting import wait_for

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http",
    reason="OpenTelemetry's exporter is not installed (pip install 'ftlaunch[otel]')",
)

from tests.support.collector import Collector

pytestmark = pytest.mark.long

PHASES = ["detecting", "killing", "planning", "spawning", "loading", "first step"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that takes what it is sent."""
    made = Collector()
    yield made
    made.close()


def start(job: FtJob, endpoint: str, *options: str, steps: int = 1_000_000, **env: str) -> None:
    traces = {"endpoint": endpoint} if endpoint else {}
    args = (str(steps), "0.01")
    start_job(job, None, *options, script=BEATS, args=args, more={"metrics": None, "traces": traces}, **env)


def stop(job: FtJob) -> None:
    job.supervisor.terminate()
    job.wait()


def tracers(job: FtJob) -> list[psutil.Process]:
    children = psutil.Process(job.supervisor.pid).children()
    return [child for child in children if "ftlaunch.views.metrics.traces.tracer" in child.cmdline()]


def attributes(span: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return getattr(value, value.WhichOneof("value"))

    return {pair.key: plain(pair.value) for pair in span.attributes}


def test_a_restart_is_one_trace_of_six_phases(job: FtJob, collector: Collector) -> None:
    start(job, f"http://127.0.0.1:{collector.port}", FAULT="1 30", LATE="0.3")
    recovered = job.wait_event("recovered")
    spans = wait_for(lambda: collector.spans, "spans")
    root = next(span for span in spans if span.name == "restart")
    phases = [span for span in spans if span is not root]
    assert [span.name for span in phases] == PHASES
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert {span.parent_span_id for span in phases} == {root.span_id}
    assert root.parent_span_id == b""
    assert phases[0].start_time_unix_nano == root.start_time_unix_nano
    assert phases[-1].end_time_unix_nano == root.end_time_unix_nano
    for before, after in pairwise(phases):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    incident = job.events("incident")[0]
    whole = (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9
    assert whole == pytest.approx(incident["since_progress"] + recovered["seconds"], abs=0.1)
    told = attributes(root)
    assert (told["ftlaunch.kind"], told["ftlaunch.rank"], told["ftlaunch.verdict"]) == ("killed", 1, "restart")
    assert told["ftlaunch.steps_lost"] == job.events("resumed")[1]["steps_lost"]
    seconds = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in phases}
    assert seconds["loading"] > 0.3
    (resource,) = collector.resources
    assert (resource["service.name"], resource["ftlaunch.job_id"]) == ("ftlaunch", job.job_id)
    stop(job)


def test_a_job_that_is_given_up_is_a_trace_with_an_error(job: FtJob, collector: Collector) -> None:
    """The supervisor ends and waits for nobody: the tracer sends what is left."""
    start(job, f"http://127.0.0.1:{collector.port}", "--max-restarts", "0", FAULT="1 30")
    assert job.wait() == 1
    spans = wait_for(lambda: collector.spans, "spans")
    root = next(span for span in spans if span.name == "restart")
    assert root.status.message == "the job was given up"
    assert [span.name for span in spans if span is not root] == ["detecting", "killing"]


def test_the_variables_of_opentelemetry_say_where(job: FtJob, collector: Collector) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", "OTEL_SERVICE_NAME": "my training"}
    start(job, "", FAULT="1 30", **where)
    wait_for(lambda: collector.spans, "spans")
    assert collector.resources[0]["service.name"] == "my training"
    stop(job)


def test_a_collector_that_is_down_is_said_and_gets_the_trace_later(job: FtJob) -> None:
    port = free_port()
    where = f"http://127.0.0.1:{port}"
    start(job, where, FAULT="1 30", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    said = f"cannot send traces to {where}: "
    wait_for(lambda: said in job.stderr, "the sentence")
    late = Collector(port)
    try:
        wait_for(lambda: len(late.spans) == 1 + len(PHASES), "the spans")
        wait_for(lambda: f"traces go to {where} again" in job.stderr, "the good news")
        assert job.stderr.count(said) == 1
        stop(job)
    finally:
        late.close()


def test_a_tracer_that_is_killed_is_started_again_and_repeats_under_the_same_ids(
    job: FtJob, collector: Collector
) -> None:
    start(job, f"http://127.0.0.1:{collector.port}", FAULT="1 30")
    first = {span.span_id for span in wait_for(lambda: collector.spans[:], "spans")}
    (tracer,) = tracers(job)
    tracer.kill()
    assert job.wait_event("outlet_ended")["what"] == "traces"
    wait_for(lambda: len(collector.spans) == 2 * len(first), "the same spans")
    assert {span.span_id for span in collector.spans} == first
    stop(job)


def test_without_the_extra_one_sentence_says_how_to_install_it(job: FtJob, tmp_path: Path) -> None:
    (tmp_path / "lacking/opentelemetry").mkdir(parents=True)
    (tmp_path / "lacking/opentelemetry/__init__.py").touch()
    start(job, "http://127.0.0.1:1", steps=300, PYTHONPATH=str(tmp_path / "lacking"))
    assert job.wait() == 0
    said = "cannot send traces: OpenTelemetry is not installed, `pip install 'ftlaunch[otel]'` brings it"
    assert job.stderr.count(said) == 1
    assert job.events("outlet_ended") == []
