"""When what the ranks have agreed on about memory is news."""

from __future__ import annotations

from ftlaunch.reporting.memory_news import MemoryNews
from ftlaunch_contract.pages.memory_state import Memory


def events(news: MemoryNews, *memory: int) -> list[str]:
    event = news.observe(Memory(*memory), 0.001)
    return [] if event is None else [event.name]


def test_nothing_is_news_while_all_is_well() -> None:
    news = MemoryNews(1)
    assert events(news, 0, 0, 0, 0) == []  # before the ranks have met
    assert events(news, 3, 1, 100, 1000) == []
    assert events(news, 3, 1, 100, 1000) == []


def test_fewer_slots_are_said_once_a_rung() -> None:
    news = MemoryNews(1)
    event = news.observe(Memory(2, 1, 100, 250), 0.001)
    assert event is not None
    assert (event.name, event.fields()) == ("memory_reduced", {"slots": 2, "interval": 1, "needed": 100, "room": 250})
    assert "memory holds 2 snapshots instead of 3" in event.sentence()
    assert events(news, 2, 1, 100, 250) == []
    assert events(news, 0, 0, 300, 250) == ["memory_reduced"]
    assert events(news, 0, 0, 0, 0) == []  # another attempt begins
    assert events(news, 0, 0, 300, 250) == []
    assert events(news, 3, 1, 300, 2500) == ["memory_restored"]


def test_another_interval_is_an_event_without_a_word() -> None:
    news = MemoryNews(1)
    assert events(news, 3, 1, 100, 1000) == []
    event = news.observe(Memory(3, 40, 100, 1000), 0.001)
    assert event is not None
    assert (event.name, event.fields(), event.sentence()) == ("memory_interval", {"interval": 40, "before": 1}, "")
    assert events(news, 3, 40, 100, 1000) == []
    assert events(MemoryNews(1), 3, 40, 100, 1000) == ["memory_interval"], "also when it was so at the first look"


def test_what_a_crash_may_cost_is_said_where_it_is_seconds_and_again_where_it_is_much_more() -> None:
    news = MemoryNews(1)
    said = []
    for interval in (40, 60, 159, 160, 20, 700):
        event = news.observe(Memory(3, interval, 100, 1000), 0.5)
        assert event is not None
        said.append(event.sentence())
    costs = "cost less than 1 % of the time; a crash costs up to"
    assert said[0] == f"snapshots every 40 steps {costs} 20 s"
    assert said[1:3] == ["", ""]
    assert said[3] == f"snapshots every 160 steps {costs} 80 s"
    assert said[4:] == ["", f"snapshots every 700 steps {costs} 5 min 50 s"]


def test_where_only_the_saver_is_served_fewer_slots_cost_nothing() -> None:
    news = MemoryNews(0)
    assert events(news, 1, 0, 100, 150) == []
    assert events(news, 0, 0, 100, 50) == ["memory_reduced"]
