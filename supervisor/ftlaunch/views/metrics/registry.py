"""Turns a reading into the metrics of prometheus_client. Nothing here reads or serves anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ftlaunch import __version__
from ftlaunch.policy.states import JobState
from ftlaunch.system.device_names import read_names
from ftlaunch.views.metrics.catalogue import COUNTER, HISTOGRAM, INFO, ROWS
from ftlaunch.views.metrics.reading import JobReading
from ftlaunch.views.metrics.tally import FAULTS, PROOF_RESULTS, SAVE_REASONS, Distribution

_ROWS = {row.name: row for row in ROWS}
Values = Mapping[tuple[str, ...], float]
"""Values of a metric, by the values of its labels besides `job_id`."""


class ReadingCollector(Collector):
    """The metrics of one reading, as the writers of prometheus_client want them."""

    def __init__(self, reading: JobReading, own: Mapping[str, float], *, by_rank: bool) -> None:
        """Make the metrics.

        Args:
            reading: the reading.
            own: metrics of the supervisor's and the exporter's processes, by name.
            by_rank: whether to add the metrics of each rank.
        """
        self._families = list(families(reading, own, by_rank=by_rank))

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self._families


def families(reading: JobReading, own: Mapping[str, float], *, by_rank: bool) -> Iterator[Metric]:
    """Yield the metrics of a job; none before the journal says that the job was started.

    The arguments are those of `ReadingCollector`.
    """
    start = reading.tally.start
    if start is None:
        return
    job_id = _label(start.get("job_id"))
    info = (_label(start.get("host")), _label(start.get("run_dir")), __version__)
    yield _family(job_id, "ftlaunch_job_info", {info: 1})
    gathered: dict[str, Values] = {**_of_job(reading), **_of_journal(reading), **_of_ranks(reading)}
    gathered |= {name: {(): value} for name, value in own.items()}
    if by_rank:
        gathered |= _by_rank(reading)
    for name, values in gathered.items():
        yield _family(job_id, name, values)
    for name, distribution in _distributions(reading).items():
        family = HistogramMetricFamily(name, _ROWS[name].says, labels=("job_id",))
        family.add_metric([job_id], distribution.buckets(), distribution.sum)
        yield family


def _label(value: object) -> str:
    """Return a label's text without lone surrogates, which JSON can hold and UTF-8 cannot."""
    return str(value).encode(errors="replace").decode()


def _family(job_id: str, name: str, values: Values) -> Metric:
    row = _ROWS[name]
    labels = ("job_id", *row.labels)
    if row.kind == INFO:
        info = InfoMetricFamily(name.removesuffix("_info"), row.says, labels=("job_id",))
        for given in values:
            info.add_metric([job_id], dict(zip(row.labels, given, strict=True)))
        return info
    assert row.kind != HISTOGRAM, name
    made: Any = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    family: Any = made(name.removesuffix("_total") if row.kind == COUNTER else name, row.says, labels=labels)
    for given, value in values.items():
        family.add_metric([job_id, *given], value)
    found: Metric = family
    return found


def _of_job(reading: JobReading) -> dict[str, Values]:
    tally = reading.tally
    status = reading.status
    state = tally.state or (str(status["state"]) if status else "")
    found: dict[str, Values] = {
        "ftlaunch_supervisor_answers": {(): float(status is not None)},
        "ftlaunch_job_started_timestamp_seconds": {(): tally.started_at},
        "ftlaunch_goodput_seconds": {(name,): value for name, value in reading.goodput.seconds.items()},
        "ftlaunch_goodput_ratio": {(over,): share for over, share in reading.goodput.shares.items()},
        "ftlaunch_ranks_asked": {(): reading.asked},
        "ftlaunch_restarts_left": {(after,): left for after, left in tally.restarts_left.items()},
    }
    if state:
        found["ftlaunch_job_state"] = {
            (known.value.replace(" ", "_"),): float(known.value == state) for known in JobState
        }
    if tally.state:
        found["ftlaunch_job_ended_timestamp_seconds"] = {(): tally.ended_at}
    if tally.start is not None:
        found["ftlaunch_restarts_allowed"] = {(): int(tally.start.get("max_restarts", 0))}
    if reading.nodes is not None:
        roles = ["isolated" if node["isolated"] else "standby" if node["place"] is None else "placed"
                 for node in reading.nodes]  # fmt: skip
        found["ftlaunch_nodes"] = {(role,): roles.count(role) for role in ("placed", "standby", "isolated")}
    return found


