"""The command line of `ftlaunch`, generated from the table of spec keys: parsing, help, and errors in one sentence.

`launch.run_command` and other commands that take a job, such as `ftctl rehearse`, call `read_command_line`. Nothing
here reads the job spec or the environment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ftlaunch import __version__
from ftlaunch.cli.terminal.examples import FTLAUNCH
from ftlaunch.cli.terminal.shell_scripts import SHELLS, completion_script
from ftlaunch.spec.errors import SpecError, did_you_mean, shown
from ftlaunch.spec.job_spec import TITLES, part_of
from ftlaunch.spec.key import Key
from ftlaunch.spec.keys import OPTIONS

_INTRO = (
    "Keep a training job alive: start its ranks, watch them, restart them, resume from the step they had "
    "reached. What to run is a Python SCRIPT, a MODULE with -m, a PROGRAM with --no-python, or what a job "
    "spec (a .yaml or .yml file) says; ARGS are passed on untouched, and replace the args of a spec."
)
_LAYERS = (
    "Options win over the job spec, the spec over PET_* variables, those over the defaults. Times are "
    "written as 90s, 30m or 1h30m, options with dashes or underscores."
)
_EXITS = (
    "Exit codes: 0 done; 1 given up; 2 bad usage or spec; 70 a bug of ftlaunch's own; 75 stopped on request "
    "with a checkpoint, run it again; 143 stopped on request, nothing to save."
)
_MIN_ABBREVIATION = 3  # letters, so that the letter of a short option is never completed to a long one


@dataclass(frozen=True)
class Request:
    """A command line as written, not yet merged with the job spec, the environment and the defaults."""

    target: str
    """the script, module, program or job spec to run"""
    args: tuple[str, ...]
    """the words after the target"""
    flags: dict[str, str]
    """value by key name of the options that were given; switches are `true` or `false`"""
    dry_run: bool
    check: bool
    detach: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    """values of the options that a command has besides those of `ftlaunch`"""

    def words(self, without: Collection[str]) -> list[str]:
        """Return a command line that asks for this request, without the options in `without`."""
        options = [_word(OPTIONS[name], value) for name, value in self.flags.items() if name not in without]
        return [*options, *(["--check"] if self.check else []), self.target, *self.args]


def _word(key: Key, value: str) -> str:
    name = key.name.replace("_", "-")
    if not key.switch:
        return f"--{name}={value}"
    return f"--{name}" if value == "true" else f"--no-{name}"


class _Command(click.Command):
    """A command whose help groups the options by the parts of a job spec."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for part, title in TITLES.items():
            if rows := [_help_row(key) for key in OPTIONS.values() if part_of(key) == part]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        options = [param for param in self.params if isinstance(param, click.Option) and param.name not in OPTIONS]
        others = [row for param in options if (row := param.get_help_record(ctx))]
        with formatter.section("Others"):
            formatter.write_dl([*others, ("-h, --help", "show this and exit")])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for text in (_LAYERS, _EXITS):
            formatter.write_paragraph()
            formatter.write_text(text)
        with formatter.section("Examples"):
            for line in FTLAUNCH:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def read_command_line(argv: Sequence[str], own: Sequence[click.Option] = ()) -> Request:
    """Parse a command line.

    Args:
        argv: the words without the program's name.
        own: options of the calling command besides those of `ftlaunch`.

    Raises:
        SpecError: the command line cannot be understood.
        click.exceptions.Exit: `--help`, `--version` or the like has been printed.
    """
    try:
        context = (_make_command(own) if own else command).make_context("ftlaunch", list(argv))
    except click.UsageError as error:
        raise SpecError(_sentence(error, [option.name or "" for option in own])) from None
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if "target" not in given:
        raise SpecError("cannot start: no script, module, program or job.yaml is given; see `ftlaunch --help`")
    flags = {name: str(value).lower() if OPTIONS[name].switch else value for name, value in given.items()
             if name in OPTIONS}  # fmt: skip
    values = {option.name or "": context.params[option.name or ""] for option in own}
    return Request(
        target=given["target"],
        args=tuple(given.get("args", ())),
        flags=flags,
        dry_run=bool(given.get("dry_run")),
        check=bool(given.get("check")),
        detach=bool(given.get("detach")),
        own=values,
    )


