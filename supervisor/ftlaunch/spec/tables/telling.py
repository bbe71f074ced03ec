"""What becomes of failures, and who is told of them: keys of a job spec that no option has."""

from __future__ import annotations

from ftlaunch.spec import shown
from ftlaunch.spec.key import Key
from ftlaunch.spec.parsing import notify_targets, outlets
from ftlaunch.spec.parsing.rule_parser import parse_rules

TELLING = (
    Key("fault_rules", parse_rules, "a list of mappings such as {log: 'link down', class: network, action: wait}", None,
        "rules for failures, of the form of configs/fault_rules.yaml; they come before those", option=False,
        show=shown.rules),
    Key("notify", notify_targets.targets, "a mapping with `command` or `url`, or a list of such", None,
        "whom to tell of incidents and of the end: a command or a webhook, each with on, timeout and retries",
        option=False, show=shown.targets),
    Key("metrics", outlets.metrics, "a mapping with `port`, `textfile` or both", None,
        "metrics for Prometheus: port (at the address bind), textfile (a directory), ranks, linger", option=False,
        show=outlets.shown_metrics),
    Key("traces", outlets.traces, "a mapping, empty or with `endpoint`", None,
        "traces of restarts for OpenTelemetry: endpoint, else OTEL_EXPORTER_OTLP_ENDPOINT", option=False,
        show=outlets.shown_traces),
    Key("notify", notify_targets.targets, "a mapping with `command`, `url` or `apprise`, or a list of such", None,
        "whom to tell of incidents and of the end: a command, a webhook, or chat, mail and pagers through Apprise; each"
        " with on, link, timeout and retries", option=False, show=shown.targets),
)  # fmt: skip
