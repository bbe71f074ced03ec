"""A real Prometheus scrapes a real job with a killed rank: what the dashboard asks has answers."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.harness import FtJob
from tests.support.prometheus import NO_PROMETHEUS, PROMETHEUS, Prometheus, dashboard, train, url_of
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.skipif(PROMETHEUS is None, reason=NO_PROMETHEUS)]

# Queries that give nothing in a job with one killed rank, and why.
EMPTY: dict[str, str] = {}
INTERVAL = "2s"  # `$__interval`, by which the annotations look back


def expressions() -> Iterator[tuple[str, str]]:
    """Title and query of every target of every panel, and of the annotations."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def substituted(expression: str, job_id: str) -> str:
    """As Grafana fills in its variables."""
    words = {"$job_id": job_id, "$__interval": INTERVAL, "$__rate_interval": "1m", "$__range": "5m"}
    for name, text in words.items():
        expression = expression.replace(name, text)
    assert "$" not in expression, f"a variable that the dashboard does not define: {expression}"
    return expression


def ranged(server: Prometheus, expression: str) -> list[Any]:
    """The series of an expression over the last five minutes, as a panel asks for them."""
    now = time.time()
    found: list[Any] = server.ask("query_range", query=expression, start=f"{now - 300}", end=f"{now}", step="1")[
        "result"
    ]
    return found


def variable_values(server: Prometheus) -> set[str]:
    """The values of the variable job_id, as Grafana asks for those of `label_values(METRIC, LABEL)`."""
    [name] = [entry for entry in dashboard()["templating"]["list"] if entry["name"] == "job_id"]
    asked = name["query"] if isinstance(name["query"], str) else name["query"]["query"]
    found = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", asked)
    assert found is not None, asked
    return set(server.ask(f"label/{found[2]}/values", **{"match[]": found[1]}))


@pytest.mark.slow
def test_every_query_of_the_dashboard_has_an_answer(job: FtJob, prometheus: Callable[..., Prometheus]) -> None:
    """The rank is killed once Prometheus has seen the counters at 0 for an interval: increases show from then on.

    An annotation compares with the interval before. Counters seen at 0 for less time would make it true for less than
    the steps at which this test looks back.
    """
    train(job, {"ranks": True})
    server = prometheus(url_of(job))
    wait_for(lambda: server.query("ftlaunch_checkpoint_committed_timestamp_seconds"), "a checkpoint in Prometheus")
    wait_for(lambda: server.query(f'ftlaunch_incidents_total{{kind="killed"}} offset {INTERVAL} == 0'), "counters at 0")
    os.kill(job.pids()[1], signal.SIGKILL)
    job.wait_event("recovered")
    assert [incident["kind"] for incident in job.events("incident")] == ["killed"], "the fault fired"
    wait_for(lambda: server.query("increase(ftlaunch_incidents_total[1m]) > 0"), "the incident in Prometheus")
    commits = int(server.query("sum(ftlaunch_checkpoints_committed_total)")[0][1])
    more = f"sum(ftlaunch_checkpoints_committed_total) > {commits}"
    wait_for(lambda: server.query(more), "another checkpoint")
    once = {query: f"count_over_time(({substituted(query, job.job_id)})[5m:500ms])" for _, query in expressions()}
    for query, ever in once.items():
        if query not in EMPTY:
            wait_for(lambda ever=ever: server.query(ever), f"an answer once: {query}")
    assert [query for query in EMPTY if server.query(once[query])] == []
    for _, query in expressions():  # what is true for a moment may lie between the steps of one range
        if query not in EMPTY:
            asked = substituted(query, job.job_id)
            wait_for(lambda asked=asked: ranged(server, asked), f"an answer for a range: {asked}")
    assert job.job_id in variable_values(server)
    assert server.query("ftlaunch_goodput_seconds < 0") == []
    job.supervisor.terminate()
    job.wait()


def test_the_dashboard_is_whole() -> None:
    """Ids and places are its own, rows have panels, and each panel asks the chosen Prometheus."""
    content = dashboard()
    panels = content["panels"]
    assert [row["title"] for row in panels if row["type"] == "row"] == ["Goodput", "Incidents", "Checkpoints", "Steps"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [(place["x"] + x, place["y"] + y) for place in (panel["gridPos"] for panel in panels)
             for x in range(place["w"]) for y in range(place["h"])]  # fmt: skip
    assert len(set(taken)) == len(taken), "panels lie over each other"
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {"${datasource}"}
    names = {name["name"] for name in content["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(content)))
    assert used - {"__interval", "__rate_interval", "__range"} == names
