"""The reporter: a child process of the supervisor that reports a job's progress to Kubeflow's Trainer.

Trainer shows the progress in the status of the TrainJob. The supervisor runs
`python -m ftlaunch.views.metrics.trainjob_reporter` with a socket as stdin. The first message is the order, {"run_dir",
"url", "ca_cert", "token"}. The last two name files; the token is read for each request, because Kubernetes replaces the
file. The reporter answers with {"trouble": sentence} for the journal, with "useless" if another reporter would have the
same trouble. At the end of stdin the reporter reports the end of the job, and ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ftlaunch import __version__
from ftlaunch.system.descriptors import is_readable
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.metrics.reading import Sources
from ftlaunch.views.metrics.trainjob_status import request_of, status_of
from ftlaunch_contract.files.regular_file import read_regular

INTERVAL_SECONDS = 10.0
"""seconds between two reports; Trainer asks for at least 5"""
_FIRST_DELAY_SECONDS = 1.0  # before the first report
_REPEAT_SECONDS = 60.0  # after this time an unchanged status is reported again
_ANSWER_SECONDS = 5.0  # longest wait for an answer
_LAST_TRIES = 3  # tries to report the end
_LAST_PAUSE_SECONDS = 0.5  # between these tries
_NO_DEVICES = DeviceNames("", "", "", "", ())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because the token is for one server only; a redirect is then an error like any other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class TrainjobReporter:
    """The reporter of one job; runs on the main thread of its process."""

    def __init__(self, link: socket.socket, asked: dict[str, Any]) -> None:
        """Prepare the first report.

        Args:
            link: socket to the supervisor.
            asked: the order.
        """
        self._link = link
        self._asked = asked
        self._sources = Sources(Path(asked["run_dir"]), (), _NO_DEVICES)
        self._reported: dict[str, Any] = {}
        self._reported_at = -_REPEAT_SECONDS
        self._has_tried = False
        self._trouble = ""

    def run(self) -> None:
        """Report until the supervisor closes the socket, then report the end."""
        while not is_readable(self._link, INTERVAL_SECONDS if self._has_tried else _FIRST_DELAY_SECONDS):
            self._report()
        for number in range(_LAST_TRIES):
            if self._report():
                break
            if number + 1 < _LAST_TRIES:
                time.sleep(_LAST_PAUSE_SECONDS)
        self._sources.close()

    def _report(self) -> bool:
        """Report what has changed. Return whether nothing is left to report."""
        try:
            status = status_of(self._sources.read(), self._reported)
        except OSError:  # the journal may be on storage that comes back
            return False
        now = time.monotonic()
        if not status or (status == self._reported and now < self._reported_at + _REPEAT_SECONDS):
            return True
        self._has_tried = True
        why = self._post(request_of(status, time.time()))
        if why != self._trouble:
            retry = f"; the job goes on, and this is tried again every {INTERVAL_SECONDS:.0f} s"
            self._report_trouble(f"cannot tell Kubeflow's Trainer of the progress: {why}{retry}" if why
                       else "Kubeflow's Trainer takes the progress again")  # fmt: skip
        self._trouble = why
        if not why:
            self._reported = status
            self._reported_at = now
        return not why

    def _post(self, body: dict[str, Any]) -> str:
        """Send a request. Return why Trainer did not accept the request; empty if it did."""
        asked = self._asked
        try:
            token = read_regular(Path(asked["token"])).decode("ascii").strip()
        except (OSError, ValueError) as error:
            return f"the token in {asked['token']} cannot be read ({_reason(error)})"
        try:
            tls = ssl.create_default_context(cafile=asked["ca_cert"])
        except OSError as error:
            return f"the certificate in {asked['ca_cert']} cannot be used ({_reason(error)})"
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "User-Agent": f"ftlaunch/{__version__}",
        }
        request = urllib.request.Request(asked["url"], json.dumps(body).encode(), headers)  # noqa: S310 - https, see main
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=tls))
        try:
            with opener.open(request, timeout=_ANSWER_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server says {error.code} {error.msg}"
        except urllib.error.URLError as error:
            return _reason(error.reason) if isinstance(error.reason, Exception) else str(error.reason)
        except http.client.HTTPException as error:
            return f"the answer is no HTTP ({type(error).__name__})"
        except (OSError, ValueError) as error:
            return _reason(error)

    def _report_trouble(self, trouble: str) -> None:
        _send(self._link, {"trouble": trouble})


def _reason(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split())


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone
        link.send(json.dumps(message).encode())


def main() -> None:
    """Run the reporter of the job that the first message names."""
    link = socket.socket(fileno=os.dup(0))
    message = link.recv(1 << 16)
    if not message:
        return
    asked: dict[str, Any] = json.loads(message)
    if urlsplit(asked["url"]).scheme != "https":
        why = "cannot tell Kubeflow's Trainer of the progress: its address does not begin with https://, and the token"
        _send(link, {"trouble": f"{why} is for nobody else; the job goes on without", "useless": True})
        return
    TrainjobReporter(link, asked).run()


if __name__ == "__main__":
    main()
