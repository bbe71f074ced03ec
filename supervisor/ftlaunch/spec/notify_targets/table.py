"""The ways in which notices can be delivered. Another way is a line here, beside its module."""

from __future__ import annotations

from ftlaunch.spec.notify_targets.apprise import AppriseAddress
from ftlaunch.spec.notify_targets.command import ProgramTarget
from ftlaunch.spec.notify_targets.target import Target
from ftlaunch.spec.notify_targets.webhook import Webhook

WAYS: dict[str, type[Target]] = {way.key: way for way in (ProgramTarget, Webhook, AppriseAddress)}
"""the key of `notify:` that asks for a way -> its class"""
