"""The table of all settings of a job: YAML keys, command line options, `PET_*` variables, defaults.

The spec reader, the command line, the docs and the test of configs/default.yaml all use this table.
"""

from __future__ import annotations

from typing import Any

from ftlaunch.spec.tables.ours import OURS
from ftlaunch.spec.tables.target import TARGET
from ftlaunch.spec.tables.telling import TELLING
from ftlaunch.spec.tables.torchrun import ACCEPTED, TORCHRUN

KEYS = TARGET + OURS + TELLING + TORCHRUN + ACCEPTED
YAML_KEYS = {key.name: key for key in KEYS if key.yaml}
OPTIONS = {key.name: key for key in KEYS if key.option}
SETTINGS = OPTIONS | {key.name: key for key in TARGET + TELLING if key.name not in OPTIONS}
"""all settings by name; where an option and a YAML key share a name, the option"""


def default(name: str) -> Any:
    """Return the default value of a setting."""
    return SETTINGS[name].default_value
