"""The metrics of a job of several nodes are told where its head is."""

from __future__ import annotations

import signal

import psutil
import pytest
import yaml
from tests.support.agents import NodesJob
from tests.support.harness import TINY
from tests.support.leftovers import alive
from tests.support.prometheus import get, samples, url_of, value
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_one_exporter_tells_of_all_nodes_and_the_next_head_goes_on_counting(nodes: NodesJob) -> None:
    """The exporter of a killed head leaves with it."""
    spec = nodes.home / "job.yaml"
    spec.write_text(yaml.safe_dump({"script": str(TINY), "metrics": {"port": 0, "linger": "0s", "ranks": True}}))
    nodes.script, nodes.words = spec, ("--steps", "1000000", "--step-time", "0.02")
    nodes.env |= {"FAULT": "sigkill 3 12", "POD_NAME": "a-pod", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    nodes.begin()
    url = url_of(nodes)
    nodes.wait_event("recovered")
    wait_for(lambda: value(url, "ftlaunch_incidents_total", kind="killed") == 1, "the incident")
    wait_for(lambda: (value(url, "ftlaunch_newest_step", where="completed") or 0) > 12, "steps of all ranks")
    page = samples(get(url)[1])
    assert page["ftlaunch_nodes"] == [({"role": "placed"}, 2), ({"role": "standby"}, 0), ({"role": "isolated"}, 0)]
    assert page["ftlaunch_ranks_alive"] == page["ftlaunch_ranks_asked"] == [({}, 4)]
    places = [(where["rank"], where["pod"], where["UUID"]) for where, _ in page["ftlaunch_rank_info"]]
    assert places == [
        ("0", "a-pod", "GPU-a"),
        ("1", "a-pod", "GPU-b"),
        ("2", "a-pod", "GPU-a"),
        ("3", "a-pod", "GPU-b"),
    ]
    head = int(nodes.events("job_started")[0]["pid"])
    (exporter,) = (one for one in psutil.Process(head).children() if "ftlaunch.views.metrics.exporter" in one.cmdline())
    psutil.Process(head).send_signal(signal.SIGKILL)
    again = url_of(nodes, 2)
    wait_for(lambda: not alive(exporter.pid), "the end of the first exporter")
    wait_for(lambda: value(again, "ftlaunch_supervisor_answers") == 1, "the next head")
    assert value(again, "ftlaunch_incidents_total", kind="killed") == 1
    for agent in nodes.supervisors:
        agent.terminate()
    nodes.codes()


@pytest.mark.slow
def test_a_lost_machine_is_counted_as_such(nodes: NodesJob) -> None:
    """Taken out by hand: without NODE_LOST among the kinds it is counted as `other`."""
    spec = nodes.home / "job.yaml"
    spec.write_text(yaml.safe_dump({"script": str(TINY), "metrics": {"port": 0, "linger": "0s"}}))
    nodes.script, nodes.words = spec, ("--steps", "1000000", "--step-time", "0.02")
    nodes.begin()
    url = url_of(nodes)
    wait_for(lambda: (value(url, "ftlaunch_newest_step", where="completed") or 0) > 3, "steps of all ranks")
    lost = 1 - nodes.speaker  # the agent that has not started the head, so that the head says it on
    nodes.supervisors[lost].kill()
    incident = nodes.wait_event("incident")
    assert incident["kind"] == "node-lost", "the fault fired"
    for name in ("ftlaunch_incidents_total", "ftlaunch_restarts_total"):
        wait_for(lambda: value(url, name, kind="node-lost") == 1, f"{name} of the lost node")  # noqa: B023
        assert value(url, name, kind="other") == 0
    nodes.supervisors[1 - lost].terminate()
    nodes.codes()
