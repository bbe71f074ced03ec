"""The settings for rules on failures, notices, reports, metrics, traces and logs. Most have no option."""

from __future__ import annotations

from ftlaunch.spec import parsers as p
from ftlaunch.spec import shown
from ftlaunch.spec.key import Key
from ftlaunch.spec.notify_targets import notify_target
from ftlaunch.spec.parsing import outlets
from ftlaunch.spec.parsing.rule_parser import parse_rules
from ftlaunch.spec.parsing.sizes import log_size

TELLING = (
    Key(
        "fault_rules", parse_rules,
        allowed="a list of mappings such as {log: 'link down', class: network, action: wait}", default=None,
        help="rules for failures, of the form of configs/fault_rules.yaml; they come before those",
        option=False, show=shown.rules,
    ),
    Key(
        "notify", notify_target.targets, allowed=f"a mapping with {notify_target.keys()}, or a list of such",
        default=None,
        help="whom to tell of incidents and of the end: a command, a webhook, or chat, mail and pagers through"
             " Apprise; each with on, link, timeout and retries",
        option=False, show=shown.targets,
    ),
    Key(
        "report_page", p.switch, allowed="true or false", default="true",
        help="write <run-dir>/report.html at the end: the job's life in one file, for a browser",
        switch=True,
    ),
    Key(
        "metrics", outlets.metrics, allowed="a mapping with `port`, `textfile` or both", default=None,
        help="metrics for Prometheus: port (at the address bind), textfile (a directory), ranks, linger",
        option=False, show=outlets.shown_metrics,
    ),
    Key(
        "traces", outlets.traces, allowed="a mapping, empty or with `endpoint`", default=None,
        help="traces of restarts for OpenTelemetry: endpoint, else OTEL_EXPORTER_OTLP_ENDPOINT",
        option=False, show=outlets.shown_traces,
    ),
    Key(
        "trainjob_status", p.one_of("auto", "off"), allowed="auto or off", default="auto",
        help="tell Kubeflow's Trainer how far the job is; auto: where Trainer has set KUBEFLOW_TRAINER_SERVER_URL;"
             " off: the script does, or nobody",
    ),
    Key(
        "log_max_size", log_size, allowed="a size of 1MB or more, such as 100MB or 1GiB, or off", default="off",
        help="bytes of each rank's log that are kept: the newest, and the first MiB besides; what lies between is"
             " given back to the disk",
        show=shown.size,
    ),
)  # fmt: skip
