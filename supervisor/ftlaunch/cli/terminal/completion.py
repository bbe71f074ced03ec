"""The command `ftctl completion`, and the completion of run names for all commands of `ftctl`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ftlaunch.cli.terminal.shell_scripts import completion_script
from ftlaunch.history.job_index import known_jobs
from ftlaunch.history.runs import RUNS, runs_in

_PROGRAMS = ("ftlaunch", "ftctl")


@click.command(short_help="Print what makes a shell complete words.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print what makes a shell complete the commands, options and runs of ftlaunch and ftctl.

    \b
    bash: eval "$(ftctl completion bash)"     in ~/.bashrc
    zsh:  eval "$(ftctl completion zsh)"      in ~/.zshrc, after compinit
    fish: ftctl completion fish | source      in ~/.config/fish/config.fish
    """
    for program in _PROGRAMS:
        click.echo(completion_script(program, context.find_root().command, shell))
    return 0


def complete_run(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs in ./runs and the job ids of this user that begin with `incomplete`; a click callback."""
    names = {path.name for path in runs_in(RUNS)} | {job.job_id for job in known_jobs()}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
