"""Where a Trainer is in its data, and how many ranks share the work in which way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.components.dataloader import ParallelAwareDataloader

from ftlaunch_hooks.adapters.refusal import check_members, check_ranks, refuse

_KNOWN = "torchtitan 0.3"
_SHARES = "dp_replicate dp_shard cp tp pp ep"  # of ParallelDims: the sizes of its meshes


class DataPosition:
    """An object to attach: the position of a Trainer's loader."""

    def __init__(self, trainer: Any) -> None:
        """Raises AttachError where torchtitan has moved."""
        check_members(trainer.parallel_dims, _SHARES, _KNOWN)
        self._loader = trainer.dataloader
        self._shares = {name: getattr(trainer.parallel_dims, name) for name in _SHARES.split()}
        self._saved: dict[str, Any] | None = None
        self.keeps_position_of = [self._loader]

    def state_dict(self) -> dict[str, Any]:
        """At a boundary; before the loader has begun, what it is to begin with."""
        if self._saved is not None:
            return self._saved
        ranks = torch.distributed.get_world_size()
        return {"ranks": ranks, "shares": self._shares, "loader": self._read()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """begin() follows."""
        self._saved = saved

    def check(self, saved: dict[str, Any]) -> None:
        """Raises AttachError where ranks shared the work otherwise."""
        check_ranks(saved["ranks"], torch.distributed.get_world_size())
        if saved["shares"] != self._shares:
            now, then = (_listed(one) for one in (self._shares, saved["shares"]))
            refuse(f"cannot resume: the ranks share the work as {now}, and did as {then}; start so again, or --fresh")

    def begin(self) -> _Begun:
        """The loader's first iterator, where the loader was; making it draws random numbers."""
        if self._saved is not None:
            self._write(self._saved["loader"])
        self._saved, begun = None, _Begun(self._loader)
        return begun

    def _plain(self) -> bool:
        """Whether torchtitan's loader wraps what torchdata's saves into a pickle, and does no more."""
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
    """A loader whose first iterator is made already. It stands in the Trainer for the loader."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._first = loader, iter(loader)

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, None
        return iter(self._loader) if first is None else first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _listed(shares: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in shares.items())
