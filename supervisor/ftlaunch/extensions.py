"""Names of the functions in `nodes`, `views` and `tools` that the core calls.

The core is every folder of this package except `nodes`, `views` and `tools`. The core imports none of these three, so
that the supervision of one machine can be read alone. A name has the form "module:attribute"; `load` imports the module
at the first use. The names without an attribute are modules that run as processes of their own (`python -m`).

To add a command to `ftctl`, add a line to COMMANDS and a word to SECTIONS and EXAMPLES in cli/terminal.
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
"""the commands of `ftctl`: name of the command -> the click command"""

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
"""part of the core, but loaded by name: the check starts a process, and most jobs have no Apprise target"""

# --- programs that a job starts beside it ----------------------------------------------------------------------
REPORT_PAGE = "ftlaunch.views.report_page"
METRICS_EXPORTER = "ftlaunch.views.metrics.exporter"
TRACER = "ftlaunch.views.metrics.traces.tracer"
TRAINJOB_REPORTER = "ftlaunch.views.metrics.trainjob_reporter"


def load(name: str) -> Any:
    """Import and return the object that a name of this module stands for.

    Args:
        name: "module:attribute".
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
