"""Numbers for people: three or four digits and a unit, and a line that commands no terminal."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from ftlaunch.common.formatting import duration, printable, size, table

_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@given(st.floats(min_value=0, max_value=1e7))
@example(0.9995)
@example(119.5)
@example(7199.6)
def test_a_duration_is_nearly_what_is_shown(seconds: float) -> None:
    text = duration(seconds)
    parts = re.findall(r"([0-9.]+) (ms|s|min|h)", text)
    assert " ".join(" ".join(part) for part in parts) == text
    said = sum(float(number) * _UNITS[unit] for number, unit in parts)
    least = _UNITS[parts[-1][1]]
    assert abs(said - seconds) <= (least if least >= 60 else 0.5 * least + 1e-9)
    assert all(float(number) < 60 for number, unit in parts[1:])


@given(st.integers(min_value=0, max_value=1 << 50))
@example((1 << 20) - 1)
def test_a_size_is_nearly_what_is_shown_and_uses_the_unit_that_fits(count: int) -> None:
    number, unit = size(count).split()
    assert abs(float(number) * _BYTES[unit] - count) <= 0.0501 * _BYTES[unit]
    assert float(number) < 1024 or unit == "TiB"
    assert float(number) >= 1 or unit == "B"


@given(st.text())
def test_a_printable_line_has_no_control_characters(line: str) -> None:
    shown = printable(line)
    assert all(c.isprintable() or c == "\t" for c in shown)
    assert printable(shown) == shown
    if line.isprintable():
        assert shown == line


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[st.text("ab c", max_size=6)] * n), min_size=1)))
def test_the_columns_of_a_table_stand_below_each_other(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = table(rows, left=(0,))
    for row, line in zip(rows, lines, strict=True):
        at, wide = 0, line.ljust(sum(widths) + 2 * len(widths))
        for cell, width in zip(row, widths, strict=True):
            assert wide[at : at + width].strip() == cell.strip()
            at += width + 2
