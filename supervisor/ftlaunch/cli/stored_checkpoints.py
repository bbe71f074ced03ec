"""What `ftctl checkpoints` does with a checkpoint store, `s3://BUCKET/PREFIX` for example, in the place of a folder.

The work is done by `checkpoints.stores.stored_catalog`; this module prints, and turns errors into one sentence.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ftlaunch.checkpoints.stores import stored_catalog_view as view
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog, StoreRefused
from ftlaunch.cli.parameters import BadSpec
from ftlaunch.cli.terminal.progress import progress
from ftlaunch.common.formatting import duration, size
from ftlaunch.spec import checkpoint_stores
from ftlaunch.spec.checks import missing_package
from ftlaunch.spec.errors import RefusedError
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.protocol import scheme_of

_NO = 1


def address_of(place: str) -> str | None:
    """Return the address of a store that a user's word means; None if it means a folder or a run.

    Raises:
        BadSpec: the word is an address that cannot be used. A password in it is not shown.
        click.ClickException: a package is not installed.
    """
    if scheme_of(place) is None:
        return None
    try:
        address = checkpoint_stores.address(place)
    except RefusedError as error:
        raise BadSpec(f"cannot use {error.given or place}: {error.allowed}") from None
    if lacks := missing_package(address):
        raise click.ClickException(f"cannot use {address}: {lacks}")
    return address


def list_steps(address: str, *, as_json: bool) -> int:
    """Print the checkpoints of a store. Return the exit code."""
    with _explained("list", address):
        catalog = _open(address)
    entries = catalog.list_entries()
    if as_json:
        click.echo(json.dumps([entry.data() for entry in entries], indent=1))
    else:
        click.echo("\n".join(view.list_lines(catalog.where, catalog.index, entries)))
    return 0


def verify_steps(address: str, step: int | None, *, as_json: bool) -> int:
    """Read checkpoints of a store, print whether each is right, and return the exit code.

    Args:
        address: the address of the store.
        step: which checkpoint; None: all.
        as_json: whether JSON is printed.
    """
    code = 0
    found = []
    began = time.monotonic()
    with _explained("verify", address):
        for entry in _open(address).verify_steps(step, progress):
            code = 0 if entry.verified and not code else _NO
            found.append(entry.data())
            if not as_json:
                right = f"every byte is right ({size(entry.bytes)} in {duration(time.monotonic() - began)})"
                click.echo(f"step {entry.step}: {right if entry.verified else f'damaged: {entry.problem}'}")
            began = time.monotonic()
    if as_json:
        click.echo(json.dumps(found, indent=1))
    return code


def prune_steps(address: str, keep: int, keep_every: int | None, *, as_json: bool) -> int:
    """Delete old checkpoints of a store, print which, and return the exit code.

    Args:
        address: the address of the store.
        keep: how many of the newest are kept.
        keep_every: those whose step is a multiple are kept, too; None: no others are.
        as_json: whether JSON is printed.
    """
    with _explained("prune", address):
        catalog = _open(address)
        catalog.wait_for_owner(_pause, _say_waiting)
        done = catalog.prune(keep=keep, keep_every=keep_every, watched=progress)
    if as_json:
        result = {"deleted": [step for step, _ in done.deleted], "cleared": done.cleared, "stayed": done.stayed}
        click.echo(json.dumps(result, indent=1))
    else:
        click.echo("\n".join(view.pruned_lines(done, catalog.list_entries())))
    return _NO if done.stayed else 0


@contextmanager
def brought(doing: str, address: str, step: int, beside: Path) -> Iterator[Path]:
    """Bring a checkpoint of a store into a temporary folder, for the `with` block.

    Args:
        doing: what the command does, for errors.
        address: the address of the store.
        step: the step.
        beside: the folder is made in the folder of this path, where there is to be room.

    Yields:
        The directory of the checkpoint, which was verified.
    """
    with _explained(doing, address):
        catalog = _open(address)
        folder = tempfile.TemporaryDirectory(prefix=".ftlaunch-", dir=beside.absolute().parent)
    with folder:
        with _explained(doing, address):
            path = catalog.bring_step(step, Path(folder.name), progress)
        yield path


def cannot_show(address: str, step: int) -> click.ClickException:
    """Return the error that says how to look into a checkpoint of a store."""
    return click.ClickException(
        f"cannot show step {step} of {address}: only a checkpoint in a folder can be looked into; `export` brings it"
    )


def _open(address: str) -> StoreCatalog:
    """Read the index of a store. Raises BadSpec, StoreRefused, OSError."""
    try:
        store = open_store(address)
    except ValueError as error:
        raise BadSpec(f"cannot use {address}: {error}") from None
    return StoreCatalog(store)


def _pause(seconds: float) -> bool:
    time.sleep(seconds)  # nothing on this machine tells of another machine's heartbeat
    return False


def _say_waiting(owner: str, seconds: float) -> None:
    click.echo(
        f"waiting up to {seconds:.0f} s for a sign of life of {owner}, which has not said that it left", err=True
    )


@contextmanager
def _explained(doing: str, address: str) -> Iterator[None]:
    """Turn expected errors in the `with` block into one sentence and exit code 1."""
    try:
        yield
    except (StoreRefused, Damaged) as error:
        raise click.ClickException(f"cannot {doing}: {error}") from None
    except OSError as error:
        raise click.ClickException(f"cannot {doing} {error.filename or address}: {error.strerror}") from None
