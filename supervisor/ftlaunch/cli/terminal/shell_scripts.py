"""Makes the scripts that let a shell complete the words of a command.

In bash, zsh and fish the script asks the command itself through click; tcsh gets a fixed list of options.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_CLICK_SHELLS = ("bash", "zsh", "fish")
SHELLS = (*_CLICK_SHELLS, "tcsh")


def completion_script(program: str, command: click.Command, shell: str) -> str:
    """Return the script that a shell sources to complete the words of a command.

    tcsh's `complete` cannot ask the command, so tcsh completes only names of options, and names of files.

    Args:
        program: the name by which the command is started.
        command: the command.
        shell: one of `SHELLS`.
    """
    if shell == "tcsh":
        options = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
        names = " ".join(sorted(name[2:] for name in options if name.startswith("--")))
        return f"complete {program} 'c/--/({names})/' 'n/*/f/'"
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(command, ctx_args={}, prog_name=program, complete_var=f"_{program.upper()}_COMPLETE")
    return made.source_template % made.source_vars()
