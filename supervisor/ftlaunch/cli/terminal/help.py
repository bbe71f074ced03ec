"""The help of `ftctl`: its commands in sections, each with examples; and what a mistyped word may have meant."""

from __future__ import annotations

import re

import click

from ftlaunch.cli.terminal.examples import EXAMPLES
from ftlaunch.common.suggestions import did_you_mean

SECTIONS = {
    "Look at jobs": ("status", "top", "jobs", "logs", "attach", "report", "dashboard", "nodes"),
    "Command a job": ("stop", "drain", "clean"),
    "Checkpoints": ("checkpoints",),
    "Before a run": ("check", "rehearse", "plan"),
    "Schedulers": ("kubernetes", "systemd"),
    "The shell": ("completion",),
}
_REST = "Others"
_NOT_A_CHOICE = re.compile(r": '([^']*)' is not one of ")


class SectionedGroup(click.Group):
    """A group whose help lists its commands by section; every command below it gets its examples."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        _add_examples(cmd, name or cmd.name or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in SECTIONS.values() for name in names}
        rest = {_REST: tuple(name for name in self.list_commands(ctx) if name not in listed)}
        for title, names in {**SECTIONS, **rest}.items():
            found = [(name, self.commands[name]) for name in names if name in self.commands]
            rows = [(name, command.get_short_help_str(limit=80)) for name, command in found if not command.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=14)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"no such command {args[0]!r}{did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def _add_examples(command: click.Command, path: str) -> None:
    """Write the examples below the help of a command, and of those below it, that have nothing there."""
    if command.epilog is None and path in EXAMPLES:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            _add_examples(below, f"{path} {name}")


def usage_sentence(error: click.UsageError) -> str:
    """What is wrong with a command line, and what may have been meant; without a full stop."""
    if isinstance(error, click.NoSuchOption):
        params = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
        names = [name for param in params if isinstance(param, click.Option) for name in param.opts]
        return f"no such option {error.option_name}{did_you_mean(error.option_name, names)}"
    message = " ".join(error.format_message().split()).rstrip(".")
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    if isinstance(kind, click.Choice) and (given := _NOT_A_CHOICE.search(message)):
        message += did_you_mean(given[1], map(str, kind.choices))
    return f"{message[:1].lower()}{message[1:]}"
