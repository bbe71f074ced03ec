"""Notices for people, through a service that Apprise knows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ftlaunch.common.masking import MASK
from ftlaunch.extensions import APPRISE_REFUSALS, load
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.notify_targets.target import FOR_PEOPLE, Delivery, Target
from ftlaunch.system.own_modules import module


@dataclass(frozen=True)
class AppriseAddress(Target):
    """An address of Apprise's form; all of it may be secret but the scheme."""

    key: ClassVar[str] = "apprise"
    allowed: ClassVar[str] = "an address of Apprise's form, such as slack://TOKEN_A/TOKEN_B/TOKEN_C"
    kinds: ClassVar[Sequence[str]] = FOR_PEOPLE

    address: str

    @classmethod
    def parse(cls, raw: object) -> AppriseAddress:
        """Read what has the form; whether Apprise knows the service is asked by `refusals`."""
        address = p.word(raw)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]+", address):
            raise RefusedError
        return cls(address)

    @property
    def name(self) -> str:
        """The name of the service."""
        return f"{apprise_scheme(self.address)}://{MASK}"

    def shown(self) -> object:
        """Return the name."""
        return self.name

    def delivery(self, notice: str, timeout_seconds: float) -> Delivery:
        """Have notify/through_apprise.py tell the service."""
        asked = {"url": self.address, "body": notice, "timeout": timeout_seconds}
        return Delivery(argv=module("ftlaunch.notify.through_apprise"), stdin=json.dumps(asked), says_why=True)

    @classmethod
    def refusals(cls, targets: Sequence[Target]) -> Sequence[str | None]:
        """Ask Apprise about all addresses, in a process of its own."""
        addresses = [target.address for target in targets if isinstance(target, AppriseAddress)]
        found: Sequence[str | None] = load(APPRISE_REFUSALS)(addresses)
        return found


def apprise_scheme(address: str) -> str:
    """Return the name of the service in an address of Apprise's form: what stands before `://`."""
    return address.partition("://")[0].lower()
