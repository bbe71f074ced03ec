"""The table of all metrics: name, kind, meaning, labels. The guide's page of metrics is generated from it. Pure."""

from __future__ import annotations

from typing import NamedTuple

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"
INFO = "info"


class MetricRow(NamedTuple):
    """One metric. Every metric has the label `job_id` besides its own labels."""

    name: str
    """name in queries"""
    kind: str
    """`GAUGE`, `COUNTER`, `HISTOGRAM` or `INFO`"""
    says: str
    """help text of the metric"""
    labels: tuple[str, ...] = ()
    """names of the metric's own labels"""
    values: str = ""
    """possible values of the labels, for the guide"""


_KINDS = (
    "the classes of the table of faults and of the job's own rules; disk, divergence, node-lost, numerical, resume,"
    " slow, unknown; other"
)
ROWS = (
    MetricRow("ftlaunch_job_info", INFO, "The job: its number is always 1.", ("host", "run_dir", "version")),
    MetricRow("ftlaunch_job_state", GAUGE, "1 for the state that the job is in, 0 for all others.", ("state",),
        "the states of a job, such as `running`, `backoff`, `done`, `failed`, `stopped`"),
    MetricRow("ftlaunch_supervisor_answers", GAUGE, "1 while the supervisor answers the exporter, else 0."),
    MetricRow("ftlaunch_job_started_timestamp_seconds", GAUGE, "When the newest run of the supervisor began."),
    MetricRow("ftlaunch_job_ended_timestamp_seconds", GAUGE, "When the job ended; there only after its end."),
    MetricRow("ftlaunch_job_runs_total", COUNTER, "Runs of the supervisor in this run dir."),
    MetricRow("ftlaunch_job_attempts_total", COUNTER, "Attempts begun, over all runs."),
    MetricRow("ftlaunch_jobset_restart_attempt", GAUGE, "How often JobSet has started the job's pods again; there only "
        "where JobSet has started them."),
    MetricRow("ftlaunch_goodput_seconds", GAUGE, "Wall time of the job by what it went into, over all runs; `useful` "
        "falls when steps are lost.", ("class",),
        "useful, lost, detecting, restarting, starting, stopping, down, unknown (without hooks)"),
    MetricRow("ftlaunch_goodput_ratio", GAUGE, "Share of the wall time that made steps which count, of the whole job "
        "and of its newest 5 minutes, hour and day; steps that were lost count against the time of the failure. Not "
        "there without hooks.", ("over",), "job, 5m, 1h, 24h"),
    MetricRow("ftlaunch_incidents_total", COUNTER, "Incidents.", ("kind",), _KINDS),
    MetricRow("ftlaunch_restarts_total", COUNTER, "Restarts after incidents.", ("kind",), _KINDS),
    MetricRow("ftlaunch_restarts_left", GAUGE, "Restarts that the budget still allows.", ("after",),
        "failure, hang"),
    MetricRow("ftlaunch_restarts_allowed", GAUGE, "Restarts after failures that the job may spend."),
    MetricRow("ftlaunch_restart_to_resumed_seconds", HISTOGRAM, "From an incident until all ranks had their state."),
    MetricRow("ftlaunch_restart_to_first_step_seconds", HISTOGRAM, "From an incident until the first new step."),
    MetricRow("ftlaunch_steps_lost_total", COUNTER, "Steps that were made again."),
    MetricRow("ftlaunch_resumes_compared_total", COUNTER, "Resumes whose steps made again were compared with the steps "
        "before; a run that is not exact has `different`.", ("result",), "same, rounded, different, unverified"),
    MetricRow("ftlaunch_hangs_suspected_total", COUNTER, "How often a rank was over half its limit."),
    MetricRow("ftlaunch_failed_calls_total", COUNTER, "Calls of the supervisor's own that have failed and that the job "
        "went on without: a look at /proc or a log, a client of the control socket."),
    MetricRow("ftlaunch_numeric_faults_total", COUNTER, "Faults in losses and replicas.", ("kind",),
        "nan, spike, divergence, other"),
    MetricRow("ftlaunch_newest_step", GAUGE, "The newest step; -1: none yet.", ("where",),
        "completed (by all ranks), front (by any), memory (of all ranks), storage"),
    MetricRow("ftlaunch_progress_age_seconds", GAUGE, "Since all ranks have completed a new step, in this attempt "
        "or an earlier one of this run; there from the first one on. After another exporter or head has taken over, as "
        "the journal tells, to the minute, until a new step is seen."),
    MetricRow("ftlaunch_step_duration_seconds", GAUGE, "The ranks' newest steps.", ("across_ranks",),
        "min, median, max"),
    MetricRow("ftlaunch_oldest_beat_age_seconds", GAUGE, "Since the beat of the rank that is silent longest."),
    MetricRow("ftlaunch_ranks", GAUGE, "Ranks by what they say they are doing.", ("phase",),
        "startup, train, eval, checkpoint, teardown; silent: says nothing yet"),
    MetricRow("ftlaunch_ranks_asked", GAUGE, "Ranks that the job is to have at most."),
    MetricRow("ftlaunch_ranks_alive", GAUGE, "Ranks whose process lives."),
    MetricRow("ftlaunch_stragglers", GAUGE, "Ranks that the others wait for at every step."),
    MetricRow("ftlaunch_nodes", GAUGE, "Nodes of a job of several.", ("role",), "placed, standby, isolated"),
    MetricRow("ftlaunch_checkpoints_committed_total", COUNTER, "Checkpoints committed to storage.", ("why",),
        "interval, stop, incident, request, end, other"),
    MetricRow("ftlaunch_checkpoint_failures_total", COUNTER, "Checkpoints that could not be saved."),
    MetricRow("ftlaunch_checkpoints_rejected_total", COUNTER, "Checkpoints refused on the way to one to resume from."),
    MetricRow("ftlaunch_checkpoint_bytes_total", COUNTER, "Bytes of the checkpoints committed."),
    MetricRow("ftlaunch_checkpoint_duration_seconds", HISTOGRAM, "Time that checkpoints took to be written."),
    MetricRow("ftlaunch_checkpoint_committed_timestamp_seconds", GAUGE, "When the newest checkpoint was committed."),
    MetricRow("ftlaunch_saver_up", GAUGE, "1 while there is a saver, 0 where none can be started."),
    MetricRow("ftlaunch_saver_deaths_total", COUNTER, "Savers that have died."),
    MetricRow("ftlaunch_storage_answers", GAUGE, "0 while storage is silent, else 1."),
    MetricRow("ftlaunch_notices_total", COUNTER, "Notices by what became of them.", ("result",), "delivered, failed"),
    MetricRow("ftlaunch_supervisor_process_resident_memory_bytes", GAUGE, "Memory of the supervisor."),
    MetricRow("ftlaunch_supervisor_process_cpu_seconds_total", COUNTER, "Processor time of the supervisor."),
    MetricRow("ftlaunch_exporter_process_resident_memory_bytes", GAUGE, "Memory of the exporter."),
    MetricRow("ftlaunch_exporter_process_cpu_seconds_total", COUNTER, "Processor time of the exporter."),
    MetricRow("ftlaunch_exporter_refreshed_timestamp_seconds", GAUGE, "When these numbers were read."),
    MetricRow("ftlaunch_exporter_refresh_seconds", GAUGE, "Processor time that reading them took."),
    MetricRow("ftlaunch_exporter_scrapes_total", COUNTER, "Scrapes answered until then."),
    MetricRow("ftlaunch_exporter_skipped_lines_total", COUNTER, "Lines of the journal that were passed over: torn, or "
        "with a value of an unknown type."),
    MetricRow("ftlaunch_rank_step", GAUGE, "The newest step of a rank.", ("rank",)),
    MetricRow("ftlaunch_rank_step_duration_seconds", GAUGE, "The newest step's duration.", ("rank",)),
    MetricRow("ftlaunch_rank_beat_age_seconds", GAUGE, "Since the rank's last beat.", ("rank",)),
    MetricRow("ftlaunch_rank_info", INFO, "Where a rank is, by the names that DCGM's exporter gives: its number is "
        "always 1. `UUID` is of the GPU that has the rank's number on its node.",
        ("rank", "host", "node", "pod", "namespace", "UUID")),
    MetricRow("ftlaunch_rank_slow", GAUGE, "1 while the others wait for the rank at every step, else 0.", ("rank",)),
)  # fmt: skip
