"""Machines that share a checkpoint store, without jobs: a checkpoint directory each, and what their keepers do."""

from __future__ import annotations

from pathlib import Path

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.folder import FolderStore
from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.stored_checkpoints import RefusedStep, StoredCheckpoints
from ftlaunch_contract.checkpoint import layout
from tests.support.checkpoints import commit


class Machine:
    """A machine with a checkpoint directory of its own, and the bucket that all machines share."""

    def __init__(self, root: Path, name: str, job: str = "net") -> None:
        self.root = root / name
        self.directory = self.root / "checkpoints"
        self.bucket = root / "bucket"
        self.address = f"file://{self.bucket}"
        self.store = FolderStore(self.bucket)
        self.stored = StoredCheckpoints(self.store, self.directory, job, f"{name} pid 7")
        self.refused: list[RefusedStep] = []

    def start(self, newer_than: int = -1) -> list[int]:
        """What the start of a job does. Returns the steps that were put aside."""
        self.stored.claim()
        strays = self.stored.quarantine_strays(forget_memory=lambda: None)
        self.refused = self.stored.bring(newer_than)
        return strays

    def save(self, *steps: int, keep: int = 5) -> None:
        """Commit steps in the directory, and publish them."""
        for step in steps:
            commit(self.root, step)
        self.stored.publish(keep)

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in layout.list_iterations(self.directory)]

    @property
    def index(self) -> Index:
        content = self.store.read(index.NAME)
        assert content is not None
        return index.parse(content.data)

    @property
    def objects(self) -> set[str]:
        """The names of all objects but the index and the heartbeat."""
        return set(self.store.names(index.OBJECTS))

    def object_path(self, step: int, name: str) -> Path:
        """The file of the bucket that holds a file of a stored step."""
        return self.bucket / self.index.steps[step].files[name].object

    def flip_a_bit(self, step: int, name: str) -> None:
        """Damage an object without changing its size."""
        path = self.object_path(step, name)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
