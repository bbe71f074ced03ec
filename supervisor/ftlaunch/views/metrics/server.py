"""The HTTP port of the metrics. Pages are written before a scrape asks, so that a scrape only sends bytes.

One thread accepts connections, and each scrape has a thread of its own; the exporter's main thread renews the pages.
"""

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

_MAX_SCRAPES = 16  # at a time; one more ends the oldest
CLIENT_SECONDS = 10.0
"""seconds that a client has at most for its request, and for taking the page"""
_PATH = "/metrics"
_Request = socket.socket | tuple[bytes, socket.socket]


class Form(NamedTuple):
    """The format of a page."""

    openmetrics: bool
    """whether the page is OpenMetrics text; otherwise Prometheus' text format"""
    gzipped: bool

    @property
    def content_type(self) -> str:
        """Content type of the answer."""
        return openmetrics.CONTENT_TYPE_LATEST if self.openmetrics else CONTENT_TYPE_PLAIN_0_0_4

    def write(self, collector: Collector) -> bytes:
        """Return the page of a collector's metrics in this format."""
        text = (openmetrics.generate_latest if self.openmetrics else generate_latest)(collector)
        return gzip.compress(text, 1) if self.gzipped else text


USUAL = Form(openmetrics=True, gzipped=True)
"""the format that Prometheus asks for"""
_FORM_LIFETIME_SECONDS = 600.0  # for this time a format is written beforehand after somebody asked for it


class WrittenPages:
    """Pages of the newest reading: in the usual format, and in each format that somebody asked for recently.

    All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collector: Collector = CollectorRegistry()
        self._written: dict[Form, bytes] = {}
        self._asked: dict[Form, float] = {}  # monotonic time of the last scrape by format
        self.scrapes = 0

    def renew(self, collector: Collector, now: float) -> None:
        """Write the pages of a new reading. now: monotonic seconds."""
        with self._lock:
            self._asked = {form: at for form, at in self._asked.items() if now - at < _FORM_LIFETIME_SECONDS}
            forms = {USUAL, *self._asked}
        written = {form: form.write(collector) for form in forms}
        with self._lock:
            self._collector = collector
            self._written = written

    def get(self, form: Form, now: float) -> bytes:
        """Return the page in a format. A format that nobody asked for recently is written now, without the lock.

        Args:
            form: the format.
            now: monotonic seconds.
        """
        with self._lock:
            self.scrapes += 1
            self._asked[form] = now
            collector = self._collector
            page = self._written.get(form)
        if page is None:
            page = form.write(collector)
            with self._lock:
                if collector is self._collector:
                    self._written[form] = page
        return page


class _OpenScrapes:
    """The connections that are being served, the oldest first, each with its monotonic time of arrival.

    A timeout for each read alone would let a client stay for ever by sending a byte now and then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came: dict[socket.socket, float] = {}

    def add(self, connection: socket.socket, now: float) -> None:
        """Add a connection. If there are too many, end the oldest."""
        with self._lock:
            if len(self._came) >= _MAX_SCRAPES:
                self._end(next(iter(self._came)))
            self._came[connection] = now

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is about to be closed."""
        with self._lock:
            self._came.pop(connection, None)

    def end_those_before(self, moment: float) -> None:
        """End the connections that arrived before a moment."""
        with self._lock:
            for connection in [connection for connection, came in self._came.items() if came < moment]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Shut a connection down, so that the thread that serves the connection sees the end and closes it."""
        del self._came[connection]
        with contextlib.suppress(OSError):  # the client has gone
            connection.shutdown(socket.SHUT_RDWR)


class MetricsServer(ThreadingMixIn, TCPServer):
    """The server of the pages, in threads of its own."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, pages: WrittenPages) -> None:
        """Listen, and start to serve.

        Args:
            address: IP address to listen on.
            port: port to listen on; 0 for a free port.
            pages: the pages.

        Raises:
            OSError: the port cannot be opened.
        """
        self.pages = pages
        self._scrapes = _OpenScrapes()
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Scrape)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.server_address[1]}{_PATH}"
        threading.Thread(target=self.serve_forever, name="ftlaunch-metrics", daemon=True).start()

    def process_request(self, request: _Request, client_address: object) -> None:
        """Serve a connection in a thread; the oldest connection is ended if there are too many."""
        assert isinstance(request, socket.socket)
        self._scrapes.add(request, time.monotonic())
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.shutdown_request(request)

    def shutdown_request(self, request: _Request) -> None:
        """Close a connection at the end of a scrape."""
        assert isinstance(request, socket.socket)
        self._scrapes.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections of clients that take too long; the server calls this about twice a second."""
        self._scrapes.end_those_before(time.monotonic() - CLIENT_SECONDS)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error of a client that has gone, or was too slow."""


class _Scrape(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = CLIENT_SECONDS

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
        """Log nothing for a scrape."""
