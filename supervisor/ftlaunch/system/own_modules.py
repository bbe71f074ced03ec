"""The command line that runs a module of ours in a process of its own."""

from __future__ import annotations

import sys

_RUN_MODULE = (
    "import sys; del sys.path[0], sys.argv[0]; import runpy;"
    " runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def module(name: str, *args: str, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return the command line that runs a module of ours by the Python that runs us.

    `python -m` would look into the current directory first, where a user may have a json.py or a random.py.

    Args:
        version: of Python. Before 3.11 it has no option that leaves the current directory out.
    """
    if version < (3, 11):
        return [sys.executable, "-c", _RUN_MODULE, name, *args]
    return [sys.executable, "-P", "-m", name, *args]
