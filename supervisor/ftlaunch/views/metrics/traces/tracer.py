"""The tracer: a child process of the supervisor that sends a trace of each restart to an OpenTelemetry collector.

The supervisor runs `python -m ftlaunch.views.metrics.traces.tracer` with a socket as stdin. The first message is the
order, {"run_dir", "endpoint"}. The tracer answers with {"trouble": sentence} for the journal, with "useless" if another
tracer would have the same trouble. Traces go by OTLP over HTTP.
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
    """Run the tracer of the job that the first message names."""
    link = socket.socket(fileno=os.dup(0))
    message = link.recv(1 << 16)
    if not message:
        return
    try:
        from ftlaunch.views.metrics.traces.span_sender import Tracer  # noqa: PLC0415 - OpenTelemetry may be missing
    except ImportError:
        with contextlib.suppress(OSError):  # the supervisor is gone
            link.send(json.dumps({"trouble": _MISSING, "useless": True}).encode())
        return
    asked: dict[str, Any] = json.loads(message)
    Tracer(link, Path(asked["run_dir"]), asked["endpoint"]).run()


if __name__ == "__main__":
    main()
