"""The server of Kubeflow's Trainer that takes the status of a TrainJob: TLS, a token, one path."""

from __future__ import annotations

import json
import ssl
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/space/trainjobs/gpt/status"


class _Background:
    """A server on the loopback, in a thread of its own."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class TrainerServer(_Background):
    """Keeps each status that comes with the right token; answers with `status`."""

    def __init__(self, home: Path, token: str) -> None:
        """Listen on the loopback. home: the directory of key and certificate.

        Raises FileNotFoundError without openssl.
        """
        self.status = 200
        self.location = ""
        """where a redirect leads, if `status` is one"""
        self.accepted: list[dict[str, Any]] = []
        self.refused = 0
        self.token = token
        self.ca_cert = home / "ca.crt"
        key = home / "server.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(self.ca_cert)],
            check=True, capture_output=True,
        )  # fmt: skip
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                right = self.headers["Authorization"] == f"Bearer {server.token}" and self.path == PATH
                code = server.status if right else 401
                if code == 200:
                    server.accepted.append(json.loads(body))
                else:
                    server.refused += 1
                self.send_response(code)
                if 300 <= code < 400:
                    self.send_header("Location", server.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.ca_cert, key)
        super().__init__(Handler, tls)
        self.url = f"https://localhost:{self.port}{PATH}"


class Elsewhere(_Background):
    """Another server, without TLS, to which no client should be led."""

    def __init__(self) -> None:
        """Listen on the loopback."""
        self.visitors: list[str] = []
        visitors = self.visitors

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                visitors.append(str(self.headers["Authorization"]))
                self.send_response(200)
                self.end_headers()

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)
        self.url = f"http://127.0.0.1:{self.port}/"
