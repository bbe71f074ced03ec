"""One watcher for what many browsers look at: it looks once for all of them, and only while somebody does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

LOOK = 0.25
"""seconds between two looks"""
SHARE = 0.2
"""of a processor's time that looks may take: after a long one there is a longer pause"""
KEEP_ALIVE = 15.0
"""seconds of silence after which a browser is told that the connection lives"""

Look = Callable[[], Mapping[str, Any]]
"""The parts of the page that may have changed, JSON-ready, by name. It may read files: it runs in a thread."""


class PageWatcher:
    """Of one page. A browser that is slow gets the newest and misses what lies between: nothing is queued for it."""

    def __init__(self, look: Look) -> None:
        self._look, self._looking = look, threading.Lock()
        self._found: dict[str, str] = {}  # name -> its JSON
        self._parts: dict[str, tuple[int, str]] = {}  # name -> the version in which it changed, and its JSON
        self._version = 0
        self._messages: dict[int, bytes] = {}  # the version a browser has seen -> what it is sent now
        self._changed = asyncio.Condition()
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None

    async def messages(self) -> AsyncIterator[bytes]:
        """Server-sent events for one browser: first all parts, then those that have changed."""
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        task, seen = self._task, 0
        try:
            while True:
                if self._version > seen:
                    message, seen = self._message(seen), self._version
                    yield message
                elif task.done():
                    await task  # raises what it failed of: the connection ends, and the browser makes another
                elif not await self._changes(seen, task):
                    yield b": alive\n\n"
        finally:
            self._viewers -= 1
            if not self._viewers or task.done():
                task.cancel()
                self._task = None

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

    async def _watch(self) -> None:
        try:
            while True:
                began = time.monotonic()
                await self._publish(await asyncio.to_thread(self.look_once))
                took = time.monotonic() - began
                await asyncio.sleep(max(LOOK, took / SHARE - took))
        finally:
            async with self._changed:
                self._changed.notify_all()

    def look_once(self) -> Mapping[str, str]:
        """Look now, in the thread of the caller; browsers hear of it at the next look. All parts as JSON."""
        with self._looking:
            for name, part in self._look().items():
                self._found[name] = json.dumps(part)
            return dict(self._found)

    async def _publish(self, found: Mapping[str, str]) -> None:
        changed = {name: text for name, text in found.items() if self._parts.get(name, (0, ""))[1] != text}
        if changed:
            async with self._changed:
                self._version += 1
                self._messages.clear()
                self._parts |= {name: (self._version, text) for name, text in changed.items()}
                self._changed.notify_all()
