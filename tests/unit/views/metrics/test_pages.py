"""Pages that are written before anybody asks for them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ftlaunch.views.metrics.server import USUAL, Form, WrittenPages

PLAIN = Form(openmetrics=False, gzipped=False)


class Counting(Collector):
    """Counts how often a page was made of it."""

    def __init__(self, value: float) -> None:
        self.made, self._value = 0, value

    def collect(self) -> Iterable[Metric]:
        self.made += 1
        return [GaugeMetricFamily("x", "It.", value=self._value)]


def test_the_first_scrape_of_the_usual_form_writes_nothing() -> None:
    """Taken out by hand: without USUAL in renew() the first scrape of 1,024 ranks takes 100 ms on a busy machine."""
    pages, reading = WrittenPages(), Counting(1)
    pages.renew(reading, 0.0)
    assert reading.made == 1
    assert pages.get(USUAL, 0.5)
    assert (reading.made, pages.scrapes) == (1, 1)


def test_another_form_is_written_once_and_beforehand_from_then_on() -> None:
    pages, first, second = WrittenPages(), Counting(1), Counting(2)
    pages.renew(first, 0.0)
    assert b"x 1.0" in pages.get(PLAIN, 0.5)
    pages.get(PLAIN, 0.6)
    assert first.made == 2
    pages.renew(second, 1.0)
    assert second.made == 2
    assert b"x 2.0" in pages.get(PLAIN, 1.5)
    assert second.made == 2


def test_a_form_that_nobody_asks_for_any_more_is_not_written() -> None:
    pages, later = WrittenPages(), Counting(2)
    pages.renew(Counting(1), 0.0)
    pages.get(PLAIN, 0.5)
    pages.renew(later, 700.0)
    assert later.made == 1
    assert pages.get(PLAIN, 701.0)


def test_before_the_first_reading_there_is_an_empty_page() -> None:
    assert WrittenPages().get(PLAIN, 0.0) == b""
