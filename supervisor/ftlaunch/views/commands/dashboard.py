"""The command `ftctl dashboard`: checks the options, then serves the live pages of jobs until Ctrl-C.

Starlette and uvicorn belong to the extra `dashboard`, so modules that need them are imported only when serving.
"""

from __future__ import annotations

import getpass
import importlib.util
import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ftlaunch.cli.asking import Cannot, NotRunning, ask_job
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import RUNS, CannotFind, Run, locate

_NEEDS = ("starlette", "uvicorn")
_LOOPBACK = "127.0.0.1"


@click.command(short_help="Show jobs live in a browser.")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="all jobs of a directory of run dirs")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="port to listen on; 0, the default: a free one")
@click.option("--bind", "address", default=_LOOPBACK, show_default=True, metavar="ADDRESS",
              help="address to listen on; another than a loopback address needs --token-file")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False),
              help="a file of yours that holds the token; otherwise one is made, which the link holds")  # fmt: skip
def dashboard(
    name: str | None, directory: Path | None, port: int, address: str, token_file: Path | None
) -> int:  # fmt: skip
    """Show a job, or all jobs of a directory, live in a browser: the page of `ftctl report --html`, always the newest.

    Without RUN and --dir all jobs in ./runs are shown. It reads run dirs and nothing else, beside any job and after it.
    Buttons ask the job to save, to stop, or to let a node leave: whoever has the link may do that. Ctrl-C ends the
    dashboard; jobs go on.
    """
    if missing := [module for module in _NEEDS if importlib.util.find_spec(module) is None]:
        lacking = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        raise Cannot(f"cannot serve a dashboard: {lacking}; `pip install 'ftlaunch[dashboard]'`")
    if name is not None and directory is not None:
        raise click.UsageError("--dir and RUN exclude each other")
    if name is None and directory is None and RUNS.is_dir():
        directory = RUNS
    place = locate(name) if directory is None else directory
    beyond = not _is_loopback(address)
    if beyond and token_file is None:
        raise Cannot(
            f"cannot listen on {address}: other machines reach it, and a token of your own is needed for that; write"
            " one into a file that only you can read, and name it with --token-file"
        )
    token = secrets.token_urlsafe(32) if token_file is None else _token_in(token_file)
    _serve(place, every=directory is not None, address=address, port=port, token=token, made=token_file is None)
    return 0


def _serve(place: Path, *, every: bool, address: str, port: int, token: str, made: bool) -> None:
    """Listen, print the link, and serve until SIGINT or SIGTERM.

    Args:
        place: a run dir, or with `every` a directory of run dirs.
        every: whether to show all jobs of a directory.
        address: address to listen on.
        port: port to listen on; 0 for a free one.
        token: the token that browsers must present.
        made: whether the token was generated, and so belongs into the printed link.

    Raises:
        Cannot: the address cannot be listened on.
    """
    from ftlaunch.views.dashboard.access import Access  # noqa: PLC0415
    from ftlaunch.views.dashboard.commands import Commands  # noqa: PLC0415
    from ftlaunch.views.dashboard.runs_shown import RunsShown  # noqa: PLC0415
    from ftlaunch.views.dashboard.server import application, listen, serve  # noqa: PLC0415

    beyond = not _is_loopback(address)
    try:
        listening = listen(address, port)
    except OSError as error:
        why = str(error.strerror) if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise Cannot(f"cannot listen on {address} port {port}: {why.lower()}") from error
    hosts = {"localhost", *({socket.gethostname().lower(), socket.getfqdn().lower()} if beyond else ())}
    access = Access(token=token, hosts=frozenset(hosts), beyond=beyond)
    shown = RunsShown(place, every=every)
    port = listening.getsockname()[1]
    at = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
    what = f"all jobs in {place}" if every else f"the job in {place}"
    link = f"{at}?token={token}" if made else f"{at}?token= and the token in your file"

    def ready() -> None:
        click.echo(printable(f"{what}: {link}"))
        if beyond:
            click.echo("this traffic is not encrypted: who listens on the network can read the token")

    serve(application(access, shown, Commands(_ask, getpass.getuser())), listening, ready)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _token_in(path: Path) -> str:
    """Read the token from the user's file.

    Raises:
        Cannot: the file cannot be read, other users can read or change it, or the token is unsuitable.
    """
    from ftlaunch.views.dashboard.access import SHORTEST_TOKEN  # noqa: PLC0415

    try:
        with path.open() as file:
            found = os.fstat(file.fileno())
            token = file.read(1000).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Cannot(f"cannot read the token in {path}: {getattr(error, 'strerror', None) or error}") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Cannot(f"cannot use the token in {path}: others can read or change it; `chmod 600` makes it yours")
    if len(token) < SHORTEST_TOKEN or quote(token, safe="") != token:
        allowed = f"at least {SHORTEST_TOKEN} letters, digits and `-._~` are needed"
        raise Cannot(f"cannot use the token in {path}: {allowed}")
    return token


def _ask(newest: Callable[[], Run], request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a job as `ftctl stop` does, and return the answer.

    Raises:
        CannotCommand: the job is not running, does not answer, or refuses.
    """
    from ftlaunch.views.dashboard.commands import CannotCommand  # noqa: PLC0415

    try:
        return ask_job(newest(), None, request)
    except NotRunning:
        raise CannotCommand(f"the job is not running: {ending(newest().end)}") from None
    except (Cannot, CannotFind) as refusal:
        raise CannotCommand(str(refusal)) from refusal
    except OSError as error:
        raise CannotCommand(f"cannot ask the job: {str(error.strerror).lower()}") from error
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CannotCommand("cannot ask the job: its journal does not say where it listens") from None
