"""What a shell reads to complete the words of a command: by asking the command itself, where click knows the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_ASKING = ("bash", "zsh", "fish")
SHELLS = (*_ASKING, "tcsh")


def completion_script(program: str, command: click.Command, shell: str) -> str:
    """Return what `shell`, one of SHELLS, reads to complete the words of `command`, which is started as `program`.

    tcsh gets the names of the options and completes file names otherwise: its `complete` cannot ask a program for more.
    """
    if shell == "tcsh":
        options = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
        names = " ".join(sorted(name[2:] for name in options if name.startswith("--")))
        return f"complete {program} 'c/--/({names})/' 'n/*/f/'"
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(command, {}, program, f"_{program.upper()}_COMPLETE")
    return made.source_template % made.source_vars()
