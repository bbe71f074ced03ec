"""The whole-screen application of `ftctl top`: summary, ranks, events, and keys for details.

A worker thread makes the pictures; widgets are only touched on Textual's main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, RichLog, Static

from ftlaunch.common.formatting import printable
from ftlaunch.history.nodes_view import node_lines
from ftlaunch.views.top.fullscreen.dialogs import LinesScreen, LiveScreen, Question
from ftlaunch.views.top.fullscreen.rank_table import RankTable
from ftlaunch.views.top.fullscreen.stacks_screen import StacksScreen
from ftlaunch.views.top.job_watch import JobWatch
from ftlaunch.views.top.rank_log import RankLog
from ftlaunch.views.top.rank_stacks import RankStacks
from ftlaunch.views.top.view import Picture, rank_rows, summary

_REFRESH_SECONDS = 0.5  # between updates of a log or of nodes on the screen
_KEYS = frozenset({"log", "stacks", "nodes", "stop", "leave"})

Stop = Callable[[], str]
"""Asks the job to stop; returns a sentence about the result."""


class TopScreen(App[str]):
    """Shows the job until the user leaves. `run` returns a sentence to print afterwards, which may be empty."""

    TITLE = "ftctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: auto; }
    RankTable { height: auto; max-height: 60%; min-height: 3; }
    #news { height: 1fr; min-height: 3; border-top: solid; scrollbar-size: 1 1; }
    .title { text-style: bold; }
    Question { align: center middle; }
    #question { width: 64; max-width: 90%; height: auto; border: solid; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "Log"),
        Binding("s", "stacks", "Stacks"),
        Binding("n", "nodes", "Nodes"),
        Binding("x", "stop", "Stop the job"),
        Binding("q", "leave", "Quit"),
        Binding("ctrl+c", "end", "Quit", show=False, priority=True),
    ]

    def __init__(self, watch: JobWatch, stop: Stop) -> None:
        super().__init__()
        self._job = watch
        self._stop = stop
        self._picture = Picture(watch.run.job_id)
        self._leaving = threading.Event()

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="summary", markup=False)
        yield RankTable()
        news = RichLog(id="news", wrap=True, markup=False, min_width=1, max_lines=2000)
        news.border_title = "events (times are UTC)"
        yield news
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow the job."""
        self.query_one(RankTable).focus()
        self._follow()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the job's keys only while no other screen covers the job."""
        return action not in _KEYS or len(self.screen_stack) == 1

    @property
    def _grave(self) -> str:
        """Style of grave news. Without colours the style avoids red, which would turn into a dark grey."""
        return "bold reverse" if self.no_color else "bold #ff5f5f"

    def on_unmount(self) -> None:
        """Stop following the job."""
        self._leaving.set()

    @work(thread=True)
    def _follow(self) -> None:
        while not self._leaving.is_set():
            try:
                picture = self._job.make_picture()
            except OSError as error:
                self.call_from_thread(self.exit, f"cannot read the journal: {error.filename}: {error.strerror}")
                return
            if not self._leaving.is_set():
                self.call_from_thread(self._show, picture)
            self._leaving.wait(self._job.interval)

    def _show(self, picture: Picture) -> None:
        first = self.screen_stack[0]
        self._picture = picture
        first.query_one("#summary", Static).update(Text("\n".join(summary(picture))))
        first.query_one(RankTable).show(rank_rows(picture), several=bool(picture.nodes))
        log = first.query_one("#news", RichLog)
        for news in picture.news:
            mark, style = ("!", self._grave) if news.grave else (" ", "")
            log.write(Text(f"{news.at} {mark} {news.sentence}", style=style))

    def action_leave(self) -> None:
        """Leave; the result says how the job has ended, if it has."""
        picture = self._picture
        self.exit(f"job {picture.job_id}: {picture.ended}" if picture.ended else "")

    def action_end(self) -> None:
        """Leave, whatever screen covers the job."""
        self.action_leave()

    def action_log(self) -> None:
        """Show what the chosen rank prints."""
        rank = self.query_one(RankTable).chosen
        if rank is not None:
            log = RankLog(self._job.run, rank)
            self.push_screen(LinesScreen(f"log of rank {rank}", lambda: _readable(log), _REFRESH_SECONDS))

    def action_stacks(self) -> None:
        """Show what the threads of the chosen rank are doing."""
        rank = self.query_one(RankTable).chosen
        if rank is not None:
            self.push_screen(StacksScreen(RankStacks(rank, self._picture.here.get(rank), self._job.memory_dirs)))

    def action_nodes(self) -> None:
        """Show the nodes of the job, as they are now."""
        self.push_screen(LiveScreen("nodes", self._node_lines, _REFRESH_SECONDS))

    def _node_lines(self) -> list[str]:
        """Return the nodes of the newest picture as lines; without an answer of the supervisor, the reason."""
        picture = self._picture
        if picture.status is None:
            return summary(picture)
        return [*map(printable, node_lines({"nodes": picture.nodes}))] if picture.nodes else ["this job has one node"]

    def action_stop(self) -> None:
        """Ask the user, then ask the job to stop."""
        question = f"Stop job {self._picture.job_id}? It saves its newest step, and ends. y: stop it; n: go on"
        self.push_screen(Question(question), self._on_answer)

    def _on_answer(self, yes: bool | None) -> None:
        if yes:
            self._ask_stop()

    @work(thread=True)
    def _ask_stop(self) -> None:
        result = self._stop()
        self.call_from_thread(self.notify, result, markup=False)


def _readable(log: RankLog) -> Iterator[str]:
    try:
        yield from log.read()
    except OSError as error:
        yield f"cannot read {error.filename}: {error.strerror}"
