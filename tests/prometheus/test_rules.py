"""The alert rules: checked and tested by promtool, and loaded by a real Prometheus that fires one on a real job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.support.harness import FtJob
from tests.support.prometheus import NO_PROMETHEUS, PROMETHEUS, PROMTOOL, Prometheus, start, url_of
from tests.support.waiting import wait_for

from ftlaunch.views.metrics.catalogue import HISTOGRAM, ROWS

CONFIGS = Path(__file__).parents[2] / "configs"
pytestmark = pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason=NO_PROMETHEUS)


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *words], cwd=CONFIGS / "prometheus", text=True, capture_output=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [("check", "rules", "ftlaunch.rules.yml"), ("check", "config", "prometheus.yml"),
     ("test", "rules", "ftlaunch.rules.test.yml")],
    ids=" ".join,
)  # fmt: skip
def test_promtool_is_content(words: tuple[str, ...]) -> None:
    done = promtool(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[str]:
    (group,) = yaml.safe_load((CONFIGS / "prometheus/ftlaunch.rules.yml").read_text())["groups"]
    return [rule["alert"] for rule in group["rules"]]


def test_every_alert_is_tested_where_it_fires() -> None:
    tests = yaml.safe_load((CONFIGS / "prometheus/ftlaunch.rules.test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == set(alerts())


@pytest.mark.parametrize(
    "name", ["prometheus/ftlaunch.rules.yml", "prometheus/ftlaunch.rules.test.yml", "grafana/ftlaunch.json"]
)
def test_only_metrics_that_there_are_are_asked_for(name: str) -> None:
    known = {row.name for row in ROWS}
    known |= {f"{row.name}_{part}" for row in ROWS if row.kind == HISTOGRAM for part in ("bucket", "sum", "count")}
    asked = set(re.findall(r"\bftlaunch_\w+", (CONFIGS / name).read_text()))
    assert asked <= known
    assert asked


@pytest.mark.slow
def test_a_job_that_is_given_up_fires_although_it_is_gone(job: FtJob, prometheus: Callable[..., Prometheus]) -> None:
    """Its exporter outlives the supervisor by `linger`, so that a scrape sees the end."""
    start(job, {"linger": "5s"}, "--max-restarts", "0", FAULT="1 400")
    server = prometheus(url_of(job))
    assert job.wait() == 1
    fired = 'ALERTS{alertname="FtlaunchJobGivenUp", alertstate="firing"}'
    wait_for(lambda: server.query(fired), "the alert")
    wait_for(lambda: server.query("up == 0"), "the exporter's end")
    assert [labels["job_id"] for labels, _ in server.query(fired)] == [job.job_id]
    assert server.query("ftlaunch_job_state") == [], "the alert outlives what it fired for"
