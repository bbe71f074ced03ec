"""The tracer: a process that sends a trace of each restart to an OpenTelemetry collector, by OTLP over HTTP.

Runs as `python -m ftlaunch.views.metrics.traces.tracer` with a socket as its stdin. First message: {"run_dir",
"endpoint"}. What the supervisor is to tell comes back as {"trouble": sentence}, with "useless" where another tracer
could do no better.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

_MISSING = (
    "cannot send traces: OpenTelemetry is not installed, `pip install 'ftlaunch[otel]'` brings it;"
    " the job goes on without traces"
)


def main() -> None:
    """Be the tracer of the job that the first message names."""
    link = socket.socket(fileno=os.dup(0))
    message = link.recv(1 << 16)
    if not message:
        return
    try:
        from ftlaunch.views.metrics.traces.span_sender import Tracer  # noqa: PLC0415 - it may lack what it imports
    except ImportError:
        with contextlib.suppress(OSError):  # the supervisor is gone: nobody is left who wants to know
            link.send(json.dumps({"trouble": _MISSING, "useless": True}).encode())
        return
    asked: dict[str, Any] = json.loads(message)
    Tracer(link, Path(asked["run_dir"]), asked["endpoint"]).run()


if __name__ == "__main__":
    main()
