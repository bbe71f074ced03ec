"""Sends one notice through Apprise, in a process of its own that can be killed at its time limit, whatever it hangs in.

No other module imports Apprise. The notifier starts the process with {"url", "body", "timeout"} on stdin; the body is a
notice. The address is not on the command line, where every user of the machine could read it. Exit status 0 means that
the service took the notice; otherwise stdout has {"error", "final"}, where `final` says that retrying is of no use.

With the argument `check`, stdin has {"urls"}, and stdout gets a list of what is wrong with each address, or null.

The output never contains an address or a part of one, nor any text of Apprise's, since a service may repeat a secret.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Any

import apprise
from apprise.manager_plugins import NotificationManager

from ftlaunch.notify.webhook import is_final
from ftlaunch.spec.errors import did_you_mean
from ftlaunch.spec.notify_targets.apprise import apprise_scheme
from ftlaunch.system.answer_line import write_answer

_TYPES = {
    "incident": apprise.NotifyType.FAILURE,
    "give_up": apprise.NotifyType.FAILURE,
    "done": apprise.NotifyType.SUCCESS,
    "recovered": apprise.NotifyType.SUCCESS,
}
_STATUS = re.compile(r"error=([1-5]\d\d)\b")  # how Apprise logs the HTTP status of a service's answer


class _StatusHandler(logging.Handler):
    """Picks the HTTP status of the service's answer from Apprise's log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.status: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := _STATUS.search(record.getMessage()):
            self.status = int(found[1])


def send(url: str, notice: Mapping[str, Any]) -> tuple[str, bool]:
    """Send a notice to a service.

    Args:
        url: address of the service in Apprise's form.
        notice: the object made by `notification.payload`.

    Returns:
        Why the service did not take the notice (empty if it did), and whether retrying is of no use.
    """
    service = apprise.Apprise.instantiate(url)
    if service is None:
        return wrong(url) or "Apprise does not take this address", True
    status_handler = _StatusHandler()
    log = logging.getLogger("apprise")
    log.addHandler(status_handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    is_accepted = service.notify(
        title=notice["title"],
        body=notice["message"],
        body_format=apprise.NotifyFormat.TEXT,
        notify_type=_TYPES.get(notice["notify"], apprise.NotifyType.WARNING),
    )
    if is_accepted:
        return "", False
    status = status_handler.status
    if status is None:
        return "the service could not be reached, or did not take it", False
    return f"the service says {status}", is_final(status)


def wrong(url: str) -> str | None:
    """Say why Apprise cannot deliver to an address, naming only its scheme; None if Apprise can."""
    if apprise.Apprise.instantiate(url) is not None:
        return None
    scheme = apprise_scheme(url)
    known = NotificationManager().schemas()
    if scheme not in known:
        return f"Apprise knows no service `{scheme}://`{did_you_mean(scheme, known)}"
    return f"Apprise cannot read it: a part that `{scheme}://` needs is missing or malformed"


def main(argv: list[str]) -> int:
    """Send the notice on stdin, or check the addresses on stdin. Return the exit status."""
    request = json.load(sys.stdin)
    if argv == ["check"]:
        write_answer([wrong(url) for url in request["urls"]])
        return 0
    error, final = send(request["url"], json.loads(request["body"]))
    if error:
        write_answer({"error": error, "final": final})
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
