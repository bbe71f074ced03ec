"""The commands of `ftctl`, as Markdown, from click's own objects: what each is for, its arguments and options."""

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
    """The exit codes of `ftctl`."""
    return "\n".join(["| code | means |", "| --- | --- |", *(f"| {code} | {said} |" for code, said in _EXITS.items())])


def bare_options() -> str:
    """The options of `ftlaunch` that no key of a job spec has."""
    context = click.Context(launcher, info_name="ftlaunch", **launcher.context_settings)
    options = [one for one in launcher.get_params(context) if isinstance(one, click.Option) and one.name not in OPTIONS]
    rows = [f"| {', '.join(f'`{name}`' for name in one.opts)} | {_cell(_plain(one.help or ''))} |" for one in options]
    return "\n".join(["| option | what it says |", "| --- | --- |", *rows])


def reference() -> str:
    """Every command with its help."""
    return "\n\n".join(_section(words, one) for words, one in sorted(_commands(("ftctl",), command)))


def _commands(words: tuple[str, ...], one: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command's words and itself, and those below it."""
    if len(words) > 1:
        yield words, one
    if isinstance(one, click.Group):
        context = click.Context(one)
        for name in one.list_commands(context):
            if (inner := one.get_command(context, name)) is not None:
                yield from _commands((*words, name), inner)


def _section(words: tuple[str, ...], one: click.Command) -> str:
    context = click.Context(one, info_name=" ".join(words))
    usage = " ".join([" ".join(words), *one.collect_usage_pieces(context)])
    lines = [f"### {' '.join(words)}", "", f"`{usage}`", "", _plain(one.help or "")]
    rows = [_row(option, context) for option in one.params if isinstance(option, click.Option) and not option.hidden]
    if rows:
        lines += ["", "| option | what it says | default |", "| --- | --- | --- |", *rows]
    return "\n".join(lines)


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    takes = "" if option.is_flag else f" {option.make_metavar(context)}"
    shown = option.default if option.show_default is True else ""
    return f"| {names}{_cell(takes)} | {_cell(_plain(option.help or ''))} | {f'`{shown}`' if shown != '' else ''} |"


def _plain(text: str) -> str:
    """Help in paragraphs of one line each, but for those in which click keeps the lines apart (marked by \\b)."""
    return "\n\n".join(_paragraph(part) for part in inspect.cleandoc(text).split("\n\n"))


def _paragraph(text: str) -> str:
    if text.startswith("\b"):
        lines = "\n".join(line.strip() for line in text.splitlines()[1:])
        return f"```\n{lines}\n```"
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("\n\n", " ").replace("|", "\\|")
