"""Save and restore the position of a torchtitan Trainer in its data, and check how ranks share the work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.components.dataloader import ParallelAwareDataloader

from ftlaunch_hooks.adapters.refusal import check_members, check_ranks, refuse

_KNOWN = "torchtitan 0.3"
_SHARES = "dp_replicate dp_shard cp tp pp ep"  # attributes of ParallelDims: the sizes of its meshes


class DataPosition:
    """The position of a Trainer's loader: an object to attach."""

    def __init__(self, trainer: Any) -> None:
        """Take a Trainer. Raises AttachError where this version of torchtitan has other parallel dimensions."""
        check_members(trainer.parallel_dims, _SHARES, _KNOWN)
        self._loader = trainer.dataloader
        self._shares = {name: getattr(trainer.parallel_dims, name) for name in _SHARES.split()}
        self._saved: dict[str, Any] | None = None
        self.keeps_position_of = [self._loader]

    def state_dict(self) -> dict[str, Any]:
        """Return the position at a boundary. Until `begin` is called, this is the position that was restored."""
        if self._saved is not None:
            return self._saved
        ranks = torch.distributed.get_world_size()
        return {"ranks": ranks, "shares": self._shares, "loader": self._read()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Keep a saved position for `begin`."""
        self._saved = saved

    def check(self, saved: dict[str, Any]) -> None:
        """Raise AttachError if the ranks that saved a position shared the work differently."""
        check_ranks(saved["ranks"], torch.distributed.get_world_size())
        if saved["shares"] != self._shares:
            now = _listed(self._shares)
            then = _listed(saved["shares"])
            refuse(f"cannot resume: the ranks share the work as {now}, and did as {then}; start so again, or --fresh")

    def begin(self) -> _Begun:
        """Make the loader's first iterator, at the position that was restored. This draws random numbers.

        Returns:
            The object that has to replace the Trainer's loader.
        """
        if self._saved is not None:
            self._write(self._saved["loader"])
        begun = _Begun(self._loader)
        self._saved = None
        return begun

    def _plain(self) -> bool:
        """Whether the loader's state is that of torchdata's, which torchtitan pickles and does not change."""
        kind = type(self._loader)
        return (
            issubclass(kind, ParallelAwareDataloader)
            and kind.state_dict is ParallelAwareDataloader.state_dict
            and kind.load_state_dict is ParallelAwareDataloader.load_state_dict
        )

    def _read(self) -> Any:
        return StatefulDataLoader.state_dict(self._loader) if self._plain() else self._loader.state_dict()

    def _write(self, state: Any) -> None:
        if self._plain():
            StatefulDataLoader.load_state_dict(self._loader, state)
        else:
            self._loader.load_state_dict(state)


class _Begun:
    """Replaces a loader in the Trainer, and returns an iterator that is already made as the first one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._first = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        first = self._first
        self._first = None
        return iter(self._loader) if first is None else first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _listed(shares: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in shares.items())
