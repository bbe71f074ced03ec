"""Sends one POST to a webhook, in a process of its own that can be killed at its time limit, whatever it hangs in.

The notifier starts the process with {"url", "body", "timeout"} on stdin. The address is not on the command line, where
every user of the machine could read it. Exit status 0 means that the server took the body; otherwise stdout has
{"error", "final"}, where `final` says that retrying is of no use.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ftlaunch import __version__
from ftlaunch.system.answer_line import write_answer

_PASSING = (408, 425, 429)  # the client errors that pass with time


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect with the same body, never to another scheme, and without credentials to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old = urlsplit(req.full_url)
        new = urlsplit(newurl)
        if new.scheme != old.scheme:
            refusal = f"and redirects from {old.scheme} to {new.scheme}, which is not followed"
            raise urllib.error.HTTPError(req.full_url, code, msg=refusal, hdrs=headers, fp=None)
        kept = dict(req.header_items())
        if new.netloc != old.netloc:
            kept.pop("Authorization", None)
        return urllib.request.Request(newurl, None if code == 303 else req.data, kept)  # noqa: S310 - scheme as before

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_307  # Python 3.10 does not know it


def request(url: str, body: str) -> urllib.request.Request:
    """Return the POST request. User and password of the address become a header."""
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "User-Agent": f"ftlaunch/{__version__}"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
    return urllib.request.Request(bare, body.encode(), headers)  # noqa: S310 - the spec's parser allows http(s) only


def is_final(status: int) -> bool:
    """Return whether it is of no use to retry a request that was answered with an HTTP status other than success."""
    return status < 500 and status not in _PASSING


def post(url: str, body: str, timeout: float) -> tuple[str, bool]:
    """Post `body` to `url`, waiting at most `timeout` seconds for each answer.

    Returns:
        Why the server did not take the body (empty if it did), without the address, and whether retrying is of no use.
    """
    try:
        with urllib.request.build_opener(_Redirects).open(request(url, body), timeout=timeout):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server says {error.code} {error.msg}", is_final(error.code)
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError) and error.reason.strerror:
            return error.reason.strerror, False
        return str(error.reason), False
    except OSError as error:
        return error.strerror or str(error), False
    except http.client.HTTPException as error:
        return f"the answer is no HTTP ({type(error).__name__})", False


def main() -> int:
    """Post the body on stdin. Return the exit status."""
    error, final = post(**json.load(sys.stdin))
    if error:
        write_answer({"error": " ".join(error.split()), "final": final})
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
