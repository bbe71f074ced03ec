"""The reporter: a process that tells Kubeflow's Trainer how far a job is, which stands then in the TrainJob's status.

Runs as `python -m ftlaunch.views.metrics.trainjob_reporter` with a socket as its stdin. The first message: {"run_dir",
"url", "ca_cert", "token"}: the last two are files, and the token is read anew each time, as Kubernetes replaces it.
What the supervisor is to tell comes back as {"trouble": sentence}, with "useless" where another reporter could do no
better. At the end of its stdin the reporter tells the end of the job, and ends.
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

_EVERY = 10.0  # seconds between two looks; Trainer asks for 5 at the least
_FIRST = 1.0  # seconds until the first look
_UNCHANGED = 60.0  # seconds after which what has not changed is told again
_ANSWER = 5.0  # seconds that an answer may take
_LAST_TRIES, _LAST_PAUSE = 3, 0.5
"""how often the end is told until it is taken, and the seconds between these tries"""
_NOWHERE = DeviceNames("", "", "", "", ())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The token is for one server: a redirect is an answer like any other that is not 200."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class TrainjobReporter:
    """Of one job."""

    def __init__(self, link: socket.socket, asked: dict[str, Any]) -> None:
        """link: to the supervisor."""
        self._link, self._asked = link, asked
        self._sources = Sources(Path(asked["run_dir"]), (), _NOWHERE)
        self._told: dict[str, Any] = {}
        self._told_at = -_UNCHANGED
        self._has_tried = False
        self._trouble = ""

    def run(self) -> None:
        """Report until the supervisor hangs up, and then the end."""
        while not is_readable(self._link, _EVERY if self._has_tried else _FIRST):
            self._report()
        for number in range(_LAST_TRIES):
            if self._report():
                break
            if number + 1 < _LAST_TRIES:
                time.sleep(_LAST_PAUSE)
        self._sources.close()

    def _report(self) -> bool:
        """Tell what has changed; return whether nothing is left to tell."""
        try:
            status = status_of(self._sources.read(), self._told)
        except OSError:  # the journal may be on storage that comes back
            return False
        now = time.monotonic()
        if not status or (status == self._told and now < self._told_at + _UNCHANGED):
            return True
        self._has_tried = True
        why = self._post(request_of(status, time.time()))
        if why != self._trouble:
            again = f"; the job goes on, and this is tried again every {_EVERY:.0f} s"
            self._tell(f"cannot tell Kubeflow's Trainer of the progress: {why}{again}" if why
                       else "Kubeflow's Trainer takes the progress again")  # fmt: skip
        self._trouble = why
        if not why:
            self._told, self._told_at = status, now
        return not why

    def _post(self, body: dict[str, Any]) -> str:
        """Send a request. Returns why it was not taken; empty: it was."""
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
            with opener.open(request, timeout=_ANSWER):
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

    def _tell(self, trouble: str) -> None:
        _send(self._link, {"trouble": trouble})


def _reason(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split())


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone: nobody is left who wants to know
        link.send(json.dumps(message).encode())


def main() -> None:
    """Be the reporter of the job that the first message names."""
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
