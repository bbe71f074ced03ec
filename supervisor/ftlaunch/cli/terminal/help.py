"""The help of `ftctl`: commands in sections, examples for each command, and suggestions for mistyped words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ftlaunch.cli.terminal.examples import EXAMPLES
from ftlaunch.common.suggestions import did_you_mean
from ftlaunch.extensions import load

SECTIONS = {
    "Look at jobs": ("status", "top", "jobs", "logs", "attach", "report", "recovery", "dashboard", "nodes"),
    "Command a job": ("stop", "drain", "clean"),
    "Checkpoints": ("checkpoints",),
    "Before a run": ("check", "rehearse", "plan"),
    "Schedulers": ("kubernetes", "systemd"),
    "The shell": ("completion",),
}
COMMANDS = frozenset(name for names in SECTIONS.values() for name in names)
_OTHER_SECTION = "Others"
_MAX_SUMMARY = 200  # characters, enough for every first sentence; click wraps the text to the terminal
_NOT_IN_RANGE = re.compile(r"(\S+) is not (a valid integer range|in the range .*)$")
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")
_NOT_A_CHOICE = re.compile(r": '([^']*)' is not one of ")


class SectionedGroup(click.Group):
    """A group whose help lists the commands by section, and which adds the examples to each command's help.

    A command of another area is imported only when the command or the help is asked for.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **options: Any) -> None:
        """Create the group.

        Args:
            *args: passed on to click.
            elsewhere: import path by command name, as `extensions.COMMANDS` writes it.
            **options: passed on to click.
        """
        super().__init__(*args, **options)
        self._elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._elsewhere and cmd_name not in self.commands:
            self.add_command(load(self._elsewhere[cmd_name]), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for line in EXAMPLES[""]:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        _add_examples(cmd, name or cmd.name or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rest = {_OTHER_SECTION: tuple(name for name in self.list_commands(ctx) if name not in COMMANDS)}
        for title, names in {**SECTIONS, **rest}.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name, command.get_short_help_str(_MAX_SUMMARY))
                for name, command in found
                if command and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=14)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"no such command {args[0]!r}{_suggestion(args[0], known)}")
        return super().resolve_command(ctx, args)


def _suggestion(word: str, commands: Iterable[str]) -> str:
    if word.endswith((".py", ".yaml", ".yml")):
        return f"; did you mean `ftlaunch {word}`?"
    return did_you_mean(word, commands)


def _add_examples(command: click.Command, path: str) -> None:
    """Add the examples to the help of a command and of its subcommands, unless the help has an epilog already.

    Args:
        command: the command.
        path: the command's words after `ftctl`, for example `checkpoints verify`.
    """
    if command.epilog is None and path in EXAMPLES:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            _add_examples(below, f"{path} {name}")


def usage_sentence(error: click.UsageError) -> str:
    """Say what is wrong with a command line, and suggest what was meant; without a capital letter and a full stop."""
    if isinstance(error, click.NoSuchOption):
        params = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
        names = [name for param in params if isinstance(param, click.Option) for name in param.opts]
        return f"no such option {error.option_name}{did_you_mean(error.option_name, names)}"
    message = " ".join(error.format_message().split()).rstrip(".")
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    if isinstance(kind, click.Choice) and (given := _NOT_A_CHOICE.search(message)):
        message += did_you_mean(given[1], map(str, kind.choices))
    if isinstance(kind, click.IntRange) and (wrong := _NOT_IN_RANGE.search(message)):
        message = f"{message[: wrong.start()]}{wrong[1]} is not {_range(kind)}"
    if extra := _EXTRA.fullmatch(message):
        message = f"`{extra[1]}` is more than this command takes"
    return f"{message[:1].lower()}{message[1:]}"


def _range(kind: click.IntRange) -> str:
    """Describe the allowed values of an option in words."""
    if kind.max is None:
        return "a whole number" if kind.min is None else f"a whole number of {kind.min} or more"
    return f"a whole number from {kind.min} to {kind.max}"
