"""An OpenTelemetry collector in the test's own process, which takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Collector:
    """Answers each request with `status`; keeps the spans if that is 200."""

    def __init__(self, port: int = 0) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.status = 200
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.asked = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.asked += 1
                if collector.status == 200 and self.path == "/v1/traces":
                    collector._keep(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def _keep(self, request: Any) -> None:
        for of_resource in request.resource_spans:
            about = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
            self.resources.append(about)
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
