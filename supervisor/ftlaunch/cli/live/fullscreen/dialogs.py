"""What `ftctl top` shows in front of the job: lines to read, and the question before a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Log, Static

_LINES = 20_000  # that are kept to scroll back to


class LinesScreen(Screen[None]):
    """Lines under a title. They are read in a thread: again and again, or once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, read: Callable[[], Iterable[str]], every: float | None = None) -> None:
        """read: what has come since it was called before. every: seconds between calls; None: once."""
        super().__init__()
        self._title, self._read, self._every = title, read, every

    def compose(self) -> ComposeResult:
        """See textual.screen."""
        yield Static(self._title, classes="title", markup=False)
        yield Log(max_lines=_LINES, auto_scroll=self._every is not None)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(Log).focus()
        self._load()
        if self._every is not None:
            self.set_interval(self._every, self._load)

    @work(thread=True, group="lines", exclusive=True)
    def _load(self) -> None:
        lines = list(self._read())
        if lines and self.is_attached:
            self.app.call_from_thread(self._add, lines)

    def _add(self, lines: list[str]) -> None:
        if self.is_attached:
            self.query_one(Log).write_lines(lines)


class Question(ModalScreen[bool]):
    """Yes or no; everything but `y` is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """See textual.screen."""
        with Vertical(id="question"):
            yield Static(self._text, markup=False)
        yield Footer()
