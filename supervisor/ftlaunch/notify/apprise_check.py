"""Checks before a job begins whether Apprise can deliver to its targets.

`refusals` is called when a job is launched or its spec is checked. Apprise itself is imported in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from ftlaunch.system.own_modules import module

_LONGEST_SECONDS = 60.0  # for its imports on a slow machine


def refusals(addresses: Sequence[str]) -> list[str | None]:
    """Ask Apprise about addresses.

    Returns:
        For each what is wrong, to stand directly behind "cannot use `notify.apprise`"; None: nothing.
    """
    if find_spec("apprise") is None:
        missing = (
            ": the package apprise is not installed; "
            "install it with `pip install 'ftlaunch[apprise]'`, or tell a `url` or a `command`"
        )
        return [missing] * len(addresses)
    try:
        answers = _answers(addresses)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return [f": Apprise cannot be asked ({type(error).__name__})"] * len(addresses)
    forms = "each service's form is at https://appriseit.com/services/"
    return [None if wrong is None else f" (not shown, it may be secret): {wrong}; {forms}" for wrong in answers]


def _answers(addresses: Sequence[str]) -> list[str | None]:
    done = subprocess.run(
        module("ftlaunch.notify.through_apprise", "check"),
        input=json.dumps({"urls": addresses}),
        capture_output=True,
        text=True,
        timeout=_LONGEST_SECONDS,
        check=True,
    )
    answers: list[str | None] = json.loads(done.stdout)
    return answers
