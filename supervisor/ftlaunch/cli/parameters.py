"""What several commands of `ftctl` take, and refuse, alike."""

from __future__ import annotations

import click

from ftlaunch.common.durations import parse_duration
from ftlaunch_contract.protocol import EXIT_USAGE


class BadSpec(click.ClickException):
    """The job spec cannot be read, or the job cannot be as it asks."""

    exit_code = EXIT_USAGE


def seconds(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Return a duration of the command line in seconds; None where it is left out and has no default."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 90s or 5m") from None
