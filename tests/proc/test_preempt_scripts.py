"""The scripts of configs/preempt against a metadata server on this machine, and against a squeue of the test's."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "configs/preempt"
YES, NO, UNKNOWN = 0, 1, 2
GCP = "/computeMetadata/v1/instance/preempted"

Answer = tuple[int, str]


class _Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as the test says, which sees the path and the headers."""

    answer: Callable[[str, dict[str, str]], Answer]

    def do_GET(self) -> None:
        code, body = type(self).answer(f"{self.command} {self.path}", dict(self.headers))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def ask() -> Iterator[Callable[[str, Callable[[str, dict[str, str]], Answer]], int]]:
    """Runs a script against a server that answers so; the script's exit code."""
    if shutil.which("curl") is None:
        pytest.skip("curl, which the scripts ask with, is not installed (Debian: curl)")
    handler = type("Handler", (_Metadata,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def run(script: str, answer: Callable[[str, dict[str, str]], Answer]) -> int:
        handler.answer = staticmethod(answer)  # type: ignore[attr-defined]
        return exit_code(script, PREEMPT_METADATA=f"http://127.0.0.1:{server.server_port}")

    yield run
    server.shutdown()
    server.server_close()


def exit_code(script: str, **env: str) -> int:
    path = "/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(["sh", SCRIPTS / script], env={"PATH": path, **env}, timeout=60, check=False).returncode


@pytest.mark.parametrize(("there", "expected"), [(200, YES), (404, NO), (401, UNKNOWN), (500, UNKNOWN)])
def test_aws(ask, there: int, expected: int) -> None:
    def answer(asked: str, headers: dict[str, str]) -> Answer:
        if asked == "PUT /latest/api/token":
            assert headers["X-aws-ec2-metadata-token-ttl-seconds"] == "60"
            return 200, "secret"
        known = headers.get("X-aws-ec2-metadata-token") == "secret"
        assert asked == "GET /latest/meta-data/spot/instance-action"
        return (there if known else 401), '{"action": "stop", "time": "2026-01-01T00:00:00Z"}'

    assert ask("aws.sh", answer) == expected


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [("TRUE", "TRUE", YES), ("FALSE", "TRUE", YES), ("FALSE", "FALSE", NO)],
)
def test_gcp(ask, first: str, then: str, expected: int) -> None:
    def answer(asked: str, headers: dict[str, str]) -> Answer:
        if headers.get("Metadata-Flavor") != "Google":
            return 403, ""
        return 200, {f"GET {GCP}": first, f"GET {GCP}?wait_for_change=true&timeout_sec=4": then}[asked]

    assert ask("gcp.sh", answer) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ('{"Events": []}', NO),
        ('{"Events": [{"EventType": "Freeze"}]}', NO),
        ('{"Events": [{"EventType": "Freeze"}, {"EventType":"Preempt"}]}', YES),
        ('{"Events": [{"EventType" : "Terminate"}]}', YES),
    ],
)
def test_azure(ask, events: str, expected: int) -> None:
    def answer(asked: str, headers: dict[str, str]) -> Answer:
        assert asked == "GET /metadata/scheduledevents?api-version=2020-07-01"
        return (200, events) if headers.get("Metadata") == "true" else (400, "")

    assert ask("azure.sh", answer) == expected


@pytest.mark.parametrize("script", ["aws.sh", "gcp.sh", "azure.sh"])
def test_no_metadata_server_is_no_answer(ask, script: str) -> None:
    assert exit_code(script, PREEMPT_METADATA="http://127.0.0.1:9") == UNKNOWN
    assert ask(script, lambda asked, headers: (503, "")) == UNKNOWN


@pytest.mark.parametrize(
    ("squeue", "expected"), [("echo RUNNING", NO), ("echo PREEMPTED", YES), ("echo down >&2; exit 1", UNKNOWN)]
)
def test_slurm(tmp_path: Path, squeue: str, expected: int) -> None:
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-h -o %T -j 42" ] || exit 9\n{squeue}\n')
    program.chmod(0o755)
    assert exit_code("slurm.sh", PREEMPT_SQUEUE=str(program), SLURM_JOB_ID="42") == expected
