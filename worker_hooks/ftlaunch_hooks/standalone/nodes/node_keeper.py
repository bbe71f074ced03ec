"""Reaches the checkpoint store of a job of several nodes, on each node but the first: uploads shards, brings a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_hooks.standalone.keeper_requests import Answer, KeeperRequests
from ftlaunch_hooks.standalone.settings import AloneError, Settings


class NodeKeeper:
    """The store as a node uses it that never commits there."""

    def __init__(self, settings: Settings, overtaken: Callable[[str], None]) -> None:
        """Start nothing yet.

        Args:
            settings: the job's settings, with a store.
            overtaken: called with a sentence if another process has taken the store over.
        """
        self._attach: Answer = {
            "do": "attach",
            "store": settings.store,
            "is_checked": False,
            "directory": str(settings.checkpoint_dir),
            "job": settings.prefix,
        }
        self._overtaken = overtaken
        self._requests = KeeperRequests([], overtaken, lambda: self._attach)

    def attach(self) -> None:
        """Check that this node can use the store. Raises AloneError."""
        answer = self._requests.ask(self._attach)
        if "error" in answer:
            raise AloneError(f"cannot attach: cannot use {protocol.ENV_CHECKPOINT_DIR}: {answer['error']}")

    def fetch(self, step: int, token: str, beside: dict[str, str]) -> Answer:
        """Bring a step into the directory, and the small files beside the checkpoints.

        Args:
            step: the step; NONE: only the small files.
            token: of the first node's claim.
            beside: the small files, by name.

        Returns:
            The keeper's answer: with an `error`, `damaged` says whether the store has nothing of the step.
        """
        return self._requests.ask({"do": "fetch", "step": step, "token": token, "beside": beside})

    def upload(self, folder: str, staging: Path, bandwidth: float | None) -> None:
        """Upload what this node has written of a step, and remove it here.

        Args:
            folder: where in the store.
            staging: the directory in which it was written.
            bandwidth: bytes a second at most; None: without limit.

        Raises:
            AloneError: it cannot be uploaded.
        """
        request = {"do": "upload", "folder": folder, "staging": str(staging), "bandwidth": bandwidth}
        answer = self._requests.ask(request)
        if answer.get("overtaken"):
            self._overtaken(answer["error"])
        if "error" in answer:
            raise AloneError(answer["error"])

    def hurry(self) -> None:
        """Let an upload go on as fast as it can."""
        self._requests.hurry()

    def leave(self) -> None:
        """End the process that reaches the store."""
        self._requests.leave()
