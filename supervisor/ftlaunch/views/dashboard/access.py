"""Decides who may use a dashboard, by the host name, the origin and the token of a request. Pure."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

SHORTEST_TOKEN = 20
"""least number of characters of a token that a user gives"""


@dataclass(frozen=True)
class Access:
    """The rules of access to one dashboard."""

    token: str
    hosts: frozenset[str]
    """host names, in lower case, under which browsers may ask for the dashboard"""
    beyond: bool
    """whether the dashboard listens beyond loopback, so that browsers may also use any IP address for its host"""

    @property
    def cookie(self) -> str:
        """Name of the cookie. Two dashboards need two names, because browsers send a cookie to every port of a host."""
        return f"ftlaunch_{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def knows(self, token: str) -> bool:
        """Return whether `token` is the dashboard's token. The comparison takes constant time."""
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def refused(self, method: str, headers: Mapping[str, str], token: str) -> str:
        """Return why a request is refused, as a sentence; empty if the request is allowed.

        A page of another site can make a browser send requests here, which shows in the header `origin`. The owner of
        a site can also give this machine's address a name of the site (DNS rebinding), which shows in `host`.

        Args:
            method: the HTTP method.
            headers: the request's headers, with names in lower case.
            token: the token of the link or the cookie; empty if there is none.
        """
        host = headers.get("host", "")
        if not self._is_ours(host):
            return f"this dashboard is not served under the name `{host[:100]}`"
        origin = headers.get("origin")
        if origin is not None and (urlsplit(origin).netloc.lower() != host.lower() or origin == "null"):
            return "the request comes from a page of another site"
        if method not in ("GET", "HEAD") and origin is None:
            return "the request does not say from which site it comes"
        if not self.knows(token):
            return "the token is missing or wrong: open the link that `ftctl dashboard` has printed"
        return ""

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.hosts
        return self.beyond or address.is_loopback
