"""Metrics of a reading: names by the conventions, labels with bounds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ftlaunch.history.goodput_shares import Goodput
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.metrics.catalogue import COUNTER, GAUGE, HISTOGRAM, INFO, ROWS
from ftlaunch.views.metrics.reading import PHASES, JobReading, RankReading
from ftlaunch.views.metrics.registry import ReadingCollector
from ftlaunch.views.metrics.tally import Tally
from ftlaunch_contract.protocol import Phase

START = {"t": "2031-01-02T03:04:05.000Z", "mono": 0.0, "attempt": 0, "event": "job_started", "job_id": 'a"b\n',
         "ranks": 3, "host": "h", "run_dir": "/r", "max_restarts": 3, "max_hang_restarts": 3}  # fmt: skip
DEVICES = DeviceNames("h", "n", "p", "space", ("GPU-0", "GPU-1"))
GOODPUT = Goodput({"useful": 5.0}, {"job": 0.5, "5m": 0.25})
STATUS = {"state": "last gasp", "committed": 7, "in_memory": 9, "ranks_alive": 2}


def reading(ranks: int = 2, status: dict[str, Any] | None = STATUS, **more: Any) -> JobReading:
    tally = Tally(("hang",))
    tally.apply(START)
    seen = [RankReading(rank, 10 + rank, 0.5 + rank, 90.0 + rank, Phase.TRAIN, 0, 0) for rank in range(ranks)]
    return JobReading(**{"tally": tally, "now": 1e9, "mono": 100.0, "goodput": GOODPUT, "status": status,
                         "nodes": None, "ranks": seen, "devices": DEVICES, "progressed": 95.0, **more})  # fmt: skip


def told(found: JobReading, *, by_rank: bool = True) -> dict[str, dict[tuple[str, ...], float]]:
    """Name -> values of the labels besides job_id -> number."""
    page: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(
        generate_latest(ReadingCollector(found, {}, by_rank=by_rank)).decode()
    ):
        for sample in family.samples:
            assert sample.labels["job_id"] == 'a"b\n', "whatever a name holds comes back as it was"
            values = tuple(value for name, value in sample.labels.items() if name != "job_id")
            page.setdefault(sample.name, {})[values] = sample.value
    return page


def test_what_is_known_is_told() -> None:
    page = told(reading())
    assert page["ftlaunch_newest_step"] == {("completed",): -1, ("front",): 11, ("memory",): 9, ("storage",): 7}
    assert page["ftlaunch_ranks"] == {(phase,): {"train": 2, "silent": 1}.get(phase, 0) for phase in PHASES}
    assert page["ftlaunch_step_duration_seconds"] == {("min",): 0.5, ("median",): 1.0, ("max",): 1.5}
    assert page["ftlaunch_oldest_beat_age_seconds"] == {(): 10.0}
    assert page["ftlaunch_progress_age_seconds"] == {(): 5.0}
    states = page["ftlaunch_job_state"]
    assert (states["last_gasp",], sum(states.values()), len(states)) == (1, 1, 16)
    assert page["ftlaunch_incidents_total"] == {("hang",): 0, ("other",): 0}, "a counter is there before it counts"


def test_the_share_of_useful_time_is_told_of_the_job_and_of_its_newest_hours() -> None:
    assert told(reading())["ftlaunch_goodput_ratio"] == {("job",): 0.5, ("5m",): 0.25}


def test_a_rank_is_told_by_the_names_of_its_pod_and_its_gpu() -> None:
    """A third rank has no GPU that is known; on several nodes each node tells its own."""
    page = told(reading(ranks=2))["ftlaunch_rank_info"]
    names = {"host": "h", "node": "n", "pod": "p", "namespace": "space"}
    assert [dict(one) for one in rank_labels(reading())] == [
        {**names, "rank": "0", "UUID": "GPU-0"},
        {**names, "rank": "1", "UUID": "GPU-1"},
        {**names, "rank": "2", "UUID": ""},
    ]
    assert set(page.values()) == {1}
    devices = [{"host": "a", "gpus": ["GPU-a"]}, {"host": "b", "gpus": "no list"}]
    nodes = [
        {"place": number, "isolated": False, "ranks": ranks, "devices": devices[number]}
        for number, ranks in enumerate(([0, 1], [2, 3]))
    ]
    nodes.append({"place": None, "isolated": False, "ranks": []})
    found = [(one["rank"], one["host"], one["UUID"]) for one in rank_labels(reading(nodes=nodes))]
    assert found == [("0", "a", "GPU-a"), ("1", "a", ""), ("2", "b", ""), ("3", "b", "")]
    assert "ftlaunch_rank_info" not in told(reading(), by_rank=False)


def rank_labels(found: JobReading) -> list[dict[str, str]]:
    """The labels of ftlaunch_rank_info, besides the job's id."""
    text = generate_latest(ReadingCollector(found, {}, by_rank=True)).decode()
    return [
        {name: value for name, value in sample.labels.items() if name != "job_id"}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "ftlaunch_rank_info"
    ]


