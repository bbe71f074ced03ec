"""One look for many browsers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ftlaunch.views.dashboard import watcher as watching
from ftlaunch.views.dashboard.watcher import PageWatcher

WAIT = 60.0  # seconds: of any one message
ALIVE = b": alive\n\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "UPDATE_SECONDS", 0.005)


class Looked:
    """What a watcher looks at: it can be changed, and counts the looks."""

    def __init__(self, **parts: Any) -> None:
        self.parts, self.looks = parts, 0

    def __call__(self) -> Mapping[str, Any]:
        self.looks += 1
        return self.parts


async def told(messages: AsyncIterator[bytes]) -> dict[str, Any]:
    """Return the next parts; on a busy machine a connection is kept alive before them."""
    message = ALIVE
    while message == ALIVE:
        message = await asyncio.wait_for(messages.__anext__(), WAIT)
    assert message.startswith(b"data: ")
    assert message.endswith(b"\n\n")
    found: dict[str, Any] = json.loads(message[6:])
    assert found.pop("now") > 0
    return found


def test_all_parts_at_first_and_then_what_has_changed() -> None:
    async def scene() -> None:
        looked = Looked(a=1, b="x\n\ny")
        messages = PageWatcher(looked).messages()
        assert await told(messages) == {"a": 1, "b": "x\n\ny"}
        looked.parts = {"a": 2}
        assert await told(messages) == {"a": 2}
        looked.parts = {"b": "z", "a": 2}
        assert await told(messages) == {"b": "z"}
        await messages.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_a_hundred_browsers_cost_the_looks_of_one() -> None:
    async def scene() -> None:
        looked = Looked(step=0)
        watcher = PageWatcher(looked)
        browsers = [watcher.messages() for _ in range(100)]
        await asyncio.gather(*(told(browser) for browser in browsers))
        for step in range(1, 4):
            before, looked.parts = looked.looks, {"step": step}
            assert await told(browsers[0]) == {"step": step}
            assert looked.looks - before <= 2, "one look that was under way, and one that has found it"
            assert all(news == {"step": step} for news in await asyncio.gather(*map(told, browsers[1:])))
        for browser in browsers:
            await browser.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_a_slow_browser_gets_the_newest_only() -> None:
    async def scene() -> None:
        looked = Looked(step=0, name="j")
        watcher = PageWatcher(looked)
        slow, fast = watcher.messages(), watcher.messages()
        await told(slow)
        await told(fast)
        for step in range(1, 6):
            looked.parts = {"step": step}
            assert await told(fast) == {"step": step}
        assert await told(slow) == {"step": 5}
        for browser in (slow, fast):
            await browser.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_nobody_looks_where_no_browser_does() -> None:
    async def scene() -> None:
        looked = Looked(step=0)
        watcher = PageWatcher(looked)
        for _ in range(2):
            messages = watcher.messages()
            await told(messages)
            await messages.aclose()  # type: ignore[attr-defined]
            left = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), WAIT)
            assert all(task.cancelled() for task in left)

    asyncio.run(scene())


def test_a_look_that_fails_ends_the_connection_and_the_next_one_looks_again() -> None:
    class Broken(Exception):
        pass

    async def scene() -> None:
        looked = Looked(step=0)

        def look() -> Mapping[str, Any]:
            if looked.looks == 1:
                looked.looks += 1
                raise Broken
            return looked()

        watcher = PageWatcher(look)
        messages = watcher.messages()
        await told(messages)
        with pytest.raises(Broken):
            await told(messages)
        again = watcher.messages()
        assert await told(again) == {"step": 0}
        await again.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_a_silent_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "KEEP_ALIVE_SECONDS", 0.02)

    async def scene() -> None:
        messages = PageWatcher(Looked(step=0)).messages()
        await told(messages)
        assert await asyncio.wait_for(messages.__anext__(), WAIT) == ALIVE
        await messages.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_after_a_failed_look_no_watch_is_left_behind() -> None:
    """Taken out (one count of viewers for all tasks): looks went on when the last browser had left."""

    class Broken(Exception):
        pass

    async def scene() -> None:
        looked, fails = Looked(step=0), [False]

        def look() -> Mapping[str, Any]:
            if fails[0]:
                fails[0] = False
                raise Broken
            return looked()

        watcher = PageWatcher(look)
        old = [watcher.messages() for _ in range(2)]
        for browser in old:
            await told(browser)
        fails[0] = True
        with pytest.raises(Broken):
            await told(old[0])
        new = watcher.messages()
        assert await told(new) == {"step": 0}
        with pytest.raises(Broken):
            await told(old[1])
        newest = watcher.messages()
        assert await told(newest) == {"step": 0}
        for browser in (new, newest):
            await browser.aclose()  # type: ignore[attr-defined]
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), WAIT)
        assert not watcher.watched
        assert len(left) == 1, "the two have shared a watch"

    asyncio.run(scene())


def test_a_long_first_look_does_not_delay_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may read a long journal. Taken out: a journal of a million lines was told of a minute late."""
    monkeypatch.setattr(watching, "SHARE", 1e-4)

    async def scene() -> None:
        looked = Looked(step=0)

        def look() -> Mapping[str, Any]:
            began = time.thread_time()
            while not looked.looks and time.thread_time() - began < 0.05:
                pass
            return looked()

        messages = PageWatcher(look).messages()
        await told(messages)
        looked.parts = {"step": 1}
        assert await told(messages) == {"step": 1}
        await messages.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())
