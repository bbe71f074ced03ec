"""The table of all settings of a job: YAML keys, command line options, `PET_*` variables, defaults.

The spec reader, the command line, the docs and the test of configs/default.yaml all use this table.
"""

from __future__ import annotations

from typing import Any

from ftlaunch.common.masking import masked_args, masked_env
from ftlaunch.spec import parsers as p
from ftlaunch.spec import shown
from ftlaunch.spec.key import Key
from ftlaunch.spec.notify_targets import notify_target
from ftlaunch.spec.parsing import outlets
from ftlaunch.spec.parsing.rule_parser import parse_rules
from ftlaunch.spec.tables.ours import OURS
from ftlaunch.spec.tables.torchrun import ACCEPTED, TORCHRUN

# what to run
TARGET = (
    Key(
        "script", p.text, allowed="the path of a Python script", default=None,
        help="the Python script to run; or else `module` or `program`",
        group="target", option=False,
    ),
    Key(
        "module", p.text, allowed="the name of a Python module", default=None,
        help="the module to run as `python -m` would",
        group="target", option=False,
    ),
    Key(
        "program", p.text, allowed="the path or name of a program", default=None,
        help="the program to run without Python",
        group="target", option=False,
    ),
    Key(
        "args", p.text_list, allowed="a list such as [--lr, 0.1]", default=None,
        help="arguments for it, a list; ARGS on the command line replace the whole list",
        group="target", option=False, show=masked_args,
    ),
    Key(
        "env", p.text_map, allowed="a mapping such as {NCCL_DEBUG: INFO}", default=None,
        help="environment variables for the ranks, besides those ftlaunch was started with",
        group="target", option=False, show=masked_env,
    ),
    Key(
        "python", p.text, allowed="the path of a Python interpreter", default=None,
        help="the interpreter of the ranks; null: the one that runs ftlaunch",
        group="target", option=False, env=("PYTHON_EXEC",),
    ),
)  # fmt: skip

# rules on failures, notices, reports, metrics, traces and logs; most have no option
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
        "log_max_size", p.size_or_off, allowed="a size of 1MB or more, such as 100MB or 1GiB, or off", default="off",
        help="bytes of each rank's log that are kept: the newest, and the first MiB besides; what lies between is"
             " given back to the disk",
        show=shown.size,
    ),
)  # fmt: skip
KEYS = TARGET + OURS + TELLING + TORCHRUN + ACCEPTED
YAML_KEYS = {key.name: key for key in KEYS if key.yaml}
OPTIONS = {key.name: key for key in KEYS if key.option}
SETTINGS = OPTIONS | {key.name: key for key in TARGET + TELLING if key.name not in OPTIONS}
"""all settings by name; where an option and a YAML key share a name, the option"""


def default(name: str) -> Any:
    """Return the default value of a setting."""
    return SETTINGS[name].default_value
