"""Runs a job's own node check, `--node-check`: a command whose exit code says whether the node may have ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO

from ftlaunch.common.durations import format_duration
from ftlaunch.common.formatting import printable
from ftlaunch.common.signal_names import signal_name
from ftlaunch.system import processes
from ftlaunch.system.job_token import without_secrets

_TAIL_BYTES = 16 << 10  # end of the output in which the last line is searched
_MAX_LINE = 300  # characters of the last line that are reported


def why_unfit(command: str, seconds: float, environ: Mapping[str, str]) -> str:
    """Run the check to its end, and return why the node may not have ranks; empty if the node may.

    Call only from the main thread.

    Args:
        command: a command of /bin/sh; exit code 0 says that the node is fit.
        seconds: time limit, after which the check and its process group are killed.
        environ: environment of the check; the job's secrets are removed.
    """
    with tempfile.TemporaryFile() as output:  # no pipe: processes that the check leaves behind might hold it open
        try:
            check = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=without_secrets(environ),
                start_new_session=True,
                preexec_fn=processes.dies_with(os.getpid()),  # noqa: PLW1509 - in the main thread
            )
        except OSError as error:
            return f"it cannot be started: {str(error.strerror).lower()}"
        try:
            code = check.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"it gives no answer within {format_duration(seconds)}"
        finally:
            if check.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(check.pid, signal.SIGKILL)
                check.wait()
        if code == 0:
            return ""
        how = f"it was killed by {signal_name(-code)}" if code < 0 else f"it ends with exit code {code}"
        last = _last_line(output)
        return f"{how}: {last}" if last else how


def _last_line(output: IO[bytes]) -> str:
    end = output.seek(0, os.SEEK_END)
    output.seek(max(end - _TAIL_BYTES, 0))
    lines = output.read(_TAIL_BYTES).decode(errors="replace").split("\n")
    return printable(next((line.strip() for line in reversed(lines) if line.strip()), ""))[:_MAX_LINE]
