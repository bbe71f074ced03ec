"""Parameter callbacks, errors and a kind of group that several commands of `ftctl` share."""

from __future__ import annotations

from pathlib import Path

import click

from ftlaunch.common.durations import parse_duration
from ftlaunch.common.suggestions import did_you_mean
from ftlaunch_contract.protocol import EXIT_USAGE, scheme_of


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


class PlaceFirst(click.Group):
    """A group that takes `[PLACE] COMMAND`, for example `ftctl checkpoints RUN verify`.

    Without a place, as in `ftctl checkpoints verify`, the place is empty, and means the only run in ./runs. The place
    may also stand behind the command, as with other tools: `ftctl checkpoints verify RUN`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and args[0] in self.commands and self._is_place(args[0], args[1]):
            args = [args[1], args[0], *args[2:]]
        words = [word for word in args if not word.startswith("-")]
        if words and words[0] in self.commands and not Path(words[0]).is_dir():
            args = ["", *args]
        elif len(words) > 1 and (meant := did_you_mean(words[1], self.commands)) and words[1] not in self.commands:
            ctx.fail(f"no such command {words[1]!r}{meant}")
        elif not set(words[1:]) & set(self.commands):
            ctx.allow_interspersed_args = True  # DIR --json, as well as --json DIR
        return super().parse_args(ctx, args)

    def _is_place(self, command: str, word: str) -> bool:
        """Return whether the word behind a command is a place.

        A directory is a place, and so is an address of a store. So is a word that is no number, if all arguments of the
        command are numbers.
        """
        if word.startswith("-") or Path(command).is_dir():
            return False
        arguments = [param for param in self.commands[command].params if isinstance(param, click.Argument)]
        are_numbers = all(isinstance(argument.type, (click.IntRange, type(click.INT))) for argument in arguments)
        return scheme_of(word) is not None or Path(word).is_dir() or (are_numbers and not word.isdigit())
