"""What the core calls of the areas built on top of it, by name: the one place where it knows of them.

The core is every folder of this package but `nodes`, `views` and `tools`; it imports none of these three, so that one
machine can be read alone. What it needs of them stands here as "module:attribute", and is imported when it is first
called. A new command of `ftctl` is a line of COMMANDS, and a word of SECTIONS and EXAMPLES in cli/terminal.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

COMMANDS = {
    "check": "ftlaunch.tools.commands.check:check",
    "dashboard": "ftlaunch.views.commands.dashboard:dashboard",
    "drain": "ftlaunch.nodes.commands:drain",
    "kubernetes": "ftlaunch.tools.commands.kubernetes:kubernetes",
    "nodes": "ftlaunch.nodes.commands:nodes",
    "plan": "ftlaunch.tools.commands.plan:plan",
    "rehearse": "ftlaunch.tools.commands.rehearse:rehearse",
    "report": "ftlaunch.views.commands.report:report",
    "systemd": "ftlaunch.tools.commands.systemd:systemd",
    "top": "ftlaunch.views.commands.top:top",
}
"""commands of `ftctl`: name -> the click command"""

# --- jobs of several nodes -------------------------------------------------------------------------------------
RUN_ON_NODES = "ftlaunch.nodes.agent.main:run"
STEP_BEHIND_INIT = "ftlaunch.nodes.agent.init_process:step_behind_init"
RUN_ON_HOSTS = "ftlaunch.nodes.agent.hosts.launcher:run"
OPTIONS_OF_HOSTS = "ftlaunch.nodes.agent.hosts.launcher:OWN_OPTIONS"
ARBITER_AT = "ftlaunch.nodes.channel.arbiter:at"

# --- before a job ----------------------------------------------------------------------------------------------
WHY_UNFIT = "ftlaunch.tools.preflight.node_check:why_unfit"
CHECK_MACHINE = "ftlaunch.tools.preflight.checks:check"
SAY_CHECKS = "ftlaunch.tools.preflight.checks:say"
COULD_RUN = "ftlaunch.tools.preflight.rules:could_run"
MACHINE_WARNINGS = "ftlaunch.tools.preflight.quick:warnings"

APPRISE_REFUSALS = "ftlaunch.notify.apprise_check:refusals"
"""the core's own; loaded by name, as it starts a process, and most jobs have no such target"""

# --- programs that a job starts beside it ----------------------------------------------------------------------
REPORT_PAGE = "ftlaunch.views.report_page"
METRICS_EXPORTER = "ftlaunch.views.metrics.exporter"
TRACER = "ftlaunch.views.metrics.traces.tracer"
TRAINJOB_REPORTER = "ftlaunch.views.metrics.trainjob_reporter"


def load(name: str) -> Any:
    """Import what a name of this module stands for. name: "module:attribute"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
