"""One watcher for what many browsers look at: it looks once for all of them, and only while somebody does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

LOOK = 0.25
"""seconds between two looks"""
SHARE = 0.2
"""of a processor's time that looks may take: after a long one there is a longer pause"""
KEEP_ALIVE = 15.0
"""seconds of silence after which a browser is told that the connection lives"""

Look = Callable[[], Mapping[str, Any]]
"""The parts of the page that may have changed, JSON-ready, by name. It may read files: it runs in a thread."""


@dataclass
class _Watch:
    """Looks that go on for some browsers. After a look that has failed another watch takes its place."""

    task: asyncio.Task[None]
    viewers: int = 0


class PageWatcher:
    """Of one page. A browser that is slow gets the newest and misses what lies between: nothing is queued for it."""

    def __init__(self, look: Look) -> None:
        self._look, self._looking = look, threading.Lock()
        self._found: dict[str, str] = {}  # name -> its JSON
        self._parts: dict[str, tuple[int, str]] = {}  # name -> the version in which it changed, and its JSON
        self._version = 0
        self._messages: dict[int, bytes] = {}  # the version a browser has seen -> what it is sent now
        self._changed = asyncio.Condition()
        self._watch: _Watch | None = None

    async def messages(self) -> AsyncIterator[bytes]:
        """Server-sent events for one browser: first all parts, then those that have changed."""
        if self._watch is None or self._watch.task.done():
            self._watch = _Watch(asyncio.create_task(self._look_on()))
        watch, seen = self._watch, 0
        watch.viewers += 1
        try:
            while True:
                if self._version > seen:
                    message, seen = self._message(seen), self._version
                    yield message
                elif watch.task.done():
                    await watch.task  # raises what it failed of: the connection ends, and the browser makes another
                elif not await self._changes(seen, watch.task):
                    yield b": alive\n\n"
        finally:
            watch.viewers -= 1
            if not watch.viewers:
                watch.task.cancel()

    async def _changes(self, seen: int, task: asyncio.Task[None]) -> bool:
        async def wait() -> bool:
            async with self._changed:
                return await self._changed.wait_for(lambda: self._version > seen or task.done())

        try:
            return await asyncio.wait_for(wait(), KEEP_ALIVE)
        except asyncio.TimeoutError:
            return False

    def _message(self, seen: int) -> bytes:
        if seen not in self._messages:
            new = (f",{json.dumps(name)}:{text}" for name, (since, text) in self._parts.items() if since > seen)
            self._messages[seen] = f"{''.join(new)}}}\n\n".encode()
        return b'data: {"now":%.3f' % time.time() + self._messages[seen]

    async def _look_on(self) -> None:
        first = True  # it may read a long journal; those that follow read what was appended
        try:
            while True:
                found, used = await asyncio.to_thread(self._timed_look)
                await self._publish(found)
                await asyncio.sleep(LOOK if first else max(LOOK, used / SHARE - used))
                first = False
        finally:
            async with self._changed:
                self._changed.notify_all()

    def _timed_look(self) -> tuple[Mapping[str, str], float]:
        """What was found, and the seconds of a processor's time that it took."""
        began = time.thread_time()
        return self.look_once(), time.thread_time() - began

    def look_once(self) -> Mapping[str, str]:
        """Look now, in the thread of the caller; browsers hear of it at the next look. All parts as JSON."""
        with self._looking:
            for name, part in self._look().items():
                self._found[name] = json.dumps(part)
            return dict(self._found)

    @property
    def looking(self) -> bool:
        """A look is under way."""
        return self._looking.locked()

    @property
    def watched(self) -> bool:
        """Somebody looks."""
        return self._watch is not None and self._watch.viewers > 0

    async def _publish(self, found: Mapping[str, str]) -> None:
        changed = {name: text for name, text in found.items() if self._parts.get(name, (0, ""))[1] != text}
        if changed:
            async with self._changed:
                self._version += 1
                self._messages.clear()
                self._parts |= {name: (self._version, text) for name, text in changed.items()}
                self._changed.notify_all()
