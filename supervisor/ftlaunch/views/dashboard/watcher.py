"""Watches one page for many browsers: updates it once for all of them, and only while at least one is connected.

Streams run in the server's event loop. Updates run on helper threads, one at a time per page.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

UPDATE_SECONDS = 0.25
"""seconds between two updates"""
SHARE = 0.2
"""share of a processor that updates may take; the pause after a long update is longer"""
KEEP_ALIVE_SECONDS = 15.0
"""seconds of silence after which a comment is sent to a browser, so that the connection stays open"""

Update = Callable[[], Mapping[str, Any]]
"""Returns the parts of the page that may have changed, by name and ready for JSON. Runs on a helper thread."""


@dataclass
class _Watch:
    """A running task of updates, and the number of viewers. After a failed update the next viewer starts a new one."""

    task: asyncio.Task[None]
    viewers: int = 0


class PageWatcher:
    """The watcher of one page. A slow browser gets the newest version and misses those between; nothing is queued."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._update_lock = threading.Lock()
        self._found: dict[str, str] = {}  # JSON of each part by name, from the newest update
        self._parts: dict[str, tuple[int, str]] = {}  # by name: version of the last change, and JSON
        self._version = 0
        self._messages: dict[int, bytes] = {}  # cache: message for a browser by the version that it has seen
        self._changed = asyncio.Condition()
        self._watch: _Watch | None = None

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield server-sent events for one browser: first all parts, then the parts that have changed."""
        if self._watch is None or self._watch.task.done():
            self._watch = _Watch(asyncio.create_task(self._update_at_intervals()))
        watch = self._watch
        seen = 0
        watch.viewers += 1
        try:
            while True:
                if self._version > seen:
                    message = self._message(seen)
                    seen = self._version
                    yield message
                elif watch.task.done():
                    await watch.task  # raises the update's error: the connection ends, and the browser opens another
                elif not await self._changes(seen, watch.task):
                    yield b": alive\n\n"
        finally:
            watch.viewers -= 1
            if not watch.viewers:
                watch.task.cancel()

    async def _changes(self, seen: int, task: asyncio.Task[None]) -> bool:
        """Wait up to `KEEP_ALIVE_SECONDS` seconds for a version newer than `seen`, or for the task's end."""

        async def wait() -> bool:
            async with self._changed:
                return await self._changed.wait_for(lambda: self._version > seen or task.done())

        try:
            return await asyncio.wait_for(wait(), KEEP_ALIVE_SECONDS)
        except asyncio.TimeoutError:
            return False

    def _message(self, seen: int) -> bytes:
        if seen not in self._messages:
            new = (f",{json.dumps(name)}:{text}" for name, (since, text) in self._parts.items() if since > seen)
            self._messages[seen] = f"{''.join(new)}}}\n\n".encode()
        return b'data: {"now":%.3f' % time.time() + self._messages[seen]

    async def _update_at_intervals(self) -> None:
        first = True  # the first update may read a long journal; later updates read what was appended
        try:
            while True:
                found, used = await asyncio.to_thread(self._measured_update)
                await self._publish(found)
                await asyncio.sleep(UPDATE_SECONDS if first else max(UPDATE_SECONDS, used / SHARE - used))
                first = False
        finally:
            async with self._changed:
                self._changed.notify_all()

    def _measured_update(self) -> tuple[Mapping[str, str], float]:
        """Update once, and return all parts as JSON with the seconds of processor time that the update took."""
        began = time.thread_time()
        return self.update_once(), time.thread_time() - began

    def update_once(self) -> Mapping[str, str]:
        """Update now, on the caller's thread, and return all parts as JSON.

        Browsers get the changes after the next update.
        """
        with self._update_lock:
            for name, part in self._update().items():
                self._found[name] = json.dumps(part)
            return dict(self._found)

    @property
    def is_updating(self) -> bool:
        """Whether an update is under way."""
        return self._update_lock.locked()

    @property
    def watched(self) -> bool:
        """Whether a browser is connected."""
        return self._watch is not None and self._watch.viewers > 0

    async def _publish(self, found: Mapping[str, str]) -> None:
        changed = {name: text for name, text in found.items() if self._parts.get(name, (0, ""))[1] != text}
        if changed:
            async with self._changed:
                self._version += 1
                self._messages.clear()
                self._parts |= {name: (self._version, text) for name, text in changed.items()}
                self._changed.notify_all()
