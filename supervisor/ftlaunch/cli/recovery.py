"""The command `ftctl recovery`: where the ranks of the newest attempt take their state from."""

from __future__ import annotations

import json

import click

from ftlaunch.cli.asking import Cannot
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history.recovery_view import RECOVERY, restore_lines
from ftlaunch.history.runs import find
from ftlaunch_contract.files import untrusted_json
from ftlaunch_contract.files.regular_file import read_regular

_MAX_BYTES = 64 << 20


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def recovery(name: str | None, as_json: bool) -> int:
    """Show where each rank of the newest attempt takes its state from: planned, or done.

    It is written before the ranks of an attempt are started: which ranks find their step in the memory of their own
    node, which node keeps copies for those that have lost it, which nodes supply what replicas hold alike.
    """
    path = find(name).run_dir / RECOVERY
    try:
        written = untrusted_json.parse(read_regular(path, _MAX_BYTES))
        lines = restore_lines(written)
    except FileNotFoundError:
        raise Cannot(f"cannot show the recovery: {path} is not there: no attempt has begun yet") from None
    except OSError as error:
        raise Cannot(f"cannot show the recovery: {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Cannot(f"cannot show the recovery: {path} is damaged; the next restart writes it anew") from error
    click.echo(json.dumps(written, indent=1) if as_json else "\n".join(map(printable, lines)))
    return 0
