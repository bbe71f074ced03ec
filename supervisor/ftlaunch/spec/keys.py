"""The one table of what a job can be asked: YAML keys, command line options, `PET_*` variables, defaults.

The spec reader, the command line and the test of configs/default.yaml all read it from here.
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


def default(name: str) -> Any:
    """The default value of a setting."""
    return SETTINGS[name].default_value