def _whole_name(name: str) -> str:
    """Return an option's full name with dashes.

    Options of torchrun may be abbreviated, as torchrun's argparse allows: `--nnode`, `--redirect`.
    """
    name = name.replace("_", "-")
    names = {key.name.replace("_", "-"): key for key in OPTIONS.values()}
    if len(name) < _MIN_ABBREVIATION or name in names:
        return name
    fitting = [whole for whole, key in names.items() if whole.startswith(name) and _is_torchruns(key)]
    return fitting[0] if len(fitting) == 1 else name


def _is_torchruns(key: Key) -> bool:
    return key.group != "ours" or key.name == "max_restarts"


def _make_command(own: Sequence[click.Option] = ()) -> click.Command:
    settings = {
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        # From the first word that is no option on, everything belongs to the script.
        "allow_interspersed_args": False,
        "token_normalize_func": _whole_name,
    }
    params: list[click.Parameter] = [*(_option(key) for key in OPTIONS.values()), *own]
    params += [
        click.Argument(["target"], required=False, metavar="SCRIPT|job.yaml", shell_complete=_files),
        click.Argument(["args"], nargs=-1, type=click.UNPROCESSED),
        click.Option(["--dry-run"], is_flag=True, help="print the resolved job spec and exit; make nothing"),
        click.Option(["--check"], is_flag=True, help="check this machine first (`ftctl check`), and start nothing"
                     " where the job could not run"),
        click.Option(["--detach"], is_flag=True, help="run the job without a terminal: print its id, and return once it"
                     " has begun; see `ftctl attach`"),
        click.Option(["--print-completion"], type=click.Choice(list(SHELLS)), is_eager=True, expose_value=False,
                     callback=_show_completion, help="print what makes this shell complete words, and exit"),
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
                     help="show the version and exit"),
    ]  # fmt: skip
    return _Command("ftlaunch", params=params, context_settings=settings, help=_INTRO)


def _option(key: Key) -> click.Option:
    name = f"--{key.name.replace('_', '-')}"
    shorts = [key.short] if key.short else []
    if not key.switch:
        return click.Option([*shorts, name, key.name], shell_complete=lambda _, __, begun: complete_value(key, begun))
    both = f"{name}/--no-{name[2:]}" if key.group == "ours" else name
    return click.Option([*shorts, both, key.name], is_flag=True, default=False)


def complete_value(key: Key, begun: str) -> list[CompletionItem]:
    """Return completions of an option's value: allowed words, folders, or ids of known jobs.

    Args:
        key: the key of the option.
        begun: the part of the value that the user has typed.
    """
    if key.name == "job_id":
        from ftlaunch.history.job_index import known_jobs  # noqa: PLC0415 - needed only by the tab key

        return [CompletionItem(name) for name in sorted({job.job_id for job in known_jobs()}) if name.startswith(begun)]
    if key.name.endswith("_dir"):
        return [CompletionItem(begun, type="dir")]
    return [CompletionItem(word) for word in key.choices() if word.startswith(begun)]


def _files(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _show_version(context: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"ftlaunch {__version__}")
        context.exit()


def _show_completion(context: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        click.echo(completion_script("ftlaunch", context.command, shell))
        context.exit()


def _help_row(key: Key) -> tuple[str, str]:
    name = f"--{key.name.replace('_', '-')}"
    if key.switch and key.group == "ours":
        name = f"{name} / --no-{name[2:]}"
    names = f"{key.short}, {name}" if key.short else name
    default = "" if key.switch or key.default is None else f" [{key.default}]"
    return names if key.switch else f"{names} VALUE", f"{key.help.replace('null: ', 'default: ')}{default}"


def _sentence(error: click.UsageError, own: Sequence[str]) -> str:
    if isinstance(error, click.NoSuchOption):
        ending = ("dry_run", "check", "detach", "print_completion", "version", "help")
        names = [f"--{name.replace('_', '-')}" for name in (*OPTIONS, *own, *ending)]
        hint = did_you_mean(error.option_name, names)
        hint = hint or "; see `ftlaunch --help`"
        return f"cannot use `{shown(error.option_name)}`: there is no such option{hint}"
    if isinstance(error, click.BadOptionUsage):
        problem = "it takes no value" if "does not take" in error.message else "it needs a value"
        return f"cannot use `{error.option_name}`: {problem}"
    return f"cannot read the command line: {' '.join(error.message.split())}"


command = _make_command()