def test_all_ranks_there_have_completed_the_least_step() -> None:
    assert told(reading(ranks=3))["ftlaunch_newest_step"]["completed",] == 10


def test_a_rank_that_is_ending_need_not_beat() -> None:
    ranks = [RankReading(0, 10, 0.5, 20.0, Phase.TEARDOWN, 0, 0), RankReading(1, 10, 0.5, 99.0, Phase.TRAIN, 0, 0)]
    found = JobReading(**{**vars(reading()), "ranks": ranks})
    assert told(found)["ftlaunch_oldest_beat_age_seconds"] == {(): 1.0}


def test_ranks_are_labels_only_where_they_are_asked_for() -> None:
    assert told(reading())["ftlaunch_rank_step"] == {("0",): 10, ("1",): 11}
    assert [name for name in told(reading(), by_rank=False) if name.startswith("ftlaunch_rank_")] == []


def test_a_supervisor_that_does_not_answer_leaves_out_what_only_it_knows() -> None:
    page = told(reading(status=None))
    assert page["ftlaunch_supervisor_answers"] == {(): 0}
    assert page.keys() & {"ftlaunch_job_state", "ftlaunch_ranks_alive"} == set()
    assert page["ftlaunch_newest_step"] == {("completed",): -1, ("front",): 11, ("storage",): -1}


def test_nodes_are_counted_by_what_they_do() -> None:
    nodes = [{"place": 0, "isolated": False, "ranks": [0, 1]}, {"place": None, "isolated": False, "ranks": []},
             {"place": None, "isolated": True, "ranks": []}]  # fmt: skip
    page = told(reading(nodes=nodes))
    assert page["ftlaunch_nodes"] == {("placed",): 1, ("standby",): 1, ("isolated",): 1}
    assert page["ftlaunch_ranks"]["silent",] == 0, "a node that has not come has no ranks"


def test_before_the_journal_says_anything_there_is_nothing() -> None:
    assert generate_latest(ReadingCollector(reading(tally=Tally(())), {}, by_rank=True)) == b""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_names_follow_the_conventions(row: Any) -> None:
    """https://prometheus.io/docs/practices/naming: one application, base units, `_total` of counters alone."""
    assert re.fullmatch(r"ftlaunch(_[a-z]+)+", row.name)
    assert row.kind in (GAUGE, COUNTER, HISTOGRAM, INFO)
    assert row.name.endswith("_total") is (row.kind == COUNTER)
    assert row.name.endswith("_info") is (row.kind == INFO)
    assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|percent|ratio_percent)(_|$)", row.name)
    assert row.says.endswith(".")
    assert set(row.labels) <= {"host", "run_dir", "version", "state", "class", "kind", "after", "where", "across_ranks",
                               "phase", "role", "why", "result", "rank",
                               "over", "node", "pod", "namespace", "UUID"}, "a new label needs a bound"  # fmt: skip
    assert bool(row.values) is (bool(row.labels) and row.kind != INFO and row.labels != ("rank",))


def test_names_are_told_once() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_what_nobody_knows_is_told_as_other() -> None:
    """Taken out by hand: without `other` among the labels such a checkpoint is in no number."""
    tally = Tally(("hang",))
    for line in (START, {**START, "event": "checkpoint_committed", "why": "whim"}, {**START, "event": "unsound"}):
        tally.apply(line)
    page = told(reading(tally=tally))
    assert page["ftlaunch_checkpoints_committed_total"]["other",] == 1
    assert page["ftlaunch_numeric_faults_total"]["other",] == 1
