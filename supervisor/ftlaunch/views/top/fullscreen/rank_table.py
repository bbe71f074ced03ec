"""A list of ranks of which only the lines on the screen are made: a thousand ranks cost what twenty do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ftlaunch.views.top.view import RankLayout, RankRow

_MARGIN = 2  # for the sign of the chosen rank
_TITLE, _CHOSEN, _NOTED = Style(bold=True), Style(reverse=True), Style(bold=True)


class RankTable(ScrollView, can_focus=True):
    """One line a rank below a line of titles; the chosen rank stays chosen wherever it moves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("home", "move_to(0)", "First", show=False),
        Binding("end", "move_to(-1)", "Last", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[RankRow] = ()
        self._several = False
        self._layout = RankLayout((), several=False, width=None)
        self._place = 0
        self._moved = False  # somebody has chosen a rank; until then the worst is chosen

    @property
    def chosen(self) -> int | None:
        """The chosen rank; None where there is none."""
        return self._rows[self._place].rank if self._rows else None

    def show(self, rows: Sequence[RankRow], *, several: bool) -> None:
        """Show these ranks. several: the job has several nodes."""
        chosen = self.chosen if self._moved else None
        self._rows, self._several = rows, several
        self._lay_out()
        places = (place for place, row in enumerate(rows) if row.rank == chosen)
        self._place = next(places, min(self._place, max(len(rows) - 1, 0)) if self._moved else 0)
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._see()

    def on_resize(self) -> None:
        """Other columns may have room."""
        self._lay_out()

    def _lay_out(self) -> None:
        self._layout = RankLayout(self._rows, several=self._several, width=self.size.width - _MARGIN)

    def render_line(self, y: int) -> Strip:
        """See textual.widget."""
        place, width = y - 1 + self.scroll_offset.y, self.size.width
        if not y and self._rows:
            return _strip(f"  {self._layout.head()}", width, _TITLE)
        if not self._rows or place >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row, chosen = self._rows[place], place == self._place
        text = f"{'>' if chosen else ' '} {self._layout.line(row)}"
        return _strip(text, width, _CHOSEN if chosen else _NOTED if row.note else Style())

    def action_move(self, lines: int) -> None:
        """Choose a rank so many lines below."""
        self.action_move_to(min(max(self._place + lines, 0), len(self._rows) - 1))

    def action_move_page(self, pages: int) -> None:
        """Choose a rank so many pages below."""
        self.action_move(pages * max(self.size.height - 1, 1))

    def action_move_to(self, place: int) -> None:
        """Choose the rank at a place; -1 is the last."""
        if self._rows:
            self._place, self._moved = place % len(self._rows), True
            self._see()

    def _see(self) -> None:
        """Have the chosen line on the screen, if it was chosen by somebody, below the line of titles."""
        shown = max(self.size.height - 1, 1)
        if self._moved:
            top = min(max(self.scroll_offset.y, self._place - shown + 1), self._place)
            self.scroll_to(y=top, animate=False)
        self.refresh(Region(0, 0, self.size.width, self.size.height))


def _strip(text: str, width: int, style: Style) -> Strip:
    return Strip([Segment(text, style)]).adjust_cell_length(width, style).crop(0, width)
