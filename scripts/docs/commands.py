"""Renders the commands of `ftctl` as Markdown, from click's own objects: purpose, arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from ftlaunch.cli.asking import NO
from ftlaunch.cli.ctl import command
from ftlaunch.cli.options import OPTIONS
from ftlaunch.cli.options import command as launcher
from ftlaunch_contract.protocol import EXIT_DONE, EXIT_USAGE

_INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it
_EXITS = {
    EXIT_DONE: "done",
    NO: "the answer is no: the job is not running or did not stop, something had to stay; a check, a rehearsal or a"
    " checkpoint that was verified has failed",
    EXIT_USAGE: "bad usage or job spec, or no such run",
    _INTERRUPTED: "interrupted by Ctrl-C; a job that was asked to stop still does",
}


def exit_table() -> str:
    """Return the table of the exit codes of `ftctl`."""
    return "\n".join(
        ["| code | means |", "| --- | --- |", *(f"| {code} | {meaning} |" for code, meaning in _EXITS.items())]
    )


def bare_options() -> str:
    """Return the table of the options of `ftlaunch` that are no keys of a job spec."""
    context = click.Context(launcher, info_name="ftlaunch", **launcher.context_settings)
    options = [each for each in launcher.get_params(context) if isinstance(each, click.Option)]
    rows = [
        f"| {', '.join(f'`{name}`' for name in option.opts)} | {_cell(_plain(option.help or ''))} |"
        for option in options
        if option.name not in OPTIONS
    ]
    return "\n".join(["| option | what it says |", "| --- | --- |", *rows])


def reference() -> str:
    """Return a section for every command."""
    return "\n\n".join(_section(words, each) for words, each in sorted(_commands(("ftctl",), command)))


def _commands(words: tuple[str, ...], group: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command with its words, and all commands below it."""
    if len(words) > 1:
        yield words, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            if (inner := group.get_command(context, name)) is not None:
                yield from _commands((*words, name), inner)


def _section(words: tuple[str, ...], described: click.Command) -> str:
    context = click.Context(described, info_name=" ".join(words))
    usage = " ".join([" ".join(words), *described.collect_usage_pieces(context)])
    lines = [f"### {' '.join(words)}", "", f"`{usage}`", "", _plain(described.help or "")]
    shown = [option for option in described.params if isinstance(option, click.Option) and not option.hidden]
    rows = [_row(option, context) for option in shown]
    if rows:
        lines += ["", "| option | what it says | default |", "| --- | --- | --- |", *rows]
    return "\n".join(lines)


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag else f" {option.make_metavar(context)}"
    shown = option.default if option.show_default is True else ""
    return f"| {names}{_cell(metavar)} | {_cell(_plain(option.help or ''))} | {f'`{shown}`' if shown != '' else ''} |"


def _plain(text: str) -> str:
    """Return help with each paragraph in one line, but for paragraphs whose lines click keeps apart (marked by \\b)."""
    return "\n\n".join(_paragraph(part) for part in inspect.cleandoc(text).split("\n\n"))


def _paragraph(text: str) -> str:
    if text.startswith("\b"):
        lines = "\n".join(line.strip() for line in text.splitlines()[1:])
        return f"```\n{lines}\n```"
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("\n\n", " ").replace("|", "\\|")
