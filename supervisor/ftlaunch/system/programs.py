"""Where the programs lie that run in a rank's Python, which may lack the hooks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def program(name: str) -> Path:
    """The path of ftlaunch_hooks/programs/NAME.py. The hooks themselves are not imported: they act when they are."""
    hooks = find_spec("ftlaunch_hooks")
    assert hooks is not None, "the package ftlaunch brings ftlaunch_hooks with it"
    assert hooks.submodule_search_locations is not None
    return Path(hooks.submodule_search_locations[0]) / "programs" / f"{name}.py"
