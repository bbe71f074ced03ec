"""Whether Apprise can deliver to a job's targets, asked before the job begins, in a process that may import Apprise."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.parsing.notify_targets import NotifyTarget
from ftlaunch.system.helper_process import module

_LONGEST = 60.0  # seconds for its imports on a slow machine


def check(targets: Sequence[NotifyTarget]) -> None:
    """Ask Apprise about every address of its kind; a job without one asks nothing. Raises SpecError."""
    asked = [(number, target.apprise) for number, target in enumerate(targets) if target.apprise]
    if not asked:
        return
    if find_spec("apprise") is None:
        raise SpecError(
            "cannot use `notify.apprise`: the package apprise is not installed; "
            "install it with `pip install 'ftlaunch[apprise]'`, or tell a `url` or a `command`"
        )
    answers = _answers([address for _, address in asked])
    for (number, _), wrong in zip(asked, answers, strict=True):
        if wrong is not None:
            where = "notify" if len(targets) == 1 else f"notify[{number}]"
            raise SpecError(f"cannot use `{where}.apprise` (not shown, it may be secret): {wrong}; "
                            "each service's form is at https://appriseit.com/services/")  # fmt: skip


def _answers(addresses: Sequence[str]) -> list[str | None]:
    try:
        done = subprocess.run(
            module("ftlaunch.notify.through_apprise", "check"),
            input=json.dumps({"urls": addresses}),
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=True,
        )
        answers: list[str | None] = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        raise SpecError(f"cannot use `notify.apprise`: Apprise cannot be asked ({type(error).__name__})") from None
    return answers
