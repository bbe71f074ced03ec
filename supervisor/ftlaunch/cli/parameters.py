"""Parameter callbacks and errors that several commands of `ftctl` share."""

from __future__ import annotations

import click

from ftlaunch.common.durations import parse_duration
from ftlaunch_contract.protocol import EXIT_USAGE


class BadSpec(click.ClickException):
    """The job spec cannot be read, or asks for an impossible job."""

    exit_code = EXIT_USAGE


def seconds(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Parse a duration option, such as `90s`, into seconds; a click callback.

    Returns:
        Seconds; None if the option was not given and has no default.

    Raises:
        click.BadParameter: the text is no duration.
    """
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 90s or 5m") from None
