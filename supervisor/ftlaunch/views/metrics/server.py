"""The port at which metrics are to be had: pages that are written beforehand, so that a scrape only sends bytes."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.exposition import gzip_accepted
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

_MOST = 16  # scrapes at once: beyond that the oldest is hung up on for a new one
_SLOW = 10.0  # seconds that a client may take for its request, and for taking the page
_PATH = "/metrics"
_Request = socket.socket | tuple[bytes, socket.socket]


class Form(NamedTuple):
    """How a page is written."""

    openmetrics: bool
    """else Prometheus' text format"""
    gzipped: bool

    @property
    def content_type(self) -> str:
        """For the answer's head."""
        return openmetrics.CONTENT_TYPE_LATEST if self.openmetrics else CONTENT_TYPE_PLAIN_0_0_4

    def write(self, collector: Collector) -> bytes:
        """The page."""
        text = (openmetrics.generate_latest if self.openmetrics else generate_latest)(collector)
        return gzip.compress(text, 1) if self.gzipped else text


USUAL = Form(openmetrics=True, gzipped=True)
"""what Prometheus asks for"""
_LATELY = 600.0  # seconds after which nobody is expected to ask for a form again


class WrittenPages:
    """The newest reading in the usual form, and in every other that somebody has asked for lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collector: Collector = CollectorRegistry()
        self._written: dict[Form, bytes] = {}
        self._asked: dict[Form, float] = {}  # monotonic: when somebody has asked for a form last
        self.scrapes = 0

    def renew(self, collector: Collector, now: float) -> None:
        """Write the pages of a new reading. now: monotonic."""
        with self._lock:
            self._asked = {form: at for form, at in self._asked.items() if now - at < _LATELY}
            forms = {USUAL, *self._asked}
        written = {form: form.write(collector) for form in forms}
        with self._lock:
            self._collector, self._written = collector, written

    def get(self, form: Form, now: float) -> bytes:
        """The page in a form; where nobody has asked for that form lately it is written now, and nobody else waits."""
        with self._lock:
            self.scrapes += 1
            self._asked[form] = now
            collector, page = self._collector, self._written.get(form)
        if page is None:
            page = form.write(collector)
            with self._lock:
                if collector is self._collector:
                    self._written[form] = page
        return page


class _OpenScrapes:
    """The connections that are being served, the oldest first, each with the time at which it came (monotonic).

    A limit for each read alone would let a client stay for ever that sends a byte now and then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came: dict[socket.socket, float] = {}

    def add(self, connection: socket.socket, now: float) -> None:
        """Note a connection; where there are too many, end the oldest."""
        with self._lock:
            if len(self._came) >= _MOST:
                self._end(next(iter(self._came)))
            self._came[connection] = now

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is about to be closed."""
        with self._lock:
            self._came.pop(connection, None)

    def end_those_before(self, moment: float) -> None:
        """End the connections that came before a moment."""
        with self._lock:
            for connection in [one for one, came in self._came.items() if came < moment]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Have the thread that serves a connection see its end; closing the descriptor is left to that thread."""
        del self._came[connection]
        with contextlib.suppress(OSError):  # the client has gone
            connection.shutdown(socket.SHUT_RDWR)


class MetricsServer(ThreadingMixIn, TCPServer):
    """Serves `pages` in threads of its own."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, pages: WrittenPages) -> None:
        """Listen. Raises OSError."""
        self.pages = pages
        self._scrapes = _OpenScrapes()
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Scrape)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.server_address[1]}{_PATH}"
        threading.Thread(target=self.serve_forever, name="ftlaunch-metrics", daemon=True).start()

    def process_request(self, request: _Request, client_address: object) -> None:
        """Serve a connection in a thread; clients that are slow make room for it."""
        assert isinstance(request, socket.socket)
        self._scrapes.add(request, time.monotonic())
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.shutdown_request(request)

    def shutdown_request(self, request: _Request) -> None:
        """Hang up, at the end of a scrape."""
        assert isinstance(request, socket.socket)
        self._scrapes.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on clients that have taken too long; called about twice a second."""
        self._scrapes.end_those_before(time.monotonic() - _SLOW)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone, or was too slow: nobody need be told."""


class _Scrape(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _SLOW

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.path.partition("?")[0] != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"Metrics are at {_PATH}.")
            return
        accepts = self.headers.get("Accept", "")
        form = Form("application/openmetrics-text" in accepts, gzip_accepted(self.headers.get("Accept-Encoding", "")))
        page = self.server.pages.get(form, time.monotonic())
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", form.content_type)
        if form.gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if body:
            self.wfile.write(page)

    def version_string(self) -> str:
        return "ftlaunch"

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not news."""
