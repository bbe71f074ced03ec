"""Checks a job spec against the disk before anything is started or made: is the target there, can folders be made."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from ftlaunch.spec.errors import SpecError, one_line


def check_target(kind: str, target: str, environ: Mapping[str, str]) -> None:
    """Raises SpecError where there is no such script or program. A module is left to Python to find."""
    if kind == "script":
        _check_script(target)
    elif kind == "program":
        _check_program(target, environ)


def _check_script(target: str) -> None:
    if stat.S_ISDIR(_mode(target)):
        if not Path(target, "__main__.py").is_file():
            raise SpecError(f"cannot run {one_line(target)}: it is a directory without a __main__.py")
    elif not os.access(target, os.R_OK):
        raise SpecError(f"cannot run {one_line(target)}: no permission to read it")


def _check_program(target: str, environ: Mapping[str, str]) -> None:
    if shutil.which(target, path=environ.get("PATH")) is not None:
        return
    if "/" not in target:
        raise SpecError(f"cannot run {one_line(target)}: no such program on the PATH")
    if stat.S_ISDIR(_mode(target)):
        raise SpecError(f"cannot run {one_line(target)}: it is a directory")
    raise SpecError(f"cannot run {one_line(target)}: it is not executable; try `chmod +x {one_line(target)}`")


def _mode(target: str) -> int:
    try:
        return Path(target).stat().st_mode
    except OSError as error:
        raise SpecError(f"cannot run {one_line(target)}: {str(error.strerror).lower()}") from None


def why_not_writable(folder: Path) -> str | None:
    """Why `folder` cannot be made or written to, or None where it can. Makes nothing.

    Looks at the nearest part of the path that exists: the rest would be made below it.
    """
    for part in (folder, *folder.parents):
        if not os.path.lexists(part):
            continue
        if not part.is_dir():
            return f"{one_line(part)} is not a directory"
        if not os.access(part, os.W_OK | os.X_OK):
            return f"no permission to write in {one_line(part)}"
        return None
    return f"{folder} has no root"


def names_file(preempt: str) -> bool:
    """Whether `preempt_when` is a file to look for; else it is a command."""
    return preempt.startswith(("/", "./")) and len(preempt.split()) == 1


def why_no_notice(preempt: str) -> str | None:
    """Why `preempt_when` is not what its writer means, or None."""
    if names_file(preempt) and Path(preempt).is_file() and os.access(preempt, os.X_OK):
        return "it is a program, and one word that begins with / or ./ is a file to look for; write `sh` before it"
    return None
