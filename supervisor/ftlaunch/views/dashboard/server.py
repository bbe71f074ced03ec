"""The HTTP server of a dashboard: pages of jobs, the index, streams of news, and commands.

The handlers run in uvicorn's event loop on the main thread; everything that reads files or asks a job runs on helper
threads.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from importlib.resources import files
from urllib.parse import quote, unquote_to_bytes

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from ftlaunch.history.runs import Run
from ftlaunch.views.dashboard.access import Access
from ftlaunch.views.dashboard.commands import CannotCommand, Commands, Newest
from ftlaunch.views.dashboard.guard import Guard
from ftlaunch.views.dashboard.live_run import LiveRun
from ftlaunch.views.dashboard.runs_shown import RunsShown
from ftlaunch.views.dashboard.watcher import PageWatcher
from ftlaunch.views.report_page.render import render

_OWN = files("ftlaunch.views.dashboard") / "static"
_LIVE = files("ftlaunch.views.report_page") / "static"
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
_MAX_COMMAND_BYTES = 2000
PAGE_WAIT_SECONDS = 2.0
"""seconds that a browser waits at most for the newest page; a long journal takes longer at first"""
_SHUTDOWN_SECONDS = 1  # time for answers under way after a signal; streams of news never end by themselves


def application(access: Access, shown: RunsShown, commands: Commands) -> ASGIApp:
    """Return the ASGI application of a dashboard."""
    pages = _Pages(shown, commands)
    routes = [
        Route("/", pages.index),
        Route("/index.js", lambda _: _static("index.js")),
        Route("/index.css", lambda _: _static("index.css")),
        Route("/news", pages.index_news),
        Route("/run/{name}/", pages.run),
        Route("/run/{name}/live.js", lambda _: _static("live.js")),
        Route("/run/{name}/waiting.js", lambda _: _static("waiting.js")),
        Route("/run/{name}/news", pages.run_news),
        Route("/run/{name}/nodes", pages.nodes),
        Route("/run/{name}/do", pages.do, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), access)


def _static(name: str) -> Response:
    place = _LIVE if name == "live.js" else _OWN
    return Response((place / name).read_bytes(), media_type=_TYPES[name.rpartition(".")[2]])


class _Pages:
    """The request handlers."""

    def __init__(self, shown: RunsShown, commands: Commands) -> None:
        self._shown = shown
        self._commands = commands

    async def index(self, request: Request) -> Response:
        """Answer with the index of all jobs, or redirect to the page of the only job."""
        if self._shown.every:
            return _static("index.html")
        (name,) = await asyncio.to_thread(self._shown.there)
        return RedirectResponse(f"/run/{quote(os.fsencode(name), safe='')}/", 303)

    async def index_news(self, request: Request) -> Response:
        return _news(self._shown.index)

    async def run(self, request: Request) -> Response:
        """Answer with the page of a job as of now; the page then loads its news."""
        found = await self._find(request)
        if found is None:
            return _unknown(request)
        run, watcher = found
        if run.data is not None or not watcher.is_updating:
            await asyncio.wait({asyncio.create_task(asyncio.to_thread(watcher.update_once))}, timeout=PAGE_WAIT_SECONDS)
        if run.data is None:
            return _static("waiting.html")
        document = await asyncio.to_thread(render, run.data, live=True)
        return HTMLResponse(document, headers={"content-security-policy": "frame-ancestors 'none'"})

    async def run_news(self, request: Request) -> Response:
        found = await self._find(request)
        return _unknown(request) if found is None else _news(found[1])

    async def nodes(self, request: Request) -> Response:
        """Answer with the nodes that may leave a job."""
        return await self._command_answer(request, lambda newest: {"nodes": self._commands.nodes(newest)})

    async def do(self, request: Request) -> Response:
        """Execute a command: stop, save, or let a node leave."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("a command comes as application/json\n", 415)
        length = request.headers.get("content-length", "")
        if length and not (length.isascii() and length.isdigit()):
            return PlainTextResponse("the content-length is no number\n", 400)
        # A number of very many digits is not parsed: Python refuses to.
        if not length or len(length) > len(str(_MAX_COMMAND_BYTES)) or int(length) > _MAX_COMMAND_BYTES:
            return PlainTextResponse(f"a command has at most {_MAX_COMMAND_BYTES} bytes\n", 413)
        try:
            asked = await request.json()
        except (ValueError, RecursionError):
            return PlainTextResponse("the command is no JSON\n", 400)
        address = request.client.host if request.client else "an unknown address"
        return await self._command_answer(request, lambda newest: {"done": self._commands.do(newest, asked, address)})

    async def _command_answer(self, request: Request, ask: Callable[[Newest], dict[str, object]]) -> Response:
        found = await self._find(request)
        if found is None:
            return _unknown(request)
        run, watcher = found

        def newest() -> Run:
            watcher.update_once()
            return run.run

        try:
            return JSONResponse(await asyncio.to_thread(ask, newest))
        except CannotCommand as refusal:
            return JSONResponse({"error": str(refusal)}, 409)

    async def _find(self, request: Request) -> tuple[LiveRun, PageWatcher] | None:
        # The raw path, because names of run dirs are bytes, and the router's text loses bytes that are no UTF-8.
        name = os.fsdecode(unquote_to_bytes(request.scope["raw_path"].split(b"/")[2]))
        run_dir = await asyncio.to_thread(self._shown.find, name)
        return None if run_dir is None else self._shown.watched(name, run_dir)


def _unknown(request: Request) -> Response:
    return PlainTextResponse("there is no run dir of this name with a journal\n", 404)


def _news(watcher: PageWatcher) -> Response:
    return StreamingResponse(watcher.messages(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket. port: 0 for a free port. Raises OSError."""
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"no host can be called {address!a}") from error
    return socket.create_server((address, port), family=family, backlog=256)


def serve(app: ASGIApp, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. ready: called once requests are answered."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        proxy_headers=False,  # clients can forge these headers, and the journal should name the real address
    )  # fmt: skip
    Server(config).run(sockets=[listening])
