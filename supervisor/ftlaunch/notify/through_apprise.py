"""One notice through Apprise, in a process of its own: it can be killed at its time limit, whatever it hangs in.

Nothing else imports Apprise. stdin: {"url", "body", "timeout"}, where the body is a notice. The address is not on the
command line, where every user of the machine could read it. Exit status 0: taken. Else stdout has {"error", "final"};
final: trying again is of no use. As `... check` its stdin is {"urls"}, and stdout has a list of what is wrong with
each, null where nothing is.

Neither an address nor a part of one comes out again, and no word of Apprise's own: a service may repeat a secret.
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

from ftlaunch.spec.errors import did_you_mean
from ftlaunch.spec.notify_targets.apprise import apprise_scheme
from ftlaunch.system.answer_line import write_answer

_TYPES = {
    "incident": apprise.NotifyType.FAILURE,
    "give_up": apprise.NotifyType.FAILURE,
    "done": apprise.NotifyType.SUCCESS,
    "recovered": apprise.NotifyType.SUCCESS,
}
_TRY_AGAIN = (408, 425, 429)  # the client errors that pass with time
_STATUS = re.compile(r"error=([1-5]\d\d)\b")  # Apprise's log has it where a service has answered with a status


class _Heard(logging.Handler):
    """What Apprise logs of its try: the status of the answer, where there was one."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.status: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := _STATUS.search(record.getMessage()):
            self.status = int(found[1])


def send(url: str, notice: Mapping[str, Any]) -> tuple[str, bool]:
    """Tell a service of a notice. Returns ("", False) when it was taken, else why not, and whether for good."""
    service = apprise.Apprise.instantiate(url)
    if service is None:
        return wrong(url) or "Apprise does not take this address", True
    heard = _Heard()
    log = logging.getLogger("apprise")
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    log.propagate = False
    taken = service.notify(
        title=notice["title"], body=notice["message"], body_format=apprise.NotifyFormat.TEXT,
        notify_type=_TYPES.get(notice["notify"], apprise.NotifyType.WARNING),
    )  # fmt: skip
    if taken:
        return "", False
    if heard.status is None:
        return "the service could not be reached, or did not take it", False
    return f"the service says {heard.status}", heard.status < 500 and heard.status not in _TRY_AGAIN


def wrong(url: str) -> str | None:
    """Why Apprise cannot deliver to this address, without a word of it but the scheme; None: it can."""
    if apprise.Apprise.instantiate(url) is not None:
        return None
    scheme = apprise_scheme(url)
    known = NotificationManager().schemas()
    if scheme not in known:
        return f"Apprise knows no service `{scheme}://`{did_you_mean(scheme, known)}"
    return f"Apprise cannot read it: a part that `{scheme}://` needs is missing or malformed"


def main(argv: list[str]) -> int:
    """Send what stdin holds, or check it."""
    asked = json.load(sys.stdin)
    if argv == ["check"]:
        write_answer([wrong(url) for url in asked["urls"]])
        return 0
    error, final = send(asked["url"], json.loads(asked["body"]))
    if error:
        write_answer({"error": error, "final": final})
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
