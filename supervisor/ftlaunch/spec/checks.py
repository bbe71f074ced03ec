"""Checks a job spec against this machine before anything is started: the target exists, folders can be made.

Nothing is changed, and nothing of the job is run.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from ftlaunch.spec.checkpoint_stores import PACKAGES, STORES
from ftlaunch.spec.errors import SpecError, did_you_mean, one_line
from ftlaunch_contract.protocol import scheme_of

_MOST_FILES = 10_000  # files of a folder among which a misspelt one is searched
_CHANGING = (b"__path__", b"meta_path", b"sys.modules")  # in the source of packages that find modules in other places


def check_target(kind: str, target: str, environ: Mapping[str, str]) -> None:
    """Check that there is such a script or program. Modules are not checked here: `missing_module` looks for them.

    Args:
        kind: script, program or module.
        target: path of the script, or name or path of the program.
        environ: environment of this process.

    Raises:
        SpecError: there is no such script or program, or it cannot be run.
    """
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
    """Return the mode of a file. Raises SpecError if there is no such file."""
    try:
        return Path(target).stat().st_mode
    except OSError as error:
        why = str(error.strerror).lower()
        hint = likely_file(target) if isinstance(error, FileNotFoundError) else ""
        raise SpecError(f"cannot run {one_line(target)}: {why}{hint}") from None


def likely_file(path: str) -> str:
    """Say which file may have been meant by the path of a missing file, or where the file was looked for.

    Returns:
        The end of a sentence, which begins with a semicolon.
    """
    folder, name = os.path.split(path)
    try:
        beside = [entry.name for entry in itertools.islice(os.scandir(folder or "."), _MOST_FILES)]
    except OSError:
        return f"; there is no folder {one_line(folder)}"
    meant = did_you_mean(name, beside)
    return meant or f"; it was looked for in {one_line(Path(folder).resolve())}"


def missing_module(name: str, environ: Mapping[str, str]) -> str:
    """Return the first part of a module's name that a rank's Python would not find, without running the module.

    If a package may change where its modules are found, only the name of the package is looked for.

    Args:
        name: dotted name of the module.
        environ: environment of the ranks.

    Returns:
        The missing part, such as `package.module`; empty if nothing is known to be missing.
    """
    places = [str(Path.cwd()), *environ.get("PYTHONPATH", "").split(os.pathsep)]
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        part = ".".join(parts[:number])
        found = _spec_of(part, places, top=number == 1)
        if found is None:
            return part
        if found.submodule_search_locations is None or _changes_its_places(found):
            return ""
        places = list(found.submodule_search_locations)
    return ""


def _spec_of(name: str, places: list[str], *, top: bool) -> ModuleSpec | None:
    """Find a module in folders; a top-level one also as this Python would. Return None if there is no such module."""
    found = PathFinder.find_spec(name, places)
    if found is not None or not top:
        return found
    specs = (finder.find_spec(name, None, None) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _changes_its_places(package: ModuleSpec) -> bool:
    """Return whether a package may change where its modules are found."""
    if package.origin is None:  # a namespace package has no code
        return False
    if not package.origin.endswith(".py"):  # compiled code cannot be read
        return True
    try:
        source = Path(package.origin).read_bytes()
    except OSError:
        return True
    return any(word in source for word in _CHANGING)


def missing_package(address: str) -> str | None:
    """Say which package the checkpoint store at an address lacks in this Python; None if it lacks none.

    Nothing is imported: only the process that keeps the store needs the package.
    """
    module = STORES[str(scheme_of(address))].partition(":")[0]
    package, source = PACKAGES.get(module, (None, None))
    if package is None or find_spec(package) is not None:
        return None
    return f"{package} is not installed; pip install '{source}'"


def why_not_writable(folder: Path) -> str | None:
    """Say why a folder cannot be made or written to; None if it can. Nothing is made.

    Only the nearest existing part of the path is checked, because the rest would be made below it.
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
    """Return whether a value of `preempt_when` is a file to look for; otherwise it is a command."""
    return preempt.startswith(("/", "./")) and len(preempt.split()) == 1


def why_no_notice(preempt: str) -> str | None:
    """Say why a value of `preempt_when` is probably not what its writer means; None if it may be."""
    if names_file(preempt) and Path(preempt).is_file() and os.access(preempt, os.X_OK):
        return "it is a program, and one word that begins with / or ./ is a file to look for; write `sh` before it"
    return None
