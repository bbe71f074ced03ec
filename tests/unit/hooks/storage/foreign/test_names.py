"""Which tensor of another library's checkpoint belongs to which name of a module."""

from __future__ import annotations

import pytest

from ftlaunch_hooks.storage.foreign.names import Place, best_match

NAMES = [["layers.0.weight"], ["layers.0.bias"], ["layers.1.weight"], ["layers.1.bias"]]
FLAT = [name for [name] in NAMES]


@pytest.mark.parametrize("prefix", ["", "module.", "state_dict.", "model.", "app.trainer.module."])
def test_what_libraries_put_in_front_does_not_matter(prefix: str) -> None:
    keys = [f"{prefix}{name}" for name in FLAT] + (["optimizer.state.layers.0.weight.step"] if prefix else [])
    fit = best_match(NAMES, keys, "model")
    assert (fit.whole, fit.prefix) == (True, prefix)
    assert fit.places == {name: Place(f"{prefix}{name}") for name in FLAT}


def test_what_the_module_has_not_is_told_and_what_the_checkpoint_has_not() -> None:
    more = best_match(NAMES, [*FLAT, "layers.2.weight"], "model")
    assert (more.whole, more.surplus, more.missing) == (False, ["layers.2.weight"], [])
    less = best_match(NAMES, FLAT[:-1], "model")
    assert (less.whole, less.surplus, less.missing) == (False, [], ["layers.1.bias"])


def test_of_tied_tensors_one_is_enough() -> None:
    tied = [["embedding.weight", "head.weight"], ["norm.weight"]]
    fit = best_match(tied, ["module.head.weight", "module.norm.weight"], "model")
    assert fit.whole
    assert fit.places["embedding.weight"] == fit.places["head.weight"] == Place("module.head.weight")
    assert best_match(tied, ["embedding.weight", "head.weight", "norm.weight"], "model").whole


def test_of_several_that_fit_the_one_with_the_modules_name_counts() -> None:
    keys = [f"{module}.{name}" for module in ("actor", "policy", "critic") for name in FLAT]
    assert best_match(NAMES, keys, "policy").prefix == "policy."
    assert best_match(NAMES, [f"models.{key}" for key in keys], "policy").prefix == "models.policy."


def test_stacked_layers_are_found_by_their_number() -> None:
    fit = best_match(NAMES, ["layers.weight", "layers.bias"], "model")
    assert fit.whole
    assert fit.places["layers.1.weight"] == Place("layers.weight", 1)


@pytest.mark.parametrize("prefixes", [("ema_net.", "net2."), ("a.model.", "b.model.")])
def test_what_fits_in_several_places_is_told(prefixes: tuple[str, ...]) -> None:
    """As a checkpoint with averaged weights beside the trained ones has it."""
    fit = best_match(NAMES, [f"{prefix}{name}" for prefix in prefixes for name in FLAT], "model")
    assert fit.whole
    assert sorted([fit.prefix, *fit.rivals]) == sorted(prefixes)
    assert best_match(NAMES, [f"{one}{name}" for one in ("model.", "ema.") for name in FLAT], "model").rivals == []