def _of_journal(reading: JobReading) -> dict[str, Values]:
    tally = reading.tally
    found: dict[str, Values] = {
        "ftlaunch_job_runs_total": {(): tally.runs},
        "ftlaunch_job_attempts_total": {(): tally.attempts},
        "ftlaunch_incidents_total": {(kind,): tally.incidents[kind] for kind in tally.kinds},
        "ftlaunch_restarts_total": {(kind,): tally.restarts[kind] for kind in tally.kinds},
        "ftlaunch_steps_lost_total": {(): tally.steps_lost},
        "ftlaunch_resumes_compared_total": {(result,): tally.proofs[result] for result in PROOF_RESULTS},
        "ftlaunch_hangs_suspected_total": {(): tally.hangs_suspected},
        "ftlaunch_failed_calls_total": {(): tally.failed_calls},
        "ftlaunch_numeric_faults_total": {(kind,): tally.faults[kind] for kind in FAULTS},
        "ftlaunch_stragglers": {(): len(tally.slow)},
        "ftlaunch_checkpoints_committed_total": {(why,): tally.commits[why] for why in SAVE_REASONS},
        "ftlaunch_checkpoint_failures_total": {(): tally.save_failures},
        "ftlaunch_checkpoints_rejected_total": {(): tally.rejected},
        "ftlaunch_checkpoint_bytes_total": {(): tally.saved_bytes},
        "ftlaunch_saver_up": {(): float(tally.saver_up)},
        "ftlaunch_saver_deaths_total": {(): tally.saver_deaths},
        "ftlaunch_storage_answers": {(): float(tally.storage_answers)},
        "ftlaunch_notices_total": {(result,): tally.notices[result] for result in ("delivered", "failed")},
    }
    if tally.jobset_restart is not None:
        found["ftlaunch_jobset_restart_attempt"] = {(): tally.jobset_restart}
    if tally.committed_at:
        found["ftlaunch_checkpoint_committed_timestamp_seconds"] = {(): tally.committed_at}
    return found


def _of_ranks(reading: JobReading) -> dict[str, Values]:
    status = reading.status or {}
    newest = {
        "completed": reading.completed,
        "front": max((rank.step for rank in reading.ranks), default=-1),
        "storage": max(int(status.get("committed", -1)), reading.tally.committed),
    }
    if "in_memory" in status:
        newest["memory"] = int(status["in_memory"])
    found: dict[str, Values] = {"ftlaunch_newest_step": {(where,): step for where, step in newest.items()}}
    if reading.tally.state:
        return found
    found["ftlaunch_ranks"] = {(phase,): count for phase, count in reading.phases.items()}
    if "ranks_alive" in status:
        found["ftlaunch_ranks_alive"] = {(): int(status["ranks_alive"])}
    if reading.progressed is not None:
        found["ftlaunch_progress_age_seconds"] = {(): max(reading.mono - reading.progressed, 0.0)}
    if (times := reading.step_seconds) is not None:
        names = zip(("min", "median", "max"), times, strict=True)
        found["ftlaunch_step_duration_seconds"] = {(name,): value for name, value in names}
    if (age := reading.oldest_beat) is not None:
        found["ftlaunch_oldest_beat_age_seconds"] = {(): age}
    return found


def _by_rank(reading: JobReading) -> dict[str, Values]:
    ranks = reading.ranks
    slow = reading.tally.slow
    return {
        "ftlaunch_rank_step": {(str(rank.rank),): rank.step for rank in ranks},
        "ftlaunch_rank_step_duration_seconds": {(str(rank.rank),): rank.step_seconds for rank in ranks},
        "ftlaunch_rank_beat_age_seconds": {(str(rank.rank),): max(reading.mono - rank.beat, 0.0) for rank in ranks},
        "ftlaunch_rank_slow": {(str(rank.rank),): float(rank.rank in slow) for rank in ranks},
        "ftlaunch_rank_info": dict.fromkeys(_places(reading), 1),
    }


def _places(reading: JobReading) -> Iterator[tuple[str, ...]]:
    """Yield the labels of `ftlaunch_rank_info` for each rank on a node."""
    nodes = [(reading.devices, range(reading.asked))]
    if reading.nodes is not None:
        nodes = [(read_names(node.get("devices")), node["ranks"]) for node in reading.nodes]
    for names, ranks in nodes:
        node_labels = tuple(map(_label, (names.host, names.node, names.pod, names.namespace)))
        for local_rank, rank in enumerate(ranks):
            yield (str(rank), *node_labels, _label(names.gpu(local_rank)))


def _distributions(reading: JobReading) -> dict[str, Distribution]:
    tally = reading.tally
    return {
        "ftlaunch_restart_to_resumed_seconds": tally.to_resumed,
        "ftlaunch_restart_to_first_step_seconds": tally.to_first_step,
        "ftlaunch_checkpoint_duration_seconds": tally.save_seconds,
    }
