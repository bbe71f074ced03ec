"""Notices for a web server: a POST of the notice."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from ftlaunch.common.masking import MASK
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.notify_targets.target import Delivery, Target
from ftlaunch.system.own_modules import module


@dataclass(frozen=True)
class Webhook(Target):
    """An address of a web server."""

    key: ClassVar[str] = "url"
    allowed: ClassVar[str] = "an address that begins with https:// or http://"

    url: str

    @classmethod
    def parse(cls, raw: object) -> Webhook:
        """Read an address with a host."""
        address = p.word(raw)
        try:
            parts = urlsplit(address)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # no such port, or brackets that do not match
            usable = False
        if not usable or not re.fullmatch(r"[!-~]+", address):
            raise RefusedError
        return cls(address)

    @property
    def name(self) -> str:
        """Scheme and host: the path may be secret."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        more = f"/{MASK}" if parts.path.strip("/") or parts.query else ""
        return f"{parts.scheme}://{parts.hostname}{port}{more}"

    def shown(self) -> object:
        """Return the name."""
        return self.name

    def delivery(self, notice: str, timeout_seconds: float) -> Delivery:
        """Have notify/webhook.py post the notice."""
        asked = {"url": self.url, "body": notice, "timeout": timeout_seconds}
        return Delivery(argv=module("ftlaunch.notify.webhook"), stdin=json.dumps(asked), says_why=True)
