"""Where the programs lie that run in a rank's Python, which may lack the hooks."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def program(name: str) -> Path:
    """The path of ftlaunch_hooks/programs/NAME.py. The hooks themselves are not imported: they act when they are.

    It is looked for once: the directories in which Python looks for modules may lie on storage that does not answer.
    """
    hooks = find_spec("ftlaunch_hooks")
    assert hooks is not None, "the package ftlaunch brings ftlaunch_hooks with it"
    assert hooks.submodule_search_locations is not None
    return Path(hooks.submodule_search_locations[0]) / "programs" / f"{name}.py"
