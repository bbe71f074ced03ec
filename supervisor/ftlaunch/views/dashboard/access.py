"""Who may look at a dashboard: judged by host name, origin and token of a request. Pure."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

SHORTEST_TOKEN = 20
"""characters of a token that a user gives"""


@dataclass(frozen=True)
class Access:
    """Of one dashboard."""

    token: str
    hosts: frozenset[str]
    """the names, in lower case, under which browsers may ask for it; addresses need no name"""
    beyond: bool
    """it listens on more than the loopback device: any address may stand in the place of a name"""

    @property
    def cookie(self) -> str:
        """The cookie's name. Browsers send a cookie to every port of a host: two dashboards must not share one."""
        return f"ftlaunch_{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def knows(self, token: str) -> bool:
        """Whether that is the token; takes as long for any of its length."""
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def refused(self, method: str, headers: Mapping[str, str], token: str) -> str:
        """Why a request is refused, in a sentence; empty: it is not. headers: names in lower case.

        A page of another site can have a browser ask here, and it can give this machine's address a name of its own
        (DNS rebinding): the first shows in `origin`, the second in `host`.
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
