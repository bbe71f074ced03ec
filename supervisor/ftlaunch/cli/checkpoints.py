"""The command `ftctl checkpoints`: list, verify, show, prune and export what is in a checkpoint directory or a store.

The work is done by `checkpoints.catalog`; this module reads options, prints, and turns errors into one sentence. The
place is a Path for a directory, and the address of a checkpoint store (`stored_checkpoints.py`) is a str.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from ftlaunch.checkpoints import catalog
from ftlaunch.checkpoints import catalog_view as view
from ftlaunch.checkpoints.stores.stored_catalog import find_store_of
from ftlaunch.cli import stored_checkpoints as stored
from ftlaunch.cli.parameters import PlaceFirst
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.cli.terminal.progress import progress
from ftlaunch.system.own_modules import module
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files.dirlock import Locked

_json = click.option("--json", "as_json", is_flag=True, help="print JSON")
_NO = 1
_NO_TORCH = "ModuleNotFoundError: No module named 'torch'"
_EXPORT = "ftlaunch_hooks.storage.export"  # a program of its own: it needs torch


@click.group(cls=PlaceFirst, invoke_without_command=True, short_help="List, verify, show, prune or export checkpoints.")
@click.argument("place", metavar="[DIR|RUN|ADDRESS]", required=False, shell_complete=complete_run)
@_json
@click.pass_context
def checkpoints(context: click.Context, place: str | None, as_json: bool) -> int | None:
    """List what a checkpoint directory holds, newest first, or do something with it.

    DIR is a checkpoint directory; RUN is a run dir or a job id, and means its checkpoint directory; without
    either, the only run in ./runs. Listing checks that every file is there with its size; `verify` reads them all.
    ADDRESS is a checkpoint store, such as s3://BUCKET/PREFIX, from any machine: listing reads its index only.
    """
    address = stored.address_of(place or "")
    directory = None if address is not None else catalog.directory_of(place or None)
    context.obj = directory or address
    if context.invoked_subcommand is not None:
        return None
    if directory is None:
        return stored.list_steps(context.obj, as_json=as_json)
    with _explained("list", directory):
        entries = catalog.listed(directory)
    if as_json:
        click.echo(json.dumps([entry.data() | {"age": catalog.age(entry)} for entry in entries], indent=1))
    elif entries:
        _echo(view.list_lines(entries, catalog.age))
    else:
        click.echo(f"there is no checkpoint in {directory}")
    if not as_json and (store := find_store_of(directory)):
        click.echo(f"their job keeps them in a store, too: `ftctl checkpoints {store}`")
    return 0


@checkpoints.command(short_help="Read them and compare every byte with its checksum.")
@click.argument("iteration", type=click.IntRange(min=0), required=False)
@_json
@click.pass_obj
def verify(directory: Path | str, iteration: int | None, as_json: bool) -> int:
    """Read all checkpoints, or that of one ITERATION, and compare every byte with its checksum.

    Nothing is moved. The exit code is 1 when any is damaged, or there is none. What other programs have put there is
    named, and not looked into.
    """
    if isinstance(directory, str):
        return stored.verify_steps(directory, iteration, as_json=as_json)
    code = 0
    began = time.monotonic()
    found = []
    with _explained("verify", directory):
        for entry in catalog.verified(directory, iteration, progress):
            code = _NO if entry.verified is False else code
            found.append(entry.data())
            if not as_json:
                click.echo(view.verified_line(entry, time.monotonic() - began))
            began = time.monotonic()
    if as_json:
        click.echo(json.dumps(found, indent=1))
    return code


@checkpoints.command(short_help="Show what one of them holds.")
@click.argument("iteration", type=click.IntRange(min=0))
@_json
@click.pass_obj
def show(directory: Path | str, iteration: int, as_json: bool) -> int:
    """Show what the checkpoint of one ITERATION holds: its objects, its tensors and how they are sharded."""
    if isinstance(directory, str):
        raise stored.cannot_show(directory, iteration)
    with _explained("show", directory):
        found = catalog.shown(directory, iteration)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _echo(view.show_lines(found))
    return 0


@checkpoints.command(short_help="Delete all but the newest.")
@click.option("--keep", type=click.IntRange(min=1), required=True, help="how many of the newest to keep")
@click.option("--keep-every", type=click.IntRange(min=1), help="also keep those whose step is a multiple of this")
@_json
@click.pass_obj
def prune(directory: Path | str, keep: int, keep_every: int | None, as_json: bool) -> int:
    """Delete all but the newest checkpoints that verify, without asking, and say which.

    What is in quarantine or has no mark of ftlaunch stays. Refused while a job saves to the directory. The
    journal of the run that saved there has each deletion, but none of those in a store. What was put aside in a store
    stays.
    """
    if isinstance(directory, str):
        return stored.prune_steps(directory, keep, keep_every, as_json=as_json)
    with _explained("prune", directory):
        done = catalog.pruned(directory, keep=keep, keep_every=keep_every, watched=progress)
        left = catalog.listed(directory)
    if as_json:
        deleted = [step for step, _ in done.deleted]
        result = {"deleted": deleted, "cleared": done.cleared, "stayed": done.stayed}
        click.echo(json.dumps(result | {"journal": done.journal and str(done.journal)}, indent=1))
    else:
        _echo(view.pruned_lines(done, left))
    return _NO if done.stayed else 0


@checkpoints.command(short_help="Write the weights of one of them for other programs.")
@click.argument("iteration", type=click.IntRange(min=0))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(["hf", "torch", "dcp"]), required=True, help="the format")
@click.option("--object", "name", default="model", show_default=True, help="as it was attached")
@click.pass_obj
def export(directory: Path | str, iteration: int, target: Path, to: str, name: str) -> int:
    """Write the weights of an attached module from the checkpoint of one ITERATION to TARGET.

    hf: a folder with model.safetensors, as from_pretrained() reads it beside a config.json; torch: a file with a
    state_dict(), for torch.load(); dcp: a folder for torch.distributed.checkpoint. Every byte is verified before. Of a
    store the whole checkpoint is brought into a temporary folder beside TARGET.
    """
    if isinstance(directory, str):
        with stored.brought("export", directory, step=iteration, beside=target) as path:
            click.echo(_run_export((str(path), name, to, str(target))))
        return 0
    with _explained("export", directory):
        [entry] = catalog.verified(directory, iteration, progress)
    if not entry.verified:
        raise click.ClickException(f"cannot export: the checkpoint of step {iteration} is damaged: {entry.problem}")
    export_args = (str(layout.iteration_dir(directory, iteration)), name, to, str(target))
    click.echo(_run_export(export_args))
    return 0


def _run_export(export_args: Sequence[str]) -> str:
    """Run the export program, show its progress, and return its last line.

    Raises:
        click.ClickException: the program failed; the message is the last line of its stderr.
    """
    command = module(_EXPORT, *export_args)
    last_line = ""
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as program:
            assert program.stdout is not None
            kind, _, number = program.stdout.readline().partition(" ")
            with progress("exporting", int(number) if kind == "bytes" else None) as advance:
                for line in program.stdout:
                    kind, _, number = line.partition(" ")
                    if kind == "done":
                        advance(int(number))
                    else:
                        last_line = line.rstrip()
        errors.seek(0)
        error = errors.read().strip().rpartition("\n")[2]
    if program.returncode:
        if error == _NO_TORCH:
            error = f"{sys.executable} has no torch; `pip install 'ftlaunch[torch]'` brings it"
        raise click.ClickException(f"cannot export: {error}")
    return last_line


@contextmanager
def _explained(doing: str, directory: Path) -> Iterator[None]:
    """Turn expected errors in the `with` block into one sentence and exit code 1."""
    try:
        yield
    except (LookupError, Damaged, Locked) as error:
        raise click.ClickException(f"cannot {doing}: {error.args[0]}") from None
    except OSError as error:
        raise click.ClickException(f"cannot {doing} {error.filename or directory}: {error.strerror}") from None


def _echo(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines))
