"""The generators and seeds from which a data loader draws its random numbers."""

from __future__ import annotations

from typing import Any

import torch

from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

PERSISTENT = (
    "workers of a DataLoader with persistent_workers=True keep random numbers from epoch to epoch, which are not saved:"
    " where they draw any, a run that has resumed after its first epoch is not exact"
)


class Draws:
    """The random numbers of one loader.

    Besides the global generators these are: generators of the loader and its samplers, seeds of its samplers, and
    generators that its data set or its collator holds.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._held = HeldGenerators(loader)

    def read(self) -> random_numbers.State:
        """Return the states of the global generators, the loader's own, and those that are held."""
        return {**random_numbers.read(self.generators()), "held": self._held.states()}

    def put_back(self, state: random_numbers.State) -> None:
        """Put all generators where `read` found them."""
        random_numbers.put_back(state, self.generators())
        self._held.put_back(state["held"])

    def own(self) -> dict[str, Any]:
        """Return the states and seeds without those of the global generators."""
        seeds = [sampler.initial_seed for sampler in self._samplers() if hasattr(sampler, "initial_seed")]
        own = [generator.get_state() for generator in self.generators()]
        return {"own": own, "seeds": seeds, "held": self._held.states()}

    def put_back_seeds(self, saved: dict[str, Any]) -> None:
        """Give the samplers the seeds in a result of `own`. Call this before the pass begins."""
        seeded = [sampler for sampler in self._samplers() if hasattr(sampler, "initial_seed")]
        for sampler, seed in zip(seeded, saved["seeds"], strict=False):
            sampler.initial_seed = seed

    def put_back_own(self, saved: dict[str, Any]) -> None:
        """Put the generators in a result of `own` back."""
        for generator, state in zip(self.generators(), saved["own"], strict=False):
            generator.set_state(state)
        self._held.put_back(saved["held"])

    def generators(self) -> list[torch.Generator]:
        """Return the generators that were given to the loader and its samplers, each once."""
        holders = [self._loader, *self._samplers()]
        names = ("generator", "synchronized_generator")
        values = [getattr(holder, name, None) for holder in holders for name in names]
        return list({id(value): value for value in values if isinstance(value, torch.Generator)}.values())

    def _samplers(self) -> list[Any]:
        """Return the samplers nested in each other, as frameworks wrap them; Lightning hides one in a data set."""
        found = []
        holder = self._loader
        for name in ("batch_sampler", "batch_sampler", "sampler", "sampler"):
            inner = getattr(holder, name, None)
            holder = holder if inner is None else inner
            found.append(holder)
        hidden = getattr(getattr(holder, "dataset", None), "_sampler", None)
        return found if hidden is None else [*found, hidden]
