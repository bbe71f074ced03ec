"""The command `ftctl rehearse`: tries whether a job survives kills, a hang, preemption and a full disk.

The runs are real; `tools.rehearsal` starts them, breaks something and compares the results.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete

from ftlaunch.cli.options import command as ftlaunch
from ftlaunch.cli.options import read_command_line
from ftlaunch.cli.parameters import BadSpec, seconds
from ftlaunch.cli.terminal.progress import progress
from ftlaunch.spec.job_spec import JobSpec, SpecError
from ftlaunch.spec.resolve import resolve
from ftlaunch.tools.rehearsal import view
from ftlaunch.tools.rehearsal.rehearsal import CannotRehearse, Rehearsal, RehearsalOutcome

_NO = 1


def _complete(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete a word of the job's command line, as the completion of `ftlaunch` would."""
    words = [str(word) for word in context.params.get("words") or ()]
    completer = ShellComplete(ftlaunch, ctx_args={}, prog_name="ftlaunch", complete_var="")
    return completer.get_completions(words, begun)


class _Rehearse(click.Command):
    """A command that takes the options of `ftlaunch` as well, and completes them."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*super().shell_complete(ctx, incomplete), *_complete(ctx, incomplete)]


@click.command(
    cls=_Rehearse,
    short_help="Break a job on purpose, and see whether it survives.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--steps", type=click.IntRange(3), default=20, show_default=True, help="steps of each run")
@click.option("--limit", callback=seconds, default="10m", show_default=True, help="longest time a run may take")
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="where the runs write [default: the job's run dir]; removed when all went well")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.argument(
    "words",
    metavar="[OPTIONS OF ftlaunch] SPEC_OR_SCRIPT [ARGS]...",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=lambda context, _, begun: _complete(context, begun),
)
def rehearse(steps: int, limit: float, folder: Path | None, as_json: bool, words: tuple[str, ...]) -> int:
    """Run the job for a few steps undisturbed, then with ranks killed, a rank frozen, preempted, and storage full.

    Ranks are killed in mid-training, in the first and in the last step, and where the loop pauses longest between two
    steps: at the end of an epoch, in an evaluation, on the way to another loop.

    Says which of these it survives, how many steps each has cost, and whether the state afterwards equals the
    undisturbed run's bit for bit. The job's own files are written as in any run. Exit code 0: it survives, and goes on
    as if nothing had happened; 1: it does not; 2: bad usage or job spec.
    """
    spec = _spec(words)
    parent = folder or spec.run_dir
    parent.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=parent))
    rehearsal = Rehearsal(spec, home=home, steps=steps, limit=limit, watched=progress)
    if not as_json:
        click.echo(f"rehearsing {spec.launch.target} on {spec.launch.nproc} ranks, {steps} steps a run, in {home}")
    outcomes = []
    try:
        for outcome in _runs(rehearsal):
            outcomes.append(outcome)
            if not as_json:
                click.echo(view.line(outcome, steps))
                if len(outcomes) == 1:
                    click.echo(f"      {view.pause_note(rehearsal.pause, steps)}")
    except CannotRehearse as error:
        raise click.ClickException(f"cannot rehearse {spec.launch.target}: {error}") from None
    deterministic = rehearsal.deterministic
    varying = rehearsal.varying or ()
    if as_json:
        result = view.data(outcomes, steps=steps, deterministic=deterministic, varying=varying)
        click.echo(json.dumps(result, indent=1))
    else:
        click.echo(view.verdict(outcomes, deterministic, varying))
    if not all(outcome.good for outcome in outcomes):
        return _NO
    shutil.rmtree(home)
    return 0


def _spec(words: tuple[str, ...]) -> JobSpec:
    if not words:
        raise click.UsageError("it names no script and no job spec")
    try:
        request = read_command_line(words)
        return resolve(request.target, request.args, request.flags, os.environ)
    except SpecError as error:
        raise BadSpec(str(error)) from None


def _runs(rehearsal: Rehearsal) -> Iterator[RehearsalOutcome]:
    """Run the trials one after another, the undisturbed one first."""
    yield rehearsal.undisturbed()
    yield rehearsal.kill()
    yield rehearsal.kill_in_first_step()
    yield rehearsal.kill_in_last_step()
    if (pause := rehearsal.pause) is not None:
        yield rehearsal.kill_at_pause(pause)
        yield rehearsal.kill_in_pause(pause)
    yield rehearsal.freeze()
    yield rehearsal.preempt()
    yield rehearsal.full_disk()
